#include "base/envelope.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

const Envelope kEnvelope = {{1, 2, 3}, {"owner-0", 7}, {"coordinator.a", 9}};
const Bytes kBody = {10, 20, 30, 40, 50};

// The message changed, under a digest that fits.
Bytes forge(const std::function<void(Bytes*)>& change) {
  Bytes bytes = encode_envelope(kEnvelope, kBody);
  bytes.resize(bytes.size() - sizeof(Digest));
  change(&bytes);
  const Digest digest = blake2b(bytes);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  return bytes;
}

void expect_refused(ByteSpan bytes, Code code, const std::string& message) {
  const Status status = decode_envelope(bytes).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_EQ(status.message(), message);
}

void expect_comes_back(const Envelope& envelope, const Bytes& body) {
  const Bytes bytes = encode_envelope(envelope, body);
  const Result<Enveloped> message = decode_envelope(bytes);
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->envelope, envelope);
  EXPECT_TRUE(std::equal(message->body.begin(), message->body.end(), body.begin(), body.end()));
}

Endpoint random_endpoint(Prng* prng) {
  Endpoint endpoint;
  const std::string letters = "abcXYZ019._-";
  for (std::uint64_t i = 0, count = 1 + prng->below(kEndpointNameBytesMax); i < count; ++i) {
    endpoint.name += letters[prng->below(letters.size())];
  }
  endpoint.incarnation = 1 + prng->below(kCounterMax);
  return endpoint;
}

TEST(Envelope, ComesBackAsItWas) {
  expect_comes_back(kEnvelope, kBody);
  expect_comes_back({{}, {"a", 1}, {"a", kCounterMax}}, {});
  const std::string longest(kEndpointNameBytesMax, 'x');
  const Envelope large = {{0xff}, {longest, kCounterMax}, {longest, 1}};
  expect_comes_back(large, Bytes(kControlBodyBytesMax, 0xab));
  EXPECT_EQ(encode_envelope(large, Bytes(kControlBodyBytesMax)).size(), kControlMessageBytesMax);
  for (std::uint64_t seed = 0; seed < campaign_cases(5'000); ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    Envelope envelope;
    for (std::uint8_t& byte : envelope.run) byte = static_cast<std::uint8_t>(prng.next());
    envelope.sender = random_endpoint(&prng);
    envelope.addressee = random_endpoint(&prng);
    Bytes body(prng.below(300));
    for (std::uint8_t& byte : body) byte = static_cast<std::uint8_t>(prng.next());
    expect_comes_back(envelope, body);
  }
}

TEST(Envelope, IsWhatItsHeaderSays) {
  const Bytes bytes = encode_envelope(kEnvelope, kBody);
  ASSERT_EQ(bytes.size(), 56 + 7 + 13 + 5 + 16);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "DCRMESSG");
  EXPECT_EQ(load_little<std::uint32_t>(&bytes[8]), kEnvelopeVersion);
  EXPECT_EQ(load_little<std::uint32_t>(&bytes[12]), 5U);
  EXPECT_TRUE(std::equal(kEnvelope.run.begin(), kEnvelope.run.end(), &bytes[16]));
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[32]), 7U);
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[40]), 9U);
  EXPECT_EQ(bytes[48], 7);
  EXPECT_EQ(bytes[49], 13);
  EXPECT_EQ(std::string(bytes.begin() + 56, bytes.begin() + 76), "owner-0coordinator.a");
  EXPECT_EQ(Bytes(bytes.begin() + 76, bytes.begin() + 81), kBody);
  const Digest digest = blake2b(ByteSpan(bytes).first(81));
  EXPECT_TRUE(std::equal(digest.begin(), digest.end(), &bytes[81]));
}

// All that a byte of each part may become, and what is said of it.
TEST(Envelope, EveryChangeOfEveryByteIsRefusedByName) {
  const Bytes whole = encode_envelope(kEnvelope, kBody);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      if (whole[at] == value) continue;
      Bytes damaged = whole;
      damaged[at] = static_cast<std::uint8_t>(value);
      if (at < 8) {
        expect_refused(damaged, Code::kCorrupt, "a control message is none: its magic differs");
      } else if (at < 12) {
        expect_refused(damaged, Code::kUnsupported,
                       "a control message has version " +
                           std::to_string(load_little<std::uint32_t>(&damaged[8])) +
                           "; this build knows version 0");
      } else {
        expect_refused(damaged, Code::kCorrupt, "a control message is damaged: its digest differs");
      }
    }
  }
}

