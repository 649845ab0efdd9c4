// Choices that callers make, each with its unit in its name. One struct per role; defaults are the
// paper's (Appendix C) where it has one.
#pragma once

#include <cstdint>

namespace dcr {

// The format version that this build writes and reads (docs/FORMAT.md).
inline constexpr std::uint32_t kFormatVersion = 0;

// How far a stage of a long call is: what the callbacks named `progress` get.
struct Progress {
  const char* stage;         // "diff", "check", "apply", "verify", …
  std::uint64_t bytes_done;  // of tensor data
  std::uint64_t bytes_total;
};

// How a change is written into the resident bits (paper §5; docs/FORMAT.md "Encodings"). The
// numbers are on the wire.
enum class Encoding : std::uint8_t {
  kOverwrite = 0,  // the new bits
  kXor = 1,        // old ^ new
  kAdd = 2,        // (new − old) mod 2^w on the stored bits as unsigned integers
};

// "overwrite", "xor", "add".
constexpr const char* encoding_name(Encoding encoding) {
  switch (encoding) {
    case Encoding::kOverwrite:
      return "overwrite";
    case Encoding::kXor:
      return "xor";
    case Encoding::kAdd:
      return "add";
  }
  return "unknown";
}

// What an attempt sends (paper §6.3; docs/PROTOCOL.md rule 4).
enum class AttemptMode : std::uint8_t {
  kMixed = 0,      // changes, each coded as its path allows
  kOverwrite = 1,  // changes, all as new bits: a retry
  kDense = 2,      // everything that the owner owns, as it is; needs no baseline
};

// "mixed", "overwrite", "dense".
constexpr const char* attempt_mode_name(AttemptMode mode) {
  switch (mode) {
    case AttemptMode::kMixed:
      return "mixed";
    case AttemptMode::kOverwrite:
      return "overwrite";
    case AttemptMode::kDense:
      return "dense";
  }
  return "unknown";
}

// What is asked of owners for a canonical tensor, by one receiver or by several together
// (docs/TRACING.md "Paths, and what is refused").
enum class Need : std::uint8_t {
  kAny,
  kOverwrite,  // no xor, no add
  kDense,      // all of it, changed or not
  kSkip,       // nothing: no receiver has any of it
};

}  // namespace dcr
