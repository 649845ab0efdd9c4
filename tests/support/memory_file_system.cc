#include "tests/support/memory_file_system.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"

namespace dcr {
namespace {

constexpr std::uint64_t kSectorBytes = 512;
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 40;
constexpr int kSymlinksMax = 8;

Status memory_error(const std::string& verb, const std::string& path, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound
                    : error == EEXIST                   ? Code::kExists
                                                        : Code::kIo;
  return {code, "cannot " + verb + " " + path + ": " + std::generic_category().message(error)};
}

std::vector<std::string> components(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= path.size()) {
    const std::size_t slash = std::min(path.find('/', start), path.size());
    const std::string part = path.substr(start, slash - start);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();  // the root is its own parent
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
    start = slash + 1;
  }
  return parts;
}

// Lays `data` over `bytes` from `offset`, with zeros in a hole before it.
void lay(Bytes& bytes, std::uint64_t offset, ByteSpan data) {
  if (data.empty()) return;
  const auto start = static_cast<std::size_t>(offset);
  if (bytes.size() < start + data.size()) bytes.resize(start + data.size());
  std::copy(data.begin(), data.end(), bytes.begin() + static_cast<std::ptrdiff_t>(start));
}

bool coin(Prng& prng) { return prng.below(2) == 1; }

}  // namespace

struct MemoryFileSystem::Node {
  // Since the last sync of this file, in order: bytes laid at an offset, or a new length.
  struct Change {
    std::uint64_t offset = 0;
    Bytes data;
    std::optional<std::uint64_t> size;
  };
  // Since the last sync of this directory, in order: what names then stand for (null: nothing).
  using NameChange = std::vector<std::pair<std::string, NodePointer>>;

  FileKind kind = FileKind::kRegular;
  std::uint32_t permissions = 0644;
  std::uint32_t durable_permissions = 0644;
  std::uint64_t links = 1;

  Bytes bytes;
  Bytes durable_bytes;
  std::vector<Change> changes;

  std::map<std::string, NodePointer> names;
  std::map<std::string, NodePointer> durable_names;
  std::vector<NameChange> name_changes;

  std::string target;  // of a symlink

  static void apply(std::map<std::string, NodePointer>& names, const NameChange& change) {
    for (const auto& [name, node] : change) {
      if (node == nullptr) {
        names.erase(name);
      } else {
        names[name] = node;
      }
    }
  }

  void change_names(NameChange change) {
    apply(names, change);
    name_changes.push_back(std::move(change));
  }

  void sync() {
    durable_bytes = bytes;
    changes.clear();
    durable_permissions = permissions;
    durable_names = names;
    name_changes.clear();
  }

  // The content after a power loss.
  Bytes surviving_bytes(Unsynced unsynced, Prng& prng) const {
    if (unsynced == Unsynced::kAll) return bytes;
    Bytes result = durable_bytes;
    if (unsynced == Unsynced::kNone) return result;
    for (const Change& change : changes) {
      if (change.size) {
        if (coin(prng)) result.resize(static_cast<std::size_t>(*change.size));
        continue;
      }
      const ByteSpan data(change.data);
      for (std::uint64_t done = 0; done < data.size();) {
        const std::uint64_t at = change.offset + done;
        const std::uint64_t length =
            std::min<std::uint64_t>(data.size() - done, kSectorBytes - at % kSectorBytes);
        const ByteSpan sector =
            data.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(length));
        if (coin(prng)) {
          lay(result, at, sector);
        } else if (at + length > result.size() && coin(prng)) {
          result.resize(static_cast<std::size_t>(at + length));  // the length came, the data not
        }
        done += length;
      }
    }
    return result;
  }

  std::map<std::string, NodePointer> surviving_names(Unsynced unsynced, Prng& prng) const {
    if (unsynced == Unsynced::kAll) return names;
    std::map<std::string, NodePointer> result = durable_names;
    if (unsynced == Unsynced::kNone) return result;
    const std::uint64_t kept = prng.below(name_changes.size() + 1);
    for (std::uint64_t i = 0; i < kept; ++i) apply(result, name_changes[i]);
    return result;
  }
};

struct MemoryFileSystem::State {
  mutable std::mutex mutex;
  NodePointer root = std::make_shared<Node>();  // guarded by mutex, with all below it

