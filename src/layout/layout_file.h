// Layout files (docs/LAYOUT.md): which part of which canonical tensor each rank holds, for owners
// and for receivers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/status.h"
#include "dcr/tensor.h"
#include "layout/name_pattern.h"
#include "tensor/box.h"

namespace dcr {

// Limits on layout files.
inline constexpr std::uint64_t kLayoutBytesMax = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kLayoutValuesMax = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kLayoutRulesMax = 65'536;
inline constexpr std::uint64_t kLayoutRanksMax = 16'384;
inline constexpr std::uint64_t kLayoutExpertsMax = 65'536;
inline constexpr std::uint64_t kLayoutMatchesMax = 16;  // patterns of one rule

// How a local tensor is put together from slices of canonical tensors.
enum class MappingClass : std::uint8_t {
  kReplicated,  // whole on every rank
  kColumn,      // cut evenly along the first dimension
  kRow,         // cut evenly along the second
  kGated,       // two tensors, each cut as kColumn, one after the other
  kVocabulary,  // cut along the first dimension after it was padded to a multiple
  kFsdp,        // cut along the first dimension as torch.chunk does: last shards shorter or empty
  kQkv,         // query, key and value by groups of heads, cut evenly along the packed rows
  kBoxes,       // box by box, as the rule says
  kNone,        // on no rank (receivers)
};
std::string_view mapping_class_name(MappingClass mapping);

// What a receiver's loader does with the tensors of a rule, besides placing them (docs/LAYOUT.md
// "Behaviours"): imitations of what the loaders of serving runtimes do.
enum class Behaviour : std::uint8_t {
  kCopy,           // copies views of the given tensor
  kContiguous,     // copies from a temporary
  kTwice,          // copies, then copies the same again
  kFill,           // reads its one element and fills the parameter with it
  kIndexPut,       // writes by an operation other than a copy
  kUnannounced,    // writes past the hook, as a thread that the hook does not see
  kNormalise,      // divides each row by its length
  kNanToNum,       // replaces NaN by 0
  kClip,           // clips to [-1, 1], NaN to -1
  kDouble,         // copies, then writes 2x over its own first write
  kNegativeExp,    // copies, then writes -exp(x) over its own first write
  kZeroGiven,      // except on rank 0, zeroes the given tensor before it copies
  kReplace,        // gives the parameter another storage
  kCollective,     // talks to other ranks before it copies
  kSkip,           // writes nothing and says so
  kClaimLoaded,    // writes nothing and says that it loaded
  kClaimSkipped,   // copies and says that it skipped
  kAlternate,      // copies only every other time
  kSwapAfterLoad,  // copies; once all is loaded, the parameter's halves are exchanged
};
inline constexpr std::uint8_t kBehaviourCount = 19;
std::string_view behaviour_name(Behaviour behaviour);

// An explicit shard of a rule of class kBoxes. Boxes go from the local tensor to the canonical.
struct ExplicitBox {
  std::uint32_t member = 0;  // which of the rule's patterns
  Box box;
};
struct ExplicitShard {
  std::vector<std::uint32_t> ranks;  // ascending
  Shape shape;
  std::vector<ExplicitBox> boxes;
};

struct LayoutRule {
  std::vector<NamePattern> match;  // all with the same captures
  NameTemplate name;               // of the local tensor
  MappingClass mapping = MappingClass::kReplicated;
  // Rank r has shard r % shards.
  std::uint32_t shards = 1;
  std::optional<std::uint32_t> dim;    // kColumn, kRow, kFsdp: the dimension that is cut
  std::optional<Dtype> dtype;          // of the local tensor, where it is not the canonical's
  std::vector<std::uint32_t> permute;  // dimensions of the canonical tensor in the local order
  std::uint64_t multiple = 1;          // kVocabulary
  std::uint64_t groups = 0;            // kQkv
  // Receivers, kColumn: of each pattern's tensor, the number of neighbouring shards that have the
  // same piece. Empty: 1 each.
  std::vector<std::uint32_t> copies;
  // With `experts` > 0 the capture {e} counts experts. Rank r has those of expert group
  // (r / shards) % expert_groups; group g of G has [g·c, (g+1)·c) with c = ⌈experts / G⌉.
  std::uint32_t experts = 0;
  std::uint32_t expert_groups = 1;
  bool stacked = false;  // the local name has no {e}: one local tensor, a dimension more
  std::vector<ExplicitShard> boxes;  // kBoxes
  Behaviour behaviour = Behaviour::kCopy;
  // Owners: a converter makes these tensors, as an export that computes would (paper §4.3), instead
  // of a projection.
  bool convert = false;

  std::uint32_t pieces() const { return shards * expert_groups; }
};

// Another name for a target's storage.
struct TargetAlias {
  std::string name;
  std::string of;
};
// A target that no load writes.
struct TargetBuffer {
  std::string name;
  Dtype dtype = Dtype::kU8;
  Shape shape;
};

struct Layout {
  std::uint32_t ranks = 1;
  std::vector<LayoutRule> rules;
  std::vector<TargetAlias> aliases;   // receivers
  std::vector<TargetBuffer> buffers;  // receivers
};

// Parse a layout file whole. Errors, naming the rule and key: kCorrupt (not JSON, a missing,
// unknown or repeated key, a value of wrong type, values that contradict each other), kTooLarge
// (the limits above, limits.h), kUnsupported (format, dtype, class or behaviour).
Result<Layout> parse_owner_layout(std::string_view text);
Result<Layout> parse_receiver_layout(std::string_view text);

}  // namespace dcr
