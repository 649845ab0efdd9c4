// The yardstick of every size: what a perfect coder would need that knows nothing but how many
// elements change and how often each value occurs (docs/TESTING.md "Benchmarks").
#pragma once

#include <cstdint>
#include <vector>

#include "bench/changes.h"

namespace dcr {

// log2 of the number of ways to choose k of n. REQUIRES: k <= n.
double log2_choose(std::uint64_t n, std::uint64_t k);

// Bits of `values` under an ideal coder for their own histogram.
double order0_bits(const std::vector<std::uint64_t>& histogram);

// How often each (new − old) mod 2^16 occurs; 65,536 entries.
std::vector<std::uint64_t> add_histogram(const std::vector<TensorChanges>& tensors);

// Bits of the locations, Σ over tensors log2 C(words, changes), and of the `add` values.
double location_entropy_bits(const std::vector<TensorChanges>& tensors);
double value_entropy_bits(const std::vector<TensorChanges>& tensors);

}  // namespace dcr
