#include "protocol/messages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "protocol/message_text.h"
#include "protocol/test_messages.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

// Bytes that were not written as they are must be refused by name, or mean just what they say.
void expect_sound(ByteSpan bytes) {
  const Result<Message> read = decode_message(bytes);
  if (read.ok()) {
    EXPECT_EQ(encode_message(*read), Bytes(bytes.begin(), bytes.end()));
    return;
  }
  const Code code = read.status().code();
  EXPECT_TRUE(code == Code::kCorrupt || code == Code::kUnsupported || code == Code::kTooLarge);
  EXPECT_FALSE(read.status().message().empty());
}

void expect_refused(ByteSpan bytes, Code code, const std::string& message) {
  const Status status = decode_message(bytes).status();
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.message(), message);
}

// The fuzzer begins with them (fuzz/message_fuzz.cc): one that is refused leads it nowhere.
TEST(Messages, EveryKindIsAmongTheFuzzersExamples) {
  for (const Message& message : sample_messages()) {
    const std::string path =
        std::string(DCR_SOURCE_DIR "/fuzz/corpus/message/valid_") + message_name(message);
    std::ifstream file(path, std::ios::binary);
    const Bytes example{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ASSERT_FALSE(example.empty()) << path;
    EXPECT_EQ(example.front(), 0U) << path;
    const Result<Message> read = decode_message(ByteSpan(example).subspan(1));
    ASSERT_TRUE(read.ok()) << path << ": " << read.status().message();
    EXPECT_EQ(read->index(), message.index()) << path;
  }
}

TEST(Messages, EveryKindComesBackWithEveryField) {
  const std::vector<Message> samples = sample_messages();
  ASSERT_EQ(samples.size(), std::variant_size_v<Message>);
  for (std::size_t kind = 0; kind < samples.size(); ++kind) {
    ASSERT_EQ(samples[kind].index(), kind);
    const Bytes bytes = encode_message(samples[kind]);
    EXPECT_EQ(bytes[1], kind);
    const Result<Message> read = decode_message(bytes);
    ASSERT_TRUE(read.ok()) << message_name(samples[kind]) << ": " << read.status().message();
    EXPECT_EQ(*read, samples[kind]) << message_name(samples[kind]);
  }
}

TEST(Messages, RandomOnesComeBack) {
  const std::vector<Message> samples = sample_messages();
  for (std::uint64_t seed = 0; seed < campaign_cases(4'000); ++seed) {
    Prng prng(seed);
    for (const Message& like : samples) {
      const Message message = random_message(like, &prng);
      const Result<Message> read = decode_message(encode_message(message));
      ASSERT_TRUE(read.ok()) << message_name(like) << ", seed " << seed << ": "
                             << read.status().message();
      ASSERT_EQ(*read, message) << message_name(like) << ", seed " << seed;
    }
  }
}

TEST(Messages, EveryTruncationIsRefused) {
  for (const Message& message : sample_messages()) {
    const Bytes bytes = encode_message(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decode_message(ByteSpan(bytes).first(size)).ok())
          << message_name(message) << " cut to " << size;
    }
    Bytes longer = bytes;
    longer.push_back(0);
    expect_refused(longer, Code::kCorrupt,
                   std::string(message_name(message)) + ": end has a value that cannot be");
  }
}

TEST(Messages, EverySingleByteMayBeAnything) {
  for (const Message& message : sample_messages()) {
    const Bytes whole = encode_message(message);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      Bytes bytes = whole;
      for (unsigned value = 0; value < 256; ++value) {
        bytes[at] = static_cast<std::uint8_t>(value);
        expect_sound(bytes);
      }
    }
  }
}

TEST(Messages, RandomDamageIsSeenOrMeansWhatItSays) {
  const std::vector<Message> samples = sample_messages();
  for (std::uint64_t seed = 0; seed < campaign_cases(60'000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    Bytes bytes = encode_message(random_message(samples[seed % samples.size()], &prng));
    for (std::uint64_t change = 1 + prng.below(3); change > 0; --change) {
      const std::size_t at = prng.below(bytes.size());
      if (prng.below(3) == 0) {
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                     static_cast<std::uint8_t>(prng.next()));
      } else {
        bytes[at] = static_cast<std::uint8_t>(prng.next());
      }
    }
    expect_sound(bytes);
  }
}

