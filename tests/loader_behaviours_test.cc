// Receivers over the reference loader: every behaviour of serving runtimes' loaders (docs/LAYOUT.md
// "Behaviours"; paper Table A.2) is handled bit by bit, or refused by name and reason.
#include <gtest/gtest.h>

#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "receiver/receiver.h"
#include "receiver/test_refit.h"

namespace dcr {
namespace {

class Words final : public CanonicalReader {
 public:
  explicit Words(Bytes words) : bytes(std::move(words)) {}
  Status read(std::uint32_t /*tensor*/, std::uint64_t first, MutableByteSpan out) override {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(first * width), out.size(),
                out.begin());
    return {};
  }
  Bytes bytes;
  unsigned width = 2;
};

// Rank 1 of two, which holds a half of the one tensor "w".
struct Rank {
  HostMemory memory{1 << 20};
  std::unique_ptr<ReferenceLoader> loader;

  Rank(const Catalogue& catalogue, const std::string& rule) {
    Result<Layout> layout = parse_receiver_layout(
        R"({"format": 0, "ranks": 2, "rules": [{"match": "w", )" + rule + "}]}");
    EXPECT_TRUE(layout.ok()) << layout.status().message();
    const Result<ReceiverPlan> plan = ReceiverPlan::make(catalogue, std::move(layout).value());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    const ReceiverRank rank = plan->rank(catalogue, 1).value();
    for (const std::uint64_t bytes : rank.storage_bytes) memory.add(bytes);
    loader = std::make_unique<ReferenceLoader>(catalogue, rank, memory, 1);
  }

