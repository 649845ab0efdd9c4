#include "layout/group.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/checked.h"
#include "base/limits.h"
#include "tensor/text.h"

namespace dcr {

namespace {

std::string rule_text(const Layout& layout, std::uint32_t rule) {
  return "rule " + std::to_string(rule + 1) + " (" +
         quoted_name(layout.rules[rule].match.front().text()) + ")";
}

std::uint32_t experts_per_group(const LayoutRule& rule) {
  return static_cast<std::uint32_t>(divide_up(rule.experts, rule.expert_groups));
}

class Grouper {
 public:
  Grouper(const Catalogue& catalogue, const Layout& layout)
      : catalogue_(catalogue), layout_(layout), matched_(layout.rules.size(), false) {
    for (std::uint32_t r = 0; r < layout.rules.size(); ++r) {
      for (std::uint32_t m = 0; m < layout.rules[r].match.size(); ++m) {
        patterns_.push_back(layout.rules[r].match[m]);
        owners_.push_back({r, m});
      }
    }
    by_key_.reserve(catalogue.size());
    members_.reserve(catalogue.size());
  }

  Result<std::vector<LayoutGroup>> make() {
    const PatternSet set(patterns_);
    for (std::uint32_t i = 0; i < catalogue_.size(); ++i) {
      const PatternSet::Found found = set.find(catalogue_[i].name);
      DCR_TRY(check_found(i, found));
      DCR_TRY(add(i, found.first));
    }
    for (std::uint32_t r = 0; r < layout_.rules.size(); ++r) {
      if (!matched_[r]) {
        return Status(Code::kMismatch, rule_text(layout_, r) +
                                           " matches no tensor; correct its pattern or remove it");
      }
    }
    DCR_TRY(complete());
    return std::move(groups_);
  }

 private:
  struct PatternOwner {
    std::uint32_t rule = 0, member = 0;
  };
  struct Member {
    std::uint32_t group = 0, slot = 0, tensor = 0;
    bool operator<(const Member& other) const {
      return std::tie(group, slot, tensor) < std::tie(other.group, other.slot, other.tensor);
    }
  };

  Status check_found(std::uint32_t tensor, const PatternSet::Found& found) const {
    const std::string& name = catalogue_[tensor].name;
    if (found.first == PatternSet::kNone) {
      return {Code::kMismatch,
              "tensor " + quoted_name(name) + " has no rule in the layout; add one that matches it",
              name};
    }
    if (found.second == PatternSet::kNone) return {};
    return {Code::kMismatch,
            "tensor " + quoted_name(name) +
                " has two rules in the layout: " + rule_text(layout_, owners_[found.first].rule) +
                " and " + rule_text(layout_, owners_[found.second].rule) + "; keep one",
            name};
  }

  // Sorts tensor `tensor` into the group of its captures.
  Status add(std::uint32_t tensor, std::uint32_t pattern) {
    const auto [r, member] = owners_[pattern];
    const LayoutRule& rule = layout_.rules[r];
    const std::string& name = catalogue_[tensor].name;
    matched_[r] = true;
    if (!patterns_[pattern].match(name, &values_)) {
      return {Code::kInternal, "pattern set: " + quoted_name(name)};
    }
    const std::vector<std::string>& captures = patterns_[pattern].captures();
    std::uint32_t expert = 0;
    key_ = std::to_string(r);
    // In the order of the rule's first pattern, so that its patterns may order them differently.
    for (const std::string& capture : rule.match.front().captures()) {
      const auto at = std::find(captures.begin(), captures.end(), capture) - captures.begin();
      const std::string_view value = values_[static_cast<std::size_t>(at)];
      if (rule.experts > 0 && capture == "e") {
        expert = static_cast<std::uint32_t>(std::stoul(std::string(value)));
        if (rule.stacked) continue;
      }
      key_.append(1, '.').append(value);
    }
    if (rule.experts > 0 && expert >= rule.experts) {
      return {Code::kMismatch,
              "tensor " + quoted_name(name) + " is expert " + std::to_string(expert) + ", but " +
                  rule_text(layout_, r) + " has " + std::to_string(rule.experts) + " experts",
              name};
    }
    const auto [found, fresh] = by_key_.emplace(key_, static_cast<std::uint32_t>(groups_.size()));
    if (fresh) {
      LayoutGroup group;
      group.rule = r;
      group.expert = expert;
      if (rule.mapping != MappingClass::kNone) group.name = rule.name.fill(captures, values_);
      if (group.name.size() > kTensorNameBytesMax) {
        return {Code::kTooLarge,
                "tensor " + quoted_name(name) + ": " + rule_text(layout_, r) +
                    " makes a local tensor with a name above " +
                    std::to_string(kTensorNameBytesMax) + " bytes",
                name};
      }
      groups_.push_back(std::move(group));
    }
    const std::size_t slot = (rule.stacked ? expert : 0) * rule.match.size() + member;
    members_.push_back({found->second, static_cast<std::uint32_t>(slot), tensor});
    return {};
  }

