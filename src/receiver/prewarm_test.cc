// Every way of loading that loaders.md and the paper's Table A.2 list is traced, tried or refused.
#include "receiver/prewarm.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "receiver/test_loader.h"

namespace dcr {
namespace {

constexpr std::uint64_t kScratch = std::uint64_t{1} << 26;

// One canonical tensor "w" and what a test's loader does with it.
class PrewarmTest : public testing::Test {
 public:
  HostMemory memory{kScratch};
  TestLoader loader{memory};
  Catalogue catalogue;
  PrewarmOptions options;

  void tensor(Dtype dtype, const Shape& shape) {
    catalogue = make_catalogue({{"w", dtype, shape}});
  }

  // Resident bits that no probe has.
  void fill_targets() {
    for (const LoaderTarget& target : loader.all_targets) {
      std::uint8_t byte = 17;
      for (std::uint8_t& at : memory.bytes(target.view.storage)) {
        byte = static_cast<std::uint8_t>(byte * 5 + 1);
        at = byte;
      }
    }
  }

  Result<PrewarmResult> run() {
    fill_targets();
    std::vector<Bytes> before;
    for (const LoaderTarget& target : loader.all_targets) {
      const MutableByteSpan bytes = memory.bytes(target.view.storage);
      before.emplace_back(bytes.begin(), bytes.end());
    }
    Result<PrewarmResult> result = prewarm(catalogue, loader, memory, options);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const MutableByteSpan bytes = memory.bytes(loader.all_targets[i].view.storage);
      unchanged = unchanged && Bytes(bytes.begin(), bytes.end()) == before[i];
    }
    EXPECT_EQ(memory.scratch_bytes(), 0u);
    return result;
  }

  // "path need: reason" of tensor `index`.
  std::string verdict(std::uint32_t index = 0) {
    const Result<PrewarmResult> result = run();
    if (!result.ok()) return result.status().message();
    const TensorClass& one = result->classes[index];
    std::string text = std::string(path_name(one.path)) + " " + std::string(need_name(one.need));
    if (one.collective) text += " collective";
    return one.reason.empty() ? text : text + ": " + one.reason;
  }

  bool unchanged = true;  // the parameters, by all runs
};

TEST_F(PrewarmTest, PlainCopy) {
  tensor(Dtype::kBF16, {8, 6});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {8, 6});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "traced any");
  const Result<PrewarmResult> result = run();
  ASSERT_EQ(result->places[0].size(), 1u);
  EXPECT_EQ(result->places[0][0].box, (Box{0, 0, {{48, 1, 1}}}));
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, RowParallelTransposedThroughATemporary) {
  tensor(Dtype::kBF16, {8, 6});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {3, 8});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_ASSIGN(const TensorView part, loader.clone(transposed(narrow(value, 1, 2, 3))));
    DCR_TRY(loader.copy(hook, p, part));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "traced any");
  const Result<PrewarmResult> result = run();
  ASSERT_EQ(result->places[0].size(), 1u);
  EXPECT_EQ(result->places[0][0].box, (Box{2, 0, {{3, 1, 8}, {8, 6, 1}}}));
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, APermutationThroughATemporaryIsListed) {
  tensor(Dtype::kU8, {1000});
  const TensorView p = loader.add_target("p", Dtype::kU8, {1000});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    Bytes words(1000);
    DCR_TRY(memory.read(value, words));
    DCR_ASSIGN(const TensorView made,
               loader.temporary(value, [&words](std::uint64_t, std::uint64_t place) {
                 return words[place ^ 1];
               }));
    DCR_TRY(loader.copy(hook, p, made));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "traced any");
  const Result<PrewarmResult> result = run();
  for (std::uint64_t k = 0; k < 1000; ++k) {
    int hits = 0;
    for (const Place& place : result->places[0]) {
      const auto word = map_index(place.box, k);
      EXPECT_TRUE(!word || *word == (k ^ 1));
      hits += word ? 1 : 0;
    }
    EXPECT_EQ(hits, 1);
  }
}

TEST_F(PrewarmTest, RepeatedElementsHaveSeveralPlaces) {
  tensor(Dtype::kBF16, {4});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {3, 4});
  loader.loads["w"] = [&, p](TensorView value, LoaderHook& hook) -> Result<LoadReport> {
    value.sizes = {3, 4};
    value.strides = {0, 1};
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "traced any");
  EXPECT_EQ(run()->places[0].size(), 3u);
}

TEST_F(PrewarmTest, CopiedTwiceTheSameIsOnePlace) {
  tensor(Dtype::kBF16, {5});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {5});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "traced any");
  EXPECT_EQ(run()->places[0].size(), 1u);
}

