#include "delta/in_place_plan.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/limits.h"
#include "delta/contents.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

Status tensor_mismatch(const DeltaReader& delta, const std::string& name, const std::string& what) {
  return {Code::kMismatch,
          "tensor " + quoted_name(name) + " " + what + " (delta " + quoted_name(delta.path()) + ")",
          name};
}

Status file_mismatch(const DeltaReader& delta, const std::string& name, const std::string& what) {
  return {Code::kMismatch,
          "file " + quoted_name(name) + " " + what + " (delta " + quoted_name(delta.path()) + ")"};
}

bool fits(const CheckpointTensor& tensor, const TensorSide& side) {
  return side.present && tensor.dtype == side.dtype && tensor.shape == side.shape;
}

class Planner {
 public:
  Planner(const Work& work, const DiskState& disk, const DeltaReader& delta, bool resumed)
      : work_(work), disk_(disk), delta_(delta), footer_(delta.footer()), resumed_(resumed) {}

  Result<InPlacePlan> run() {
    if (footer_.directory != disk_.checkpoint.directory) {
      return Status(Code::kUnsupported,
                    "delta " + quoted_name(delta_.path()) + " leads to a " +
                        (footer_.directory ? "directory" : "single file") + " and " +
                        quoted_name(disk_.checkpoint.path) +
                        " is none; it cannot become one in place: write to another place");
    }
    plan_.tensors.resize(footer_.tensors.size());
    file_kept_.assign(footer_.files.size(), false);
    // Files first, as whether a tensor's file stays decides what its bits may be; but a wrong base
    // is best told by its tensors.
    const Status files = plan_files();
    DCR_TRY(plan_tensors());
    DCR_TRY(files);
    return std::move(plan_);
  }

 private:
  Status plan_files() {
    for (std::uint32_t i = 0; i < footer_.files.size(); ++i) {
      const DeltaFile& file = footer_.files[i];
      file_kept_[i] = file.in_target && stays(file);
    }
    for (std::uint32_t i = 0; i < footer_.files.size(); ++i) {
      const DeltaFile& file = footer_.files[i];
      if (file.in_target && !file_kept_[i]) DCR_TRY(plan_beside(i, file));
      if (file.in_target && file_kept_[i] && file.role == FileRole::kWeights) {
        DCR_TRY(check_target_prefix(footer_, i, weights_on_disk(file)->prefix));
      }
      if (!file.in_target) DCR_TRY(plan_other_removal(file));
    }
    plan_weights_removals();
    std::stable_sort(
        plan_.beside.begin(), plan_.beside.end(),
        [this](const BesideFile& a, const BesideFile& b) { return rank(a) < rank(b); });
    return {};
  }

  // Whether the disk's file is the target's, tensors' bits aside.
  bool stays(const DeltaFile& file) const {
    if (file.role == FileRole::kOther) {
      const auto found = disk_.others.find(file.name);
      return found != disk_.others.end() && found->second == file.target_digest;
    }
    const CheckpointFile* weights = weights_on_disk(file);
    return weights != nullptr && weights->header.file_bytes == file.target_size &&
           prefix_digest(*weights) == file.target_digest;
  }

  Status plan_beside(std::uint32_t index, const DeltaFile& file) {
    BesideFile beside{index, disk_.checkpoint.path, file.permissions};
    if (disk_.checkpoint.directory) beside.path = join_path(disk_.checkpoint.path, file.name);
    if (file.name.ends_with(kBesideSuffix)) {
      return {Code::kUnsupported, "file " + quoted_name(file.name) + ": a name that ends in " +
                                      kBesideSuffix + " cannot be written in place"};
    }
    if (file.same_as_base) {
      return file_mismatch(delta_, file.name, "is not the base's, and the delta does not carry it");
    }
    const Result<FileInfo> info = work_.files->info(beside.path, false);
    if (!info.ok() && info.status().code() != Code::kNotFound) return info.status();
    if (info.ok()) {
      if (!may_replace(file)) {
        return file_mismatch(delta_, file.name,
                             "is neither the base's nor the target's, and would be replaced");
      }
      beside.permissions = info->permissions;
    } else if (file.in_base && file.role == FileRole::kOther && file.name != kIndexName) {
      return file_mismatch(delta_, file.name, "of the base is missing");
    }
    plan_.beside.push_back(std::move(beside));
    return {};
  }

