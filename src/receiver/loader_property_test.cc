// Loaders made of random operations: what prewarm does not refuse is refitted bit by bit.
#include <gtest/gtest.h>

#include "receiver/test_refit.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr std::uint64_t kRows = 8;
constexpr std::uint64_t kColumns = 6;
constexpr std::uint64_t kWords = kRows * kColumns;

enum class Operation : std::uint8_t {
  kCopy,
  kCopyOfClone,
  kCopyOfNegated,
  kCopyOfEveryOtherNegated,
  kCopyWithoutNan,
  kCopyOfNegatedTarget,
  kCopyOfGathered,  // elements by an index, some twice
  kCopyOfOneRow,    // repeated
  kCopyOfConstant,
  kFill,
  kIndexPut,
  kZeroGiven,
  kNegateGiven,
  kCollective,
};
constexpr std::uint64_t kOperations = 14;

// One operation on rows of a target and of the given tensor.
struct Step {
  Operation operation = Operation::kCopy;
  std::uint64_t target = 0, to = 0, from = 0, rows = 1;
  bool transposed = false;

  TensorView part(TensorView view, std::uint64_t begin) const {
    view = narrow(std::move(view), 0, begin, rows);
    return transposed ? dcr::transposed(view) : view;
  }
};

// Up to two tensors of one dtype, loaded into up to two targets.
struct Program {
  Catalogue catalogue;
  std::vector<Dtype> targets;
  std::vector<std::vector<Step>> steps;  // by tensor

  explicit Program(Prng& random) {
    static constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kBF16, Dtype::kF32, Dtype::kI8};
    const Dtype dtype = kDtypes[random.below(std::size(kDtypes))];
    std::vector<CanonicalTensor> tensors;
    for (std::uint64_t count = 1 + random.below(2); tensors.size() < count;) {
      tensors.push_back({"t" + std::to_string(tensors.size()), dtype, {kRows, kColumns}});
      steps.emplace_back();
    }
    catalogue = make_catalogue(std::move(tensors));
    for (std::uint64_t count = 1 + random.below(2); targets.size() < count;) {
      const bool cast = dtype == Dtype::kBF16 && random.below(4) == 0;
      targets.push_back(cast ? Dtype::kF32 : dtype);
    }
    for (std::vector<Step>& of : steps) {
      for (std::uint64_t count = 1 + random.below(3); of.size() < count;) add_step(random, &of);
    }
  }

  void add_step(Prng& random, std::vector<Step>* of) const {
    Step step;
    const bool again = !of->empty() && random.below(3) == 0;  // on the view of the step before it
    if (again) step = of->back();
    step.operation = static_cast<Operation>(random.below(kOperations));
    if (!again) {
      step.rows =
          random.below(2) == 0 ? 1 + random.below(kRows) : std::uint64_t{4} << random.below(2);
      step.to = random.below(kRows - step.rows + 1);
      step.target = random.below(targets.size());
      step.transposed = random.below(3) == 0;
    }
    if (!again || random.below(2) == 0) step.from = random.below(kRows - step.rows + 1);
    of->push_back(step);
  }

  void add_loads(TestRank* rank) const {
    TestLoader* const loader = &rank->loader;
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      views.push_back(loader->add_target("p" + std::to_string(i), targets[i], {kRows, kColumns}));
    }
    for (std::uint32_t tensor = 0; tensor < catalogue.size(); ++tensor) {
      loader->loads[catalogue[tensor].name] = [loader, views, of = steps[tensor]](
                                                  const TensorView& value,
                                                  LoaderHook& hook) -> Result<LoadReport> {
        for (const Step& step : of) {
          DCR_TRY(run(*loader, hook, step, step.part(views[step.target], step.to), value));
        }
        return LoadReport::kLoaded;
      };
    }
  }

  static Status run(TestLoader& loader, LoaderHook& hook, const Step& step, const TensorView& to,
                    const TensorView& value) {
    const TensorView from = step.part(value, step.from);
    const unsigned width = word_bytes(value.dtype);
    Bytes words(static_cast<std::size_t>(view_words(from)) * width);
    DCR_TRY(loader.memory().read(from, words));
    const auto negate = [](Dtype dtype) {
      return [dtype](std::uint64_t word, std::uint64_t) { return negated(dtype, word); };
    };
    const auto copy_of = [&](const TensorView& view, const TestLoader::Function& function) {
      const Result<TensorView> made = loader.temporary(view, function);
      return made.ok() ? loader.copy(hook, to, *made) : made.status();
    };
    switch (step.operation) {
      case Operation::kCopy:
        return loader.copy(hook, to, from);
      case Operation::kCopyOfClone:
        return copy_of(from, [](std::uint64_t word, std::uint64_t) { return word; });
      case Operation::kCopyOfNegated:
        return copy_of(from, negate(value.dtype));
      case Operation::kCopyOfEveryOtherNegated:
        return copy_of(from, [&](std::uint64_t word, std::uint64_t at) {
          return at % 2 == 0 ? word : negated(value.dtype, word);
        });
      case Operation::kCopyWithoutNan:
        return copy_of(from, [&](std::uint64_t word, std::uint64_t) {
          const FloatBits bits = float_bits(value.dtype);
          return bits.width != 0 && is_nan(bits, word) ? 0 : word;
        });
      case Operation::kCopyOfNegatedTarget:
        return copy_of(to, negate(to.dtype));
      case Operation::kCopyOfGathered:
        return copy_of(from, [&](std::uint64_t, std::uint64_t at) {
          return get_word(words, width, (at * (step.to + 1) / 2 + step.from) % view_words(from));
        });
      case Operation::kCopyOfOneRow: {
        TensorView row = from;
        row.strides[step.transposed ? 1 : 0] = 0;
        return loader.copy(hook, to, row);
      }
      case Operation::kCopyOfConstant:
        return copy_of(from, [](std::uint64_t, std::uint64_t) { return std::uint64_t{1}; });
      case Operation::kFill:
        return loader.fill(hook, to, step.to % 2);
      case Operation::kIndexPut:
        if (to.dtype != value.dtype) return {};
        return loader.other(hook, "index_put_", to, [&](std::uint64_t, std::uint64_t at) {
          return get_word(words, width, at);
        });
      case Operation::kZeroGiven:
        return loader.fill(hook, from, 0);
      case Operation::kNegateGiven:
        return loader.other(hook, "neg_", from, negate(value.dtype));
      case Operation::kCollective:
        return loader.event(hook, LoaderEventKind::kCollective, value);
    }
    return {};
  }
};

