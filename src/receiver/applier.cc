#include "receiver/applier.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/mutant.h"
#include "receiver/checked.h"
#include "receiver/grid.h"
#include "receiver/views.h"
#include "tensor/text.h"

namespace dcr {

namespace {

// Changes per task at most: small enough to balance threads, large enough to be worth one.
constexpr std::size_t kTaskChanges = std::size_t{1} << 14;
// Words of an audited tensor at a time.
constexpr std::uint64_t kAuditWords = std::uint64_t{1} << 18;

void note_different(std::optional<std::uint32_t> tensor, ReceiverCounts* counts) {
  if (!tensor) return;
  counts->different_tensor = std::min(*tensor, counts->different_tensor.value_or(*tensor));
}

void add_counts(std::uint32_t tensor, const ApplyCounts& applied, ReceiverCounts* counts) {
  counts->destinations += applied.words;
  counts->different += applied.different;
  if (applied.different > 0) note_different(tensor, counts);
}

Status apply_checked(TargetMemory& memory, std::span<TargetApplication> all, std::size_t* failed,
                     std::uint64_t* checked) {
  for (*failed = 0; *failed < all.size(); ++*failed) {
    TargetApplication& one = all[*failed];
    DCR_TRY(apply_checked(memory, *one.target, one.positions, one.values, &one.counts, checked));
  }
  return {};
}

}  // namespace

Applier::~Applier() { release_wholes(); }

void Applier::release_wholes() {
  for (const auto& [tensor, whole] : wholes_) {
    static_cast<void>(memory_.release(whole.storage).ok());  // an id that is known
  }
  wholes_.clear();
  loaded_.clear();
}

void Applier::prepare(const PrewarmResult* prewarm, bool checks) {
  release_wholes();
  plans_.clear();
  prewarm_ = prewarm;
  checks_ = checks;
  scratch_.set_checks(checks);
}

Status Applier::begin() {
  release_wholes();
  std::uint64_t largest = 0;
  for (std::uint32_t tensor = 0; tensor < catalogue_.size(); ++tensor) {
    if (prewarm_->classes[tensor].path != TensorPath::kScratch) continue;
    const CanonicalTensor& canonical = catalogue_[tensor];
    largest = std::max(largest, canonical.words * word_bytes(canonical.dtype));
  }
  if (largest > 0) return scratch_.reserve(largest);
  scratch_.release();
  return {};
}

Status Applier::add_tasks(const DecodedItem& item, std::vector<Task>* tasks) {
  const std::uint32_t tensor = item.header.tensor;
  const Result<PlanCache::Plan> plan =
      plans_.find(tensor, item.header.box, prewarm_->places[tensor]);
  if (!plan.ok()) return about_tensor(catalogue_[tensor], plan.status());
  add_tasks(item, **plan, tasks);
  return {};
}

void Applier::add_tasks(const DecodedItem& item, std::span<const TargetChanges> plan,
                        std::vector<Task>* tasks) const {
  for (const TargetChanges& target : plan) {
    std::size_t from = 0;
    std::size_t to = 0;
    Grid(target).clip(item.positions, &from, &to);
    // A check reads all words of the windows, so tasks may not share any.
    const std::size_t step = checks_ ? item.positions.size() : kTaskChanges;
    for (; from < to; from += step) {
      Task task{target, &item, from, std::min(from + step, to)};
      task.target.encoding = item.header.encoding;
      tasks->push_back(std::move(task));
    }
  }
}

Status Applier::run_tasks(std::span<const Task> tasks, ApplyMode mode, ReceiverCounts* counts) {
  std::vector<TargetApplication> all;
  all.reserve(tasks.size());
  for (const Task& task : tasks) {
    auto positions = std::span(task.item->positions).subspan(task.from, task.to - task.from);
    if (DCR_MUTANT("canary")) positions = positions.first(positions.size() - 1);
    const std::uint8_t* values = task.item->values.data() + task.from * task.item->header.width;
    all.push_back({&task.target, positions, values, {}});
  }
  std::size_t failed = 0;
  const Status status = checks_ && mode == ApplyMode::kWrite
                            ? apply_checked(memory_, all, &failed, &counts->checked)
                            : memory_.apply_all(all, mode, &failed);
  if (!status.ok() && failed < tasks.size()) {
    return about_tensor(catalogue_[tasks[failed].item->header.tensor], status);
  }
  if (!status.ok()) {  // of the memory, with whatever it was at
    return status.with_context("changes of \"" + catalogue_[tasks[0].item->header.tensor].name +
                               "\" and of what is applied with it");
  }
  if (DCR_MUTANT("receiver_applies_twice")) DCR_TRY(memory_.apply_all(all, mode, &failed));
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    add_counts(tasks[i].item->header.tensor, all[i].counts, counts);
  }
  return {};
}