  Bytes parameters() {
    Bytes all;
    for (const LoaderTarget& target : loader->targets()) {
      const MutableByteSpan bytes = memory.bytes(target.view.storage);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
};

struct Case {
  std::string rule;
  Dtype dtype = Dtype::kBF16;
  Shape shape = {8, 4};
};

// Words without NaN, as real weights are, of small magnitude.
Bytes make_words(const CanonicalTensor& tensor, std::uint64_t seed) {
  Prng random(seed);
  const unsigned width = word_bytes(tensor.dtype);
  Bytes words(tensor.words * width);
  for (std::uint64_t i = 0; i < tensor.words; ++i) {
    const FloatBits bits = float_bits(tensor.dtype);
    set_word(&words, width, i,
             bits.width == 0 ? random.next() : ordinary_word(bits, random.next()));
  }
  return words;
}

// "path need: reason" of prewarm, or its error; and, unless refused, that a refit of a few changes
// equals a dense load.
std::string try_behaviour(const Case& test) {
  const Catalogue catalogue = make_catalogue({{"w", test.dtype, test.shape}});
  Rank rank(catalogue, test.rule);
  Rank dense(catalogue, test.rule);
  const unsigned width = word_bytes(test.dtype);
  Words before(make_words(catalogue[0], 1));
  Words after = before;
  const Bytes others = make_words(catalogue[0], 2);
  for (std::uint64_t i = 1; i < catalogue[0].words; i += 3) {
    set_word(&after.bytes, width, i, get_word(others, width, i));
  }
  before.width = after.width = width;
  EXPECT_TRUE(load_dense(catalogue, before, rank.memory, *rank.loader).ok());
  EXPECT_TRUE(load_dense(catalogue, after, dense.memory, *dense.loader).ok());
  ReceiverOptions options;
  options.owners = {{{0, ItemBox::range(0, catalogue[0].words)}}};
  const std::unique_ptr<Executor> executor = make_executor(1);
  const auto made = Receiver::create(catalogue, *rank.loader, rank.memory, *executor, options);
  EXPECT_TRUE(made.ok());
  Receiver& receiver = **made;
  const Status prewarmed = receiver.prewarm();
  if (!prewarmed.ok()) return prewarmed.message();
  const TensorClass& one = receiver.classes()[0];
  std::string text = std::string(path_name(one.path)) + " " + std::string(need_name(one.need));
  if (!one.reason.empty()) text += ": " + one.reason;
  if (one.path == TensorPath::kRefused) return text;
  const Status audited =
      receiver.audit([&](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
        return before.read(tensor, first, out);
      });
  EXPECT_TRUE(audited.ok()) << audited.message();
  EXPECT_TRUE(receiver.begin_attempt({}).ok());
  PayloadHeader header;
  header.schema = catalogue.schema();
  const ItemBox box = ItemBox::range(0, catalogue[0].words);
  EncodedItem item = whole_item(0, width, box, after.bytes);
  ItemEncoder encoder;
  if (one.need == Need::kAny || one.need == Need::kOverwrite) {
    EXPECT_TRUE(encode_case(
        &encoder, {width, box, before.bytes, after.bytes}, 0,
        one.need == Need::kAny ? EncodingChoice::kXor : EncodingChoice::kOverwrite, &item));
  }
  EXPECT_TRUE(receiver.ingest(seal_payload(header, {item}).bytes).ok());
  EXPECT_TRUE(receiver.end_of_owner(0, 1).ok());
  const auto applied = receiver.apply();
  EXPECT_TRUE(applied.ok()) << applied.status().message();
  EXPECT_TRUE(receiver.finish().ok());
  EXPECT_EQ(rank.parameters(), dense.parameters()) << test.rule;
  return text;
}

std::string column(const std::string& behaviour, Dtype dtype = Dtype::kBF16) {
  return try_behaviour({R"("class": "column", "behaviour": ")" + behaviour + "\"", dtype});
}

TEST(LoaderBehaviours, PlainCopiesAreTraced) {
  for (const char* behaviour : {"copy", "contiguous", "twice", "claim_skipped"}) {
    EXPECT_EQ(column(behaviour), "traced any") << behaviour;
    for (const Dtype dtype : {Dtype::kU8, Dtype::kF32, Dtype::kI64}) {
      EXPECT_EQ(column(behaviour, dtype), "traced any") << behaviour << dtype_name(dtype);
    }
  }
  EXPECT_EQ(try_behaviour({R"("class": "row", "behaviour": "contiguous")"}), "traced any");
  EXPECT_EQ(try_behaviour({R"("class": "vocabulary", "multiple": 12)"}), "traced any");
  EXPECT_EQ(try_behaviour({R"("class": "replicated", "permute": [1, 0],
                            "behaviour": "contiguous")"}),
            "traced any");
}

TEST(LoaderBehaviours, CastsAndComputations) {
  const char* computed = "scratch overwrite: the loader computes or casts its values";
  EXPECT_EQ(try_behaviour({R"("class": "column", "dtype": "F32")"}), computed);
  EXPECT_EQ(try_behaviour({R"("class": "column", "dtype": "F32", "behaviour": "negative_exp")"}),
            computed);
  EXPECT_EQ(column("negative_exp"), computed);
  EXPECT_EQ(column("negative_exp", Dtype::kF32), computed);
  EXPECT_EQ(column("double"), computed);
  EXPECT_EQ(column("double", Dtype::kF32), computed);
}

TEST(LoaderBehaviours, WholeTensors) {
  EXPECT_EQ(column("index_put"), "dense dense: the loader writes it by no plain copy");
  EXPECT_EQ(try_behaviour({R"("class": "replicated", "behaviour": "fill")", Dtype::kBF16, {1}}),
            "dense dense: the loader writes it by no plain copy");
}

TEST(LoaderBehaviours, NothingToWrite) {
  EXPECT_EQ(column("zero_given"), "skip skip: the loader writes the same whatever it holds");
  EXPECT_EQ(try_behaviour({R"("class": "none")"}),
            "skip skip: the loader writes nothing of it here");
  EXPECT_EQ(try_behaviour({R"("class": "none", "behaviour": "claim_loaded")"}),
            "skip skip: the loader writes nothing of it here");
  // The parameter is there, but no load writes it.
  for (const char* behaviour : {"skip", "claim_loaded"}) {
    EXPECT_TRUE(column(behaviour).starts_with("target \"w\": no load writes byte 0 of its range "))
        << behaviour;
  }
}

TEST(LoaderBehaviours, CollectivesTakeTheScratchPath) {
  EXPECT_EQ(column("collective"), "scratch any: its loader talks to other ranks");
}

TEST(LoaderBehaviours, RefusedByReason) {
  EXPECT_EQ(column("normalise"),
            "refused skip: an element of a parameter depends on several of the tensor's");
  EXPECT_EQ(column("nan_to_num"), "refused skip: the loader erases placeholders");
  EXPECT_EQ(column("clip"), "refused skip: the loader erases placeholders");
  EXPECT_EQ(column("replace"), "refused skip: the loader gives a parameter another storage");
  EXPECT_EQ(column("alternate"), "refused skip: two loads of it wrote differently");
  EXPECT_EQ(column("unannounced"),
            "refused skip: the loader writes to target \"w\" past the hook; it no longer holds "
            "its weights: load it again");
}

// No trace shows what happens after loading: only the audit does.
TEST(LoaderBehaviours, WhatIsMovedAfterLoadingFailsTheAudit) {
  const Catalogue catalogue = make_catalogue({{"w", Dtype::kBF16, {8, 4}}});
  Rank rank(catalogue, R"("class": "column", "behaviour": "swap_after_load")");
  Words base(make_words(catalogue[0], 1));
  ASSERT_TRUE(load_dense(catalogue, base, rank.memory, *rank.loader).ok());
  ASSERT_TRUE(rank.loader->process_after_loading().ok());
  const std::unique_ptr<Executor> executor = make_executor(1);
  const auto made = Receiver::create(catalogue, *rank.loader, rank.memory, *executor, {});
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE((*made)->prewarm().ok());
  const Status audited =
      (*made)->audit([&](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
        return base.read(tensor, first, out);
      });
  EXPECT_TRUE(
      audited.message().ends_with("of 16 resident words are not what its loader makes of the base"))
      << audited.message();
}

}  // namespace
}  // namespace dcr
