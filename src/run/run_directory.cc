#include "run/run_directory.h"

#include <utility>

#include "base/cancelled.h"
#include "base/endpoint_name.h"
#include "channel/address.h"
#include "channel/keys.h"
#include "run/process_context.h"
#include "runtime/child_process.h"
#include "runtime/event_queue.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint32_t kOursToUse = 0600;
constexpr std::uint64_t kSettingsBytesMax = kMiB;
constexpr std::uint64_t kMakeMs = 10'000;
constexpr std::uint64_t kEnterMs = 500;
constexpr std::uint64_t kLookForCancelMs = 20;
constexpr unsigned kOperatorsMax = 16;
constexpr std::uint64_t kStartAgainNs = 3'000'000'000;
// Of a socket's name in the directory, with what sockets are called behind it.
constexpr std::uint64_t kSocketNameBytesMax = 40;
// On one machine a silent process is dead, or was paused for longer than anybody wants to wait.
constexpr std::uint64_t kDirectoryLeaderMs = 2000;
constexpr std::uint64_t kDirectoryStopMs = 5000;
constexpr std::uint64_t kDirectoryJoinHoldMs = 5000;

constexpr const char* kCommandCoordinator = "coordinator";
constexpr const char* kCommandNode = "node";
// What runs beside the members: the command and the name.
constexpr std::pair<const char*, const char*> kProcesses[] = {
    {kCommandCoordinator, "coordinator-0"},
    {kCommandCoordinator, "coordinator-1"},
    {kCommandNode, kDirectoryNode}};

Status check_path(const std::string& path) {
  if (!path.starts_with('/')) {
    return {Code::kInvalidArgument,
            path +
                ": a run directory is named by its path from the root on, for processes may "
                "have another working directory"};
  }
  if (path.size() + kSocketNameBytesMax > kSocketPathBytesMax) {
    return {Code::kInvalidArgument, path + ": the path of a run directory has at most " +
                                        std::to_string(kSocketPathBytesMax - kSocketNameBytesMax) +
                                        " bytes, for sockets lie in it"};
  }
  const std::string socket = "ipc://" + join_path(path, "x");
  return check_listen_address(socket).with_context("a run directory in which sockets lie");
}

std::string settings_path(const std::string& directory) {
  return join_path(directory, "settings.toml");
}

// The control plane comes last, so that where it is, the rest is.
Status make_run_directory(const std::string& path, const CancelToken* cancel) {
  FileSystem& files = posix_file_system();
  for (const char* folder : {"peers", "locks", "logs"}) {
    DCR_TRY(make_ours(join_path(path, folder)));
  }
  RunConfig config;
  config.directory = path;
  config.waits.leader_ms = kDirectoryLeaderMs;
  config.waits.stop_ms = kDirectoryStopMs;
  config.waits.join_hold_ms = kDirectoryJoinHoldMs;
  if (files.info(settings_path(path), true).status().code() == Code::kNotFound) {
    const std::string text = format_run_settings(config);
    DCR_TRY(replace_file(files, settings_path(path),
                         {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                         kOursToUse));
  }
  return create_run(config, cancel);
}

// Those of this process.
struct OpenDirectories {
  std::mutex mutex;
  std::map<std::pair<std::int64_t, std::string>, std::weak_ptr<RunDirectory>>
      directories;  // guarded by mutex
};

OpenDirectories& open_directories() {
  static OpenDirectories all;
  return all;
}

}  // namespace

