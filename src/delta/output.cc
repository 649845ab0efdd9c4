#include "delta/output.h"

#include <functional>
#include <optional>
#include <utility>

#include "tensor/text.h"

namespace dcr {
namespace {

// How often another name is tried when one is taken (by a run that was killed, or a running one).
constexpr unsigned kNamesMax = 1000;

bool same_file(const FileInfo& a, const FileInfo& b) {
  return a.device == b.device && a.inode == b.inode;
}

// The path without slashes at its end, so that names can be put after it.
std::string trimmed(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// What is at a path, if anything.
Result<std::optional<FileInfo>> find(FileSystem& files, const std::string& path, bool follow) {
  Result<FileInfo> info = files.info(path, follow);
  if (info.ok()) return std::optional<FileInfo>(*info);
  if (info.status().code() == Code::kNotFound) return std::optional<FileInfo>();
  return info.status();
}

// Calls `make` with names beside `path` until one is not taken.
Result<std::string> make_beside(const std::string& path, const std::string& suffix,
                                const std::function<Status(const std::string&)>& make) {
  for (unsigned attempt = 0; attempt < kNamesMax; ++attempt) {
    std::string name = path + suffix;
    if (attempt > 0) name += "." + std::to_string(attempt);
    const Status status = make(name);
    if (status.ok()) return name;
    if (status.code() != Code::kExists) return status;
  }
  return Status(Code::kExists, "all names beside " + quoted_name(path) +
                                   " for unfinished output are taken; remove " +
                                   quoted_name(path + suffix) + "*");
}

Status not_removed(const Status& why, const std::string& path, const Status& removal) {
  return {why.code(),
          why.message() + " (and the unfinished output " + quoted_name(path) +
              " could not be removed: " + removal.message() + ")",
          why.tensor()};
}

// Removes a directory of files.
Status remove_flat_directory(FileSystem& files, const std::string& path) {
  DCR_ASSIGN(const std::vector<DirectoryEntry> entries, files.list(path));
  for (const DirectoryEntry& entry : entries) {
    DCR_TRY(files.remove(join_path(path, entry.name)));
  }
  return files.remove_directory(path);
}

// Whether `output` is `input` or a directory above it.
Status refuse_input(FileSystem& files, const std::string& output, const FileInfo& existing,
                    const std::string& input) {
  DCR_ASSIGN(FileInfo at, files.info(input, true));
  const std::string refusal = "the output " + quoted_name(output) + " ";
  if (same_file(existing, at)) {
    return {Code::kInvalidArgument,
            refusal + "is the input " + quoted_name(input) + "; write to another place"};
  }
  if (existing.kind != FileKind::kDirectory) return {};
  std::string above = at.kind == FileKind::kDirectory ? input : parent_path(input);
  // The root is its own parent. Links on the way are followed, as ".." does.
  for (unsigned depth = 0; depth < 4096; ++depth) {
    DCR_ASSIGN(const FileInfo here, files.info(above, true));
    if (same_file(existing, here)) {
      return {Code::kInvalidArgument,
              refusal + "holds the input " + quoted_name(input) + "; write to another place"};
    }
    above = join_path(above, "..");
    DCR_ASSIGN(const FileInfo parent, files.info(above, true));
    if (same_file(parent, here)) return {};
  }
  return {Code::kInvalidArgument, "the path " + quoted_name(input) + " is too deep"};
}

Status refuse_nested_directory(FileSystem& files, const std::string& output) {
  DCR_ASSIGN(const std::vector<DirectoryEntry> entries, files.list(output));
  for (const DirectoryEntry& entry : entries) {
    if (entry.kind != FileKind::kDirectory) continue;
    return {Code::kExists, quoted_name(output) + " holds the directory " + quoted_name(entry.name) +
                               ", so it is not replaced as a checkpoint; remove it first"};
  }
  return {};
}

}  // namespace

Status check_output(FileSystem& files, const std::string& output, bool as_directory, bool force,
                    const std::vector<std::string>& inputs) {
  DCR_ASSIGN(const std::optional<FileInfo> parent, find(files, parent_path(output), true));
  if (!parent || parent->kind != FileKind::kDirectory) {
    return {Code::kNotFound, "the output's directory " + quoted_name(parent_path(output)) +
                                 (parent ? " is not a directory" : " does not exist")};
  }
  DCR_ASSIGN(const std::optional<FileInfo> link, find(files, output, false));
  if (!link) return {};
  DCR_ASSIGN(const std::optional<FileInfo> existing, find(files, output, true));
  // A link to nothing keeps nothing.
  if (existing) {
    for (const std::string& input : inputs) {
      DCR_TRY(refuse_input(files, output, *existing, input));
    }
  }
  if (!force) {
    return {Code::kExists, quoted_name(output) + " exists; it is replaced with --force only"};
  }
  // A rename would replace a device or a pipe by a file, for everyone who uses it.
  if (link->kind == FileKind::kOther) {
    return {Code::kExists, quoted_name(output) + " is no regular file, so it is not replaced"};
  }
  if (link->kind == FileKind::kDirectory) {
    if (!as_directory) {
      return {Code::kExists, quoted_name(output) + " is a directory; the output is a file"};
    }
    return refuse_nested_directory(files, output);
  }
  return {};
}

std::vector<std::string> input_paths(const Checkpoint& checkpoint) {
  std::vector<std::string> paths{checkpoint.path};
  for (const CheckpointFile& file : checkpoint.files) paths.push_back(file.path);
  for (const OtherFile& file : checkpoint.others) {
    paths.push_back(join_path(checkpoint.path, file.name));
  }
  return paths;
}

Result<PartialFile> PartialFile::create(FileSystem& files, const std::string& path) {
  PartialFile partial;
  partial.files_ = &files;
  partial.path_ = path;
  DCR_ASSIGN(partial.partial_path_,
             make_beside(path, ".dcr-partial", [&](const std::string& name) -> Status {
               DCR_ASSIGN(partial.file_, files.create(name, 0666));
               return {};
             }));
  return partial;
}

Status PartialFile::commit(std::optional<std::uint32_t> permissions) {
  Status status;
  if (permissions) status = files_->set_permissions(partial_path_, *permissions);
  if (status.ok()) status = file_->sync();
  if (status.ok()) {
    file_.reset();
    status = files_->rename(partial_path_, path_);
  }
  if (!status.ok()) return discard(status);
  return files_->sync_directory(parent_path(path_));
}

Status PartialFile::discard(const Status& why) {
  file_.reset();
  const Status removal = files_->remove(partial_path_);
  return removal.ok() ? why : not_removed(why, partial_path_, removal);
}

Result<PartialDirectory> PartialDirectory::create(FileSystem& files, const std::string& path) {
  PartialDirectory partial;
  partial.files_ = &files;
  partial.path_ = trimmed(path);
  DCR_ASSIGN(partial.partial_path_,
             make_beside(partial.path_, ".dcr-partial", [&](const std::string& name) {
               return files.make_directory(name, 0777);
             }));
  return partial;
}

Result<File*> PartialDirectory::add(const std::string& name, std::uint32_t permissions) {
  DCR_ASSIGN(std::unique_ptr<File> file, files_->create(join_path(partial_path_, name), 0600));
  members_.push_back({name, permissions, std::move(file)});
  return members_.back().file.get();
}

Status PartialDirectory::finish_files() {
  for (Member& member : members_) {
    const std::string path = join_path(partial_path_, member.name);
    DCR_TRY(files_->set_permissions(path, member.permissions));
    DCR_TRY(member.file->sync());
    member.file.reset();
  }
  return files_->sync_directory(partial_path_);
}

// A directory cannot be renamed over another that has files, so the old one steps aside first.
Status PartialDirectory::swap_in() {
  DCR_ASSIGN(const std::optional<FileInfo> existing, find(*files_, path_, false));
  if (!existing) return files_->rename(partial_path_, path_);
  DCR_ASSIGN(const std::string aside,
             make_beside(path_, ".dcr-replaced", [&](const std::string& name) -> Status {
               DCR_ASSIGN(const std::optional<FileInfo> taken, find(*files_, name, false));
               if (taken) return {Code::kExists, name + " exists"};
               return files_->rename(path_, name);
             }));
  if (Status status = files_->rename(partial_path_, path_); !status.ok()) {
    const Status back = files_->rename(aside, path_);
    if (back.ok()) return status;
    return {status.code(), status.message() + " (what was there before is now " +
                               quoted_name(aside) + ": " + back.message() + ")"};
  }
  DCR_TRY(files_->sync_directory(parent_path(path_)));
  const Status removal = existing->kind == FileKind::kDirectory
                             ? remove_flat_directory(*files_, aside)
                             : files_->remove(aside);
  return removal.with_context("the output is complete, but what it replaced could not be removed");
}

Status PartialDirectory::commit() {
  if (Status status = finish_files(); !status.ok()) return discard(status);
  const Status status = swap_in();
  if (!status.ok()) {
    // Unless the output is in its place already, nothing is left of it.
    DCR_ASSIGN(const std::optional<FileInfo> left, find(*files_, partial_path_, false));
    return left ? discard(status) : status;
  }
  return files_->sync_directory(parent_path(path_));
}

Status PartialDirectory::discard(const Status& why) {
  members_.clear();
  const Status removal = remove_flat_directory(*files_, partial_path_);
  return removal.ok() ? why : not_removed(why, partial_path_, removal);
}

}  // namespace dcr
