#include "delta/in_place.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "delta/delta_file.h"
#include "delta/in_place_plan.h"
#include "delta/in_place_step.h"
#include "delta/journal.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// A journal exists four times at worst: as items, sealed, on its way to the file, and read back.
constexpr std::uint64_t kBatchShare = 16;

// The path as journals are named after it: they lie beside, also when it ends in a slash.
Result<std::string> checkpoint_path(FileSystem& files, std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string name = base_name(path);
  if (name.empty() || name == "." || name == ".." || name == "/") {
    return Status(Code::kInvalidArgument,
                  quoted_name(path) +
                      " has no name after which its journal could be called; give "
                      "the checkpoint's own path");
  }
  DCR_ASSIGN(const FileInfo info, files.info(path, false));
  if (info.kind == FileKind::kSymlink) {
    return Status(Code::kMismatch,
                  quoted_name(path) +
                      " is a symlink; it cannot be changed in place: give the path "
                      "that it points to, or write to another place");
  }
  return path;
}

class InPlaceRun {
 public:
  InPlaceRun(const Work& work, std::uint64_t batch_bytes)
      : work_(work),
        batch_bytes_(batch_bytes != 0
                         ? batch_bytes
                         : std::min(kBatchBytesMax, work.memory_bytes_max / kBatchShare)) {}

  Result<InPlaceResult> run(const std::vector<std::string>& deltas, const std::string& path) {
    if (deltas.empty()) return Status(Code::kInvalidArgument, "no delta is given");
    DCR_ASSIGN(path_, checkpoint_path(*work_.files, path));
    DCR_TRY(open_chain(deltas));
    DCR_ASSIGN(std::optional<Journal> journal, read_journal(*work_.files, path_));
    if (journal) {
      DCR_TRY(resume(*std::move(journal)));
    } else {
      DCR_TRY(start());
    }
    for (; next_ < chain_.size(); ++next_) {
      DCR_ASSIGN(const InPlacePlan plan, make_plan(work_, disk_, chain_[next_], false));
      DCR_TRY(apply(plan, nullptr));
    }
    return report();
  }

 private:
  Status open_chain(const std::vector<std::string>& deltas) {
    for (const std::string& delta : deltas) {
      DCR_ASSIGN(DeltaReader reader, DeltaReader::open(*work_.files, delta));
      chain_.push_back(std::move(reader));
    }
    DCR_TRY(check_chain(chain_));
    DCR_TRY(check_chain_files(chain_));
    for (const DeltaReader& delta : chain_) {
      DCR_ASSIGN(std::vector<ItemPlace> places, delta.validate_all(work_));
      places_.push_back(std::move(places));
    }
    return {};
  }

  // Goes on from a journal, up to the end of its delta.
  Status resume(Journal journal) {
    const auto found = std::find_if(
        chain_.begin(), chain_.end(),
        [&journal](const DeltaReader& delta) { return digest_equal(delta.id(), journal.delta); });
    if (found == chain_.end()) {
      return {Code::kMismatch, "an interrupted application of delta " + digest_text(journal.delta) +
                                   " is to be completed first (" + journal_path(path_) +
                                   " names it): apply that delta's file in place again; nothing "
                                   "was written"};
    }
    next_ = static_cast<std::size_t>(found - chain_.begin());
    result_.replayed_journal = true;
    if (journal.state == JournalState::kRenaming) {
      DCR_TRY(complete_renaming(work_, *found, path_, journal, &disk_));
      result_.changed += found->footer().changed;
    } else {
      DCR_ASSIGN(disk_, read_disk_state(work_, "check", path_));
      Result<InPlacePlan> plan = make_plan(work_, disk_, *found, true);
      if (!plan.ok()) return untouched(plan.status());
      DCR_TRY(apply(*plan, &journal));
    }
    ++next_;
    return {};
  }

  // Finds where in the chain the checkpoint stands: the last delta whose base, target or mixture of
  // both it is. If it is so of several, applying any of them leads to its target.
  Status start() {
    DCR_ASSIGN(disk_, read_disk_state(work_, "check", path_));
    for (next_ = chain_.size(); next_-- > 0;) {
      const Result<InPlacePlan> plan = make_plan(work_, disk_, chain_[next_], false);
      if (plan.ok()) {
        result_.already_target = next_ + 1 == chain_.size() && plan->done();
        if (!result_.already_target) return {};
        ++next_;
        DCR_TRY(remove_stale_journal(*work_.files, path_));
        return remove_leftovers(*work_.files, disk_.checkpoint);
      }
      if (next_ == 0 || plan.status().code() != Code::kMismatch) return untouched(plan.status());
    }
    return {};
  }

  // Runs the plan for delta `next_`.
  Status apply(const InPlacePlan& plan, Journal* journal) {
    const DeltaReader& delta = chain_[next_];
    if (plan.done() && journal == nullptr) return {};
    DCR_TRY(
        run_step(work_, {&delta, places_[next_]}, plan, journal, batch_bytes_, &disk_, &counts_));
    result_.changed += delta.footer().changed;
    return {};
  }

  static Status untouched(const Status& status) {
    return {status.code(), status.message() + "; nothing was written", status.tensor()};
  }

  InPlaceResult report() {
    const DeltaFooter& footer = chain_.back().footer();
    for (const DeltaTensor& tensor : footer.tensors) {
      if (tensor.target.present) ++result_.tensors;
    }
    for (const DeltaFile& file : footer.files) {
      if (!file.in_target) continue;
      result_.files.push_back(footer.directory ? file.name : base_name(path_));
    }
    result_.bytes_written = counts_.bytes_written;
    return std::move(result_);
  }

  const Work& work_;
  const std::uint64_t batch_bytes_;
  std::string path_;
  std::vector<DeltaReader> chain_;
  std::vector<std::vector<ItemPlace>> places_;  // of chain_
  std::size_t next_ = 0;                        // the delta to apply next
  DiskState disk_;
  InPlaceCounts counts_;
  InPlaceResult result_;
};

}  // namespace

Result<InPlaceResult> apply_chain_in_place(const Work& work, const std::vector<std::string>& deltas,
                                           const std::string& path, std::uint64_t batch_bytes) {
  return InPlaceRun(work, batch_bytes).run(deltas, path);
}

}  // namespace dcr
