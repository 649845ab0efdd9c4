// Hostile case 42 (docs/TESTING.md): control messages that are replayed, reordered, or come from a
// key that is not a coordinator's. The receiver here is a mailbox over a real channel.
#include "run/mailbox.h"

#include <gtest/gtest.h>

#include "channel/test_channel.h"
#include "runtime/event_queue.h"

namespace dcr {
namespace {

class MailboxTest : public ChannelTest {
 protected:
  // "a" is a coordinator, "b" a node; "c" is the receiver that listens.
  void SetUp() override {
    ChannelTest::SetUp();
    a_ = open("a");
    b_ = open("b");
    const auto peers = list({{"a", {a_->address(), {Role::kCoordinator}}},
                             {"b", {b_->address(), {Role::kNode}}},
                             {"c", {"", {Role::kReceiver}}}});
    auto channel = open("c");
    address_ = channel->address();
    mailbox_ = std::make_unique<Mailbox>(RunId{7}, "c", peers, std::move(channel), inboxes_,
                                         [this](const std::string& text) { refused_.push(text); });
    mailbox_->set_incarnation(1);
    mailbox_->start([this](const Endpoint& from, const Message& message) {
      delivered_.push(from.name + ": " + message_name(message));
    });
  }

  std::shared_ptr<const RunPeers> list(std::map<std::string, RunPeer> all) const {
    auto peers = std::make_shared<ListedPeers>();
    for (auto& [name, peer] : all) {
      peer.key = keys_.at(name).public_key;
      EXPECT_TRUE(peers->add(name, peer).ok());
    }
    return peers;
  }
  void send(Channel& channel, const Envelope& envelope, const Message& message) {
    ASSERT_TRUE(channel.send(address_, envelope, encode_message(message)).ok());
  }
  std::string next() { return delivered_.pop(kLostMs).value_or("nothing"); }

  std::unique_ptr<Channel> a_, b_;
  std::string address_;
  EventQueue<std::string> delivered_, refused_;
  Inboxes inboxes_;
  std::unique_ptr<Mailbox> mailbox_;
};

TEST_F(MailboxTest, Case42AKeyThatIsNotACoordinatorsCannotSpeakAsOne) {
  const OperatorCommand command{1, OperatorCommand::Kind::kRefit, "step1", "step1", false, {}};
  for (int i = 0; i < 3; ++i) {
    for (const Message& message :
         {Message(OpenApply{1}), Message(Flush{1}), Message(StopAndWait{1}), Message(command)}) {
      send(*b_, from_to("b", "c"), message);
    }
  }
  send(*b_, from_to("b", "c"), OwnerEnd{{false, 1}, 0, 0});
  EXPECT_EQ(next(), "b: owner_end");
  for (const char* name : {"open_apply", "flush", "stop_and_wait", "operator_command"}) {
    EXPECT_EQ(refused_.pop(kLostMs),
              std::string("dropped what b sent: ") + name + " is not its to say");
  }
  EXPECT_EQ(refused_.pop(0), std::nullopt);  // told of once
  send(*a_, from_to("a", "c"), OpenApply{1});
  EXPECT_EQ(next(), "a: open_apply");
}

// Of another run, for another life, or said by nobody's life; what is left is for the fences.
TEST_F(MailboxTest, Case42MessagesOfAnotherRunOrLifeGoNoFurther) {
  Envelope other = from_to("a", "c");
  other.run = {8};
  send(*a_, other, OpenApply{1});
  other = from_to("a", "c");
  other.addressee.incarnation = 2;
  send(*a_, other, Flush{1});
  send(*a_, from_to("a", "c"), StopAndWait{1});
  EXPECT_EQ(next(), "a: stop_and_wait");
  mailbox_->set_incarnation(2);
  send(*a_, from_to("a", "c"), CloseGate{1});  // for the life before
  send(*a_, other, Flush{1});
  EXPECT_EQ(next(), "a: flush");
}

// No address here leads anywhere.
TEST_F(MailboxTest, EndpointsOfOneProcessNeedNoSockets) {
  const auto peers = list({{"b", {"", {Role::kNode}}}, {"c", {"", {Role::kReceiver}}}});
  Mailbox node(RunId{7}, "b", peers, open("b"), inboxes_, [](const std::string&) {});
  const auto tell = [&node](std::uint64_t incarnation, const Message& message) {
    node.send("c", incarnation, message);
  };
  tell(1, OwnerEnd{{false, 1}, 0, 0});  // said by nobody's life
  node.set_incarnation(3);
  tell(2, OwnerEnd{{false, 1}, 0, 0});  // for another life
  tell(1, Flush{1});                    // not a node's to say
  tell(1, OwnerEnd{{false, 1}, 0, 0});
  EXPECT_EQ(next(), "b: owner_end");
  EXPECT_EQ(refused_.pop(0), "dropped what b sent: flush is not its to say");
  tell(0, StreamFailed{{false, 1}, {Code::kIo, "", "x"}});  // for whichever life
  EXPECT_EQ(next(), "b: stream_failed");
  // Who is gone gets nothing, and the sender doesn't notice.
  mailbox_.reset();
  tell(1, OwnerEnd{{false, 1}, 0, 0});
  EXPECT_EQ(inboxes_.find("c"), nullptr);
  EXPECT_EQ(delivered_.pop(0), std::nullopt);
}

}  // namespace
}  // namespace dcr
