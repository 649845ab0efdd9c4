// Files as DCR needs them: positioned reads and writes, sync, rename, and directories. All disk
// access of the library goes through `FileSystem`, which is where tests inject faults (short reads,
// full disks, crashes that lose what was not synced). Weights are read by pread into bounded
// buffers, not through mappings: a file that shrinks while it is read is then an error value, where
// a mapping would end the process with SIGBUS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dcr/status.h"

namespace dcr {

// An open file. Thread-safe: positioned operations may run at the same time on one object.
class File {
 public:
  virtual ~File() = default;

  // Fills `out` whole from `offset`. Error kIo naming the file: also when the file ends before that
  // ("shrank").
  virtual Status read(std::uint64_t offset, MutableByteSpan out) const = 0;

  // Writes all of `bytes` at `offset`, extending the file as needed. Error kIo (full disk,
  // permission).
  virtual Status write(std::uint64_t offset, ByteSpan bytes) = 0;

  // Makes everything written so far survive power loss.
  virtual Status sync() = 0;

  // Sets the length.
  virtual Status resize(std::uint64_t size) = 0;

  virtual Result<std::uint64_t> size() const = 0;
};

enum class FileKind : std::uint8_t { kRegular, kDirectory, kSymlink, kOther };

struct FileInfo {
  FileKind kind = FileKind::kOther;
  std::uint64_t size = 0;
  std::uint32_t permissions = 0;  // the low 12 bits of st_mode
  std::uint64_t links = 0;
  std::uint32_t owner = 0;              // user id
  std::uint64_t device = 0, inode = 0;  // together: the file itself, by whatever path
};

struct DirectoryEntry {
  std::string name;
  FileKind kind = FileKind::kOther;  // of the entry itself, not of what a symlink points to
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Opens an existing regular file (symlinks are followed). Errors: kNotFound, kIo.
  virtual Result<std::unique_ptr<File>> open_read(const std::string& path) = 0;
  virtual Result<std::unique_ptr<File>> open_write(const std::string& path) = 0;

  // Creates a file that must not exist. Errors: kExists, kIo.
  virtual Result<std::unique_ptr<File>> create(const std::string& path,
                                               std::uint32_t permissions) = 0;

  // About the path itself (`follow` false) or what it points to. Errors: kNotFound, kIo.
  virtual Result<FileInfo> info(const std::string& path, bool follow) = 0;

  // Entries without "." and "..", sorted by name.
  virtual Result<std::vector<DirectoryEntry>> list(const std::string& directory) = 0;

  virtual Status make_directory(const std::string& path, std::uint32_t permissions) = 0;
  // Replaces `to` atomically if it exists as a file.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;  // a file; error kNotFound if absent
  virtual Status remove_directory(const std::string& path) = 0;  // an empty directory
  virtual Status set_permissions(const std::string& path, std::uint32_t permissions) = 0;
  // Makes renames, creations and removals in `directory` survive power loss.
  virtual Status sync_directory(const std::string& directory) = 0;
};

// The user whose files this process makes (a system's number).
std::uint32_t this_user();

// The operating system's files. Lives as long as the process.
FileSystem& posix_file_system();

// The directory part of a path ("." if it has none) and its last component.
std::string parent_path(const std::string& path);
std::string base_name(const std::string& path);
std::string join_path(const std::string& directory, const std::string& name);

// Reads a whole file of at most `bytes_max`. Error kTooLarge names file and limit.
Result<Bytes> read_file(FileSystem& files, const std::string& path, std::uint64_t bytes_max);

// Puts a file at `path`, complete and synced, in place of one that is there. REQUIRES: one writer
// at a time.
Status replace_file(FileSystem& files, const std::string& path, ByteSpan bytes,
                    std::uint32_t permissions);

}  // namespace dcr
