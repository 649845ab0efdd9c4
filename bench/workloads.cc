#include "bench/workloads.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/checked.h"
#include "bench/parallel_for.h"

namespace dcr {
namespace {

constexpr std::size_t kLayers = 256;
constexpr double kTailStart = 3.6541528853610088;  // where the bottom layer's rectangle ends
constexpr double kLayerArea = 0.00492867323399;
constexpr double kWeightDeviation = 0.02;
constexpr float kRelativeChange = 0.01F;

double density(double x) { return std::exp(-0.5 * x * x); }

// Seeds of chunks and purposes must not collide: splitmix of the Prng's constructor spreads them.
std::uint64_t chunk_seed(std::uint64_t seed, std::uint64_t chunk) {
  return seed * 0x9e3779b97f4a7c15 + chunk * 0xd1342543de82ef95 + 1;
}

struct AdamElement {
  float weight;     // FP32 master
  float direction;  // in [−1, 1]
};

AdamElement draw_adam_element(NormalSource* normals) {
  const auto weight = static_cast<float>(kWeightDeviation * normals->next());
  const double fixed = normals->next();
  const double fresh = normals->next();
  return {weight, static_cast<float>(std::clamp(0.5 * fixed + 0.5 * fresh, -1.0, 1.0))};
}

std::uint16_t adam_update(const AdamElement& element, float step) {
  const float change = step * element.direction;
  return bf16_from_float(element.weight - change);
}

void fill_adam(double step, NormalSource* normals, std::span<std::uint16_t> before,
               std::span<std::uint16_t> after) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    const AdamElement element = draw_adam_element(normals);
    before[i] = bf16_from_float(element.weight);
    after[i] = adam_update(element, static_cast<float>(step));
  }
}

std::uint16_t changed_word(Workload workload, std::uint16_t word, bool up) {
  if (workload == Workload::kUnit) {
    return static_cast<std::uint16_t>(up || word == 0 ? word + 1 : word - 1);
  }
  return bf16_from_float(float_from_bf16(word) *
                         (up ? 1.0F + kRelativeChange : 1.0F - kRelativeChange));
}

void fill_chosen(const WorkloadSpec& spec, NormalSource* normals, std::span<std::uint16_t> before,
                 std::span<std::uint16_t> after) {
  for (std::uint16_t& word : before) {
    word = bf16_from_float(static_cast<float>(kWeightDeviation * normals->next()));
  }
  std::copy(before.begin(), before.end(), after.begin());
  Prng& prng = normals->prng();
  const auto threshold = static_cast<std::uint64_t>(spec.rate * 0x1p32);
  std::uint64_t redraws = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::uint64_t bits = prng.next();
    if ((bits >> 32) >= threshold) continue;
    after[i] = changed_word(spec.workload, before[i], (bits & 1) != 0);
    if (after[i] == before[i]) ++redraws;
  }
  // A chosen element that keeps its bits is replaced by another one. Bounded, since at 100 % there
  // may be none left.
  for (std::uint64_t tries = 64 * redraws; redraws != 0 && tries != 0; --tries) {
    const auto i = static_cast<std::size_t>(prng.below(before.size()));
    if (after[i] != before[i]) continue;
    after[i] = changed_word(spec.workload, before[i], (prng.next() & 1) != 0);
    if (after[i] != before[i]) --redraws;
  }
}

// The step at which `rate` of the elements change, found on a sample: the rate grows with the step.
double adam_step_for_rate(double rate) {
  constexpr std::size_t kSample = std::size_t{1} << 18;
  NormalSource normals(7);
  std::vector<AdamElement> sample(kSample);
  for (AdamElement& element : sample) element = draw_adam_element(&normals);
  double low = 1e-12;
  double high = 1.0;
  for (int i = 0; i < 40; ++i) {
    const double step = std::sqrt(low * high);
    std::size_t changed = 0;
    for (const AdamElement& element : sample) {
      changed += bf16_from_float(element.weight) != adam_update(element, static_cast<float>(step))
                     ? 1U
                     : 0U;
    }
    (static_cast<double>(changed) < rate * static_cast<double>(kSample) ? low : high) = step;
  }
  return high;
}

}  // namespace

struct NormalSource::Ziggurat {
  double x[kLayers + 1];
  double f[kLayers + 1];

  Ziggurat() {
    x[0] = kLayerArea / density(kTailStart);
    x[1] = kTailStart;
    for (std::size_t i = 1; i + 1 < kLayers; ++i) {
      x[i + 1] = std::sqrt(-2.0 * std::log(density(x[i]) + kLayerArea / x[i]));
    }
    x[kLayers] = 0.0;
    for (std::size_t i = 0; i <= kLayers; ++i) f[i] = density(x[i]);
  }
};

