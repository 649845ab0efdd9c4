// A file system in memory that knows what a power loss may take: fast and exact, for tests of code
// that must survive one. In the manner of LevelDB's fault_injection_test and FoundationDB's
// AsyncFileNonDurable.
//
// Every file has its content as all see it, its content as of the last `sync`, and the writes
// between. Every directory has the same: names made, renamed or removed last only once
// `sync_directory` has returned. That is all that POSIX promises and less than most file systems
// give, so code that is right here is right on them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/prng.h"
#include "dcr/status.h"
#include "runtime/file.h"

namespace dcr {

// What of that which was never synced is there after a power loss.
enum class Unsynced : std::uint8_t {
  kNone,
  kAll,
  // A seeded choice: of each write any subset of its 512-byte sectors, of the space it would have
  // added zeros perhaps, and of each directory's operations the first few.
  kSome,
};

// Thread-safe. Paths are taken apart at '/', "." and empty components are skipped, ".." takes back
// the component before it; a relative path starts at the root. Symlinks are followed in the last
// component only. `rename` works within one
// directory only (kUnsupported otherwise): across two, no single sync makes it last.
class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  // For setting up and looking at: these are durable at once and make parent directories. An
  // existing file is replaced. REQUIRES: no component of the path is a file.
  void put(const std::string& path, ByteSpan bytes, std::uint32_t permissions = 0644);
  void put_symlink(const std::string& path, const std::string& target);
  void put_hard_link(const std::string& path, const std::string& existing);
  // The bytes that a reader sees. REQUIRES: a file is there.
  Bytes get(const std::string& path) const;
  bool exists(const std::string& path) const;
  // Every file (not directories, not symlinks) by its path from the root without a leading slash.
  std::map<std::string, Bytes> all() const;

  // The state after a power loss now, as a file system of its own in which everything is durable.
  // The same seed gives the same state. This one is not changed.
  std::unique_ptr<MemoryFileSystem> recover(Unsynced unsynced, std::uint64_t seed = 0) const;

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
  struct Node;
  struct State;
  class OpenFile;
  using NodePointer = std::shared_ptr<Node>;

  static NodePointer recover_node(const NodePointer& node, Unsynced unsynced, Prng& prng,
                                  std::map<const Node*, NodePointer>& made);

  std::shared_ptr<State> state_;
};

}  // namespace dcr