  // The directory that holds the last component and that component ("" for the root). Null if a
  // directory on the way is missing; `error` says why.
  std::pair<NodePointer, std::string> locate(const std::string& path, int* error) const {
    std::vector<std::string> parts = components(path);
    if (parts.empty()) return {root, ""};
    NodePointer at = root;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = at->names.find(parts[i]);
      *error = found == at->names.end()                      ? ENOENT
               : found->second->kind != FileKind::kDirectory ? ENOTDIR
                                                             : 0;
      if (*error != 0) return {nullptr, ""};
      at = found->second;
    }
    return {at, parts.back()};
  }

  // What `path` names; null with `error` if nothing.
  NodePointer find(const std::string& path, bool follow, int* error) const {
    std::string current = path;
    for (int hops = 0; hops < kSymlinksMax; ++hops) {
      const auto [directory, name] = locate(current, error);
      if (directory == nullptr) return nullptr;
      if (name.empty()) return directory;
      const auto found = directory->names.find(name);
      if (found == directory->names.end()) {
        *error = ENOENT;
        return nullptr;
      }
      if (found->second->kind != FileKind::kSymlink || !follow) return found->second;
      const std::string& target = found->second->target;
      current = target.front() == '/' ? target : join_path(parent_path(current), target);
    }
    *error = ELOOP;
    return nullptr;
  }

  // For put: the directory of the last component, made as needed, all of it durable.
  Node& make_parents(const std::string& path, std::string* name) {
    std::vector<std::string> parts = components(path);
    DCR_ASSERT(!parts.empty());
    NodePointer at = root;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      NodePointer& next = at->names[parts[i]];
      if (next == nullptr) {
        next = std::make_shared<Node>();
        next->kind = FileKind::kDirectory;
        next->permissions = next->durable_permissions = 0755;
      }
      DCR_ASSERT(next->kind == FileKind::kDirectory);
      at->sync();
      at = next;
    }
    *name = parts.back();
    return *at;
  }
};

class MemoryFileSystem::OpenFile final : public File {
 public:
  OpenFile(std::shared_ptr<State> state, NodePointer node, std::string path, bool writable)
      : state_(std::move(state)),
        node_(std::move(node)),
        path_(std::move(path)),
        writable_(writable) {}

  Status read(std::uint64_t offset, MutableByteSpan out) const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const Bytes& bytes = node_->bytes;
    const std::optional<std::uint64_t> end = checked_add(offset, out.size());
    if (!end) return memory_error("read", path_, EOVERFLOW);
    if (!out.empty() && *end > bytes.size()) {
      return {Code::kIo, "cannot read " + path_ + ": it ends at byte " +
                             std::to_string(std::max<std::uint64_t>(offset, bytes.size())) +
                             " but " + std::to_string(*end) +
                             " are needed; it shrank while it was in use or was cut short"};
    }
    if (!out.empty()) std::copy_n(bytes.data() + offset, out.size(), out.data());
    return {};
  }

  Status write(std::uint64_t offset, ByteSpan bytes) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!writable_) return memory_error("write", path_, EBADF);
    const std::optional<std::uint64_t> end = checked_add(offset, bytes.size());
    if (!end || *end > kFileBytesMax) return memory_error("write", path_, EFBIG);
    lay(node_->bytes, offset, bytes);
    node_->changes.push_back({offset, Bytes(bytes.begin(), bytes.end()), std::nullopt});
    return {};
  }

  Status sync() override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    node_->sync();
    return {};
  }

  Status resize(std::uint64_t size) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!writable_) return memory_error("resize", path_, EINVAL);
    if (size > kFileBytesMax) return memory_error("resize", path_, EFBIG);
    node_->bytes.resize(static_cast<std::size_t>(size));
    node_->changes.push_back({0, {}, size});
    return {};
  }

  Result<std::uint64_t> size() const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return static_cast<std::uint64_t>(node_->bytes.size());
  }

 private:
  std::shared_ptr<State> state_;
  NodePointer node_;
  std::string path_;
  bool writable_;
};

MemoryFileSystem::MemoryFileSystem() : state_(std::make_shared<State>()) {
  state_->root->kind = FileKind::kDirectory;
  state_->root->permissions = state_->root->durable_permissions = 0755;
}

MemoryFileSystem::~MemoryFileSystem() = default;

void MemoryFileSystem::put(const std::string& path, ByteSpan bytes, std::uint32_t permissions) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::string name;
  Node& directory = state_->make_parents(path, &name);
  auto node = std::make_shared<Node>();
  node->bytes.assign(bytes.begin(), bytes.end());
  node->permissions = permissions;
  node->sync();
  directory.names[name] = std::move(node);
  directory.sync();
}

