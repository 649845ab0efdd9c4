#include "bench/entropy.h"

#include <math.h>

#include <cmath>
#include <numbers>

namespace dcr {

double log2_choose(std::uint64_t n, std::uint64_t k) {
  const auto log_factorial = [](std::uint64_t x) {
    int sign = 0;  // std::lgamma keeps it in a global
    return lgamma_r(static_cast<double>(x) + 1, &sign);
  };
  return (log_factorial(n) - log_factorial(k) - log_factorial(n - k)) / std::numbers::ln2;
}

double order0_bits(const std::vector<std::uint64_t>& histogram) {
  double total = 0;
  for (const std::uint64_t count : histogram) total += static_cast<double>(count);
  double bits = 0;
  for (const std::uint64_t count : histogram) {
    if (count == 0) continue;
    bits -= static_cast<double>(count) * std::log2(static_cast<double>(count) / total);
  }
  return bits;
}

std::vector<std::uint64_t> add_histogram(const std::vector<TensorChanges>& tensors) {
  std::vector<std::uint64_t> histogram(std::size_t{1} << 16);
  for (const TensorChanges& tensor : tensors) {
    for (std::size_t i = 0; i < tensor.positions.size(); ++i) {
      ++histogram[static_cast<std::uint16_t>(tensor.new_words[i] - tensor.old_words[i])];
    }
  }
  return histogram;
}

double location_entropy_bits(const std::vector<TensorChanges>& tensors) {
  double bits = 0;
  for (const TensorChanges& tensor : tensors) {
    bits += log2_choose(tensor.words, tensor.positions.size());
  }
  return bits;
}

double value_entropy_bits(const std::vector<TensorChanges>& tensors) {
  return order0_bits(add_histogram(tensors));
}

}  // namespace dcr
