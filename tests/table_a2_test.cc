// The paper's Table A.2, condition by condition, from owners to receivers: what a loader may do is
// handled, with the encodings that its path allows, or the tensor is rejected by name and reason;
// and a loader that breaks its conditions at run time fails the attempt before it writes.
//
// Conditions of the loader alone: src/receiver/prewarm_test.cc, tests/loader_behaviours_test.cc.
#include <gtest/gtest.h>

#include "tests/refit_world.h"

namespace dcr {
namespace {

constexpr const char* kOwnerLayout =
    R"({"format": 0, "ranks": 3, "rules": [{"match": "w", "class": "fsdp"}]})";

std::string receivers_of(const std::string& rule) {
  return R"({"format": 0, "ranks": 2, "rules": [{"match": "w", )" + rule + "}]}";
}

// One tensor "w" on three owners and two receivers.
class TableA2 : public testing::Test {
 public:
  void start(const std::string& rule, Dtype dtype = Dtype::kBF16, Shape shape = {12, 4}) {
    world.reset();
    catalogue = test_catalogue({{"w", dtype, std::move(shape), 0}});
    Result<std::unique_ptr<RefitWorld>> made =
        RefitWorld::make(catalogue, kOwnerLayout, receivers_of(rule), options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    world = std::move(made).value();
    version = 1;
    attempts = 0;
    set_words(1);
    started = world->start(version);
  }

  // Numbers of either sign; every third one is another for another seed.
  void set_words(std::uint64_t seed) {
    const unsigned width = word_bytes(catalogue[0].dtype);
    const FloatBits bits = float_bits(catalogue[0].dtype);
    for (std::uint64_t i = 0; i < catalogue[0].words; ++i) {
      const std::uint64_t hash = mix(i, i % 3 == 0 ? seed : 0);
      const std::uint64_t sign = (hash >> 60 & 1) << (8 * width - 1);
      const std::uint64_t word = bits.width == 0 ? hash : ordinary_word(bits, hash) | sign;
      std::memcpy(&world->truth.tensors[0][static_cast<std::size_t>(i) * width], &word, width);
    }
    ASSERT_TRUE(world->load_owners().ok());
  }

  // "path need" of both receivers.
  std::string classes() {
    std::string text;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const TensorClass& one = world->receiver(rank).classes()[0];
      text += std::string(rank == 0 ? "" : ", ") + std::string(path_name(one.path)) + " " +
              std::string(need_name(one.need));
    }
    return text;
  }

  Status attempt(AttemptMode mode) {
    Attempt attempt;
    attempt.attempt = ++attempts;
    attempt.candidate = version;
    attempt.base_version = version;
    attempt.target_version = version + 1;
    attempt.mode = mode;
    attempt.mixed = EncodingChoice::kXor;
    DCR_ASSIGN(const RefitWorld::Payloads payloads, world->prepare(attempt));
    Status failure;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      Receiver& receiver = world->receiver(rank);
      const Status status = apply(receiver, attempt, payloads);
      if (failure.ok()) failure = status;
    }
    if (failure.ok()) return failure;
    world->group().drop_attempt();
    return failure;
  }

  static Status apply(Receiver& receiver, const Attempt& attempt,
                      const RefitWorld::Payloads& payloads) {
    DCR_TRY(receiver.begin_attempt({attempt.run, attempt.attempt, attempt.base_version,
                                    attempt.target_version, ApplyMode::kWrite}));
    for (std::uint32_t owner = 0; owner < payloads.size(); ++owner) {
      for (const Bytes& payload : payloads[owner]) DCR_TRY(receiver.ingest(payload).status());
      DCR_TRY(receiver.end_of_owner(owner, payloads[owner].size()));
    }
    DCR_TRY(receiver.apply().status());
    return receiver.finish().status();
  }

  // A refit to other words, exact. Returns the encodings that owners sent.
  std::string refit() {
    set_words(++version);
    --version;
    const Status applied = attempt(AttemptMode::kMixed);
    EXPECT_TRUE(applied.ok()) << applied.message();
    const Status same = world->compare();
    EXPECT_TRUE(same.ok()) << same.message();
    const Status committed = world->group().commit(++version);
    EXPECT_TRUE(committed.ok()) << committed.message();
    std::string text;
    for (const Encoding encoding : {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd}) {
      std::uint64_t items = 0;
      for (const PrepareResult& made : world->prepared) {
        items += made.pipeline.items_by_encoding[static_cast<unsigned>(encoding)];
      }
      if (items > 0) text += (text.empty() ? "" : " ") + std::string(encoding_name(encoding));
    }
    return text;
  }

