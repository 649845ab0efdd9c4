#include "run/run_directory.h"

#include <utility>

#include "base/endpoint_name.h"
#include "channel/address.h"
#include "channel/keys.h"
#include "run/process_context.h"
#include "runtime/child_process.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint32_t kOursOnly = 0700;
constexpr std::uint32_t kOursToUse = 0600;
constexpr std::uint32_t kOthersMayWrite = 0022;
constexpr std::uint64_t kSettingsBytesMax = kMiB;
constexpr std::uint64_t kMakeMs = 10'000;
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

Status make_private(const std::string& path) {
  const Status made = posix_file_system().make_directory(path, kOursOnly);
  return made.code() == Code::kExists ? Status() : made;
}

Status check_directory(const std::string& path) {
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
  DCR_ASSIGN(const FileInfo info, posix_file_system().info(path, true));
  if (info.kind != FileKind::kDirectory) {
    return {Code::kInvalidArgument, path + " is no directory"};
  }
  if ((info.permissions & kOthersMayWrite) == 0) return {};
  return {Code::kInvalidArgument,
          path + ": others may write to this run directory: chmod 700 it, or give another"};
}

std::string settings_path(const std::string& directory) {
  return join_path(directory, "settings.toml");
}

// The control plane comes last, so that where it is, the rest is.
Status make_run_directory(const std::string& path) {
  FileSystem& files = posix_file_system();
  for (const char* folder : {"peers", "locks", "logs", "sources"}) {
    DCR_TRY(make_private(join_path(path, folder)));
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
  return create_run(config);
}

}  // namespace

Result<std::unique_ptr<RunDirectory>> RunDirectory::open(const std::string& path) {
  DCR_TRY(make_private(path));
  DCR_TRY(check_directory(path));
  {
    // One process makes it, the others find it made.
    DCR_ASSIGN(const std::unique_ptr<ProcessLock> making,
               ProcessLock::open(join_path(path, "making.lock")));
    DCR_TRY(making->lock(kMakeMs));
    DCR_TRY(make_run_directory(path));
  }
  DCR_ASSIGN(const Bytes bytes,
             read_file(posix_file_system(), settings_path(path), kSettingsBytesMax));
  auto config =
      parse_run_settings({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  if (!config.ok()) return config.status().with_context(settings_path(path));
  return std::make_unique<RunDirectory>(std::move(config).value());
}

RunDirectory::RunDirectory(RunConfig config)
    : config_(std::move(config)),
      peers_(std::make_shared<DirectoryPeers>(join_path(config_.directory, "peers"),
                                              config_.directory)) {}

std::string RunDirectory::sources_path() const { return join_path(config_.directory, "sources"); }

std::string RunDirectory::log_path(const std::string& name) const {
  return join_path(join_path(config_.directory, "logs"), name + ".log");
}

std::string RunDirectory::lock_path(const std::string& name) const {
  return join_path(join_path(config_.directory, "locks"), name);
}

RunDirectory::Presence::~Presence() {
  const std::lock_guard<std::mutex> lock(directory_.mutex_);
  directory_.entered_.erase(name_);
}

Result<std::unique_ptr<RunDirectory::Presence>> RunDirectory::enter(const std::string& name,
                                                                    const SenderRole& role) {
  DCR_TRY(check_endpoint_name(name));
  const Status already(Code::kExists, name + " takes part in this run already");
  const std::lock_guard<std::mutex> guard(mutex_);
  if (entered_.contains(name)) return already;
  DCR_ASSIGN(std::unique_ptr<ProcessLock> lock, ProcessLock::open(lock_path(name)));
  const Status locked = lock->lock(0);
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

Status RunDirectory::start_processes(const std::string& program, Clock& clock) {
  for (const auto& [command, name] : kProcesses) {
    DCR_ASSIGN(const bool present, is_present(name));
    if (present) continue;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      const std::uint64_t now = clock.nanoseconds();
      const auto started = started_ns_.find(name);
      if (started != started_ns_.end() && now < started->second + kStartAgainNs) continue;
      started_ns_[name] = now;
    }
    DCR_TRY(start_detached({program, command, "--run", config_.directory, "--name", name},
                           log_path(name)));
  }
  return {};
}

}  // namespace dcr
