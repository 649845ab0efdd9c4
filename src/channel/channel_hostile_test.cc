// What strangers, and allowed peers with another program, can do to a channel: nothing but be
// refused, and be told of once.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <string>
#include <vector>

#include "base/prng.h"
#include "channel/channel.h"
#include "channel/sockets.h"
#include "channel/test_channel.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

// A socket of another program.
class RawSocket {
 public:
  explicit RawSocket(int type) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    set(ZMQ_LINGER, 0);
    set(ZMQ_IMMEDIATE, 1);
    set(ZMQ_SNDTIMEO, 20);
  }
  ~RawSocket() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  void set(int option, int value) {
    ASSERT_EQ(zmq_setsockopt(socket_, option, &value, sizeof(value)), 0);
  }
  void set(int option, const std::string& value) {
    ASSERT_EQ(zmq_setsockopt(socket_, option, value.data(), value.size()), 0);
  }
  void set_keys(const KeyPair& own, const PublicKey& server) {
    set(ZMQ_CURVE_SERVERKEY, text(server));
    set(ZMQ_CURVE_PUBLICKEY, text(own.public_key));
    set(ZMQ_CURVE_SECRETKEY, text(own.secret.bytes()));
  }
  void connect(const std::string& address) { ASSERT_EQ(zmq_connect(socket_, address.c_str()), 0); }
  bool send(ByteSpan bytes, bool more = false) {
    return zmq_send(socket_, bytes.data(), bytes.size(), more ? ZMQ_SNDMORE : 0) != -1;
  }
  // Waits until it is let in.
  bool send_in_time(ByteSpan bytes, bool more = false) {
    for (int i = 0; i < 500; ++i) {
      if (send(bytes, more)) return true;
    }
    return false;
  }

 private:
  static std::string text(const std::array<std::uint8_t, kKeyBytes>& bytes) {
    return {bytes.begin(), bytes.end()};
  }
  void* context_;
  void* socket_;
};