TEST(Messages, ErrorsNameMessageAndField) {
  expect_refused({}, Code::kCorrupt, "a message is cut short");
  expect_refused(Bytes{1, 0}, Code::kUnsupported,
                 "a message has format 1; this build knows format 0");
  expect_refused(Bytes{0, 40}, Code::kCorrupt, "a message has kind 40, which is none of format 0");
  expect_refused(Bytes(kMessageBytesMax + 1), Code::kTooLarge,
                 "a message of 16777217 bytes is larger than the limit of 16777216");
  expect_refused(Bytes{0, 5}, Code::kCorrupt, "close_gate: attempt is cut short or badly spelt");
  expect_refused(Bytes{0, 5, 0x81, 0}, Code::kCorrupt,
                 "close_gate: attempt is cut short or badly spelt");
  expect_refused(Bytes{0, 5, 0}, Code::kCorrupt, "close_gate: attempt has a value that cannot be");
}

// No list is believed beyond what is there or its limit.
TEST(Messages, LimitsComeBeforeMemory) {
  const auto with_varint = [](Bytes bytes, std::uint64_t value) {
    ByteWriter(&bytes).varint(value);
    return bytes;
  };
  const Bytes digests = {0, 27};
  expect_refused(with_varint(digests, kMessageDigestsMax + 1), Code::kTooLarge,
                 "base_digests: digests exceeds its limit");
  expect_refused(with_varint(digests, kMessageDigestsMax), Code::kCorrupt,
                 "base_digests: digest is cut short or badly spelt");
  Sample sample = std::get<Sample>(sample_messages()[39]);
  sample.payload.resize(static_cast<std::size_t>(kSampleBytesMax));
  EXPECT_EQ(std::get<Sample>(*decode_message(encode_message(sample))), sample);
  sample.payload.push_back(0);
  expect_refused(encode_message(sample), Code::kTooLarge, "sample: payload exceeds its limit");
  Prepare prepare = std::get<Prepare>(sample_messages()[4]);
  prepare.needs.assign(kMessageTensorsMax, Need::kAny);
  EXPECT_EQ(std::get<Prepare>(*decode_message(encode_message(prepare))), prepare);
  prepare.needs.push_back(Need::kSkip);
  expect_refused(encode_message(prepare), Code::kTooLarge, "prepare: needs exceeds its limit");
  prepare.needs.assign(kMessageTensorsMax + 1, Need::kAny);
  expect_refused(encode_message(prepare), Code::kTooLarge, "prepare: needs exceeds its limit");
}

TEST(Messages, PrepareBindsEachOnce) {
  const auto refused = [](auto change, const char* message) {
    Prepare prepare = std::get<Prepare>(sample_messages()[4]);
    change(&prepare);
    expect_refused(encode_message(prepare), Code::kCorrupt, message);
  };
  constexpr const char* kEndpoints = "prepare: endpoints has a value that cannot be";
  refused([](Prepare* prepare) { prepare->owners.clear(); }, kEndpoints);
  refused([](Prepare* prepare) { prepare->receivers.clear(); }, kEndpoints);
  refused([](Prepare* prepare) { prepare->owners[1].endpoint.name = "owner-1"; }, kEndpoints);
  refused([](Prepare* prepare) { prepare->nodes[1].name = "node-0"; }, kEndpoints);
  refused([](Prepare* prepare) { std::swap(prepare->receivers[0], prepare->receivers[1]); },
          kEndpoints);
  refused([](Prepare* prepare) { prepare->receivers[0].node = "node-2"; }, kEndpoints);
  refused([](Prepare* prepare) { prepare->owners[0].candidate.incarnation = 4; },
          "prepare: candidate's incarnation has a value that cannot be");
  refused(
      [](Prepare* prepare) {
        prepare->base = {7, 300};
      },
      "prepare: base has a value that cannot be");
  refused(
      [](Prepare* prepare) {
        prepare->base = {10, 9};
      },
      "prepare: version has a value that cannot be");
}