  // Weights are known by their tensors, whichever way they are sharded, and with them the index,
  // which says no more than their headers; other files by content.
  bool may_replace(const DeltaFile& file) const {
    if (file.role == FileRole::kWeights) return weights_on_disk(file) != nullptr;
    const auto found = disk_.others.find(file.name);
    if (file.name == kIndexName) return found != disk_.others.end();
    return file.in_base && found != disk_.others.end() && found->second == file.base_digest;
  }

  Status plan_other_removal(const DeltaFile& file) {
    if (file.role != FileRole::kOther || file.name == kIndexName) return {};
    const auto found = disk_.others.find(file.name);
    if (found == disk_.others.end()) return {};
    if (found->second != file.base_digest) {
      return file_mismatch(delta_, file.name, "is not the base's, and would be removed");
    }
    plan_.removals.push_back(file.name);
    return {};
  }

  Status plan_tensors() {
    const std::vector<CheckpointTensor>& on_disk = disk_.checkpoint.tensors;
    std::size_t next = 0;  // on disk; both tables are sorted by name
    for (std::size_t i = 0; i < footer_.tensors.size(); ++i) {
      const DeltaTensor& tensor = footer_.tensors[i];
      if (next < on_disk.size() && on_disk[next].name < tensor.name) break;
      const bool found = next < on_disk.size() && on_disk[next].name == tensor.name;
      DCR_TRY(plan_tensor(tensor, found ? static_cast<std::int64_t>(next) : -1, &plan_.tensors[i]));
      if (found) ++next;
    }
    if (next == on_disk.size()) return {};
    return tensor_mismatch(delta_, on_disk[next].name, "is not in the base");
  }

  Status plan_tensor(const DeltaTensor& tensor, std::int64_t on_disk, PlannedTensor* planned) {
    if (tensor.target.present) {
      planned->kept = file_kept_[tensor.target.file];
      planned->beside = !planned->kept;
    }
    if (on_disk < 0) {
      // Not added yet, or removed already.
      if (!tensor.base.present || !tensor.target.present) return {};
      return tensor_mismatch(delta_, tensor.name, "is missing from the base");
    }
    const CheckpointTensor& disk = disk_.checkpoint.tensors[static_cast<std::size_t>(on_disk)];
    const Digest& digest = disk_.tensors[static_cast<std::size_t>(on_disk)];
    planned->at_target = fits(disk, tensor.target) && digest == tensor.target.digest;
    const bool at_base = fits(disk, tensor.base) && digest == tensor.base.digest;
    if (planned->at_target || tensor.common()) planned->base = on_disk;
    if (planned->at_target || at_base) return {};
    if (!fits(disk, tensor.base) && !fits(disk, tensor.target)) {
      return tensor_mismatch(delta_, tensor.name, "has another dtype or shape than in the base");
    }
    planned->partial = resumed_ && planned->kept && tensor.common();
    if (planned->partial) return {};
    return tensor_mismatch(delta_, tensor.name, "differs from the base, and from the target");
  }

  // The old index and shards, whether the delta's base had them under these names or not.
  void plan_weights_removals() {
    if (!disk_.checkpoint.directory) return;
    const auto remove = [this](const std::string& name) {
      const DeltaFile* target = find_file(name);
      if (target == nullptr || !target->in_target) plan_.removals.push_back(name);
    };
    const std::string index(kIndexName);
    if (disk_.others.contains(index)) remove(index);
    for (const CheckpointFile& file : disk_.checkpoint.files) remove(file.name);
  }

  const DeltaFile* find_file(std::string_view name) const {
    const auto found = std::lower_bound(
        footer_.files.begin(), footer_.files.end(), name,
        [](const DeltaFile& file, std::string_view wanted) { return file.name < wanted; });
    return found != footer_.files.end() && found->name == name ? &*found : nullptr;
  }

