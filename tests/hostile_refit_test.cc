// Hostile cases of a whole attempt, by their numbers (docs/TESTING.md "Hostile cases"): payloads
// and ends that are right by themselves and wrong where they come. After each one no byte of a
// receiver has changed, the error says what was wrong, and the next attempt, an overwrite, is
// exact.
#include <gtest/gtest.h>

#include <algorithm>

#include "codec/payload.h"
#include "tests/random_model.h"
#include "tests/random_words.h"
#include "tests/refit_world.h"
#include "tests/support/payload_forge.h"
#include "transport/end_object.h"
#include "transport/memory_store.h"
#include "transport/object_transport.h"

namespace dcr {
namespace {

// Where a payload's head says what it belongs to (docs/FORMAT.md "Payload").
constexpr std::size_t kAttemptOffset = 48;
constexpr std::size_t kOwnerOffset = 56;
constexpr std::size_t kOwnersOffset = 60;
constexpr std::size_t kNumberOffset = 64;

class HostileRefit : public testing::Test {
 public:
  static constexpr std::uint64_t kAttempt = 7;

  void SetUp() override {
    // The first model with several owners and a payload of each.
    for (std::uint64_t seed = 1; world == nullptr; ++seed) {
      ASSERT_LT(seed, 1000U);
      make(seed);
    }
    before = world->resident();
    begin();
  }

  // A sealed payload with another number in its head.
  template <typename T>
  static Bytes forge(const Bytes& payload, std::size_t offset, T value) {
    Bytes forged = payload;
    store_little(&forged[offset], value);
    reseal(&forged);
    return forged;
  }

  Receiver& receiver() { return world->receiver(0); }
  void begin(std::uint64_t attempt = kAttempt, bool overwrite = false) {
    AttemptHeader header;
    header.run = model->catalogue.schema();
    header.attempt = attempt;
    header.base_version = 0;
    header.target_version = 1;
    header.overwrite_only = overwrite;
    for (std::size_t rank = 0; rank < world->receivers(); ++rank) {
      const Status begun = world->receiver(rank).begin_attempt(header);
      ASSERT_TRUE(begun.ok()) << begun.message();
    }
  }
  std::string error_of(const Bytes& payload) {
    const Result<Ingested> ingested = receiver().ingest(payload);
    return ingested.ok() ? "none" : ingested.status().message();
  }
  Ingested become(const Bytes& payload) {
    const Result<Ingested> ingested = receiver().ingest(payload);
    EXPECT_TRUE(ingested.ok()) << ingested.status().message();
    return ingested.ok() ? *ingested : Ingested::kFull;
  }
  // What came has changed nothing, and the next attempt makes everything right.
  void expect_recovered() {
    EXPECT_TRUE(world->resident() == before);
    begin(kAttempt + 1, true);
    const RefitWorld::Payloads again = construct(kAttempt + 1, AttemptMode::kOverwrite);
    for (std::size_t rank = 0; rank < world->receivers(); ++rank) {
      Receiver& receiver = world->receiver(rank);
      for (std::uint32_t owner = 0; owner < again.size(); ++owner) {
        ASSERT_TRUE(receiver.end_of_owner(owner, again[owner].size()).ok());
        for (const Bytes& payload : again[owner]) ASSERT_TRUE(receiver.ingest(payload).ok());
      }
      ASSERT_TRUE(receiver.apply().ok());
      ASSERT_TRUE(receiver.finish().ok());
    }
    const Status compared = world->compare();
    EXPECT_TRUE(compared.ok()) << compared.message();
  }

  RefitWorld::Payloads construct(std::uint64_t attempt, AttemptMode mode) {
    Attempt made;
    made.run = model->catalogue.schema();
    made.attempt = attempt;
    made.candidate = 1;
    made.base_version = 0;
    made.target_version = 1;
    made.mode = mode;
    Result<RefitWorld::Payloads> built = world->prepare(made);
    EXPECT_TRUE(built.ok()) << built.status().message();
    return built.ok() ? std::move(built).value() : RefitWorld::Payloads();
  }

  std::unique_ptr<RandomModel> model;
  std::unique_ptr<RefitWorld> world;
  RefitWorld::Payloads payloads;
  std::vector<Bytes> before;

