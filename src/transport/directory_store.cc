#include "transport/directory_store.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <vector>

namespace dcr {
namespace {

constexpr std::uint32_t kDirectoryPermissions = 0755;
constexpr std::uint32_t kFilePermissions = 0644;

// The number of an attempt's directory; nothing for other names.
std::optional<std::uint64_t> attempt_of(const std::string& name) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || std::to_string(number) != name) return std::nullopt;
  static_cast<void>(end);
  return number;
}

// Somebody else did it first: as good.
Status unless_gone(const Status& status) {
  return status.code() == Code::kNotFound ? Status() : status;
}

}  // namespace

std::string DirectoryObjectStore::run_path(const Digest& run) const {
  return join_path(root_, digest_text(run));
}

std::string DirectoryObjectStore::owner_path(const ObjectKey& key) const {
  return join_path(join_path(run_path(key.run), std::to_string(key.attempt)),
                   std::to_string(key.owner));
}

Status DirectoryObjectStore::make_directory(const std::string& path) {
  Status status = files_.make_directory(path, kDirectoryPermissions);
  if (!status.ok() && status.code() != Code::kExists) return status;
  // Also where it was there: whoever made it may have died before it was synced.
  return files_.sync_directory(parent_path(path));
}

Status DirectoryObjectStore::begin(const ObjectKey& key) {
  DCR_TRY(make_directory(run_path(key.run)));
  DCR_TRY(make_directory(parent_path(owner_path(key))));
  return make_directory(owner_path(key));
}

Status DirectoryObjectStore::write(const std::string& path, ByteSpan bytes) {
  Result<std::unique_ptr<File>> file = files_.create(path, kFilePermissions);
  if (file.status().code() == Code::kExists) {  // what an interrupted try has left
    DCR_TRY(unless_gone(files_.remove(path)));
    file = files_.create(path, kFilePermissions);
  }
  DCR_TRY(file.status());
  DCR_TRY((*file)->write(0, bytes));
  return (*file)->sync();
}

Status DirectoryObjectStore::put(const ObjectKey& key, ByteSpan bytes) {
  const std::string directory = owner_path(key);
  const std::string path = join_path(directory, key.name());
  const Result<FileInfo> there = files_.info(path, false);
  if (there.ok()) {
    if (there->size == bytes.size()) {
      DCR_ASSIGN(const Bytes present, read_file(files_, path, bytes.size()));
      // Its name may not be synced: the try before may have failed just there.
      if (std::equal(bytes.begin(), bytes.end(), present.begin(), present.end())) {
        return files_.sync_directory(directory);
      }
    }
    return {Code::kExists, "object " + key.text() + " is there with other bytes"};
  }
  DCR_TRY(unless_gone(there.status()));
  const std::string beside = path + ".part";
  const Status written = write(beside, bytes);
  if (written.code() == Code::kNotFound) {
    return {Code::kNotFound, "cannot write object " + key.text() + ": its attempt is not there"};
  }
  DCR_TRY(written);
  DCR_TRY(files_.rename(beside, path));
  return files_.sync_directory(directory);
}

Result<std::optional<Bytes>> DirectoryObjectStore::get(const ObjectKey& key,
                                                       std::uint64_t bytes_max) {
  Result<Bytes> bytes = read_file(files_, join_path(owner_path(key), key.name()), bytes_max);
  if (bytes.ok()) return std::optional<Bytes>(std::move(bytes).value());
  if (bytes.status().code() == Code::kNotFound) return std::optional<Bytes>();
  return bytes.status().with_context("object " + key.text());
}

// A directory of an attempt: directories of owners, and the files in them.
Status DirectoryObjectStore::remove_tree(const std::string& path) {
  const Result<std::vector<DirectoryEntry>> owners = files_.list(path);
  DCR_TRY(unless_gone(owners.status()));
  if (!owners.ok()) return {};
  for (const DirectoryEntry& owner : *owners) {
    const std::string below = join_path(path, owner.name);
    if (owner.kind != FileKind::kDirectory) {
      DCR_TRY(unless_gone(files_.remove(below)));
      continue;
    }
    const Result<std::vector<DirectoryEntry>> objects = files_.list(below);
    DCR_TRY(unless_gone(objects.status()));
    if (!objects.ok()) continue;
    for (const DirectoryEntry& object : *objects) {
      DCR_TRY(unless_gone(files_.remove(join_path(below, object.name))));
    }
    DCR_TRY(unless_gone(files_.remove_directory(below)));
  }
  return unless_gone(files_.remove_directory(path));
}

Status DirectoryObjectStore::remove_attempts(const Digest& run, std::uint64_t attempt) {
  const std::string directory = run_path(run);
  const Result<std::vector<DirectoryEntry>> attempts = files_.list(directory);
  DCR_TRY(unless_gone(attempts.status()));
  if (!attempts.ok()) return {};
  for (const DirectoryEntry& entry : *attempts) {
    const std::optional<std::uint64_t> number = attempt_of(entry.name);
    if (!number || *number > attempt || entry.kind != FileKind::kDirectory) continue;
    DCR_TRY(remove_tree(join_path(directory, entry.name)));
  }
  return files_.sync_directory(directory);
}

}  // namespace dcr
