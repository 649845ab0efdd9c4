// Canonical tensors brought together by the rules of a layout: which of them make one local tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dcr/status.h"
#include "layout/layout_file.h"
#include "tensor/catalogue.h"

namespace dcr {

// One rule with one set of captures.
struct LayoutGroup {
  std::uint32_t rule = 0;
  std::uint32_t expert = 0;  // of a rule with experts that are not stacked
  std::string name;          // of the local tensor
  // Indices in the catalogue: of each pattern of the rule in order; stacked: of all experts. Of
  // class kNone those that are there.
  std::vector<std::uint32_t> members;
};

// Which shard of a group a rank has.
struct RankPiece {
  bool here = false;
  std::uint32_t shard = 0;         // for make_local_tensor
  std::uint32_t expert_begin = 0;  // stacked: its experts
  std::uint32_t expert_end = 0;
  std::uint32_t piece = 0;  // its number among the group's pieces
};
RankPiece piece_of_rank(const LayoutRule& rule, const LayoutGroup& group, std::uint32_t rank);

// The ranks that have the piece, ascending.
std::vector<std::uint32_t> ranks_of_piece(const Layout& layout, const LayoutRule& rule,
                                          const LayoutGroup& group, const RankPiece& piece);

// The members of `group` that the piece is made from.
std::span<const std::uint32_t> members_of_piece(const LayoutRule& rule, const LayoutGroup& group,
                                                const RankPiece& piece);

// Groups in the order of their first tensor. Errors, naming tensor and rule: kMismatch (a tensor
// without a rule, with two, or without the others that its rule fuses it with; a rule without a
// tensor; an expert beyond the rule's number; two groups of one name); kTooLarge (a local name).
Result<std::vector<LayoutGroup>> make_groups(const Catalogue& catalogue, const Layout& layout);

}  // namespace dcr
