// Weights before and after a training step, as BF16 words, made from a seed: the inputs of every
// benchmark. Floating-point arithmetic happens here and only here: it makes weights, it never
// touches them on their way through the library.
//
// Words are made in chunks that are each seeded by themselves, so the result depends on seed and
// size alone, not on the number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "dcr/status.h"

namespace dcr {

// Standard normals by the ziggurat method (Marsaglia and Tsang, 256 layers). Not thread-safe.
class NormalSource {
 public:
  explicit NormalSource(std::uint64_t seed);

  double next();

  Prng& prng() { return prng_; }

 private:
  struct Ziggurat;
  static const Ziggurat& ziggurat();
  double tail(bool negative);

  Prng prng_;
  const Ziggurat* tables_;
};

inline constexpr std::uint8_t kBf16Bytes = sizeof(std::uint16_t);

// Rounds to the nearest BF16, ties to even. REQUIRES: not a NaN.
std::uint16_t bf16_from_float(float value);
float float_from_bf16(std::uint16_t word);

// Two versions of the same weights. Sizes are equal.
struct WeightPair {
  std::vector<std::uint16_t> before, after;
};

enum class Workload : std::uint8_t {
  kAdam,  // m = 0.02·N(0,1) in FP32; m −= step · clip(0.5·a + 0.5·b, −1, 1); BF16 of both
  kRelative,  // x·(1 ± 0.01) at uniformly chosen positions
  kUnit,      // ±1 in the last place at uniformly chosen positions
};

// "adam", "relative", "unit"; and back. Error kInvalidArgument names the word.
const char* workload_name(Workload workload);
Result<Workload> workload_from_name(const std::string& name);

// The step of the Adam-like workload at which about 2.3 % of the elements change.
inline constexpr double kAdamStep = 1e-6;

struct WorkloadSpec {
  Workload workload = Workload::kAdam;
  double rate = 0.01;            // kRelative, kUnit: share of the elements that change
  double adam_step = kAdamStep;  // kAdam; see adam_step_for_rate
  std::uint64_t seed = 1;
};

// A spec under which about `rate` of the elements change.
WorkloadSpec workload_at_rate(Workload workload, double rate, std::uint64_t seed);

inline constexpr std::uint64_t kChunkWords = std::uint64_t{1} << 20;

// Fills chunk `chunk`: at most kChunkWords words, the same number in both spans. Thread-safe.
void fill_chunk(const WorkloadSpec& spec, std::uint64_t chunk, std::span<std::uint16_t> before,
                std::span<std::uint16_t> after);

// `elements` words, made on all processors.
WeightPair make_weights(const WorkloadSpec& spec, std::uint64_t elements);

// The vectors of the paper's synthetic codec benchmark (Appendix C): BF16 standard normals and FP32
// noise; one pair serves all amplitudes.
struct NoiseVectors {
  std::vector<std::uint16_t> inputs;
  std::vector<float> noise;
};
NoiseVectors make_noise_vectors(std::uint64_t elements, std::uint64_t seed);

// BF16(input + amplitude·noise), multiplication and addition being separate FP32 operations.
std::vector<std::uint16_t> add_noise(const NoiseVectors& vectors, float amplitude);

}  // namespace dcr