void MemoryFileSystem::put_symlink(const std::string& path, const std::string& target) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  DCR_ASSERT(!target.empty());
  std::string name;
  Node& directory = state_->make_parents(path, &name);
  auto node = std::make_shared<Node>();
  node->kind = FileKind::kSymlink;
  node->permissions = node->durable_permissions = 0777;
  node->target = target;
  directory.names[name] = std::move(node);
  directory.sync();
}

void MemoryFileSystem::put_hard_link(const std::string& path, const std::string& existing) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  NodePointer node = state_->find(existing, false, &error);
  DCR_ASSERT(node != nullptr && node->kind == FileKind::kRegular);
  std::string name;
  Node& directory = state_->make_parents(path, &name);
  ++node->links;
  directory.names[name] = std::move(node);
  directory.sync();
}

Bytes MemoryFileSystem::get(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const NodePointer node = state_->find(path, true, &error);
  DCR_ASSERT(node != nullptr && node->kind == FileKind::kRegular);
  return node->bytes;
}

bool MemoryFileSystem::exists(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  return state_->find(path, false, &error) != nullptr;
}

std::map<std::string, Bytes> MemoryFileSystem::all() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::map<std::string, Bytes> result;
  std::vector<std::pair<std::string, NodePointer>> open = {{"", state_->root}};
  while (!open.empty()) {
    const auto [path, node] = std::move(open.back());
    open.pop_back();
    if (node->kind == FileKind::kRegular) result[path] = node->bytes;
    for (const auto& [name, child] : node->names) open.emplace_back(join_path(path, name), child);
  }
  return result;
}

MemoryFileSystem::NodePointer MemoryFileSystem::recover_node(
    const NodePointer& node, Unsynced unsynced, Prng& prng,
    std::map<const Node*, NodePointer>& made) {
  NodePointer& copy = made[node.get()];
  if (copy != nullptr) {  // a second name of the same file
    ++copy->links;
    return copy;
  }
  copy = std::make_shared<Node>();
  NodePointer result = copy;  // `made` grows below and the reference with it
  result->kind = node->kind;
  result->target = node->target;
  const bool permissions_kept =
      unsynced == Unsynced::kAll || (unsynced == Unsynced::kSome && coin(prng));
  result->permissions = permissions_kept ? node->permissions : node->durable_permissions;
  result->bytes = node->surviving_bytes(unsynced, prng);
  for (const auto& [name, child] : node->surviving_names(unsynced, prng)) {
    result->names[name] = recover_node(child, unsynced, prng, made);
  }
  result->sync();
  return result;
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::recover(Unsynced unsynced,
                                                            std::uint64_t seed) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  Prng prng(seed);
  std::map<const Node*, NodePointer> made;
  auto result = std::make_unique<MemoryFileSystem>();
  result->state_->root = recover_node(state_->root, unsynced, prng, made);
  return result;
}

Result<std::unique_ptr<File>> MemoryFileSystem::open_read(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  NodePointer node = state_->find(path, true, &error);
  if (node == nullptr) return memory_error("open", path, error);
  if (node->kind == FileKind::kDirectory) return memory_error("open", path, EISDIR);
  return {std::make_unique<OpenFile>(state_, std::move(node), path, false)};
}

Result<std::unique_ptr<File>> MemoryFileSystem::open_write(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  NodePointer node = state_->find(path, true, &error);
  if (node == nullptr) return memory_error("open for writing", path, error);
  if (node->kind == FileKind::kDirectory) return memory_error("open for writing", path, EISDIR);
  if ((node->permissions & 0222) == 0) return memory_error("open for writing", path, EACCES);
  return {std::make_unique<OpenFile>(state_, std::move(node), path, true)};
}

Result<std::unique_ptr<File>> MemoryFileSystem::create(const std::string& path,
                                                       std::uint32_t permissions) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const auto [directory, name] = state_->locate(path, &error);
  if (directory == nullptr) return memory_error("create", path, error);
  if (name.empty() || directory->names.contains(name)) {
    return memory_error("create", path, EEXIST);
  }
  auto node = std::make_shared<Node>();
  node->permissions = node->durable_permissions = permissions;
  directory->change_names({{name, node}});
  return {std::make_unique<OpenFile>(state_, std::move(node), path, true)};
}

