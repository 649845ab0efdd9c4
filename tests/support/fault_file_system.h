// A file system around another that fails, or dies, at a chosen operation. Code that must survive
// is run once for each operation it makes, with the fault there:
//
//   for (std::uint64_t n = 0;; ++n) {
//     MemoryFileSystem disk;  // set up
//     FaultFileSystem files(disk);
//     files.set_fault({.operation = n, .kind = Fault::Kind::kKill});
//     const Status status = code_under_test(files);
//     if (!files.fired()) break;  // n is past its last operation
//     // SIGKILL:    what the process wrote is all there:  look at `disk`
//     // power loss: what was not synced may be gone:      look at `disk.recover(…)`
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "dcr/status.h"
#include "runtime/file.h"

namespace dcr {

// An operation is one call that changes something or makes it last: write, sync, resize, create,
// make_directory, rename, remove, remove_directory, set_permissions, sync_directory. They are
// numbered from 0 in the order in which they begin.
struct Fault {
  enum class Kind : std::uint8_t {
    kFail,  // this operation returns `status` and the process lives on: a full disk
    kKill,  // the process is dead: this and all later calls, reads too, return an error
  };
  std::uint64_t operation = 0;
  Kind kind = Kind::kKill;
  // The operation is half done before it fails: a write lays the first half of its bytes, any other
  // takes full effect though its caller is told otherwise.
  bool half_done = false;
  // For kFail.
  Status status = {Code::kIo, "No space left on device (planned fault)"};
};

// Thread-safe, but with concurrent callers the numbers depend on their interleaving.
class FaultFileSystem final : public FileSystem {
 public:
  // `files` must outlive this and the files opened through it, and those must not outlive this.
  explicit FaultFileSystem(FileSystem& files);

  // The fault to come; replaces the one before.
  void set_fault(Fault fault);
  // `action` runs just before read `number` (File::read calls, from 0), for instance to cut the
  // file that is being read; an error that it returns becomes the read's.
  void before_read(std::uint64_t number, std::function<Status()> action);

  // Whether the fault has come about.
  bool fired() const;
  // How many operations and reads have begun, those that failed included.
  std::uint64_t operations() const;
  std::uint64_t reads() const;
  // One line for each operation, as "write model.safetensors 128+512".
  std::vector<std::string> trace() const;

  Result<std::unique_ptr<File>> open_read(const std::string& path) override;
  Result<std::unique_ptr<File>> open_write(const std::string& path) override;
  Result<std::unique_ptr<File>> create(const std::string& path, std::uint32_t permissions) override;
  Result<FileInfo> info(const std::string& path, bool follow) override;
  Result<std::vector<DirectoryEntry>> list(const std::string& directory) override;
  Status make_directory(const std::string& path, std::uint32_t permissions) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status remove_directory(const std::string& path) override;
  Status set_permissions(const std::string& path, std::uint32_t permissions) override;
  Status sync_directory(const std::string& directory) override;

 private:
  class FaultyFile;

  // Does operation `name` by calling `whole`, unless the fault is here: then `half` if it is to be
  // half done.
  Status operate(std::string name, const std::function<Status()>& whole,
                 const std::function<Status()>& half);
  Status operate(std::string name, const std::function<Status()>& whole) {
    return operate(std::move(name), whole, whole);
  }
  Status begin_read();
  Status alive() const;

  FileSystem& files_;
  mutable std::mutex mutex_;
  // All below are guarded by mutex_.
  std::optional<Fault> fault_;
  std::uint64_t before_read_number_ = 0;
  std::function<Status()> before_read_;
  bool fired_ = false;
  bool dead_ = false;
  std::uint64_t reads_ = 0;
  std::vector<std::string> trace_;
};

}  // namespace dcr
