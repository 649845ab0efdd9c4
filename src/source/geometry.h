// What all owners of a refit agree on: what each projects and converts, and that together they make
// every element of every canonical tensor exactly once (paper §4.3, A.1; docs/ARCHITECTURE.md "One
// refit at its owners"). Made from one declaration per rank, the same on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/limits.h"
#include "codec/item.h"
#include "dcr/cancel.h"
#include "dcr/options.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "source/source_plan.h"
#include "tensor/catalogue.h"
#include "tensor/task.h"

namespace dcr {

// What one rank holds of a refit's weights. Nothing is owned but the lists.
struct OwnerInput {
  std::uint32_t rank = 0;
  std::vector<ConversionTask> tasks;   // all that the rank has a replica of
  std::vector<TrackedSource> tracked;  // likewise
  std::vector<Converter*> converters;  // the same groups in the same order on every rank
  SourceMemory* memory = nullptr;
  Collective* collective = nullptr;  // may be null where there are no converters
};

// A rank's word on it to the others. Only the canonical side of its boxes counts.
struct OwnerDeclaration {
  std::uint32_t rank = 0;
  std::vector<std::string> sources;  // names of the tasks and tracked tensors that it owns
  Placement direct;                  // of the tasks that it owns
  std::vector<ConverterDeclaration> converters;
};
// Error kInvalidArgument naming a source tensor that no rank holds.
Result<OwnerDeclaration> declare_owner(const OwnerInput& input);

// The unit in which residual tensors are converted, sent, compared and coded: consecutive words of
// one part.
struct ResidualPiece {
  std::uint32_t group = 0;
  std::uint32_t tensor = 0;
  std::uint32_t from = 0;            // rank that converts it
  std::uint32_t to = 0;              // rank that owns the tensor's residual baseline
  std::uint64_t converter_part = 0;  // of the converter on rank `from`
  std::uint64_t part = 0;            // of that rank's parts of the tensor
  std::uint64_t first = 0;           // word of the part
  std::uint64_t words = 0;
  std::uint8_t width = 1;
  ItemBox box;
};

// All ranks convert in rounds, after each of which they meet: so many bytes at most, or one piece,
// go to one owner in a round, which bounds what waits there.
inline constexpr std::uint64_t kRoundBytesMax = 16 * kMiB;

// Change flags, reduced over all ranks.
struct FlagLayout {
  static constexpr std::size_t kFailed = 0;   // some rank failed; all give up
  static constexpr std::size_t kChanged = 1;  // some source tensor changed
  std::size_t dense = 2;                      // + rank: that owner sends all it owns
  std::size_t source = 0;                     // + index in source_names: that source tensor changed
  std::size_t count = 0;
};

class Geometry {
 public:
  struct Group {
    std::string name;
    std::vector<std::uint32_t> inputs;    // in source_names
    std::vector<std::uint32_t> upstream;  // groups that make what this one reads
    std::vector<std::uint32_t> outputs;   // canonical tensors
  };

  // Checks and combines the declarations, which must be of ranks 0, 1, 2, … in order. `catalogue`
  // must outlive the result. Errors name tensor and ranks: kMismatch (a gap, an overlap, ranks that
  // declare different converters, a source tensor with two owners), kNotFound (a converter's input
  // or output that there is not), kUnsupported, kCorrupt (a part whose box is not within its
  // tensor), kCancelled once `cancel`, which may be null, is.
  static Result<std::shared_ptr<const Geometry>> make(const Catalogue& catalogue,
                                                      std::span<const OwnerDeclaration> ranks,
                                                      const CancelToken* cancel = nullptr);

  const Catalogue& catalogue() const { return *catalogue_; }
  std::uint32_t ranks() const { return ranks_; }
  std::span<const Group> groups() const { return groups_; }
  const FlagLayout& flags() const { return flags_; }

  // Source tensors whose changes select conversions, ascending; -1: none of them.
  std::int64_t find_source(const std::string& name) const;
  // Whether some converter may read it.
  bool feeds(const std::string& name) const;
  // Whether owners project the tensor, or else only converters make it.
  bool projected(std::uint32_t tensor) const { return projected_[tensor]; }
  // Which rank owns the residual baseline of a tensor (paper §4.3).
  std::uint32_t residual_owner(std::uint32_t tensor) const;

  // In ascending (group, tensor, offset) order.
  std::span<const ResidualPiece> residual() const { return residual_; }

  // Indices of the residual pieces that an attempt converts: those of groups that a change reaches,
  // directly or through others (paper §4.3), of which some output is needed dense, or whose owner
  // is dense. `needs` may be empty.
  std::vector<std::uint32_t> select(std::span<const std::uint8_t> flags,
                                    std::span<const Need> needs) const;

  // Deals pieces out to rounds, so that every receiving owner gets something in each while it
  // lasts: its own pieces in their order, and each round's in their order too.
  std::vector<std::vector<std::uint32_t>> rounds(std::span<const std::uint32_t> pieces) const;

 private:
  friend class GeometryBuilder;
  Geometry() = default;

  const Catalogue* catalogue_ = nullptr;
  std::uint32_t ranks_ = 0;
  std::vector<Group> groups_;
  std::vector<std::string> source_names_;
  bool some_inputs_unknown_ = false;
  std::vector<bool> projected_;
  FlagLayout flags_;
  std::vector<ResidualPiece> residual_;
};

}  // namespace dcr