  void expect_handled(const std::string& rule, const std::string& expected_classes,
                      const std::string& encodings, Dtype dtype = Dtype::kBF16,
                      Shape shape = {12, 4}) {
    SCOPED_TRACE(rule);
    start(rule, dtype, std::move(shape));
    ASSERT_TRUE(started.ok()) << started.message();
    EXPECT_EQ(classes(), expected_classes);
    EXPECT_EQ(refit(), encodings);
    EXPECT_EQ(refit(), encodings);
  }

  void expect_rejected(const std::string& behaviour, const std::string& why) {
    SCOPED_TRACE(behaviour);
    start(R"("class": "column", "behaviour": ")" + behaviour + "\"");
    EXPECT_EQ(started.code(), Code::kUnsupported);
    EXPECT_EQ(started.message(), why);
  }

  Catalogue catalogue;
  WorldOptions options;
  std::unique_ptr<RefitWorld> world;
  Status started;
  std::uint64_t version = 1;
  std::uint64_t attempts = 0;
};

// "Identity, views, slices, splits, fusions": stored bits are kept, and each byte is written once.
TEST_F(TableA2, Xor) {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kU8, Dtype::kI64, Dtype::kF8E4M3}) {
    for (const char* rule : {
             R"("class": "replicated")",
             R"("class": "column")",
             R"("class": "row")",
             R"("class": "row", "behaviour": "contiguous")",
             R"("class": "vocabulary", "multiple": 10)",
             R"("class": "replicated", "permute": [1, 0], "behaviour": "contiguous")",
             R"("class": "column", "behaviour": "twice")",
             R"("class": "column", "copies": [2], "behaviour": "claim_skipped")",
         }) {
      expect_handled(rule, "traced any, traced any", "xor", dtype);
    }
  }
}

// "Casts, pointwise transforms such as −exp(·)": overwrite alone is exact there.
TEST_F(TableA2, Overwrite) {
  const char* both = "scratch overwrite, scratch overwrite";
  expect_handled(R"("class": "column", "dtype": "F32")", both, "overwrite");
  expect_handled(R"("class": "row", "dtype": "F16", "behaviour": "contiguous")", both, "overwrite");
  expect_handled(R"("class": "column", "dtype": "F32", "behaviour": "negative_exp")", both,
                 "overwrite");
  expect_handled(R"("class": "column", "behaviour": "negative_exp")", both, "overwrite",
                 Dtype::kF32);
  expect_handled(R"("class": "column", "behaviour": "double")", both, "overwrite", Dtype::kF16);
}

// Where no placeholder tells active elements, the tensor comes whole.
TEST_F(TableA2, Dense) {
  const char* both = "dense dense, dense dense";
  expect_handled(R"("class": "column", "behaviour": "index_put")", both, "overwrite");
  expect_handled(R"("class": "column", "behaviour": "index_put")", both, "overwrite", Dtype::kU8);
  expect_handled(R"("class": "replicated", "behaviour": "fill")", both, "overwrite", Dtype::kF32,
                 {1});
  expect_handled(R"("class": "column", "dtype": "F32")", both, "overwrite", Dtype::kF8E4M3);
}

// A skip is what the trace shows, on each rank for itself; a report is no evidence.
TEST_F(TableA2, NativeSkip) {
  expect_handled(R"("class": "none")", "skip skip, skip skip", "");
  expect_handled(R"("class": "none", "behaviour": "claim_loaded")", "skip skip, skip skip", "");
  expect_handled(R"("class": "column", "behaviour": "zero_given")", "traced any, skip skip", "xor");
  start(R"("class": "column", "behaviour": "claim_loaded")");
  EXPECT_EQ(started.code(), Code::kMismatch);
  EXPECT_TRUE(started.message().starts_with("target \"w\": no load writes byte 0 of its range"))
      << started.message();
}

TEST_F(TableA2, Collective) {
  expect_handled(R"("class": "column", "behaviour": "collective")", "scratch any, scratch any",
                 "xor");
}