  const CheckpointFile* weights_on_disk(const DeltaFile& file) const {
    const std::vector<CheckpointFile>& files = disk_.checkpoint.files;
    // The names that users give to single files do not matter.
    if (!disk_.checkpoint.directory) return &files[0];
    const auto found =
        std::lower_bound(files.begin(), files.end(), file.name,
                         [](const CheckpointFile& a, const std::string& b) { return a.name < b; });
    return found != files.end() && found->name == file.name ? &*found : nullptr;
  }

  const Digest& prefix_digest(const CheckpointFile& file) const {
    return disk_.prefixes[static_cast<std::size_t>(&file - disk_.checkpoint.files.data())];
  }

  int rank(const BesideFile& beside) const {
    const DeltaFile& file = footer_.files[beside.file];
    if (file.role == FileRole::kWeights) return 0;
    return file.name == kIndexName ? 2 : 1;
  }

  const Work& work_;
  const DiskState& disk_;
  const DeltaReader& delta_;
  const DeltaFooter& footer_;
  const bool resumed_;
  std::vector<bool> file_kept_;  // of the footer's files
  InPlacePlan plan_;
};

}  // namespace

Result<DiskState> read_disk_state(const Work& work, const char* stage, const std::string& path,
                                  const std::map<std::string, Digest>& known) {
  DiskState disk;
  DCR_ASSIGN(disk.checkpoint, open_checkpoint(*work.files, path, true));
  for (const CheckpointFile& file : disk.checkpoint.files) {
    disk.prefixes.push_back(blake2b(file.prefix));
  }
  for (const OtherFile& other : disk.checkpoint.others) {
    DCR_ASSIGN(const Bytes content,
               read_file(*work.files, join_path(path, other.name), kCarriedFileBytesMax));
    disk.others.emplace(other.name, blake2b(content));
  }
  const std::vector<CheckpointTensor>& tensors = disk.checkpoint.tensors;
  disk.tensors.resize(tensors.size());
  std::vector<std::size_t> which;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = known.find(tensors[i].name);
    if (found != known.end()) {
      disk.tensors[i] = found->second;
    } else {
      which.push_back(i);
      total += tensors[i].bytes;
    }
  }
  ProgressCounter progress(work, stage, total);
  DCR_ASSIGN(const std::vector<Digest> digests,
             digest_tensors(work, disk.checkpoint, which, &progress));
  for (std::size_t i = 0; i < which.size(); ++i) disk.tensors[which[i]] = digests[i];
  return disk;
}

bool InPlacePlan::partial() const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const PlannedTensor& tensor) { return tensor.partial; });
}

bool InPlacePlan::done() const {
  return beside.empty() && removals.empty() &&
         std::none_of(tensors.begin(), tensors.end(),
                      [](const PlannedTensor& tensor) { return tensor.in_place(); });
}

Result<InPlacePlan> make_plan(const Work& work, const DiskState& disk, const DeltaReader& delta,
                              bool resumed) {
  return Planner(work, disk, delta, resumed).run();
}

std::string home_directory(const Checkpoint& checkpoint) {
  return checkpoint.directory ? checkpoint.path : parent_path(checkpoint.path);
}

Status check_chain_files(const std::vector<DeltaReader>& chain) {
  for (std::size_t i = 1; i < chain.size(); ++i) {
    std::map<std::string_view, const DeltaFile*> before;
    for (const DeltaFile& file : chain[i - 1].footer().files) {
      if (file.in_target) before.emplace(file.name, &file);
    }
    for (const DeltaFile& file : chain[i].footer().files) {
      const auto found = before.find(file.name);
      const DeltaFile* left = found == before.end() ? nullptr : found->second;
      const bool at_base =
          left != nullptr && file.in_base && left->target_digest == file.base_digest;
      const bool at_target =
          left != nullptr && file.in_target && left->target_digest == file.target_digest;
      const bool needed =
          file.same_as_base || (file.role == FileRole::kOther && file.name != kIndexName);
      const bool expected = left != nullptr || (file.in_base && file.in_target);
      if (!needed || !expected || at_base || at_target) continue;
      return {Code::kMismatch,
              "file " + quoted_name(file.name) + " that delta " + quoted_name(chain[i].path()) +
                  " starts from is not the one that " + quoted_name(chain[i - 1].path()) +
                  " leaves; nothing was written"};
    }
  }
  return {};
}

}  // namespace dcr