class TcpConnection {
 public:
  explicit TcpConnection(const std::string& address) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port =
        htons(static_cast<std::uint16_t>(std::stoul(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    open_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~TcpConnection() { ::close(fd_); }
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  bool open() const { return open_; }
  bool send(ByteSpan bytes) {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Until the other side closes.
  void drain() {
    std::uint8_t buffer[4096];
    while (::recv(fd_, buffer, sizeof(buffer), 0) > 0) {
    }
  }

 private:
  int fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  bool open_ = false;
};

// The greeting of ZMTP 3.1 with a mechanism.
Bytes greeting(std::string_view mechanism) {
  Bytes bytes = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1};
  bytes.insert(bytes.end(), mechanism.begin(), mechanism.end());
  bytes.resize(64);
  return bytes;
}

class ChannelHostileTest : public ChannelTest {
 protected:
  void SetUp() override {
    ChannelTest::SetUp();
    b_ = open("b", &reports_);
    a_ = open("a");
  }

  // That the channel serves as before.
  void expect_alive() {
    const Envelope envelope = from_to("a", "b", ++sent_);
    ASSERT_TRUE(a_->send(b_->address(), envelope, Bytes{9}).ok());
    expect_next(*b_, envelope, {9});
  }
  void expect_only(const std::string& report) {
    expect_alive();
    EXPECT_EQ(reports_.text(), report);
    EXPECT_FALSE(b_->receive(0));
  }
  // A peer that is allowed in, with a program of its own.
  void let_in(RawSocket* socket, const std::string& name) {
    socket->set_keys(keys_.at(name), keys_.at("b").public_key);
    socket->connect(b_->address());
  }

  Reports reports_;
  std::unique_ptr<Channel> a_, b_;
  std::uint64_t sent_ = 0;
};

TEST_F(ChannelHostileTest, AnUnknownKeyIsRefusedAndToldOfOnce) {
  const KeyPair stranger = make_key_pair();
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t before = b_->counts().refused_connections;
    RawSocket socket(ZMQ_PUSH);
    socket.set_keys(stranger, keys_.at("b").public_key);
    socket.connect(b_->address());
    eventually([&] { return b_->counts().refused_connections > before; });
    EXPECT_FALSE(socket.send(encode_envelope(from_to("a", "b"), {})));
  }
  expect_only("refused the key " + key_text(stranger.public_key) +
              " from 127.0.0.1: it is not on the allow-list\n");
  EXPECT_EQ(b_->counts().refused_connections, 20U);
}

TEST_F(ChannelHostileTest, WhoIsOnAnotherListOnlyIsRefused) {
  Reports reports;
  KeyPair keys = make_key_pair();
  ChannelOptions given = options("b", &reports);
  given.name = "d";
  given.keys = copy(keys);
  given.peers = std::make_shared<AllowList>(peers_);
  const auto d = open(std::move(given));
  ASSERT_TRUE(d->send(b_->address(), from_to("d", "b"), {}).ok());
  eventually([&] { return b_->counts().refused_connections == 1; });
  EXPECT_EQ(d->counts().sent, 0U);
  expect_only("refused the key " + key_text(keys.public_key) +
              " from 127.0.0.1: it is not on the allow-list\n");
}

TEST_F(ChannelHostileTest, NoKeyOrAPasswordIsRefusedAndToldOfOnce) {
  for (int i = 0; i < 5; ++i) {
    RawSocket null(ZMQ_PUSH), plain(ZMQ_PUSH);
    plain.set(ZMQ_PLAIN_USERNAME, std::string("a"));
    plain.set(ZMQ_PLAIN_PASSWORD, std::string("a"));
    const std::uint64_t before = b_->counts().refused_connections;
    null.connect(b_->address());
    plain.connect(b_->address());
    eventually([&] { return b_->counts().refused_connections >= before + 2; });
    EXPECT_FALSE(null.send(encode_envelope(from_to("a", "b"), {})));
    EXPECT_FALSE(plain.send(encode_envelope(from_to("a", "b"), {})));
  }
  expect_alive();
  // Either side may be the first to see that the other's mechanism is not its own.
  const std::string refused = "refused a connection without a CURVE key at " + b_->address();
  const std::string ended = "a connection ended before its handshake at " + b_->address();
  EXPECT_EQ(reports_.count(refused) + reports_.count(ended), reports_.all().size());
  EXPECT_LE(reports_.count(refused), 1U);
  EXPECT_LE(reports_.count(ended), 1U);
  EXPECT_FALSE(b_->receive(0));
}

TEST_F(ChannelHostileTest, WhoExpectsAnotherKeyHereSendsNothing) {
  RawSocket socket(ZMQ_PUSH);
  socket.set_keys(keys_.at("a"), keys_.at("c").public_key);
  socket.connect(b_->address());
  eventually([&] { return b_->counts().refused_connections >= 1; });
  EXPECT_FALSE(socket.send(encode_envelope(from_to("a", "b"), {})));
  expect_alive();
  for (const Status& problem : reports_.all()) {
    EXPECT_TRUE(
        problem.message().starts_with("refused a connection whose handshake broke the "
                                      "protocol"))
        << problem.message();
  }
}

TEST_F(ChannelHostileTest, NobodySpeaksForAnother) {
  RawSocket socket(ZMQ_PUSH);
  let_in(&socket, "c");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(socket.send_in_time(encode_envelope(from_to("a", "b"), {})));
  }
  eventually([&] { return b_->counts().refused_messages == 3; });
  expect_only("dropped what c sent: a control message says that it is from a\n");
  // Under its own name it is heard.
  ASSERT_TRUE(socket.send_in_time(encode_envelope(from_to("c", "b"), {})));
  expect_next(*b_, from_to("c", "b"), {});
}

TEST_F(ChannelHostileTest, AMessageForAnotherIsDropped) {
  RawSocket socket(ZMQ_PUSH);
  let_in(&socket, "c");
  ASSERT_TRUE(socket.send_in_time(encode_envelope(from_to("c", "a"), {})));
  eventually([&] { return b_->counts().refused_messages == 1; });
  expect_only("dropped what c sent: a control message is for a, not for b\n");
}

TEST_F(ChannelHostileTest, DamagedMessagesAreDroppedAndToldOfOnce) {
  RawSocket socket(ZMQ_PUSH);
  let_in(&socket, "c");
  const Bytes whole = encode_envelope(from_to("c", "b"), Bytes{1, 2, 3});
  std::uint64_t sent = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Bytes damaged = whole;
    damaged[at] ^= 1;
    ASSERT_TRUE(socket.send_in_time(damaged));
    ASSERT_TRUE(socket.send_in_time(ByteSpan(whole).first(at)));
    sent += 2;
  }
  eventually([&] { return b_->counts().refused_messages == sent; });
  expect_only(
      "dropped what c sent: a control message is none: its magic differs\n"
      "dropped what c sent: a control message has version 1; this build knows version 0\n");
}

