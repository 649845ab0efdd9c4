#include "delta/in_place_step.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "delta/compose.h"
#include "tensor/text.h"

namespace dcr {
namespace {

class InPlaceStep {
 public:
  InPlaceStep(const Work& work, const ValidDelta& delta, const InPlacePlan& plan, Journal* journal,
              std::uint64_t batch_bytes, DiskState* disk, InPlaceCounts* counts)
      : work_(work),
        delta_(*delta.reader),
        places_(delta.places),
        plan_(plan),
        journal_(journal),
        batch_bytes_(batch_bytes),
        disk_(*disk),
        counts_(*counts) {}

  Status run() {
    // With every tensor at the base or the target the journal tells nothing that they do not: its
    // batch was not begun, or the checkpoint was put back to the base.
    if (plan_.partial()) DCR_TRY(read_journalled());
    if (Status status = prepare(); !status.ok()) return discard_beside(std::move(status));
    if (Status status = write(); !status.ok()) return interrupted(std::move(status));
    return {};
  }

 private:
  Status read_journalled() {
    const std::string context = journal_path(disk_.checkpoint.path);
    const std::vector<DeltaTensor>& tensors = delta_.footer().tensors;
    const Bytes sealed = std::move(journal_->payload);
    Result<Payload> payload =
        Payload::read(sealed, delta_schema(tensors), delta_specs(tensors), kJournalPayloadLimits);
    if (!payload.ok()) return payload.status().with_context(context);
    DCR_TRY(check_journalled(delta_, plan_, *payload).with_context(context));
    if (journal_->end_item > places_.size()) {
      return {Code::kCorrupt, context + ": it counts more items than the delta has"};
    }
    journalled_ = std::move(payload).value();
    return {};
  }

  // Writes the files beside, and shows that all tensors that are to change reach the target.
  Status prepare() {
    DCR_TRY(remove_leftovers(*work_.files, disk_.checkpoint));
    const DeltaFooter& footer = delta_.footer();
    beside_.resize(footer.files.size());
    for (const BesideFile& beside : plan_.beside) {
      const std::string path = beside.path + kBesideSuffix;
      DCR_ASSIGN(beside_[beside.file], work_.files->create(path, beside.permissions));
      DCR_TRY(work_.files->set_permissions(path, beside.permissions));
      DCR_ASSIGN(const Bytes content, delta_.read_blob(footer.files[beside.file].carried));
      DCR_TRY(beside_[beside.file]->write(0, content));
      counts_.bytes_written += content.size();
    }
    DCR_TRY(compose_tensors());
    for (const BesideFile& beside : plan_.beside) DCR_TRY(beside_[beside.file]->sync());
    if (plan_.beside.empty()) return {};
    return work_.files->sync_directory(home_directory(disk_.checkpoint));
  }

  Status compose_tensors() {
    ComposeInput input{&disk_.checkpoint, &delta_, places_, {}, {}};
    if (journalled_) {
      input.journal = {&*journalled_, journal_->first_item, journal_->end_item};
    }
    std::vector<TensorRecipe> recipes(plan_.tensors.size());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < recipes.size(); ++i) {
      const PlannedTensor& tensor = plan_.tensors[i];
      recipes[i].selected = tensor.beside || tensor.in_place();
      recipes[i].journalled = journalled_ && tensor.in_place();
      recipes[i].base = tensor.base;
      recipes[i].items_from = tensor.at_target        ? kNoItems
                              : recipes[i].journalled ? journal_->first_item
                                                      : 0;
      if (recipes[i].selected) total += delta_.footer().tensors[i].target.bytes;
    }
    input.recipes = recipes;
    LeafCollector collector;
    ProgressCounter progress(work_, "check", total);
    return compose(work_, input, [&](ComposedPiece&& piece) {
      progress.add(piece.bytes.size());
      return take(std::move(piece), &collector);
    });
  }

  Status take(ComposedPiece&& piece, LeafCollector* collector) {
    const DeltaTensor& tensor = delta_.footer().tensors[piece.tensor];
    if (plan_.tensors[piece.tensor].beside) {
      DCR_TRY(beside_[tensor.target.file]->write(tensor.target.offset + piece.offset, piece.bytes));
      counts_.bytes_written += piece.bytes.size();
    }
    collector->add(std::move(piece.leaves));
    if (piece.offset + piece.bytes.size() < tensor.target.bytes) return {};
    if (collector->finish() == tensor.target.digest) return {};
    if (journalled_) {
      return {Code::kMismatch,
              "tensor " + quoted_name(tensor.name) +
                  " is neither at the base nor where the interrupted run left it; nothing was "
                  "written",
              tensor.name};
    }
    return {Code::kCorrupt,
            delta_.path() + ": its items do not give tensor " + quoted_name(tensor.name) +
                " the bits that its table promises; nothing was written",
            tensor.name};
  }

  Status write() {
    std::uint64_t from = 0;
    if (journalled_) {
      DCR_TRY(write_journalled(disk_, plan_, *journalled_, &counts_));
      from = journal_->end_item;
      journalled_.reset();
    }
    DCR_TRY(run_batches(work_, disk_, delta_, places_, plan_, from, batch_bytes_, &counts_));
    if (!plan_.beside.empty() || !plan_.removals.empty()) DCR_TRY(rename());
    return finish();
  }

