// What one load writes, recorded through the hook while no parameter is written (paper Appendix
// A.2; DESIGN §7 "Traced placement").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"

namespace dcr {

enum class WriteKind : std::uint8_t {
  kPlaced,    // every element is a canonical element's bits
  kCast,      // a copy from the given tensor into another dtype
  kComputed,  // a copy of something that the loader made
  kConstant,  // the same bits whatever the given tensor holds
  kGiven,     // a write to the given tensor itself
  kOpaque,    // an operation that is no copy, or a constant taken from the given tensor
};

// One event of a load.
struct TracedWrite {
  WriteKind kind = WriteKind::kOpaque;
  LoaderEventKind event = LoaderEventKind::kOther;
  std::string operation;
  TensorView destination;
  bool from_given = false;  // the source is a view of the given tensor: `source`, storage 0
  TensorView source;        // its storage is of no meaning
  // kPlaced, kCast: canonical word → word of the destination's storage. Each is injective on both
  // sides.
  std::vector<Box> places;
};

struct LoadTrace {
  std::vector<TracedWrite> writes;
  bool collective = false;
  bool replaces = false;  // a parameter got another storage
};

}  // namespace dcr