TEST_F(PrewarmTest, PaddingIsFilledWithAConstant) {
  tensor(Dtype::kBF16, {5, 2});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {8, 2});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 5), value));
    DCR_TRY(loader.fill(hook, narrow(p, 0, 5, 3), 0));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "traced any");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, ZeroedFirstAndCopiedThen) {
  tensor(Dtype::kBF16, {5, 2});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {8, 2});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.fill(hook, p, 0));
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 5), value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "traced any");
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 5), value));
    DCR_TRY(loader.fill(hook, p, 0));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "refused skip: the loader writes bytes of a parameter twice");
}

TEST_F(PrewarmTest, WhatNothingLoadsIsNamed) {
  tensor(Dtype::kBF16, {5, 2});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {8, 2});
  loader.add_target("q", Dtype::kF32, {3});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 5), value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(),
            "target \"p\": no load writes byte 20 of its range from byte 0 of storage 0; name the "
            "target among those that are never loaded if that is meant");
  options.never_loaded = {"p"};
  EXPECT_EQ(verdict(),
            "target \"q\": no load writes byte 0 of its range from byte 0 of storage 1; name the "
            "target among those that are never loaded if that is meant");
  options.never_loaded = {"p", "q"};
  EXPECT_EQ(verdict(), "traced any");
  options.never_loaded = {"p", "q", "r"};
  EXPECT_EQ(verdict(), "never loaded: there is no target \"r\"");
}

TEST_F(PrewarmTest, CastsTakeTheScratchPath) {
  tensor(Dtype::kBF16, {6});
  const TensorView p = loader.add_target("p", Dtype::kF32, {6});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "scratch overwrite: the loader computes or casts its values");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, ComputedOverItsOwnFirstWrite) {
  tensor(Dtype::kBF16, {40});
  const TensorView p = loader.add_target("p", Dtype::kF32, {40});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    DCR_ASSIGN(const TensorView twice, loader.temporary(p, [](std::uint64_t word, std::uint64_t) {
      return doubled_f32(word);
    }));
    DCR_TRY(loader.copy(hook, p, twice));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "scratch overwrite: the loader computes or casts its values");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, ComputedBeforeTheCopy) {
  tensor(Dtype::kBF16, {100});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {100});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_ASSIGN(const TensorView minus,
               loader.temporary(value, [](std::uint64_t word, std::uint64_t) {
                 return negated(Dtype::kBF16, word);
               }));
    DCR_TRY(loader.copy(hook, p, minus));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "scratch overwrite: the loader computes or casts its values");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, ErasedPlaceholdersAreRefused) {
  tensor(Dtype::kBF16, {100});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {100});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_ASSIGN(const TensorView clean,
               loader.temporary(value, [](std::uint64_t word, std::uint64_t) {
                 return is_nan(float_bits(Dtype::kBF16), word) ? 0 : word;
               }));
    DCR_TRY(loader.copy(hook, p, clean));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "refused skip: the loader erases placeholders");
}

TEST_F(PrewarmTest, ClippingThatKeepsPlaceholdersIsTried) {
  tensor(Dtype::kBF16, {3});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {3});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_ASSIGN(const TensorView clipped,
               loader.temporary(value, [](std::uint64_t word, std::uint64_t) {
                 if (is_nan(float_bits(Dtype::kBF16), word)) return word;
                 return (word & 0x7fff) > 0x4780 ? (word & 0x8000) | 0x4780 : word;
               }));
    DCR_TRY(loader.copy(hook, p, clipped));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "scratch overwrite: the loader computes or casts its values");
}

TEST_F(PrewarmTest, ReductionsAreRefused) {
  tensor(Dtype::kF32, {4, 8});
  const TensorView p = loader.add_target("p", Dtype::kF32, {4, 8});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    Bytes words(128);
    DCR_TRY(memory.read(value, words));
    DCR_ASSIGN(const TensorView made,
               loader.temporary(value, [&words](std::uint64_t word, std::uint64_t place) {
                 // NaN if any of the row is, else a mixture of the row.
                 std::uint64_t sum = word & 0x7fffff;
                 for (std::uint64_t i = 0; i < 8; ++i) {
                   const auto other = load_word<std::uint32_t>(words.data(), place / 8 * 8 + i);
                   if (is_nan(float_bits(Dtype::kF32), other)) return std::uint64_t{0x7fc00000};
                   sum += other & 0xffff;
                 }
                 return 0x3f800000 | (sum & 0x7fffff);
               }));
    DCR_TRY(loader.copy(hook, p, made));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(),
            "refused skip: an element of a parameter depends on several of the tensor's");
}

