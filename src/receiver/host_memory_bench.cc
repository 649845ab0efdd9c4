// From decoded items in host memory to parameter bits: the traced path against a scratch path of
// the paper's kind (memset, scatter, one vectorised pass over the rank's part).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/prng.h"
#include "receiver/decoded.h"
#include "receiver/host_memory.h"
#include "receiver/plan.h"

namespace dcr {
namespace {

constexpr std::uint64_t kRows = 4096, kColumns = 4096, kTensors = 8;

// Matrices of BF16 with one in `one_in` words changed by one, added.
struct Model {
  struct Entries {
    std::vector<std::uint32_t> positions;
    Bytes values;
  };
  std::deque<Entries> entries;
  std::vector<DecodedItem> items;  // of these
  HostMemory memory{0};

  explicit Model(std::uint64_t one_in) {
    Prng random(1);
    for (std::uint64_t tensor = 0; tensor < kTensors; ++tensor) {
      memory.add(kRows * kColumns * 2);
      for (std::uint64_t begin = 0; begin < kRows * kColumns; begin += kRows * kColumns / 2) {
        Entries& made = entries.emplace_back();
        DecodedItem item;
        item.header.tensor = static_cast<std::uint32_t>(tensor);
        item.header.width = 2;
        item.header.encoding = Encoding::kXor;
        item.header.box = ItemBox::range(begin, kRows * kColumns / 2);
        for (std::uint32_t i = 0; i < kRows * kColumns / 2; ++i) {
          if (random.below(one_in) != 0) continue;
          made.positions.push_back(i);
          made.values.push_back(static_cast<std::uint8_t>(random.below(3)));
          made.values.push_back(0);
        }
        item.positions = made.positions;
        item.values = made.values;
        items.push_back(std::move(item));
      }
    }
  }
};

// Rank 3's part of each matrix.
Box rank_box(std::uint64_t ranks, bool rows) {
  if (ranks == 1) return {0, 0, {{kRows * kColumns, 1, 1}}};
  if (rows)
    return {
        3 * kColumns / ranks, 0, {{kRows, kColumns, kColumns / ranks}, {kColumns / ranks, 1, 1}}};
  return {3 * kRows / ranks * kColumns, 0, {{kRows / ranks * kColumns, 1, 1}}};
}

void report(benchmark::State& state) {
  constexpr std::int64_t kModelBytes = kTensors * kRows * kColumns * 2;
  state.SetBytesProcessed(state.iterations() * kModelBytes);
}

void traced(benchmark::State& state, std::uint64_t ranks, bool rows) {
  static Model model(100);
  PlanCache plans(1 << 24);
  for (auto _ : state) {
    ApplyCounts counts;
    for (const DecodedItem& item : model.items) {
      const std::uint32_t tensor = item.header.tensor;
      const Place place = {tensor, 2, rank_box(ranks, rows)};
      const auto plan = plans.find(tensor, item.header.box, {&place, 1}).value();
      for (TargetChanges target : *plan) {
        target.encoding = item.header.encoding;
        if (!model.memory
                 .apply(target, item.positions, item.values.data(), ApplyMode::kWrite, &counts)
                 .ok()) {
          state.SkipWithError("apply");
        }
      }
    }
    benchmark::DoNotOptimize(counts);
  }
  report(state);
}

// XOR of a row of scratch into the parameter; the compiler vectorises it.
void xor_row(const std::uint16_t* from, std::uint16_t* to, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint16_t>(to[i] ^ from[i]);
}

void scratch(benchmark::State& state, std::uint64_t ranks, bool rows) {
  static Model model(100);
  std::vector<std::uint16_t> scratch_words(kRows * kColumns);
  for (auto _ : state) {
    for (std::uint64_t tensor = 0; tensor < kTensors; ++tensor) {
      std::memset(scratch_words.data(), 0, scratch_words.size() * 2);
      for (const DecodedItem& item : model.items) {
        if (item.header.tensor != tensor) continue;
        const auto* values = reinterpret_cast<const std::uint16_t*>(item.values.data());
        std::uint16_t* to = scratch_words.data() + item.header.box.offset;
        for (std::size_t i = 0; i < item.positions.size(); ++i) {
          to[item.positions[i]] = static_cast<std::uint16_t>(values[i] + 1);
        }
      }
      auto* parameter = reinterpret_cast<std::uint16_t*>(model.memory.bytes(tensor).data());
      const Box box = rank_box(ranks, rows);
      for_each_run(box, [&](const Run& run) {
        xor_row(scratch_words.data() + run.src, parameter + run.dst, run.length);
        return true;
      });
    }
  }
  report(state);
}

}  // namespace
}  // namespace dcr

int main(int argc, char** argv) {
  for (const bool is_traced : {true, false}) {
    for (const std::uint64_t ranks : {std::uint64_t{1}, std::uint64_t{8}}) {
      for (const bool rows : {false, true}) {
        if (ranks == 1 && rows) continue;
        const std::string name = std::string(is_traced ? "traced" : "scratch") +
                                 "/ranks:" + std::to_string(ranks) +
                                 (rows ? "/row_parallel" : "/columns");
        benchmark::RegisterBenchmark(name.c_str(), is_traced ? dcr::traced : dcr::scratch, ranks,
                                     rows);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
