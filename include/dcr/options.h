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

}  // namespace dcr
