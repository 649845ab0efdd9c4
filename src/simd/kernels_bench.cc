// How fast each kernel set runs, in bytes of NEW or of words per second.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/prng.h"
#include "simd/kernels.h"

namespace dcr {
namespace {

// 256 KiB of each input: in the second-level cache, so that the kernels are measured and not
// memory.
constexpr std::size_t kBytes = 256 * 1024;

struct Inputs {
  Bytes old_words, new_words;
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint64_t> values;

  // One word in `one_in` changes, by one.
  Inputs(unsigned width, std::uint64_t one_in) : old_words(kBytes) {
    Prng random(1);
    for (std::uint8_t& byte : old_words) byte = static_cast<std::uint8_t>(random.next());
    new_words = old_words;
    const std::size_t words = kBytes / width;
    for (std::size_t i = 0; i < words; ++i) {
      if (random.below(one_in) != 0) continue;
      new_words[i * width] = static_cast<std::uint8_t>(new_words[i * width] + 1);
    }
    gaps.resize(words + kScanSlackWords);
    values.resize(words + kScanSlackWords);
  }
};

void scan(benchmark::State& state, const Kernels* set, unsigned width, std::uint64_t one_in) {
  Inputs in(width, one_in);
  const ScanBox box = {in.old_words.data(), in.new_words.data(), 1, kBytes / width, 0, 0};
  for (auto _ : state) {
    std::uint64_t unchanged = 0;
    benchmark::DoNotOptimize(set->scan_changes(width, Encoding::kAdd, box, &unchanged,
                                               in.gaps.data(), in.values.data()));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}

void pack(benchmark::State& state, const Kernels* set, unsigned width, unsigned bits) {
  Inputs in(width, 2);
  const std::size_t words = kBytes / width;
  Bytes packed(words);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        set->pack_symbols(width, bits, in.values.data(), words, packed.data()));
    set->unpack_symbols(width, bits, packed.data(), words, in.values.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}

void register_set(const Kernels* set) {
  const std::string name = set->name;
  for (const unsigned width : {1u, 2u, 4u, 8u}) {
    for (const std::uint64_t one_in : {1000u, 100u, 20u, 2u}) {
      benchmark::RegisterBenchmark(
          ("scan/" + name + "/width:" + std::to_string(width) + "/one_in:" + std::to_string(one_in))
              .c_str(),
          [=](benchmark::State& state) { scan(state, set, width, one_in); });
    }
  }
  for (const unsigned bits : {2u, 4u}) {
    benchmark::RegisterBenchmark(
        ("pack_unpack/" + name + "/width:2/bits:" + std::to_string(bits)).c_str(),
        [=](benchmark::State& state) { pack(state, set, 2, bits); });
  }
}

}  // namespace
}  // namespace dcr

int main(int argc, char** argv) {
  for (const dcr::Kernels* set : dcr::supported_kernels()) dcr::register_set(set);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