Result<FileInfo> MemoryFileSystem::info(const std::string& path, bool follow) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const NodePointer node = state_->find(path, follow, &error);
  if (node == nullptr) return memory_error("examine", path, error);
  FileInfo info{node->kind, node->bytes.size(), node->permissions, node->links};
  info.device = 1;
  info.owner = ::geteuid();
  info.inode = reinterpret_cast<std::uintptr_t>(node.get());
  return info;
}

Result<std::vector<DirectoryEntry>> MemoryFileSystem::list(const std::string& directory) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const NodePointer node = state_->find(directory, true, &error);
  if (node == nullptr) return memory_error("list", directory, error);
  if (node->kind != FileKind::kDirectory) return memory_error("list", directory, ENOTDIR);
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, child] : node->names) entries.push_back({name, child->kind});
  return entries;
}

Status MemoryFileSystem::make_directory(const std::string& path, std::uint32_t permissions) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const auto [directory, name] = state_->locate(path, &error);
  if (directory == nullptr) return memory_error("make directory", path, error);
  if (name.empty() || directory->names.contains(name)) {
    return memory_error("make directory", path, EEXIST);
  }
  auto node = std::make_shared<Node>();
  node->kind = FileKind::kDirectory;
  node->permissions = node->durable_permissions = permissions;
  directory->change_names({{name, std::move(node)}});
  return {};
}

Status MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const std::string verb = "rename " + from + " to";
  int error = 0;
  const auto [from_directory, from_name] = state_->locate(from, &error);
  if (from_directory == nullptr) return memory_error(verb, to, error);
  const auto [to_directory, to_name] = state_->locate(to, &error);
  if (to_directory == nullptr) return memory_error(verb, to, error);
  const auto source = from_directory->names.find(from_name);
  if (source == from_directory->names.end()) return memory_error(verb, to, ENOENT);
  if (from_directory != to_directory) {
    return {Code::kUnsupported, "cannot " + verb + " " + to + ": not the same directory"};
  }
  const NodePointer node = source->second;
  const auto target = to_directory->names.find(to_name);
  if (target != to_directory->names.end()) {
    Node& old = *target->second;
    if (target->second == node) return {};
    if (old.kind == FileKind::kDirectory && node->kind != FileKind::kDirectory) {
      return memory_error(verb, to, EISDIR);
    }
    if (old.kind != FileKind::kDirectory && node->kind == FileKind::kDirectory) {
      return memory_error(verb, to, ENOTDIR);
    }
    if (!old.names.empty()) return memory_error(verb, to, ENOTEMPTY);
    --old.links;
  }
  from_directory->change_names({{to_name, node}, {from_name, nullptr}});
  return {};
}

Status MemoryFileSystem::remove(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const auto [directory, name] = state_->locate(path, &error);
  if (directory == nullptr) return memory_error("remove", path, error);
  const auto found = directory->names.find(name);
  if (found == directory->names.end()) return memory_error("remove", path, ENOENT);
  if (found->second->kind == FileKind::kDirectory) return memory_error("remove", path, EISDIR);
  --found->second->links;
  directory->change_names({{name, nullptr}});
  return {};
}

Status MemoryFileSystem::remove_directory(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const auto [directory, name] = state_->locate(path, &error);
  if (directory == nullptr) return memory_error("remove directory", path, error);
  const auto found = directory->names.find(name);
  if (found == directory->names.end()) return memory_error("remove directory", path, ENOENT);
  if (found->second->kind != FileKind::kDirectory) {
    return memory_error("remove directory", path, ENOTDIR);
  }
  if (!found->second->names.empty()) return memory_error("remove directory", path, ENOTEMPTY);
  directory->change_names({{name, nullptr}});
  return {};
}

Status MemoryFileSystem::set_permissions(const std::string& path, std::uint32_t permissions) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const NodePointer node = state_->find(path, true, &error);
  if (node == nullptr) return memory_error("set permissions of", path, error);
  node->permissions = permissions;
  return {};
}

Status MemoryFileSystem::sync_directory(const std::string& directory) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int error = 0;
  const NodePointer node = state_->find(directory, true, &error);
  if (node == nullptr) return memory_error("sync directory", directory, error);
  if (node->kind != FileKind::kDirectory) {
    return memory_error("sync directory", directory, ENOTDIR);
  }
  node->sync();
  return {};
}

}  // namespace dcr