  // Gives groups their members, which must be there but for tensors that no rank has.
  Status complete() {
    std::sort(members_.begin(), members_.end());
    std::unordered_map<std::string_view, const LayoutGroup*> names;
    names.reserve(groups_.size());
    auto next = members_.begin();
    for (std::uint32_t i = 0; i < groups_.size(); ++i) {
      LayoutGroup& group = groups_[i];
      const LayoutRule& rule = layout_.rules[group.rule];
      std::size_t slot = 0;  // the first without a tensor
      for (; next != members_.end() && next->group == i; ++next) {
        if (next->slot == slot) ++slot;
        group.members.push_back(next->tensor);
      }
      if (rule.mapping == MappingClass::kNone) continue;
      const std::string& name = catalogue_[group.members.front()].name;
      if (slot < rule.match.size() * (rule.stacked ? rule.experts : 1)) {
        std::string what = quoted_name(rule.match[slot % rule.match.size()].text());
        if (rule.stacked) what += " of expert " + std::to_string(slot / rule.match.size());
        return {Code::kMismatch,
                "tensor " + quoted_name(name) + ": " + rule_text(layout_, group.rule) +
                    " joins it with " + what + ", which the catalogue lacks",
                name};
      }
      const auto [other, fresh] = names.emplace(group.name, &group);
      if (!fresh) {
        return {Code::kMismatch,
                "tensors " + quoted_name(catalogue_[other->second->members.front()].name) +
                    " and " + quoted_name(name) + " both make local tensor " +
                    quoted_name(group.name) + "; give one of their rules another \"name\"",
                name};
      }
    }
    return {};
  }

  const Catalogue& catalogue_;
  const Layout& layout_;
  std::vector<bool> matched_;  // index: rule
  std::vector<NamePattern> patterns_;
  std::vector<PatternOwner> owners_;  // index: pattern
  std::unordered_map<std::string, std::uint32_t> by_key_;
  std::vector<LayoutGroup> groups_;
  // In order from complete() on. What a rule says of experts takes no memory unless they are there.
  std::vector<Member> members_;
  std::vector<std::string_view> values_;
  std::string key_;
};

}  // namespace

Result<std::vector<LayoutGroup>> make_groups(const Catalogue& catalogue, const Layout& layout) {
  return Grouper(catalogue, layout).make();
}

RankPiece piece_of_rank(const LayoutRule& rule, const LayoutGroup& group, std::uint32_t rank) {
  RankPiece made;
  if (rule.mapping == MappingClass::kNone) return made;
  if (rule.mapping == MappingClass::kBoxes) {
    for (std::uint32_t i = 0; i < rule.boxes.size(); ++i) {
      const std::vector<std::uint32_t>& ranks = rule.boxes[i].ranks;
      if (std::binary_search(ranks.begin(), ranks.end(), rank)) return {true, i, 0, 0, i};
    }
    return made;
  }
  made.shard = rank % rule.shards;
  made.piece = made.shard;
  made.here = true;
  if (rule.experts == 0) return made;
  const std::uint32_t expert_group = rank / rule.shards % rule.expert_groups;
  const std::uint32_t each = experts_per_group(rule);
  if (!rule.stacked) {
    made.here = group.expert / each == expert_group;
    return made;
  }
  made.expert_begin = std::min(rule.experts, expert_group * each);
  made.expert_end = std::min(rule.experts, made.expert_begin + each);
  made.piece += expert_group * rule.shards;
  made.here = made.expert_begin < made.expert_end;
  return made;
}

std::vector<std::uint32_t> ranks_of_piece(const Layout& layout, const LayoutRule& rule,
                                          const LayoutGroup& group, const RankPiece& piece) {
  if (rule.mapping == MappingClass::kBoxes) return rule.boxes[piece.piece].ranks;
  std::uint32_t first = piece.piece;
  if (rule.experts > 0 && !rule.stacked) {
    first += group.expert / experts_per_group(rule) * rule.shards;
  }
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = first; rank < layout.ranks; rank += rule.pieces()) {
    ranks.push_back(rank);
  }
  return ranks;
}

std::span<const std::uint32_t> members_of_piece(const LayoutRule& rule, const LayoutGroup& group,
                                                const RankPiece& piece) {
  std::span<const std::uint32_t> members = group.members;
  if (!rule.stacked) return members;
  const std::size_t count = rule.match.size();
  return members.subspan(piece.expert_begin * count,
                         (piece.expert_end - piece.expert_begin) * count);
}

}  // namespace dcr