TEST(Messages, TextIsCleanedAndCut) {
  const Status status(Code::kIo, "one\ntwo\x1b[2J", "t\x01");
  const Failure failure = failure_of(status);
  EXPECT_EQ(failure, (Failure{Code::kIo, "t ", "one two [2J"}));
  EXPECT_EQ(status_of(failure).message(), "one two [2J");
  EXPECT_EQ(cleaned_text("aé", 2), "a");
  EXPECT_EQ(cleaned_text("a\xff", 9), "a?");
  EXPECT_EQ(cleaned_text("a\xc3", 9), "a?");
  for (std::size_t size = 0; size < 12; ++size) {
    const std::string cut = cleaned_text("é→\U0001f980é", size);
    EXPECT_TRUE(clean_text(cut)) << size;
    EXPECT_LE(cut.size(), size);
    EXPECT_GE(cut.size() + 3, std::min<std::size_t>(size, 11));
  }
  StatusReply reply;
  reply.detail = std::string(kMessageTextBytesMax + 5, 'x');
  const Message read = *decode_message(encode_message(reply));
  EXPECT_EQ(std::get<StatusReply>(read).detail.size(), kMessageTextBytesMax);
  const Bytes control = {0, 31, 0, 0, 0, 1, '\n', 0};
  expect_refused(control, Code::kCorrupt, "gate_state: reason has a value that cannot be");
}

TEST(Details, ComeBackAndAreBounded) {
  Digest digest{};
  digest.fill(3);
  const OwnerDetails owner{1, 4, digest};
  EXPECT_EQ(*decode_owner_details(encode_owner_details(owner)), owner);
  ReceiverDetails receiver{"node-1", digest, digest, {}};
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    receiver.needs.push_back(static_cast<Need>(i / 3 % 4));
  }
  const Bytes bytes = encode_receiver_details(receiver);
  EXPECT_LE(bytes.size(), kNeedsBytesMax);
  EXPECT_EQ(*decode_receiver_details(bytes), receiver);

  const auto owner_error = [](const Bytes& bad) { return decode_owner_details(bad).status(); };
  EXPECT_EQ(owner_error({}).message(), "an owner's details are missing");
  EXPECT_EQ(owner_error({1}).message(),
            "an owner's details have format 1; this build knows format 0");
  EXPECT_EQ(owner_error(encode_owner_details({4, 4, digest})).message(),
            "an owner's details: rank has a value that cannot be");
  EXPECT_EQ(decode_receiver_details(Bytes(kNeedsBytesMax + 1)).status().code(), Code::kTooLarge);
  for (std::size_t size = 0; size < 40; ++size) {
    EXPECT_FALSE(decode_receiver_details(ByteSpan(bytes).first(size)).ok()) << size;
  }
}

TEST(Details, DamageIsSeenOrMeansWhatItSays) {
  Digest digest{};
  const Bytes owner = encode_owner_details({1, 4, digest});
  const Bytes receiver =
      encode_receiver_details({"node-1", digest, digest, {Need::kAny, Need::kDense, Need::kDense}});
  for (std::size_t at = 0; at < receiver.size(); ++at) {
    for (unsigned value = 0; value < 256; ++value) {
      Bytes bytes = receiver;
      bytes[at] = static_cast<std::uint8_t>(value);
      const Result<ReceiverDetails> read = decode_receiver_details(bytes);
      if (read.ok()) {
        EXPECT_EQ(encode_receiver_details(*read), bytes);
      }
      if (at >= owner.size()) continue;
      bytes = owner;
      bytes[at] = static_cast<std::uint8_t>(value);
      const Result<OwnerDetails> owner_read = decode_owner_details(bytes);
      if (owner_read.ok()) {
        EXPECT_EQ(encode_owner_details(*owner_read), bytes);
      }
    }
  }
}

}  // namespace
}  // namespace dcr