TEST_F(ChannelHostileTest, RandomMessagesInRandomFrames) {
  RawSocket socket(ZMQ_PUSH);
  let_in(&socket, "c");
  const std::uint64_t cases = campaign_cases(2'000);
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    Prng prng(seed);
    for (std::uint64_t left = 1 + prng.below(6); left > 0; --left) {
      Bytes frame(prng.below(200));
      for (std::uint8_t& byte : frame) byte = static_cast<std::uint8_t>(prng.next());
      ASSERT_TRUE(socket.send_in_time(frame, left > 1)) << seed;
    }
  }
  eventually([&] { return b_->counts().refused_messages == cases; });
  EXPECT_EQ(reports_.count("dropped what c sent: "), reports_.all().size());
  EXPECT_LE(reports_.all().size(), 2U);
  expect_alive();
}

TEST_F(ChannelHostileTest, ALargerMessageIsDropped) {
  RawSocket socket(ZMQ_PUSH);
  let_in(&socket, "c");
  const Bytes frame(kFrameBytesMax);
  const std::uint64_t frames = kControlMessageBytesMax / kFrameBytesMax + 1;
  for (std::uint64_t i = 0; i < frames; ++i) {
    ASSERT_TRUE(socket.send_in_time(frame, i + 1 < frames));
  }
  eventually([&] { return b_->counts().refused_messages == 1; });
  expect_only("dropped what c sent: a control message is above the limit of 16777416 bytes\n");
}

TEST_F(ChannelHostileTest, ALargerFrameEndsTheConnection) {
  RawSocket socket(ZMQ_PUSH);
  let_in(&socket, "c");
  ASSERT_TRUE(socket.send_in_time(Bytes(kFrameBytesMax + kFrameOverheadBytesMax)));
  expect_alive();
  ASSERT_TRUE(socket.send_in_time(encode_envelope(from_to("c", "b"), {})));  // reconnected
  expect_next(*b_, from_to("c", "b"), {});
  EXPECT_EQ(b_->counts().refused_messages, 0U);
}

TEST_F(ChannelHostileTest, GarbageOnTheWireIsRefusedAndToldOfOnce) {
  b_ = open("b", &reports_);  // without the connection of a
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Prng prng(seed);
    TcpConnection connection(b_->address());
    ASSERT_TRUE(connection.open());
    Bytes bytes(1 + prng.below(500));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(prng.next());
    bytes[0] &= 0x7f;  // no greeting of any version
    connection.send(bytes);
    connection.drain();
  }
  eventually([&] { return b_->counts().refused_connections == 20; });
  expect_only("a connection ended before its handshake at " + b_->address() + "\n");
}