TEST(Envelope, EveryOtherLengthIsRefused) {
  const Bytes whole = encode_envelope(kEnvelope, kBody);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_refused(ByteSpan(whole).first(size), Code::kCorrupt,
                   size < 72 ? "a control message is cut short"
                             : "a control message is damaged: its digest differs");
  }
  Bytes longer = whole;
  longer.push_back(0);
  expect_refused(longer, Code::kCorrupt, "a control message is damaged: its digest differs");
  expect_refused(Bytes(kControlMessageBytesMax + 1), Code::kTooLarge,
                 "a control message of 16777417 bytes is above the limit of 16777416");
}

TEST(Envelope, ForgedOnesAreRefusedByTheField) {
  const auto set = [](std::size_t at, std::uint8_t value) {
    return forge([=](Bytes* bytes) { (*bytes)[at] = value; });
  };
  const std::string says = "a control message says that it has names of ";
  const std::string held = ", which is not what it holds";
  expect_refused(set(12, 6), Code::kCorrupt, says + "7 and 13 bytes and a body of 6" + held);
  expect_refused(set(15, 0xff), Code::kCorrupt,
                 says + "7 and 13 bytes and a body of 4278190085" + held);
  expect_refused(set(48, 8), Code::kCorrupt, says + "8 and 13 bytes and a body of 5" + held);
  expect_refused(set(49, 0), Code::kCorrupt, says + "7 and 0 bytes and a body of 5" + held);
  expect_refused(forge([](Bytes* bytes) { bytes->push_back(0); }), Code::kCorrupt,
                 says + "7 and 13 bytes and a body of 5" + held);
  for (std::size_t at = 50; at < 56; ++at) {
    expect_refused(set(at, 1), Code::kCorrupt,
                   "a control message has reserved bytes that are not 0");
  }
  const std::string nobody = ", which no endpoint has";
  expect_refused(set(32, 0), Code::kCorrupt,
                 "a control message has a bad sender: owner-0 in incarnation 0" + nobody);
  expect_refused(
      set(39, 0x80), Code::kCorrupt,
      "a control message has a bad sender: owner-0 in incarnation 9223372036854775815" + nobody);
  const Bytes to_whichever = set(40, 0);
  const auto read = decode_envelope(to_whichever);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->envelope.addressee.incarnation, 0);
  const std::string letters = ": names are letters, digits, '.', '_' and '-'";
  expect_refused(set(56, '/'), Code::kCorrupt,
                 "a control message has a bad sender: a name has the byte 47" + letters);
  expect_refused(set(75, '\n'), Code::kCorrupt,
                 "a control message has a bad addressee: a name has the byte 10" + letters);
}

TEST(Envelope, NamesOfNoBytesOrTooManyAreRefused) {
  const auto with_names = [](std::size_t sender, std::size_t addressee) {
    return forge([=](Bytes* bytes) {
      bytes->erase(bytes->begin() + 56, bytes->begin() + 76);
      bytes->insert(bytes->begin() + 56, sender + addressee, 'a');
      (*bytes)[48] = static_cast<std::uint8_t>(sender);
      (*bytes)[49] = static_cast<std::uint8_t>(addressee);
    });
  };
  expect_refused(with_names(0, 1), Code::kCorrupt,
                 "a control message has a bad sender: an endpoint has an empty name");
  expect_refused(with_names(1, 65), Code::kCorrupt,
                 "a control message has a bad addressee: a name of 65 bytes is longer than the "
                 "limit of 64");
  EXPECT_TRUE(decode_envelope(with_names(1, 64)).ok());
}

TEST(Envelope, ABodyAboveTheLimitIsRefused) {
  const Bytes bytes = forge([](Bytes* message) {
    message->insert(message->end(), kControlBodyBytesMax + 1 - kBody.size(), 0);
    store_little<std::uint32_t>(&(*message)[12], kControlBodyBytesMax + 1);
  });
  expect_refused(bytes, Code::kTooLarge,
                 "a control message has a body of 16777217 bytes, above the limit of 16777216");
}

// Whatever is accepted has one spelling.
TEST(Envelope, AcceptedForgeriesAreWhatWouldBeWritten) {
  for (std::uint64_t seed = 0; seed < campaign_cases(50'000); ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    const Bytes forged = forge([&prng](Bytes* bytes) {
      for (std::uint64_t i = 0, count = 1 + prng.below(3); i < count; ++i) {
        (*bytes)[12 + prng.below(bytes->size() - 12)] = static_cast<std::uint8_t>(prng.next());
      }
    });
    const Result<Enveloped> message = decode_envelope(forged);
    if (!message.ok()) continue;
    EXPECT_EQ(encode_envelope(message->envelope, message->body), forged);
  }
}

}  // namespace
}  // namespace dcr
