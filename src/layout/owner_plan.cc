#include "layout/owner_plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "base/cancelled.h"
#include "base/checked.h"
#include "layout/local_tensor.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {

namespace {

// Explicit boxes after their patterns' captures were filled in.
constexpr std::uint64_t kExpandedBoxesMax = std::uint64_t{1} << 24;

// A box of a canonical tensor and who has it.
struct Held {
  Box box;
  const std::vector<std::uint32_t>* ranks = nullptr;
};

// Which two boxes overlap, for a message; on an error only.
Status name_overlap(const CanonicalTensor& tensor, const std::vector<Held>& held) {
  std::vector<Box> boxes;
  std::size_t low = 0;  // so many boxes are disjoint, `high` are not
  std::size_t high = held.size();
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    boxes.clear();
    for (std::size_t i = 0; i < middle; ++i) boxes.push_back(held[i].box);
    (destinations_disjoint(boxes) ? low : high) = middle;
  }
  const Held& second = held[high - 1];
  const Held* first = &second;
  for (std::size_t i = 0; i + 1 < high; ++i) {
    if (!destinations_disjoint({held[i].box, second.box})) {
      first = &held[i];
      break;
    }
  }
  return {Code::kMismatch,
          "tensor " + quoted_name(tensor.name) + ": " + ranks_text(*first->ranks) + " and " +
              ranks_text(*second.ranks) + " hold elements of it in common; cut it without overlap",
          tensor.name};
}

Status check_cover(const CanonicalTensor& tensor, const std::vector<Held>& held) {
  std::vector<Box> boxes;
  boxes.reserve(held.size());
  for (const Held& one : held) boxes.push_back(one.box);
  const Status covered = covers_exactly_once(boxes, tensor.words);
  if (covered.ok()) return {};
  if (!destinations_disjoint(boxes)) return name_overlap(tensor, held);
  std::vector<std::uint32_t> ranks;
  for (const Held& one : held) ranks.insert(ranks.end(), one.ranks->begin(), one.ranks->end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return {Code::kMismatch,
          "tensor " + quoted_name(tensor.name) + ": " + covered.message() + " (" +
              (ranks.empty()
                   ? std::string("no rank holds any of it")
                   : ranks_text(ranks) + (ranks.size() == 1 ? " has" : " have") + " the rest") +
              ")",
          tensor.name};
}

// The parts of every explicit shard of a group cover its tensors.
Status check_boxes(const Catalogue& catalogue, const LayoutRule& rule, const LayoutGroup& group) {
  std::unordered_map<std::uint32_t, std::vector<Held>> held;
  for (const std::uint32_t member : group.members) held[member];
  for (std::uint32_t i = 0; i < rule.boxes.size(); ++i) {
    DCR_ASSIGN(LocalTensor local, make_local_tensor(catalogue, rule, group.members, i));
    for (LocalPart& part : local.parts) {
      held[part.tensor].push_back({std::move(part.box), &rule.boxes[i].ranks});
    }
  }
  for (const std::uint32_t member : group.members) {
    DCR_TRY(check_cover(catalogue[member], held[member]));
  }
  return {};
}

// Geometry errors of a group: its formulas give the same on every shard of one expert group.
Status check_geometry(const Catalogue& catalogue, const LayoutRule& rule,
                      const LayoutGroup& group) {
  const std::uint32_t expert_groups = rule.stacked ? rule.expert_groups : 1;
  for (std::uint32_t g = 0; g < expert_groups; ++g) {
    const RankPiece piece = piece_of_rank(rule, group, g * rule.shards);
    const std::span<const std::uint32_t> members = members_of_piece(rule, group, piece);
    if (members.empty()) continue;
    const Result<LocalTensor> local = make_local_tensor(catalogue, rule, members, 0);
    if (!local.ok()) return local.status();
  }
  return {};
}

std::uint32_t pieces_of(const LayoutRule& rule) {
  if (rule.mapping == MappingClass::kBoxes) return static_cast<std::uint32_t>(rule.boxes.size());
  return rule.stacked ? rule.pieces() : rule.shards;
}

std::string piece_name(const LayoutRule& rule, const LayoutGroup& group, std::uint32_t piece) {
  if (pieces_of(rule) <= 1) return group.name;
  const std::string number = std::to_string(piece);
  std::string name;
  name.reserve(group.name.size() + 1 + number.size());
  return name.append(group.name).append(1, '/').append(number);
}

// check_tasks, source tensor by source tensor.
class TaskChecker {
 public:
  explicit TaskChecker(const Catalogue& catalogue) : catalogue_(catalogue) {
    held_.resize(catalogue.size());
  }

  Status add(const ConversionTask& task, std::uint32_t rank) {
    const auto [found, fresh] = seen_.emplace(task.name, Seen{&task, rank, 0});
    const Seen& seen = found->second;
    const std::size_t turn = found->second.times++;
    const std::vector<std::uint32_t>& replicas = seen.task->replicas;
    if (turn >= replicas.size() || replicas[turn] != rank) {
      return fail(task, "rank " + std::to_string(rank) + " holds it, but its replicas are " +
                            ranks_text(replicas));
    }
    return fresh ? add_parts(task) : compare(task, seen, rank);
  }

  // Once every task was added.
  Status finish(const ConversionTask& task) const {
    const Seen& seen = seen_.find(task.name)->second;
    const std::vector<std::uint32_t>& replicas = seen.task->replicas;
    if (seen.times == replicas.size()) return {};
    return fail(task, "its replicas are " + ranks_text(replicas) + ", but rank " +
                          std::to_string(replicas[seen.times]) + " lacks it");
  }

  Status check_covers(const CancelToken* cancel) const {
    for (std::uint32_t i = 0; i < catalogue_.size(); ++i) {
      DCR_TRY(check_cancelled(cancel));
      DCR_TRY(check_cover(catalogue_[i], held_[i]));
    }
    return {};
  }

 private:
  struct Seen {
    const ConversionTask* task = nullptr;  // of the first rank that has it
    std::uint32_t rank = 0;
    std::size_t times = 0;
  };

  static Status fail(const ConversionTask& task, const std::string& what) {
    return {Code::kMismatch, "source tensor " + quoted_name(task.name) + ": " + what};
  }

  static Status compare(const ConversionTask& task, const Seen& seen, std::uint32_t rank) {
    const std::string both =
        "ranks " + std::to_string(seen.rank) + " and " + std::to_string(rank) + " ";
    if (task.view.sizes != seen.task->view.sizes || task.view.dtype != seen.task->view.dtype) {
      return fail(task, both + "hold different shapes or dtypes");
    }
    if (task.placement != seen.task->placement) return fail(task, both + "place it differently");
    if (task.replicas != seen.task->replicas) return fail(task, both + "list different replicas");
    return {};
  }

  Status add_parts(const ConversionTask& task) {
    for (const PlacementPart& part : task.placement) {
      if (part.destination >= catalogue_.size()) {
        return fail(task, "a part of it goes to tensor " + std::to_string(part.destination) +
                              " of " + std::to_string(catalogue_.size()));
      }
      const Status valid =
          validate_box(part.box, view_words(task.view), catalogue_[part.destination].words);
      if (!valid.ok()) return fail(task, valid.message());
      held_[part.destination].push_back({part.box, &task.replicas});
    }
    return {};
  }

  const Catalogue& catalogue_;
  std::unordered_map<std::string_view, Seen> seen_;
  std::vector<std::vector<Held>> held_;  // index: canonical tensor
};

}  // namespace