  Status rename();
  Status finish();

  // Undoes prepare() and returns `status`.
  Status discard_beside(Status status) {
    for (const BesideFile& beside : plan_.beside) {
      const Status removed = remove_if_present(*work_.files, beside.path + kBesideSuffix);
      if (!removed.ok()) {
        return {status.code(), status.message() + "; and " + removed.message(), status.tensor()};
      }
    }
    return status;
  }

  // What an error after prepare() leaves depends on whether there is a journal yet.
  Status interrupted(Status status) {
    const std::string path = journal_path(disk_.checkpoint.path);
    const Result<FileInfo> info = work_.files->info(path, false);
    if (info.status().code() == Code::kNotFound) return discard_beside(std::move(status));
    return {status.code(),
            status.message() +
                "; the checkpoint is half updated: run the same command again to "
                "complete it (its journal is " +
                path + ")",
            status.tensor()};
  }

  const Work& work_;
  const DeltaReader& delta_;
  const std::span<const ItemPlace> places_;
  const InPlacePlan& plan_;
  Journal* const journal_;
  const std::uint64_t batch_bytes_;
  DiskState& disk_;
  InPlaceCounts& counts_;
  std::optional<Payload> journalled_;          // if the step goes on from the journal
  std::vector<std::unique_ptr<File>> beside_;  // by footer file; null where the file stays
};

// Does the renames and removals of a journal that have not been done yet.
Status do_renames(FileSystem& files, const std::string& home, const Journal& journal) {
  for (const std::string& name : journal.renames) {
    const std::string path = join_path(home, name);
    const Status status = files.rename(path + kBesideSuffix, path);
    if (status.code() == Code::kNotFound && files.info(path, false).ok()) continue;  // was renamed
    DCR_TRY(status);
  }
  for (const std::string& name : journal.removals) {
    DCR_TRY(remove_if_present(files, join_path(home, name)));
  }
  return files.sync_directory(home);
}

// Reads the checkpoint back, checks that it is the target, and removes the journal. Tensors in
// `known` are not read.
Status confirm_target(const Work& work, const DeltaReader& delta, const std::string& path,
                      const std::map<std::string, Digest>& known, DiskState* disk) {
  const auto failed = [&delta](const Status& status) {
    return Status(Code::kIo,
                  "after applying " + quoted_name(delta.path()) +
                      " the checkpoint is not the target, as if something else wrote to it: " +
                      status.message(),
                  status.tensor());
  };
  Result<DiskState> state = read_disk_state(work, "verify", path, known);
  if (!state.ok()) return state.status();
  const Result<InPlacePlan> rest = make_plan(work, *state, delta, false);
  if (!rest.ok()) return failed(rest.status());
  if (!rest->done()) return failed({Code::kIo, "a part of it is still the base's"});
  *disk = std::move(state).value();
  return remove_journal(*work.files, path);
}

Status InPlaceStep::rename() {
  Journal journal;
  journal.delta = delta_.id();
  journal.state = JournalState::kRenaming;
  for (const BesideFile& beside : plan_.beside) journal.renames.push_back(base_name(beside.path));
  journal.removals = plan_.removals;
  DCR_TRY(write_journal(*work_.files, disk_.checkpoint.path, journal));
  return do_renames(*work_.files, home_directory(disk_.checkpoint), journal);
}

Status InPlaceStep::finish() {
  // What was read before and not written since is not read again.
  std::map<std::string, Digest> known;
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    const DeltaTensor& tensor = delta_.footer().tensors[i];
    if (plan_.tensors[i].kept && plan_.tensors[i].at_target) {
      known.emplace(tensor.name, tensor.target.digest);
    }
  }
  const std::string path = disk_.checkpoint.path;
  return confirm_target(work_, delta_, path, known, &disk_);
}

}  // namespace

Status run_step(const Work& work, const ValidDelta& delta, const InPlacePlan& plan,
                Journal* journal, std::uint64_t batch_bytes, DiskState* disk,
                InPlaceCounts* counts) {
  return InPlaceStep(work, delta, plan, journal, batch_bytes, disk, counts).run();
}

Status complete_renaming(const Work& work, const DeltaReader& delta, const std::string& path,
                         const Journal& journal, DiskState* disk) {
  const std::string home = delta.footer().directory ? path : parent_path(path);
  DCR_TRY(do_renames(*work.files, home, journal));
  return confirm_target(work, delta, path, {}, disk);
}

Status remove_leftovers(FileSystem& files, const Checkpoint& checkpoint) {
  if (!checkpoint.directory) return remove_if_present(files, checkpoint.path + kBesideSuffix);
  DCR_ASSIGN(const std::vector<DirectoryEntry> entries, files.list(checkpoint.path));
  for (const DirectoryEntry& entry : entries) {
    if (!entry.name.ends_with(kBesideSuffix)) continue;
    DCR_TRY(remove_if_present(files, join_path(checkpoint.path, entry.name)));
  }
  return {};
}

}  // namespace dcr