TEST_F(PrewarmTest, RequantisationIsRefused) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kI8, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    Bytes words(32);
    DCR_TRY(memory.read(value, words));
    DCR_ASSIGN(const TensorView made,
               loader.temporary(p, [&](std::uint64_t, std::uint64_t at) { return words[2 * at]; }));
    DCR_TRY(loader.copy(hook, p, made));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "refused skip: the loader turns it into I8");
}

TEST_F(PrewarmTest, OpaqueIntegersAreDense) {
  tensor(Dtype::kI8, {16});
  const TensorView p = loader.add_target("p", Dtype::kI8, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_ASSIGN(
        const TensorView made,
        loader.temporary(value, [](std::uint64_t word, std::uint64_t) { return word ^ 0x80; }));
    DCR_TRY(loader.copy(hook, p, made));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "dense dense: the loader writes it by no plain copy");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, OtherOperationsAreDense) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    Bytes words(32);
    DCR_TRY(memory.read(value, words));
    DCR_TRY(loader.other(hook, "index_put_", p, [&words](std::uint64_t, std::uint64_t place) {
      return load_word<std::uint16_t>(words.data(), 15 - place);
    }));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "dense dense: the loader writes it by no plain copy");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, WhatDependsOnTheParameterIsRefused) {
  tensor(Dtype::kI32, {16});
  const TensorView p = loader.add_target("p", Dtype::kI32, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    Bytes words(64);
    DCR_TRY(memory.read(value, words));
    DCR_TRY(loader.other(hook, "add_", p, [&words](std::uint64_t word, std::uint64_t place) {
      return word + load_word<std::uint32_t>(words.data(), place);
    }));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(),
            "refused skip: what the loader writes depends on what the parameter held before");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, AScalarByFill) {
  tensor(Dtype::kBF16, {1});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {1});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    Bytes word(2);
    DCR_TRY(memory.read(value, word));
    DCR_TRY(loader.fill(hook, p, load_word<std::uint16_t>(word.data(), 0)));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "dense dense: the loader writes it by no plain copy");
}

TEST_F(PrewarmTest, AZeroedProbe) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.fill(hook, value, 0));
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "skip skip: the loader writes the same whatever it holds");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, AProbeChangedInPlace) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.other(hook, "neg_", value, [](std::uint64_t word, std::uint64_t) {
      return negated(Dtype::kBF16, word);
    }));
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "scratch overwrite: the loader computes or casts its values");
  // After the copy it does not matter, but what writes to the given tensor is not traced.
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    DCR_TRY(loader.fill(hook, value, 0));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "scratch overwrite: the loader writes to the given tensor");
  EXPECT_TRUE(unchanged);
}

TEST_F(PrewarmTest, ReportsAreNoEvidence) {
  tensor(Dtype::kBF16, {16});
  loader.loads["w"] = [](const TensorView&, LoaderHook&) -> Result<LoadReport> {
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "skip skip: the loader writes nothing of it here");
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kSkipped;
  };
  EXPECT_EQ(verdict(), "traced any");
}

TEST_F(PrewarmTest, ACopyOfNothingIsASkip) {
  tensor(Dtype::kBF16, {4, 2});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {4, 2});
  options.never_loaded = {"p"};
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 0), narrow(value, 0, 0, 0)));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "skip skip: the loader writes nothing of it here");
}

TEST_F(PrewarmTest, ACollectiveTakesTheScratchPath) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.event(hook, LoaderEventKind::kCollective, value));
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "scratch any collective: its loader talks to other ranks");
}

TEST_F(PrewarmTest, ReplacedStorageIsRefused) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.event(hook, LoaderEventKind::kReplace, p));
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "refused skip: the loader gives a parameter another storage");
}

TEST_F(PrewarmTest, StorageReplacedWithoutAWordFailsByTheLayout) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  TensorView other = p;
  other.storage = memory.add(32);
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    loader.all_targets[0].view = other;
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(prewarm(catalogue, loader, memory, options).status().message(),
            "loading moved parameters to other storage; the runtime must keep them in place");
}