Result<OwnerPlan> OwnerPlan::make(const Catalogue& catalogue, Layout layout) {
  OwnerPlan plan;
  plan.layout_ = std::move(layout);
  DCR_ASSIGN(plan.groups_, make_groups(catalogue, plan.layout_));
  std::uint64_t boxes = 0;
  for (const LayoutGroup& group : plan.groups_) {
    const LayoutRule& rule = plan.layout_.rules[group.rule];
    if (rule.mapping != MappingClass::kBoxes) {
      DCR_TRY(check_geometry(catalogue, rule, group));
      continue;
    }
    for (const ExplicitShard& shard : rule.boxes) boxes += shard.boxes.size();
    if (boxes > kExpandedBoxesMax) {
      return Status(Code::kTooLarge, "layout: with rule " + std::to_string(group.rule + 1) +
                                         " there are more than " +
                                         std::to_string(kExpandedBoxesMax) + " explicit boxes");
    }
    DCR_TRY(check_boxes(catalogue, rule, group));
  }
  return plan;
}

std::vector<std::string> OwnerPlan::task_names(const LayoutGroup& group) const {
  const LayoutRule& rule = layout_.rules[group.rule];
  std::vector<std::string> names;
  for (std::uint32_t piece = 0; piece < pieces_of(rule); ++piece) {
    // The first rank that has it says whether a stack's piece has experts.
    const bool there = !rule.stacked || piece_of_rank(rule, group, piece).here;
    if (there) names.push_back(piece_name(rule, group, piece));
  }
  return names;
}

OwnerRank OwnerPlan::rank(const Catalogue& catalogue, std::uint32_t rank) const {
  DCR_ASSERT(rank < layout_.ranks);
  OwnerRank made;
  made.tasks.reserve(groups_.size());
  made.storage_bytes.reserve(groups_.size());
  for (const LayoutGroup& group : groups_) {
    const LayoutRule& rule = layout_.rules[group.rule];
    const RankPiece piece = piece_of_rank(rule, group, rank);
    if (!piece.here) continue;
    Result<LocalTensor> local =
        make_local_tensor(catalogue, rule, members_of_piece(rule, group, piece), piece.shard);
    DCR_ASSERT(local.ok());  // make() has tried
    ConversionTask task;
    task.name = piece_name(rule, group, piece.piece);
    task.view = contiguous_view(made.tasks.size(), local->dtype, local->shape);
    for (LocalPart& part : local->parts) {
      task.placement.push_back({part.tensor, std::move(part.box)});
    }
    task.replicas = ranks_of_piece(layout_, rule, group, piece);
    made.storage_bytes.push_back(view_words(task.view) * word_bytes(local->dtype));
    made.tasks.push_back(std::move(task));
  }
  return made;
}

Status check_tasks(const Catalogue& catalogue,
                   const std::vector<std::vector<ConversionTask>>& tasks,
                   const CancelToken* cancel) {
  TaskChecker checker(catalogue);
  for (std::uint32_t rank = 0; rank < tasks.size(); ++rank) {
    DCR_TRY(check_cancelled(cancel));
    for (const ConversionTask& task : tasks[rank]) DCR_TRY(checker.add(task, rank));
  }
  for (const std::vector<ConversionTask>& of_rank : tasks) {
    for (const ConversionTask& task : of_rank) DCR_TRY(checker.finish(task));
  }
  return checker.check_covers(cancel);
}

}  // namespace dcr