 private:
  void make(std::uint64_t seed) {
    Prng prng(seed);
    auto random = std::make_unique<RandomModel>(prng);
    RandomWords words(prng, *random);
    WorldOptions options;
    options.owners.bucket_bytes = 1;
    auto made = RefitWorld::make(random->catalogue, random->owners, random->receivers, options);
    if (!made.ok()) return;
    world = std::move(made).value();
    model = std::move(random);
    world->truth.tensors = words.tensors;
    if (world->start(0).ok()) {
      words.change();
      world->truth.tensors = words.tensors;
      EXPECT_TRUE(world->load_owners().ok());
      payloads = construct(kAttempt, AttemptMode::kMixed);
      const auto sent = [](const std::vector<Bytes>& of_owner) { return of_owner.size() >= 2; };
      if (payloads.size() == 2 && std::all_of(payloads.begin(), payloads.end(), sent)) return;
    }
    world.reset();
  }
};

TEST_F(HostileRefit, Case31TheSamePayloadTwice) {
  EXPECT_EQ(become(payloads[0][0]), Ingested::kQueued);
  EXPECT_EQ(become(payloads[0][0]), Ingested::kDuplicate);
  EXPECT_EQ(become(payloads[1][1]), Ingested::kQueued);
  EXPECT_EQ(become(payloads[1][1]), Ingested::kDuplicate);
  expect_recovered();
}

TEST_F(HostileRefit, Case32TheSameIdentifierWithOtherBytes) {
  EXPECT_EQ(become(payloads[0][1]), Ingested::kQueued);
  const std::string error =
      error_of(forge<std::uint64_t>(payloads[0][0], kNumberOffset, std::uint64_t{1}));
  EXPECT_TRUE(error.starts_with("payload 1 of owner 0 came twice with other bytes: digests "))
      << error;
  expect_recovered();
}

TEST_F(HostileRefit, Case33ANumberThatTheEndDoesNotCount) {
  ASSERT_TRUE(receiver().end_of_owner(0, 1).ok());
  EXPECT_EQ(error_of(payloads[0][1]), "payload 1 of owner 0 is past the 1 that it announced");
  expect_recovered();
}

TEST_F(HostileRefit, Case33APayloadBeforeAnEndThatDoesNotCountIt) {
  EXPECT_EQ(become(payloads[0][1]), Ingested::kQueued);
  EXPECT_EQ(receiver().end_of_owner(0, 1).message(),
            "payload 1 of owner 0 is past the 1 that it announced");
  expect_recovered();
}

TEST_F(HostileRefit, Case34PayloadsOfTheAttemptBeforeAndOfTheNext) {
  for (const std::uint64_t attempt : {kAttempt - 1, kAttempt + 1}) {
    EXPECT_EQ(become(forge(payloads[0][0], kAttemptOffset, attempt)), Ingested::kOtherAttempt);
  }
  EXPECT_EQ(receiver().finish().status().message(),
            "payload 0 of owner 0, or its end has not been applied");
  expect_recovered();
}

TEST_F(HostileRefit, Case35AnOwnerThatIsNotInTheAttempt) {
  const Bytes third = forge<std::uint32_t>(
      forge<std::uint32_t>(payloads[0][0], kOwnersOffset, std::uint32_t{3}), kOwnerOffset, 2);
  EXPECT_EQ(error_of(third), "payload 0 of owner 2 counts 3 owners; there are 2");
  begin();
  EXPECT_EQ(receiver().end_of_owner(2, 0).message(), "the end of owner 2 of 2");
  begin();
  // It cannot say so without contradicting itself either.
  EXPECT_NE(error_of(forge<std::uint32_t>(payloads[0][0], kOwnerOffset, std::uint32_t{2})), "none");
  expect_recovered();
}

// What an owner that takes another's place would send.
TEST_F(HostileRefit, Case35AnOwnerUnderTheNumberOfAnother) {
  const std::string error =
      error_of(forge<std::uint32_t>(payloads[0][0], kOwnerOffset, std::uint32_t{1}));
  EXPECT_NE(error.find("owner 1 sent an item outside of what it owns"), std::string::npos) << error;
  expect_recovered();
}

TEST_F(HostileRefit, Case38APayloadThatTheEndCountsAndThatIsNotThere) {
  for (std::uint32_t owner = 0; owner < 2; ++owner) {
    ASSERT_TRUE(receiver().end_of_owner(owner, payloads[owner].size()).ok());
    for (std::size_t number = 0; number < payloads[owner].size(); ++number) {
      if (owner == 0 && number == 0) continue;
      EXPECT_EQ(become(payloads[owner][number]), Ingested::kQueued);
    }
  }
  EXPECT_EQ(*receiver().apply(), 0U);  // nothing after it, for it is the first
  EXPECT_EQ(receiver().finish().status().message(), "payload 0 of owner 0 has not been applied");
  expect_recovered();
}

// Ends in the object store, as nodes read them.
class HostileEnd : public testing::Test {
 public:
  static constexpr std::uint64_t kAttempt = 7;

  Status receive(const Bytes& bytes, std::uint64_t attempt = kAttempt) {
    const ObjectKey key{{1}, attempt, 0, std::nullopt};
    EXPECT_TRUE(store.begin(key).ok());
    EXPECT_TRUE(store.put(key, bytes).ok());
    return node.receive_end(attempt, 0).status();
  }

  MemoryObjectStore store;
  ObjectNodeTransport node{store, {{1}, 2, Bytes(32, 9)}};
  AttemptEnd end{{{100, {1}}, {200, {2}}}};
};

// Its payloads stand one after the other, so none can come twice: only their count can be wrong.
TEST_F(HostileEnd, Case38AnEndWhoseEntriesAreMoreThanItCounts) {
  Bytes bytes = encode_end({{1}, kAttempt, 0, 2}, end, Bytes(32, 9));
  bytes.insert(bytes.end() - 16, bytes.begin() + 56, bytes.begin() + 80);
  const Status status = receive(bytes);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_TRUE(status.message().starts_with("the end of owner 0 in attempt 7 ")) << status.message();
}

TEST_F(HostileEnd, Case39AnEndOfAnotherAttempt) {
  EXPECT_EQ(receive(encode_end({{1}, kAttempt - 1, 0, 2}, end, Bytes(32, 9))).message(),
            "the end of owner 0 in attempt 7 belongs to owner 0 of 2 in attempt 6 of run " +
                digest_text({1}));
}

TEST_F(HostileEnd, Case39AnEndOfAnotherOwnerOrRun) {
  EXPECT_EQ(receive(encode_end({{1}, kAttempt, 1, 2}, end, Bytes(32, 9))).code(), Code::kMismatch);
  EXPECT_EQ(receive(encode_end({{2}, 8, 0, 2}, end, Bytes(32, 9)), 8).code(), Code::kMismatch);
}

// Who has no key of the run's makes no end.
TEST_F(HostileEnd, Case38AnEndThatWasSealedWithAnotherKey) {
  EXPECT_EQ(receive(encode_end({{1}, kAttempt, 0, 2}, end, Bytes(32, 8))).message(),
            "the end of owner 0 in attempt 7 is damaged, or was made with another key: its digest "
            "differs");
}

}  // namespace
}  // namespace dcr