Result<std::shared_ptr<RunDirectory>> RunDirectory::open(const std::string& path,
                                                         const CancelToken* cancel) {
  OpenDirectories& all = open_directories();
  // Another thread may wait for another process.
  std::unique_lock<std::mutex> guard(all.mutex, std::defer_lock);
  EventQueue<bool> nothing;
  while (!guard.try_lock()) {
    if (!check_cancelled(cancel).ok()) {
      return Status(Code::kCancelled, "the wait to open " + path + " was cancelled");
    }
    nothing.pop(kLookForCancelMs);
  }
  // A forked child has none of its parent's locks.
  std::weak_ptr<RunDirectory>& known = all.directories[{this_process(), path}];
  if (std::shared_ptr<RunDirectory> there = known.lock()) return there;
  DCR_TRY(check_path(path));
  DCR_TRY(make_ours(path));
  {
    // One process makes it, the others find it made.
    DCR_ASSIGN(const std::unique_ptr<ProcessLock> making,
               ProcessLock::open(join_path(path, "making.lock")));
    DCR_TRY(making->lock(kMakeMs, cancel));
    DCR_TRY(make_run_directory(path, cancel));
  }
  DCR_ASSIGN(const Bytes bytes,
             read_file(posix_file_system(), settings_path(path), kSettingsBytesMax));
  auto config =
      parse_run_settings({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  if (!config.ok()) return config.status().with_context(settings_path(path));
  auto opened = std::make_shared<RunDirectory>(std::move(config).value());
  known = opened;
  return opened;
}

RunDirectory::RunDirectory(RunConfig config)
    : config_(std::move(config)),
      peers_(std::make_shared<DirectoryPeers>(join_path(config_.directory, "peers"),
                                              config_.directory)) {}

std::string RunDirectory::log_path(const std::string& name) const {
  return join_path(join_path(config_.directory, "logs"), name + ".log");
}

std::string RunDirectory::lock_path(const std::string& name) const {
  return join_path(join_path(config_.directory, "locks"), name);
}

RunDirectory::Presence::~Presence() {
  const std::lock_guard<std::mutex> lock(directory_.mutex_);
  lock_.reset();  // before another may take its place
  directory_.entered_.erase(name_);
}

Result<std::unique_ptr<RunDirectory::Presence>> RunDirectory::enter(const std::string& name,
                                                                    const SenderRole& role) {
  DCR_TRY(check_endpoint_name(name));
  DCR_TRY(check_listen_address(peers_->address_of(name)).with_context(name));
  const Status already(Code::kExists, name + " takes part in this run already");
  const std::lock_guard<std::mutex> guard(mutex_);
  if (entered_.contains(name)) return already;
  DCR_ASSIGN(std::unique_ptr<ProcessLock> lock, ProcessLock::open(lock_path(name)));
  // Who looks whether it is gone has the lock for a moment.
  Status locked = lock->lock(kEnterMs);
  if (locked.code() == Code::kUnavailable) return already;
  if (!locked.ok()) return locked;
  FileSystem& files = posix_file_system();
  const std::string key = join_path(keys_path(config_), name + ".key");
  if (files.info(key, true).status().code() == Code::kNotFound) {
    DCR_TRY(make_key_files(files, keys_path(config_), name, true).status());
  }
  DCR_ASSIGN(const NamedKeys keys, read_key_file(files, key));
  DCR_TRY(peers_->publish(name, role, keys.keys.public_key));
  entered_.insert(name);
  return std::make_unique<Presence>(*this, name, std::move(lock));
}

Result<std::unique_ptr<RunDirectory::Presence>> RunDirectory::enter_operator(std::string* name) {
  const std::string first = *name;
  for (unsigned number = 0; number < kOperatorsMax; ++number) {
    *name = number == 0 ? first : first + "-" + std::to_string(number);
    auto presence = enter(*name, {Role::kCoordinator, true});
    if (presence.status().code() != Code::kExists) return presence;
  }
  return Status(Code::kExists,
                std::to_string(kOperatorsMax) + " operators are at this run already");
}

Result<bool> RunDirectory::is_present(const std::string& name) {
  // Held: to open and close the file of a lock of this process would free it.
  const std::lock_guard<std::mutex> guard(mutex_);
  if (entered_.contains(name)) return true;
  const std::string path = lock_path(name);
  if (posix_file_system().info(path, true).status().code() == Code::kNotFound) return false;
  DCR_ASSIGN(const std::unique_ptr<ProcessLock> lock, ProcessLock::open(path));
  return lock->is_locked();
}

Result<bool> RunDirectory::has_members() {
  DCR_ASSIGN(const std::vector<DirectoryEntry> entries,
             posix_file_system().list(join_path(config_.directory, "locks")));
  for (const DirectoryEntry& entry : entries) {
    const std::optional<RunPeer> peer = peers_->find(entry.name);
    if (!peer || peer->role.role == Role::kCoordinator || peer->role.role == Role::kNode) continue;
    DCR_ASSIGN(const bool present, is_present(entry.name));
    if (present) return true;
  }
  return false;
}

Status RunDirectory::if_gone(const std::string& name, const std::function<Status()>& bar) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (entered_.contains(name)) return {};
  DCR_ASSIGN(const std::unique_ptr<ProcessLock> lock, ProcessLock::open(lock_path(name)));
  Status locked = lock->lock(0);
  if (locked.code() == Code::kUnavailable) return {};
  if (!locked.ok()) return locked;
  return bar();
}

Result<bool> RunDirectory::is_first_process(const std::string& name) {
  for (const auto& [command, process] : kProcesses) {
    if (process == name) return true;
    DCR_ASSIGN(const bool present, is_present(process));
    if (present) return false;
  }
  return true;
}

Status RunDirectory::start_processes(const std::string& program, Clock& clock) {
  for (const auto& [command, name] : kProcesses) {
    DCR_ASSIGN(const bool present, is_present(name));
    const std::lock_guard<std::mutex> guard(mutex_);
    Started& started = started_[name];
    if (started.pid && collect_detached(*started.pid)) started.pid.reset();
    if (present) continue;
    const std::uint64_t now = clock.nanoseconds();
    if (started.at_ns != 0 && now < started.at_ns + kStartAgainNs) continue;
    started.at_ns = now;
    DCR_ASSIGN(started.pid,
               start_detached({program, command, "--run", config_.directory, "--name", name},
                              log_path(name)));
  }
  return {};
}

}  // namespace dcr