struct Versions {
  std::vector<Bytes> old_words, new_words;

  Versions(Prng& random, const Catalogue& catalogue) {
    const std::vector<WordKind> kinds = word_kinds();
    for (const CanonicalTensor& tensor : catalogue.tensors()) {
      const unsigned width = word_bytes(tensor.dtype);
      const auto word = [&] {
        const WordKind& kind = kinds[random.below(kinds.size())];
        const bool special = kind.width == width && random.below(2) == 0;
        return special ? kind.words[random.below(kind.words.size())] : random.next();
      };
      Bytes words(kWords * width);
      for (std::uint64_t i = 0; i < kWords; ++i) set_word(&words, width, i, word());
      old_words.push_back(words);
      const std::uint64_t one_in = 1 + random.below(6);
      for (std::uint64_t i = 0; i < kWords; ++i) {
        if (random.below(one_in) == 0) set_word(&words, width, i, word());
      }
      new_words.push_back(std::move(words));
    }
  }
};

// One payload of what changed, as the receiver asks for it.
Bytes send(Prng& random, const Program& program, const Versions& versions,
           std::span<const TensorClass> classes) {
  std::vector<EncodedItem> items;
  const ItemBox box = ItemBox::range(0, kWords);
  for (std::uint32_t tensor = 0; tensor < program.catalogue.size(); ++tensor) {
    const unsigned width = word_bytes(program.catalogue[tensor].dtype);
    const Bytes& after = versions.new_words[tensor];
    const Need need = classes[tensor].need;
    if (need == Need::kDense) {
      items.push_back(whole_item(tensor, width, box, after));
      continue;
    }
    const bool overwrite = need == Need::kOverwrite;
    const Encoding encoding = overwrite ? Encoding::kOverwrite : kTestEncodings[random.below(3)];
    ItemEncoder encoder;
    EncodedItem item;
    if (encode_case(&encoder, {width, box, versions.old_words[tensor], after}, tensor,
                    choice_of(encoding), &item)) {
      items.push_back(std::move(item));
    }
  }
  PayloadHeader header;
  header.schema = program.catalogue.schema();
  return items.empty() ? Bytes() : seal_payload(header, std::move(items)).bytes;
}

