// Objects as files of a directory that owners and nodes share:
// ROOT/<run>/<attempt>/<owner>/<number>.
//
// An object is written beside its name ("<number>.part"), synced, and renamed, so that a name,
// where it is there, has the whole object. Reading goes by exact names; only removal lists, and
// what it cannot see yet (on a shared file system) is removed with the next attempt.
#pragma once

#include <string>
#include <utility>

#include "runtime/file.h"
#include "transport/object_store.h"

namespace dcr {

class DirectoryObjectStore final : public ObjectStore {
 public:
  // `root` exists. `files` must outlive this.
  DirectoryObjectStore(FileSystem& files, std::string root)
      : files_(files), root_(std::move(root)) {}

  Status begin(const ObjectKey& key) override;
  Status put(const ObjectKey& key, ByteSpan bytes) override;
  Result<std::optional<Bytes>> get(const ObjectKey& key, std::uint64_t bytes_max) override;
  Status remove_attempts(const Digest& run, std::uint64_t attempt) override;

 private:
  std::string run_path(const Digest& run) const;
  std::string owner_path(const ObjectKey& key) const;
  Status make_directory(const std::string& path);
  Status write(const std::string& path, ByteSpan bytes);
  Status remove_tree(const std::string& path);

  FileSystem& files_;
  const std::string root_;
};

}  // namespace dcr
