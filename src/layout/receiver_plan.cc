#include "layout/receiver_plan.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/assert.h"
#include "layout/local_tensor.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {

namespace {

Status check_names(const Layout& layout, const std::vector<LayoutGroup>& groups) {
  std::unordered_set<std::string_view> targets;
  for (const LayoutGroup& group : groups) {
    if (layout.rules[group.rule].mapping != MappingClass::kNone) targets.insert(group.name);
  }
  std::unordered_set<std::string_view> aliases;
  for (const TargetAlias& alias : layout.aliases) {
    if (!aliases.insert(alias.name).second) {
      return {Code::kMismatch, "alias " + quoted_name(alias.name) + " stands twice"};
    }
  }
  for (const TargetAlias& alias : layout.aliases) {
    if (!targets.contains(alias.of) || aliases.contains(alias.of)) {
      return {Code::kMismatch, "alias " + quoted_name(alias.name) + " is of " +
                                   quoted_name(alias.of) +
                                   ", which is no target of a rule with storage of its own"};
    }
  }
  std::unordered_set<std::string_view> buffers;
  for (const TargetBuffer& buffer : layout.buffers) {
    if (targets.contains(buffer.name) || aliases.contains(buffer.name) ||
        !buffers.insert(buffer.name).second) {
      return {Code::kMismatch,
              "buffer " + quoted_name(buffer.name) + " has the name of another target"};
    }
  }
  return {};
}

// A rank's plan while it is made.
class RankBuilder {
 public:
  RankBuilder(const Catalogue& catalogue, const Layout& layout, std::uint32_t rank)
      : catalogue_(catalogue), layout_(layout), rank_(rank) {
    made_.steps.resize(catalogue.size());
    for (const TargetAlias& alias : layout.aliases) aliases_.insert(alias.name);
  }

  Status add_group(const LayoutGroup& group) {
    const LayoutRule& rule = layout_.rules[group.rule];
    if (rule.mapping == MappingClass::kNone) {
      for (const std::uint32_t member : group.members) {
        made_.steps[member].behaviour = rule.behaviour;
      }
      return {};
    }
    const RankPiece piece = piece_of_rank(rule, group, rank_);
    if (!piece.here) return {};
    const std::span<const std::uint32_t> members = members_of_piece(rule, group, piece);
    DCR_ASSIGN(const LocalTensor local, make_local_tensor(catalogue_, rule, members, piece.shard));
    const auto target = static_cast<std::uint32_t>(made_.targets.size());
    for (const std::uint32_t member : members) made_.steps[member].behaviour = rule.behaviour;
    for (const LocalPart& part : local.parts) {
      made_.steps[part.tensor].writes.push_back({target, invert(part.box)});
    }
    TensorView view = contiguous_view(0, local.dtype, local.shape);
    const std::uint64_t words = view_words(view);
    if (local.padding_begin < words) {
      made_.steps[members.front()].fills.push_back({target, local.padding_begin, words});
    }
    add_target(group.name, std::move(view), !aliases_.contains(group.name));
    return {};
  }

  Status add_aliases() {
    for (const TargetAlias& alias : layout_.aliases) {
      const auto of = by_name_.find(alias.of);
      const auto own = by_name_.find(alias.name);
      if (of == by_name_.end() && own == by_name_.end()) continue;  // on other ranks
      if (of == by_name_.end()) {
        return fail(alias, "which rank " + std::to_string(rank_) + " does not have");
      }
      const TensorView view = made_.targets[of->second].view;
      if (own == by_name_.end()) {
        made_.targets.push_back({alias.name, view});
        continue;
      }
      TensorView& mine = made_.targets[own->second].view;
      if (mine.sizes != view.sizes || mine.dtype != view.dtype) {
        return fail(alias, "which has another shape or dtype on rank " + std::to_string(rank_));
      }
      mine = view;
    }
    return {};
  }

  void add_buffers() {
    for (const TargetBuffer& buffer : layout_.buffers) {
      const std::uint64_t bytes = tensor_bytes(buffer.dtype, buffer.shape).value();
      const bool packed = dtype_bits(buffer.dtype) < 8;
      add_target(buffer.name,
                 packed ? contiguous_view(0, Dtype::kU8, {bytes})
                        : contiguous_view(0, buffer.dtype, buffer.shape),
                 true);
    }
  }

  ReceiverRank take() { return std::move(made_); }

 private:
  static Status fail(const TargetAlias& alias, const std::string& what) {
    return {Code::kMismatch,
            "alias " + quoted_name(alias.name) + " is of " + quoted_name(alias.of) + ", " + what};
  }

  void add_target(const std::string& name, TensorView view, bool own_storage) {
    by_name_.emplace(name, static_cast<std::uint32_t>(made_.targets.size()));
    if (own_storage) {
      view.storage = made_.storage_bytes.size();
      made_.storage_bytes.push_back(view_words(view) * word_bytes(view.dtype));
    }
    made_.targets.push_back({name, std::move(view)});
  }

  const Catalogue& catalogue_;
  const Layout& layout_;
  std::uint32_t rank_;
  std::unordered_set<std::string_view> aliases_;
  std::unordered_map<std::string, std::uint32_t> by_name_;  // index in targets
  ReceiverRank made_;
};

}  // namespace

Result<ReceiverPlan> ReceiverPlan::make(const Catalogue& catalogue, Layout layout) {
  ReceiverPlan plan;
  plan.layout_ = std::move(layout);
  DCR_ASSIGN(plan.groups_, make_groups(catalogue, plan.layout_));
  DCR_TRY(check_names(plan.layout_, plan.groups_));
  return plan;
}

Result<ReceiverRank> ReceiverPlan::rank(const Catalogue& catalogue, std::uint32_t rank) const {
  DCR_ASSERT(rank < layout_.ranks);
  RankBuilder builder(catalogue, layout_, rank);
  for (const LayoutGroup& group : groups_) DCR_TRY(builder.add_group(group));
  DCR_TRY(builder.add_aliases());
  builder.add_buffers();
  return builder.take();
}

}  // namespace dcr