// Whether all tensors have a path, those of collectives the scratch path.
bool accepted(Receiver& receiver) {
  for (std::uint32_t tensor = 0; tensor < receiver.classes().size(); ++tensor) {
    const TensorClass& one = receiver.classes()[tensor];
    if (one.path == TensorPath::kRefused) return false;
    if (one.collective && !receiver.require_scratch(tensor).ok()) return false;
  }
  return true;
}

// What went wrong, or nothing. `refitted` grows by one unless something is refused.
std::string refit_once(std::uint64_t seed, std::uint64_t* refitted) {
  Prng random(seed);
  const Program program(random);
  const Versions versions(random, program.catalogue);
  TestRank rank, dense;
  program.add_loads(&rank);
  program.add_loads(&dense);
  for (const auto& [of, words] :
       {std::pair(&rank, &versions.old_words), std::pair(&dense, &versions.old_words),
        std::pair(&dense, &versions.new_words)}) {
    const Status status = load_dense(of->loader, program.catalogue, *words);
    if (!status.ok()) return status.message();
  }
  const std::vector<Bytes> before = rank.parameters();
  ReceiverOptions options;
  options.owners.resize(1);
  for (std::uint32_t tensor = 0; tensor < program.catalogue.size(); ++tensor) {
    options.owners[0].push_back({tensor, ItemBox::range(0, kWords)});
  }
  for (const LoaderTarget& target : rank.loader.all_targets) {
    options.never_loaded.push_back(target.name);
  }
  options.prefer_scratch = random.below(4) == 0;
  options.post_apply_checks = random.below(4) == 0;
  const std::unique_ptr<Executor> executor = make_executor(1);
  const auto made =
      Receiver::create(program.catalogue, rank.loader, rank.memory, *executor, options);
  if (!made.ok()) return made.status().message();
  Receiver& receiver = **made;
  Status status = receiver.prewarm();
  if (!status.ok()) return "prewarm: " + status.message();
  if (rank.parameters() != before) return "prewarm changed parameters";
  if (!accepted(receiver)) return "";
  ++*refitted;
  status = receiver.audit([&](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
    const std::uint64_t width = word_bytes(program.catalogue[tensor].dtype);
    std::copy_n(versions.old_words[tensor].begin() + static_cast<std::ptrdiff_t>(first * width),
                out.size(), out.begin());
    return Status();
  });
  if (!status.ok()) return "audit: " + status.message();
  if (rank.parameters() != before) return "the audit changed parameters";
  status = receiver.begin_attempt({});
  if (!status.ok()) return status.message();
  const Bytes payload = send(random, program, versions, receiver.classes());
  if (!payload.empty()) {
    const auto ingested = receiver.ingest(payload);
    if (!ingested.ok()) return "ingest: " + ingested.status().message();
  }
  const auto applied = receiver.apply();
  if (!applied.ok()) return "apply: " + applied.status().message();
  return rank.parameters() == dense.parameters() ? "" : "parameters differ from a dense load";
}

TEST(LoaderPropertyTest, WhatIsNotRefusedEqualsADenseLoad) {
  const std::uint64_t cases = campaign_cases(10'000);
  std::uint64_t refitted = 0;
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    ASSERT_EQ(refit_once(seed, &refitted), "") << "seed " << seed;
  }
  EXPECT_GT(refitted, cases / 5);
}

}  // namespace
}  // namespace dcr