// "Residual conversion; forced overwrite", whatever the receivers could take.
TEST_F(TableA2, Residual) {
  options.full_conversion = true;
  expect_handled(R"("class": "column")", "traced any, traced any", "overwrite");
  expect_handled(R"("class": "column", "dtype": "F32")", "scratch overwrite, scratch overwrite",
                 "overwrite");
}

TEST_F(TableA2, RejectedInAdvance) {
  const std::string refused = "refused w on receiver 0: ";
  expect_rejected("normalise",
                  refused + "an element of a parameter depends on several of the tensor's");
  expect_rejected("nan_to_num", refused + "the loader erases placeholders");
  expect_rejected("clip", refused + "the loader erases placeholders");
  expect_rejected("replace", refused + "the loader gives a parameter another storage");
  expect_rejected("alternate", refused + "two loads of it wrote differently");
  expect_rejected("unannounced", refused +
                                     "the loader writes to target \"w\" past the hook; it no "
                                     "longer holds its weights: load it again");
  start(R"("class": "column", "behaviour": "swap_after_load")");
  EXPECT_EQ(started.message(),
            "tensor \"w\": 24 of 24 resident words are not what its loader makes of the base");
}

// A loader that does something else after prewarm.
class TableA2Late : public TableA2 {
 public:
  // From now on receiver 1 has the loader that receiver `rank` has under `rule`.
  void change_loader(const std::string& rule, std::uint32_t rank = 1) {
    Result<Layout> layout = parse_receiver_layout(receivers_of(rule));
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    const Result<ReceiverPlan> plan = ReceiverPlan::make(catalogue, std::move(layout).value());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    Result<ReceiverRank> made = plan->rank(catalogue, rank);
    ASSERT_TRUE(made.ok()) << made.status().message();
    WorldModel& model = world->model(1);
    other =
        std::make_unique<ReferenceLoader>(catalogue, std::move(made).value(), model.memory, rank);
    model.front.to = other.get();
  }

  // The old loader is back, and a retry gives the new version.
  void expect_recovery() {
    world->model(1).front.to = world->model(1).loader.get();
    const Status retried = attempt(AttemptMode::kOverwrite);
    EXPECT_TRUE(retried.ok()) << retried.message();
    const Status same = world->compare();
    EXPECT_TRUE(same.ok()) << same.message();
  }

  // Prewarms with `rule`; then the loader is that of `later`. The attempt must fail with `why` and
  // write nothing.
  void expect_break(const std::string& rule, const std::string& later, const std::string& why,
                    std::uint32_t rank = 1) {
    SCOPED_TRACE(rule + " then " + later);
    start(rule);
    ASSERT_TRUE(started.ok()) << started.message();
    change_loader(later, rank);
    const std::deque<Bytes> before = world->model(1).storages;
    set_words(2);
    EXPECT_EQ(attempt(AttemptMode::kMixed).message(), why);
    EXPECT_TRUE(world->model(1).storages == before);
    expect_recovery();
  }

  std::unique_ptr<ReferenceLoader> other;
  const std::string cast = R"("class": "column", "dtype": "F32")";
  const std::string whole = R"("class": "column", "behaviour": "index_put")";
  const std::string other_write =
      "payload 0 of owner 0: tensor \"w\": write 0 of the loader is another than the one that "
      "prewarm traced; prewarm again";
  const std::string no_write =
      "payload 0 of owner 0: tensor \"w\": the loader made 0 writes where prewarm traced 1; "
      "prewarm again";
};

TEST_F(TableA2Late, OtherWritesOnTheScratchPath) {
  for (const char* behaviour : {"contiguous", "index_put", "replace", "nan_to_num", "zero_given"}) {
    expect_break(cast, cast + R"(, "behaviour": ")" + behaviour + "\"", other_write);
  }
  expect_break(cast, cast + R"(, "behaviour": "skip")", no_write);
  expect_break(cast, cast, other_write, 0);  // the other half of the tensor
  // Another dtype is another layout.
  expect_break(cast, R"("class": "column")",
               "parameters lie elsewhere, or are others, than at prewarm; prewarm again");
}

TEST_F(TableA2Late, OtherWritesOfWholeTensors) {
  expect_break(whole, R"("class": "column")",
               "payload 0 of owner 2: tensor \"w\": write 0 of the loader is another than the one "
               "that prewarm traced; prewarm again");
  expect_break(whole, R"("class": "column", "behaviour": "skip")",
               "payload 0 of owner 2: tensor \"w\": the loader made 0 writes where prewarm traced "
               "1; prewarm again");
}