const NormalSource::Ziggurat& NormalSource::ziggurat() {
  static const Ziggurat kTables;
  return kTables;
}

NormalSource::NormalSource(std::uint64_t seed) : prng_(seed), tables_(&ziggurat()) {}

double NormalSource::next() {
  for (;;) {
    const std::uint64_t bits = prng_.next();
    const std::size_t layer = bits & (kLayers - 1);
    const bool negative = (bits & kLayers) != 0;
    const double x = static_cast<double>(bits >> 11) * 0x1p-53 * tables_->x[layer];
    if (x < tables_->x[layer + 1]) return negative ? -x : x;
    if (layer == 0) return tail(negative);
    const double below = tables_->f[layer];
    if (below + prng_.uniform() * (tables_->f[layer + 1] - below) < density(x)) {
      return negative ? -x : x;
    }
  }
}

double NormalSource::tail(bool negative) {
  for (;;) {
    const double x = -std::log(1.0 - prng_.uniform()) / kTailStart;
    const double y = -std::log(1.0 - prng_.uniform());
    if (2.0 * y >= x * x) return negative ? -(kTailStart + x) : kTailStart + x;
  }
}

std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float float_from_bf16(std::uint16_t word) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(word) << 16);
}

const char* workload_name(Workload workload) {
  switch (workload) {
    case Workload::kAdam:
      return "adam";
    case Workload::kRelative:
      return "relative";
    case Workload::kUnit:
      return "unit";
  }
  return "unknown";
}

Result<Workload> workload_from_name(const std::string& name) {
  for (const Workload workload : {Workload::kAdam, Workload::kRelative, Workload::kUnit}) {
    if (name == workload_name(workload)) return workload;
  }
  return Status(Code::kInvalidArgument,
                "workload '" + name + "' is unknown; choose adam, relative or unit");
}

WorkloadSpec workload_at_rate(Workload workload, double rate, std::uint64_t seed) {
  WorkloadSpec spec;
  spec.workload = workload;
  spec.rate = rate;
  spec.seed = seed;
  if (workload == Workload::kAdam) spec.adam_step = adam_step_for_rate(rate);
  return spec;
}

void fill_chunk(const WorkloadSpec& spec, std::uint64_t chunk, std::span<std::uint16_t> before,
                std::span<std::uint16_t> after) {
  NormalSource normals(chunk_seed(spec.seed, chunk));
  if (spec.workload == Workload::kAdam) {
    fill_adam(spec.adam_step, &normals, before, after);
  } else {
    fill_chosen(spec, &normals, before, after);
  }
}

WeightPair make_weights(const WorkloadSpec& spec, std::uint64_t elements) {
  WeightPair pair{std::vector<std::uint16_t>(elements), std::vector<std::uint16_t>(elements)};
  parallel_for(divide_up(elements, kChunkWords), [&](std::uint64_t chunk) {
    const std::uint64_t first = chunk * kChunkWords;
    const std::uint64_t words = std::min(kChunkWords, elements - first);
    fill_chunk(spec, chunk, std::span(pair.before).subspan(first, words),
               std::span(pair.after).subspan(first, words));
  });
  return pair;
}

NoiseVectors make_noise_vectors(std::uint64_t elements, std::uint64_t seed) {
  NoiseVectors vectors{std::vector<std::uint16_t>(elements), std::vector<float>(elements)};
  parallel_for(divide_up(elements, kChunkWords), [&](std::uint64_t chunk) {
    NormalSource normals(chunk_seed(seed, chunk));
    const std::uint64_t first = chunk * kChunkWords;
    const std::uint64_t end = std::min(first + kChunkWords, elements);
    for (std::uint64_t i = first; i < end; ++i) {
      vectors.inputs[i] = bf16_from_float(static_cast<float>(normals.next()));
      vectors.noise[i] = static_cast<float>(normals.next());
    }
  });
  return vectors;
}

std::vector<std::uint16_t> add_noise(const NoiseVectors& vectors, float amplitude) {
  std::vector<std::uint16_t> result(vectors.inputs.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    // Two roundings: this file is compiled without contraction to fused multiply-add.
    const float scaled = vectors.noise[i] * amplitude;
    result[i] = bf16_from_float(float_from_bf16(vectors.inputs[i]) + scaled);
  }
  return result;
}

}  // namespace dcr