// No two tasks of a payload reach the same word: its items do not overlap, and neither do tensors.
Status Applier::run(std::span<const Task> tasks, ApplyMode mode, ReceiverCounts* counts) {
  std::vector<std::size_t> begins = {0};
  std::size_t changes = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (changes >= kTaskChanges) {
      begins.push_back(i);
      changes = 0;
    }
    changes += tasks[i].to - tasks[i].from;
  }
  if (begins.size() == 1 || executor_.threads() == 1) return run_tasks(tasks, mode, counts);
  begins.push_back(tasks.size());
  return ordered_map<ReceiverCounts>(
      executor_, begins.size() - 1, std::uint64_t{4} * executor_.threads(), nullptr,
      [&](std::uint64_t i) -> Result<ReceiverCounts> {
        const auto at = static_cast<std::size_t>(i);
        ReceiverCounts part;
        DCR_TRY(run_tasks(tasks.subspan(begins[at], begins[at + 1] - begins[at]), mode, &part));
        return part;
      },
      [counts](std::uint64_t, ReceiverCounts&& part) {
        counts->destinations += part.destinations;
        counts->different += part.different;
        note_different(part.different_tensor, counts);
        counts->checked += part.checked;
        return Status();
      });
}

Status Applier::apply_scratch(std::span<const DecodedItem* const> items, ApplyMode mode,
                              ReceiverCounts* counts) {
  const std::uint32_t tensor = items[0]->header.tensor;
  ScratchCounts scratch;
  DCR_TRY(scratch_.apply(tensor, prewarm_->traces[tensor], items, mode, &scratch));
  add_counts(tensor, scratch.applied, counts);
  counts->checked += scratch.checked;
  return {};
}

namespace {

// Marks an item's words as come; returns how many had not come before.
std::uint64_t mark_words(const TargetChanges& target, const DecodedItem& item,
                         std::vector<bool>* came) {
  const Grid grid(target);
  GridHits hits;
  std::uint64_t marked = 0;
  const auto positions = std::span(item.positions);
  for (std::size_t done = 0; done < positions.size(); done += kGridBlock) {
    grid.map(positions.subspan(done, std::min(kGridBlock, positions.size() - done)), &hits);
    for (std::size_t i = 0; i < hits.count; ++i) {
      const auto word = static_cast<std::size_t>(hits.words[i]);
      marked += (*came)[word] ? 0u : 1u;
      (*came)[word] = true;
    }
  }
  return marked;
}

}  // namespace

Status Applier::apply_whole(const DecodedItem& item, ApplyMode mode, ReceiverCounts* counts) {
  const std::uint32_t tensor = item.header.tensor;
  const CanonicalTensor& canonical = catalogue_[tensor];
  const bool shared = ownership_.shared(tensor);
  if (loaded_.contains(tensor)) return {};
  if (!wholes_.contains(tensor)) {
    Whole whole;
    const auto storage = memory_.allocate(canonical.words * word_bytes(canonical.dtype));
    if (!storage.ok()) return about_tensor(canonical, storage.status());
    whole.storage = *storage;
    if (shared) whole.came.resize(static_cast<std::size_t>(canonical.words));
    wholes_[tensor] = std::move(whole);
  }
  Whole& whole = wholes_[tensor];
  const TargetChanges target = whole_target(item.header, whole.storage);
  ApplyCounts gathered;
  DCR_TRY(memory_.apply(target, item.positions, item.values.data(), ApplyMode::kWrite, &gathered));
  whole.words += shared ? mark_words(target, item, &whole.came) : gathered.words;
  if (whole.words < canonical.words) return {};
  ScratchCounts loaded;
  Status status = scratch_.apply_whole(tensor, prewarm_->traces[tensor],
                                       contiguous_view(whole.storage, canonical), mode, &loaded);
  DCR_TRY(memory_.release(whole.storage));
  wholes_.erase(tensor);
  if (shared) loaded_.insert(tensor);
  add_counts(tensor, loaded.applied, counts);
  return status;
}

Status Applier::apply(const DecodedPayload& payload, ApplyMode mode, ReceiverCounts* counts) {
  std::vector<Task> tasks;
  std::vector<const DecodedItem*> through_loader;
  for (const DecodedItem& item : payload.items) {
    counts->entries += item.positions.size();
    const TensorPath path = prewarm_->classes[item.header.tensor].path;
    if (path == TensorPath::kTraced) DCR_TRY(add_tasks(item, &tasks));
    if (path == TensorPath::kScratch || path == TensorPath::kDense) through_loader.push_back(&item);
  }
  DCR_TRY(run(tasks, mode, counts));
  for (std::size_t from = 0; from < through_loader.size();) {
    const ItemHeader& first = through_loader[from]->header;
    std::size_t to = from + 1;
    if (prewarm_->classes[first.tensor].path == TensorPath::kDense) {
      DCR_TRY(apply_whole(*through_loader[from], mode, counts));
    } else {
      while (to < through_loader.size() && through_loader[to]->header.tensor == first.tensor &&
             through_loader[to]->header.encoding == first.encoding) {
        ++to;
      }
      DCR_TRY(apply_scratch(std::span(through_loader).subspan(from, to - from), mode, counts));
    }
    from = to;
  }
  ++counts->payloads;
  return {};
}

