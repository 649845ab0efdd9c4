// The embedded receiver over the core's: random refits through the public header alone equal a
// dense load. What a receiver does with each kind of loader and payload: src/receiver.
#include "dcr/receiver.h"

#include <gtest/gtest.h>

#include "api/test_receiver.h"
#include "receiver/test_refit.h"

namespace dcr {
namespace {

TEST(EmbeddedReceiverTest, RefitsEqualDenseLoads) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    TestRefit refit(seed);
    TestRank dense, rank;
    refit.add_loads(&dense);
    refit.add_loads(&rank);
    ASSERT_TRUE(load_dense(dense.loader, refit.catalogue, refit.new_words).ok());
    ASSERT_TRUE(load_dense(rank.loader, refit.catalogue, refit.old_words).ok());
    EmbeddedReceiverOptions options;
    options.owners = public_boxes(refit);
    options.threads = 1;
    auto made =
        EmbeddedReceiver::create(refit.catalogue.tensors(), rank.loader, rank.memory, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EmbeddedReceiver& receiver = **made;
    ASSERT_TRUE(receiver.prewarm().ok());
    ASSERT_TRUE(receiver.audit(read_from(refit.old_words, refit.catalogue)).ok());
    const AttemptHeader header{{1, 2, 3}, 7, 4, 5, ApplyMode::kWrite};
    ASSERT_TRUE(receiver.begin_attempt({header.run, 7, 4, 5}).ok());
    for (const SentPayload& payload : refit.send(header, receiver.classes(), false)) {
      const Result<Ingested> ingested = receiver.ingest(payload.bytes);
      ASSERT_TRUE(ingested.ok()) << ingested.status().message();
      EXPECT_EQ(*ingested, Ingested::kQueued);
    }
    EXPECT_EQ(receiver.finish().status().code(), Code::kMismatch);
    for (std::uint32_t owner = 0; owner < refit.owners(); ++owner) {
      ASSERT_TRUE(receiver.end_of_owner(owner, refit.payloads(owner)).ok());
    }
    ASSERT_TRUE(receiver.apply().ok());
    ASSERT_TRUE(receiver.finish().ok());
    EXPECT_EQ(rank.parameters(), dense.parameters());
    ASSERT_TRUE(receiver.audit(read_from(refit.new_words, refit.catalogue)).ok());
  }
}

// At every point where it is asked.
TEST(EmbeddedReceiverTest, AnInterruptionEndsTheCall) {
  TestRefit refit(3);
  TestRank dense, rank;
  refit.add_loads(&dense);
  refit.add_loads(&rank);
  ASSERT_TRUE(load_dense(dense.loader, refit.catalogue, refit.new_words).ok());
  ASSERT_TRUE(load_dense(rank.loader, refit.catalogue, refit.old_words).ok());
  const std::vector<Bytes> before = rank.parameters();
  int left = 0;
  EmbeddedReceiverOptions options;
  options.owners = public_boxes(refit);
  options.threads = 1;
  options.interruption = [&left] {
    return left-- > 0 ? Status() : Status(Code::kCancelled, "stop");
  };
  auto made =
      EmbeddedReceiver::create(refit.catalogue.tensors(), rank.loader, rank.memory, options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EmbeddedReceiver& receiver = **made;
  // How often it is asked by a call that nothing interrupts.
  const auto asked_by = [&](const auto& call) {
    for (int asked = 0;; ++asked) {
      left = asked;
      const Status status = call();
      if (status.ok()) return asked;
      EXPECT_EQ(rank.parameters(), before);
      if (status.message() != "stop") {
        ADD_FAILURE() << status.message();
        return -1;
      }
    }
  };
  const int tensors = static_cast<int>(refit.catalogue.size());
  EXPECT_GT(asked_by([&] { return receiver.prewarm(); }), tensors);
  EXPECT_EQ(asked_by([&] { return receiver.audit(read_from(refit.old_words, refit.catalogue)); }),
            tensors);
  left = 1'000'000;
  EXPECT_EQ(trace_geometry(refit.catalogue.tensors(), rank.loader, rank.memory, options)
                .status()
                .message(),
            "");
  EXPECT_EQ(left, 1'000'000 - tensors);

  AttemptHeader header{{1, 2, 3}, 7, 4, 5, ApplyMode::kWrite};
  for (int asked = 0;; ++asked) {
    ReceiverAttempt attempt{header.run, header.attempt, 4, 5};
    attempt.overwrite_only = asked > 0;
    ASSERT_TRUE(receiver.begin_attempt(attempt).ok());
    for (const SentPayload& payload : refit.send(header, receiver.classes(), asked > 0)) {
      const Result<Ingested> ingested = receiver.ingest(payload.bytes);
      ASSERT_TRUE(ingested.ok()) << ingested.status().message();
    }
    for (std::uint32_t owner = 0; owner < refit.owners(); ++owner) {
      ASSERT_TRUE(receiver.end_of_owner(owner, refit.payloads(owner)).ok());
    }
    left = asked;
    const Result<std::uint64_t> applied = receiver.apply();
    if (applied.ok()) {
      EXPECT_GT(static_cast<std::uint64_t>(asked), *applied);  // once a payload, and at the end
      EXPECT_GT(*applied, 1U);
      break;
    }
    ASSERT_EQ(applied.status().message(), "stop");
    EXPECT_EQ(receiver.finish().status().message(), "stop");
    ++header.attempt;
  }
  ASSERT_TRUE(receiver.finish().ok());
  EXPECT_EQ(rank.parameters(), dense.parameters());
}

// Whatever ends a prewarm, the next one finds who writes past the hook to another's parameter.
TEST(EmbeddedReceiverTest, AnInterruptedPrewarmHidesNothing) {
  const std::vector<CanonicalTensor> tensors = {{"a", Dtype::kBF16, {16}},
                                                {"b", Dtype::kBF16, {16}}};
  int asked = 0;
  for (bool ended = false; !ended; ++asked) {
    TestRank rank;
    TestLoader& loader = rank.loader;
    const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
    const TensorView q = loader.add_target("q", Dtype::kBF16, {16});
    loader.loads["a"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      DCR_TRY(loader.copy(hook, p, value));
      return LoadReport::kLoaded;
    };
    loader.loads["b"] = [&, p, q](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      DCR_TRY(loader.copy(hook, q, value));
      DCR_TRY(loader.write_past_hook(p, value));
      return LoadReport::kLoaded;
    };
    int left = asked;
    EmbeddedReceiverOptions options;
    options.interruption = [&left] {
      return left-- > 0 ? Status() : Status(Code::kCancelled, "stop");
    };
    auto made = EmbeddedReceiver::create(tensors, loader, rank.memory, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Status first = (*made)->prewarm();
    ASSERT_TRUE(first.ok() || first.message() == "stop") << first.message();
    ended = first.ok();
    left = 1'000'000;
    const Status again = (*made)->prewarm();
    ASSERT_EQ(again.message(), "");
    EXPECT_EQ((*made)->classes()[1].reason,
              "the loader writes to target \"p\" past the hook; it no longer holds its weights: "
              "load it again")
        << asked;
  }
  EXPECT_EQ(asked, 2 + 2 + 2 + 1);  // storages, tensors, storages
}

TEST(EmbeddedReceiverTest, GeometrySaysWhatPrewarmSays) {
  std::uint64_t placed = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    TestRefit refit(seed);
    TestRank rank;
    refit.add_loads(&rank);
    ASSERT_TRUE(load_dense(rank.loader, refit.catalogue, refit.old_words).ok());
    auto receiver =
        EmbeddedReceiver::create(refit.catalogue.tensors(), rank.loader, rank.memory, {});
    ASSERT_TRUE(receiver.ok());
    ASSERT_TRUE((*receiver)->prewarm().ok());
    const auto geometry = trace_geometry(refit.catalogue.tensors(), rank.loader, rank.memory, {});
    ASSERT_TRUE(geometry.ok()) << geometry.status().message();
    for (std::uint32_t tensor = 0; tensor < refit.catalogue.size(); ++tensor) {
      const TensorClass& one = (*receiver)->classes()[tensor];
      const TensorClass& found = (*geometry)[tensor];
      if (found.path == TensorPath::kRefused) {
        EXPECT_EQ(found.reason, "only values show what its loader copies");
        continue;
      }
      EXPECT_EQ(found.path, one.path) << one.reason;
      EXPECT_EQ(found.need, one.need);
      EXPECT_EQ(found.bytes, one.bytes);
      placed += one.path == TensorPath::kTraced ? 1u : 0u;
    }
  }
  EXPECT_GT(placed, 50U);
}

TEST(EmbeddedReceiverTest, RefusesWhatDoesNotFit) {
  const std::vector<CanonicalTensor> tensors = {{"w", Dtype::kBF16, {4, 6}}};
  TestRank rank;
  const auto code = [&](std::vector<CanonicalTensor> of, std::vector<CanonicalBox> boxes) {
    EmbeddedReceiverOptions options;
    options.owners = {std::move(boxes)};
    return EmbeddedReceiver::create(std::move(of), rank.loader, rank.memory, options)
        .status()
        .code();
  };
  EXPECT_EQ(code(tensors, {{0, 0, {24}, {1}}}), Code::kOk);
  EXPECT_EQ(code(tensors, {{0, 0, {24}, {}}}), Code::kInvalidArgument);
  EXPECT_EQ(code(tensors, {{0, 1, {24}, {1}}}), Code::kInvalidArgument);
  EXPECT_EQ(code(tensors, {{1, 0, {24}, {1}}}), Code::kInvalidArgument);
  EXPECT_EQ(code({tensors[0], tensors[0]}, {}), Code::kCorrupt);
}

TEST(UnevenTensorsTest, SharesAreChecked) {
  using Dimensions = std::vector<PlacedBox::Dimension>;
  const auto uneven = [](std::uint64_t offset, const Dimensions& dimensions) {
    RankShare share;
    share.path = TensorPath::kTraced;
    share.boxes = {{0, 2, offset, 0, dimensions}};
    const std::vector<std::vector<RankShare>> ranks = {{share, share}};
    return uneven_tensors({{"b", Dtype::kBF16, {2, 3}, 0}, {"a", Dtype::kBF16, {6}, 0}}, ranks);
  };
  EXPECT_TRUE(uneven(0, {{6, 1, 1}})->empty());
  EXPECT_TRUE(uneven(0, {{3, 1, 1}, {2, 3, 1}, {1000, 0, 0}})->empty());
  const auto some = uneven(1, {{5, 1, 1}});
  ASSERT_TRUE(some.ok());
  ASSERT_EQ(some->size(), 2U);
  EXPECT_EQ((*some)[1].tensor, 1U);
  EXPECT_EQ((*some)[1].reason, "element 0 lies on no rank");
  EXPECT_TRUE((*some)[1].missing);
  const auto none_taken = uneven(99, {{0, 1, 1}});
  EXPECT_EQ((*none_taken)[0].reason, "element 0 lies on no rank");
  EXPECT_FALSE((*none_taken)[0].missing);
  struct Case {
    std::uint64_t offset;
    Dimensions dimensions;
    Code code;
  };
  for (const Case& one :
       {Case{1, {{6, 1, 1}}, Code::kCorrupt}, Case{6, {}, Code::kCorrupt},
        Case{0, {{2, ~std::uint64_t{0}, 1}}, Code::kCorrupt},
        Case{0, {{std::uint64_t{1} << 40, 0, 1}, {std::uint64_t{1} << 40, 0, 1}}, Code::kTooLarge},
        Case{0, Dimensions(100), Code::kTooLarge}}) {
    const auto refused = uneven(one.offset, one.dimensions);
    EXPECT_EQ(refused.status().code(), one.code) << refused.status().message();
    EXPECT_TRUE(refused.status().message().starts_with("rank 0: tensor \"a\""))
        << refused.status().message();
  }
  const std::vector<std::vector<RankShare>> none = {{}};
  EXPECT_EQ(uneven_tensors({{"a", Dtype::kBF16, {6}, 0}}, none).status().message(),
            "rank 0 has shares of 0 of 1 tensors");
}

TEST(HostTargetsTest, StoragesComeAndGo) {
  const std::unique_ptr<HostTargets> memory = HostTargets::create(100);
  std::vector<std::uint8_t> bytes(8, 3);
  const std::uint64_t storage = memory->add(bytes);
  ASSERT_TRUE(memory->find(storage).ok());
  EXPECT_EQ(memory->find(storage)->data(), bytes.data());
  const Result<std::uint64_t> scratch = memory->allocate(100);
  ASSERT_TRUE(scratch.ok());
  EXPECT_EQ(memory->allocate(1).status().code(), Code::kTooLarge);
  EXPECT_EQ(memory->remove(*scratch).code(), Code::kNotFound);
  EXPECT_EQ(memory->release(storage).code(), Code::kNotFound);
  EXPECT_TRUE(memory->remove(storage).ok());
  EXPECT_EQ(memory->find(storage).status().code(), Code::kNotFound);
  EXPECT_NE(memory->add(bytes), storage);
}

TEST(SizedTargetsTest, HasSizesOnly) {
  const std::unique_ptr<SizedTargets> memory = SizedTargets::create();
  const std::uint64_t storage = memory->add(std::uint64_t{1} << 40);
  EXPECT_EQ(*memory->storage_bytes(storage), std::uint64_t{1} << 40);
  std::vector<std::uint8_t> bytes(8);
  EXPECT_EQ(memory->read({storage, Dtype::kU8, 0, {8}, {1}}, bytes).code(), Code::kUnsupported);
  EXPECT_EQ(memory->write({storage, Dtype::kU8, 0, {8}, {1}}, bytes).code(), Code::kUnsupported);
  EXPECT_TRUE(memory->release(storage).ok());
  EXPECT_EQ(memory->storage_bytes(storage).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace dcr