TEST_F(TableA2Late, ALoaderThatAlternates) {
  start(cast);
  ASSERT_TRUE(started.ok()) << started.message();
  change_loader(cast + R"(, "behaviour": "alternate")");
  set_words(2);
  // Three owners' payloads are three loads.
  EXPECT_EQ(attempt(AttemptMode::kMixed).message(),
            "payload 0 of owner 1: tensor \"w\": the loader made 0 writes where prewarm traced 1; "
            "prewarm again");
  expect_recovery();
}

// What is written past the hook has happened when it is missed; the attempt fails all the same, and
// a dense one mends it.
TEST_F(TableA2Late, WritesPastTheHook) {
  start(cast);
  ASSERT_TRUE(started.ok()) << started.message();
  change_loader(cast + R"(, "behaviour": "unannounced")");
  set_words(2);
  EXPECT_EQ(attempt(AttemptMode::kMixed).message(), no_write);
  world->model(1).front.to = world->model(1).loader.get();
  const Status mended = attempt(AttemptMode::kDense);
  EXPECT_TRUE(mended.ok()) << mended.message();
  EXPECT_TRUE(world->compare().ok());
}

// A traced tensor's loader is not called at all.
TEST_F(TableA2Late, TracedTensorsDoNotNeedTheLoader) {
  start(R"("class": "column")");
  ASSERT_TRUE(started.ok()) << started.message();
  for (const char* behaviour : {"skip", "nan_to_num", "unannounced", "alternate"}) {
    change_loader(R"("class": "column", "behaviour": ")" + std::string(behaviour) + "\"");
    EXPECT_EQ(refit(), "xor") << behaviour;
  }
}

// Storage that was replaced without a word is another layout, before an attempt and at its end.
TEST_F(TableA2Late, ReplacedStorage) {
  struct Moved final : Loader {
    std::vector<LoaderTarget> targets() override {
      std::vector<LoaderTarget> made = from->targets();
      if (calls++ >= after) made[0].view.storage = storage;
      return made;
    }
    Result<LoadReport> load(std::string_view name, const TensorView& value,
                            LoaderHook& hook) override {
      return from->load(name, value, hook);
    }
    Loader* from = nullptr;
    std::uint64_t storage = 0;
    int calls = 0, after = 0;
  };
  start(R"("class": "column")");
  ASSERT_TRUE(started.ok()) << started.message();
  WorldModel& model = world->model(1);
  Bytes elsewhere(model.storages[0].size() - 2 * WorldModel::kGuard);
  Moved moved;
  moved.from = model.loader.get();
  moved.storage = model.memory.add(elsewhere);
  model.front.to = &moved;
  const std::deque<Bytes> before = model.storages;
  set_words(2);
  EXPECT_EQ(attempt(AttemptMode::kMixed).message(),
            "parameters lie elsewhere, or are others, than at prewarm; prewarm again");
  EXPECT_TRUE(model.storages == before);
  moved.calls = 0;
  moved.after = 1;
  EXPECT_EQ(attempt(AttemptMode::kOverwrite).message(),
            "parameters moved during the attempt; prewarm again and refit dense");
  EXPECT_EQ(elsewhere, Bytes(elsewhere.size()));
  expect_recovery();
}

// Halves exchanged in place after prewarm: nothing that a refit looks at shows it, an audit does.
TEST_F(TableA2Late, SwappedAfterPrewarm) {
  start(R"("class": "column")");
  ASSERT_TRUE(started.ok()) << started.message();
  change_loader(R"("class": "column", "behaviour": "swap_after_load")");
  ASSERT_TRUE(other->process_after_loading().ok());
  const Status audited = world->receiver(1).audit(
      [this](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
        return world->truth.read(tensor, first, out);
      });
  EXPECT_EQ(audited.code(), Code::kMismatch);
  EXPECT_EQ(audited.tensor(), "w");
  EXPECT_EQ(world->compare().code(), Code::kMismatch);
  // A dense refit puts every element in its place.
  const Status mended = attempt(AttemptMode::kDense);
  EXPECT_TRUE(mended.ok()) << mended.message();
  EXPECT_TRUE(world->compare().ok());
}

}  // namespace
}  // namespace dcr