Status Applier::compare(const DecodedPayload& payload, ReceiverCounts* counts) {
  std::vector<Task> tasks;
  for (const DecodedItem& item : payload.items) {
    const std::uint32_t tensor = item.header.tensor;
    if (prewarm_->classes[tensor].path != TensorPath::kTraced) continue;
    // Not of the cache: owners draw other items the next time.
    const auto plan = plan_item(item.header.box, prewarm_->places[tensor]);
    if (!plan.ok()) return about_tensor(catalogue_[tensor], plan.status());
    add_tasks(item, *plan, &tasks);
  }
  DCR_TRY(run_tasks(tasks, ApplyMode::kVerify, counts));
  return memory_.synchronize();
}

Status Applier::finish() const {
  if (wholes_.empty()) return {};
  const auto& [tensor, whole] = *wholes_.begin();
  const CanonicalTensor& canonical = catalogue_[tensor];
  return Status(Code::kMismatch,
                "tensor " + quoted_name(canonical.name) + ": its loader needs it whole, and " +
                    std::to_string(whole.words) + " of " + std::to_string(canonical.words) +
                    " words came",
                canonical.name);
}

Status Applier::audit_traced(std::uint32_t tensor,
                             const std::function<Status(std::uint64_t, MutableByteSpan)>& read,
                             ApplyCounts* counts) {
  const CanonicalTensor& canonical = catalogue_[tensor];
  const unsigned width = word_bytes(canonical.dtype);
  std::vector<std::uint32_t> positions(
      static_cast<std::size_t>(std::min(kAuditWords, canonical.words)));
  std::iota(positions.begin(), positions.end(), 0u);
  Bytes words;
  for (std::uint64_t first = 0; first < canonical.words; first += kAuditWords) {
    const std::uint64_t count = std::min(kAuditWords, canonical.words - first);
    DCR_ASSIGN(const std::vector<TargetChanges> plan,
               plan_item(ItemBox::range(first, count), prewarm_->places[tensor]));
    if (plan.empty()) continue;
    words.resize(static_cast<std::size_t>(count) * width);
    DCR_TRY(read(first, words));
    for (const TargetChanges& target : plan) {
      DCR_TRY(memory_.apply(target, std::span(positions).first(static_cast<std::size_t>(count)),
                            words.data(), ApplyMode::kVerify, counts));
    }
  }
  return memory_.synchronize();
}

Status Applier::audit_whole(std::uint32_t tensor,
                            const std::function<Status(std::uint64_t, MutableByteSpan)>& read,
                            ApplyCounts* counts) {
  const CanonicalTensor& canonical = catalogue_[tensor];
  const unsigned width = word_bytes(canonical.dtype);
  DCR_ASSIGN(const std::uint64_t storage, memory_.allocate(canonical.words * width));
  const TensorView value = contiguous_view(storage, canonical);
  Bytes words;
  Status status;
  for (std::uint64_t first = 0; first < canonical.words && status.ok(); first += kAuditWords) {
    const std::uint64_t count = std::min(kAuditWords, canonical.words - first);
    words.resize(static_cast<std::size_t>(count) * width);
    status = read(first, words);
    if (status.ok()) status = memory_.write(range_view(value, first, count), words);
  }
  ScratchCounts loaded;
  if (status.ok()) {
    status =
        scratch_.apply_whole(tensor, prewarm_->traces[tensor], value, ApplyMode::kVerify, &loaded);
  }
  DCR_TRY(memory_.release(storage));
  *counts = loaded.applied;
  return status;
}

Status Applier::audit(std::uint32_t tensor,
                      const std::function<Status(std::uint64_t, MutableByteSpan)>& read) {
  ApplyCounts counts;
  switch (prewarm_->classes[tensor].path) {
    case TensorPath::kTraced:
      DCR_TRY(audit_traced(tensor, read, &counts));
      break;
    case TensorPath::kScratch:
    case TensorPath::kDense:
      DCR_TRY(audit_whole(tensor, read, &counts));
      break;
    case TensorPath::kSkip:
    case TensorPath::kRefused:
      return {};
  }
  if (counts.different == 0) return {};
  const std::string& name = catalogue_[tensor].name;
  return Status(Code::kMismatch,
                "tensor " + quoted_name(name) + ": " + std::to_string(counts.different) + " of " +
                    std::to_string(counts.words) +
                    " resident words are not what its loader makes of the base",
                name);
}

}  // namespace dcr
