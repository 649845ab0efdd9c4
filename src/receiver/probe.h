// What probes hold: words made of their own indices.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/words_of.h"
#include "tensor/box.h"

namespace dcr {

struct ProbePattern {
  enum class Kind : std::uint8_t {
    kCode,   // a hash of the index; code 1 differs from code 0 everywhere
    kDigit,  // digit `number` of the index, in base 2^(8 · width)
    // Elements whose bit `number` of the index is set are ordinary numbers, the others NaN;
    // inverted for number + 64.
    kActive,
    // Words that functions of values treat differently: NaN, infinities, zeros, extremes. Each
    // element has another of kSpecialWords for each number.
    kSpecial,
    // Numbers between 1 and 2, or for number 1 between 4 and 8; 0 or 1 in types that are no floats.
    kOrdinary,
  };
  Kind kind = Kind::kCode;
  unsigned number = 0;
};

inline constexpr unsigned kSpecialWords = 8;

std::uint64_t probe_word(const ProbePattern& pattern, Dtype dtype, std::uint64_t index);

// Fills a contiguous tensor.
Status fill_probe(TargetMemory& memory, const TensorView& probe, const ProbePattern& pattern);

// Whether a source (`box.dst`: words of `source`'s storage) holds the pattern's words of the
// indices that `box.src` says.
Result<bool> holds_pattern(TargetMemory& memory, const TensorView& source, const Box& box,
                           const ProbePattern& pattern, Dtype dtype);

}  // namespace dcr