// Greetings, then whatever: random bytes, frames that announce 2^63 bytes, old versions.
TEST_F(ChannelHostileTest, BrokenHandshakesAreRefused) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    TcpConnection connection(b_->address());
    ASSERT_TRUE(connection.open());
    Bytes bytes = greeting(seed % 4 == 0 ? "NULL" : "CURVE");
    if (seed % 4 == 1) bytes[10] = static_cast<std::uint8_t>(prng.below(3));  // version 0 to 2
    if (seed % 4 == 2) {
      bytes.insert(bytes.end(), {0x06, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff});
    }
    for (std::uint64_t i = 0, count = 8 + prng.below(400); i < count; ++i) {
      bytes.push_back(static_cast<std::uint8_t>(prng.next()));
    }
    connection.send(bytes);
    if (seed % 4 != 3) connection.drain();
  }
  expect_alive();
  EXPECT_LE(reports_.all().size(), 8U) << reports_.text();
}

TEST_F(ChannelHostileTest, ThoseWhoSayNothingHoldNobodyUp) {
  std::vector<std::unique_ptr<TcpConnection>> idle;
  for (std::size_t i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<TcpConnection>(b_->address()));
    ASSERT_TRUE(idle.back()->open());
    if (i % 2 == 0) idle.back()->send(ByteSpan(greeting("CURVE")).first(1 + i / 2));
  }
  expect_alive();
  for (const auto& connection : idle) connection->drain();  // ended by the other side
  expect_alive();
}

TEST_F(ChannelHostileTest, ThousandsOfConnections) {
  for (int i = 0; i < 3'000; ++i) {
    TcpConnection connection(b_->address());
    ASSERT_TRUE(connection.open()) << i;
  }
  expect_alive();
  for (int i = 0; i < 50; ++i) {
    RawSocket socket(ZMQ_PUSH);
    socket.set_keys(make_key_pair(), keys_.at("b").public_key);
    const std::uint64_t before = b_->counts().refused_connections;
    socket.connect(b_->address());
    eventually([&] { return b_->counts().refused_connections > before; });
  }
  expect_alive();
  EXPECT_EQ(reports_.count("refused the key "), 50U);
  EXPECT_LE(reports_.all().size(), 53U);
}

// The whole program is on the list, and sends without end.
TEST_F(ChannelHostileTest, AFloodLeavesRoomForOthers) {
  RawSocket socket(ZMQ_PUSH);
  let_in(&socket, "c");
  const Bytes flood = encode_envelope(from_to("c", "b"), Bytes(50'000));
  for (int i = 0; i < 2'000; ++i) ASSERT_TRUE(socket.send_in_time(flood));
  eventually([&] { return b_->counts().received >= 1'900; });
  ASSERT_TRUE(a_->send(b_->address(), from_to("a", "b", 1), Bytes{1}).ok());
  eventually([&] { return b_->counts().received >= 2'001; });
  // Peers take turns: of what was first, one at most comes before.
  std::optional<ReceivedMessage> first = b_->receive(0), second = b_->receive(0);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(first->envelope.sender.name == "a" || second->envelope.sender.name == "a");
  std::uint64_t left = 1;
  while (b_->receive(0)) ++left;
  EXPECT_LE(left * 50'000, 33'600'000U);
  EXPECT_EQ(reports_.text(),
            "messages are dropped: they come faster than they are taken, the last from c\n");
}

// A listener that is not who the allow-list says gets nothing.
TEST_F(ChannelHostileTest, AnImpostorAtAPeersAddressGetsNothing) {
  ChannelOptions impostor = options("c");
  impostor.name = "b";
  AllowList only_a;
  ASSERT_TRUE(only_a.add("a", keys_.at("a").public_key).ok());
  impostor.peers = std::make_shared<AllowList>(only_a);
  const auto other = open(std::move(impostor));  // has c's key, not b's
  ASSERT_TRUE(a_->send(other->address(), from_to("a", "b", 5), Bytes{1}).ok());
  eventually([&] { return other->counts().refused_connections >= 1; });
  EXPECT_FALSE(other->receive(0));
  EXPECT_EQ(a_->counts().sent, 0U);
  // The message still waits and goes to the right one.
  ASSERT_TRUE(a_->send(b_->address(), from_to("a", "b", 6), Bytes{1}).ok());
  expect_next(*b_, from_to("a", "b", 5), {1});
  expect_next(*b_, from_to("a", "b", 6), {1});
}

}  // namespace
}  // namespace dcr
