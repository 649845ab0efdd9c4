// Outputs that appear under their name complete and synced, or not at all: written beside, synced,
// renamed, and the directory synced. Whoever makes one calls commit() or discard(), once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dcr/status.h"
#include "runtime/file.h"
#include "tensor/checkpoint.h"

namespace dcr {

// Whether `output` may be made as a file or as a directory: it does not exist, or `force` is set
// and it can be replaced without loss of anything but itself. Inputs are paths that exist. Errors:
// kExists (without force; a directory in place of a file; a directory that holds directories, which
// no checkpoint does), kInvalidArgument (it is one of the inputs, or holds one), kNotFound (its
// directory is missing).
Status check_output(FileSystem& files, const std::string& output, bool as_directory, bool force,
                    const std::vector<std::string>& inputs);

// The paths that a checkpoint was read from, for check_output.
std::vector<std::string> input_paths(const Checkpoint& checkpoint);

// A file. Not thread-safe, but its File is.
class PartialFile {
 public:
  static Result<PartialFile> create(FileSystem& files, const std::string& path);

  File& file() { return *file_; }

  // Gives it permissions, if any are given, and replaces what is at the path. On an error the
  // unfinished file is discarded.
  Status commit(std::optional<std::uint32_t> permissions = std::nullopt);
  // Removes the unfinished file; returns `why`, and in its message the file if it cannot be
  // removed.
  Status discard(const Status& why);

 private:
  FileSystem* files_ = nullptr;
  std::string path_, partial_path_;
  std::unique_ptr<File> file_;
};

// A directory of files.
class PartialDirectory {
 public:
  static Result<PartialDirectory> create(FileSystem& files, const std::string& path);

  // Creates a file within, whose permissions will be `permissions`.
  Result<File*> add(const std::string& name, std::uint32_t permissions);

  // Replaces what is at the path. On an error the unfinished directory is discarded; what was at
  // the path is then still there, or, when even that failed, at a path that the message names.
  Status commit();
  Status discard(const Status& why);

 private:
  struct Member {
    std::string name;
    std::uint32_t permissions = 0;
    std::unique_ptr<File> file;
  };
  Status finish_files();
  Status swap_in();

  FileSystem* files_ = nullptr;
  std::string path_, partial_path_;
  std::vector<Member> members_;
};

}  // namespace dcr