TEST_F(PrewarmTest, WritesPastTheHookAreFoundAndRefused) {
  catalogue = make_catalogue({{"a", Dtype::kBF16, {16}}, {"b", Dtype::kBF16, {16}}});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  const TensorView q = loader.add_target("q", Dtype::kBF16, {16});
  loader.loads["a"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  loader.loads["b"] = [&, q](const TensorView& value, LoaderHook&) -> Result<LoadReport> {
    DCR_TRY(loader.write_past_hook(q, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(1),
            "refused skip: the loader writes to target \"q\" past the hook; it no longer holds "
            "its weights: load it again");
  EXPECT_EQ(verdict(0), "traced any");
  EXPECT_FALSE(unchanged);
}

TEST_F(PrewarmTest, ALoaderThatAlternatesIsRefused) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  int times = 0;
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    if (times++ % 2 == 0) DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "refused skip: two loads of it wrote differently");
}

TEST_F(PrewarmTest, ANameThatTheLoaderRefuses) {
  tensor(Dtype::kBF16, {16});
  EXPECT_EQ(verdict(), "refused skip: the loader refuses it: no parameter takes it");
}

TEST_F(PrewarmTest, NoRoomForAProbe) {
  tensor(Dtype::kBF16, {kScratch});
  EXPECT_EQ(verdict(),
            "refused skip: no room for a probe: scratch of 134217728 bytes beside the 0 in use "
            "is above the limit of 67108864");
}

TEST_F(PrewarmTest, TiedTensorsAreAppliedOnce) {
  catalogue = make_catalogue({{"a", Dtype::kBF16, {16}}, {"b", Dtype::kBF16, {16}}});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.all_targets.push_back({"alias", p});
  for (const char* name : {"a", "b"}) {
    loader.loads[name] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      DCR_TRY(loader.copy(hook, p, value));
      return LoadReport::kLoaded;
    };
  }
  EXPECT_EQ(verdict(0), "skip skip: tensor \"b\" has the same bytes");
  EXPECT_EQ(verdict(1), "traced any");
}

TEST_F(PrewarmTest, TensorsThatShareSomeBytesAreRefused) {
  catalogue = make_catalogue({{"a", Dtype::kBF16, {16}}, {"b", Dtype::kBF16, {8}}});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["a"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  loader.loads["b"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, narrow(p, 0, 8, 8), value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(0), "refused skip: tensor \"b\" writes some of the same bytes");
  EXPECT_EQ(verdict(1), "refused skip: tensor \"a\" writes some of the same bytes");
}

TEST_F(PrewarmTest, BytesWrittenTwiceFromOtherElements) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  loader.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 4), narrow(value, 0, 8, 4)));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(), "refused skip: the loader writes bytes of a parameter twice");
}

TEST_F(PrewarmTest, EventsThatMakeNoSense) {
  tensor(Dtype::kBF16, {16});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {16});
  const auto only = [&](const TensorView& destination, std::uint64_t count, unsigned from = 0) {
    loader.loads["w"] = [&, destination, count, from](const TensorView& value,
                                                      LoaderHook& hook) -> Result<LoadReport> {
      TensorView source = narrow(value, 0, 0, count);
      source.offset += from;
      DCR_TRY(loader.copy(hook, destination, source));
      return LoadReport::kLoaded;
    };
  };
  only(p, 8);
  EXPECT_EQ(verdict(), "tensor \"w\": the loader copies another number of elements than it writes");
  TensorView past = p;
  past.offset = 1;
  only(past, 16);
  EXPECT_EQ(verdict(), "tensor \"w\": the loader writes past the end of a storage");
  only(p, 16, 1);
  EXPECT_EQ(verdict(), "tensor \"w\": the loader reads past the end of the given tensor");
  TensorView stranger = p;
  stranger.storage = std::uint64_t{1} << 40;
  only(stranger, 16);
  EXPECT_EQ(verdict(),
            "tensor \"w\": the loader writes to storage 1099511627776, which is no target's");
}

TEST_F(PrewarmTest, EveryDtypeIsTraced) {
  for (std::uint8_t number = 0; number < kDtypeCount; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    HostMemory own(kScratch);
    TestLoader one(own);
    const Catalogue all = make_catalogue({{"w", dtype, {12, 4}}});
    const TensorView whole = contiguous_view(0, all[0]);
    const TensorView p = one.add_target("p", whole.dtype, whole.sizes);
    one.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      DCR_ASSIGN(const TensorView clone, one.clone(value));
      DCR_TRY(one.copy(hook, p, clone));
      return LoadReport::kLoaded;
    };
    const Result<PrewarmResult> result = prewarm(all, one, own, {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->classes[0].path, TensorPath::kTraced) << dtype_name(dtype);
  }
}

TEST_F(PrewarmTest, AnEmptyTensorAndAScalar) {
  catalogue = make_catalogue({{"empty", Dtype::kBF16, {0, 4}}, {"scalar", Dtype::kF32, {}}});
  const TensorView p = loader.add_target("p", Dtype::kF32, {});
  loader.loads["empty"] = [](const TensorView&, LoaderHook&) -> Result<LoadReport> {
    return LoadReport::kLoaded;
  };
  loader.loads["scalar"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, p, value));
    return LoadReport::kLoaded;
  };
  EXPECT_EQ(verdict(0), "skip skip: the loader writes nothing of it here");
  EXPECT_EQ(verdict(1), "traced any");
}

}  // namespace
}  // namespace dcr
