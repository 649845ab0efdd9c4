#include "run/process_context.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/digest.h"
#include "base/secure_random.h"
#include "channel/keys.h"
#include "run/run_identity.h"
#include "runtime/file.h"
#include "runtime/process_lock.h"

namespace dcr {
namespace {

constexpr std::uint32_t kPrivateDirectory = 0700;
constexpr std::uint32_t kOthersMayWrite = 0022;
constexpr std::uint64_t kCreateMs = 10'000;

// What belongs to this machine alone.
const std::string& work_path(const RunConfig& config) {
  return config.work.empty() ? config.directory : config.work;
}

SqliteControl::Options store_of(const RunConfig& config) {
  SqliteControl::Options options;
  options.directory = config.directory;
  return options;
}

}  // namespace

std::string objects_path(const RunConfig& config) {
  return config.objects.empty() ? join_path(config.directory, "objects") : config.objects;
}
std::string sources_path(const RunConfig& config) { return join_path(config.directory, "sources"); }
std::string keys_path(const RunConfig& config) { return join_path(work_path(config), "keys"); }
std::string payload_socket_path(const RunConfig& config, const std::string& receiver) {
  return join_path(work_path(config), receiver + ".payloads");
}

Status check_ours(const std::string& path) {
  DCR_ASSIGN(const FileInfo info, posix_file_system().info(path, true));
  if (info.kind != FileKind::kDirectory) {
    return {Code::kInvalidArgument, path + " is no directory"};
  }
  if (info.owner != this_user()) {
    return {Code::kInvalidArgument, path + ": this directory of a run belongs to user " +
                                        std::to_string(info.owner) + ", not to user " +
                                        std::to_string(this_user()) + " who runs this"};
  }
  if ((info.permissions & kOthersMayWrite) == 0) return {};
  return {Code::kInvalidArgument,
          path + ": others may write to this directory of a run: chmod go-w it, or name another"};
}

Status make_ours(const std::string& path) {
  Status made = posix_file_system().make_directory(path, kPrivateDirectory);
  if (!made.ok() && made.code() != Code::kExists) return made;
  return check_ours(path);
}

Status check_folders(const RunConfig& config) {
  for (const std::string& path : {config.directory, work_path(config), objects_path(config),
                                  sources_path(config), keys_path(config)}) {
    Status ours = check_ours(path);
    // What is missing is seen where it is needed.
    if (!ours.ok() && ours.code() != Code::kNotFound) return ours;
  }
  return {};
}

namespace {

Digest run_of(std::string_view use, const RunId& run) {
  Bytes bytes(use.begin(), use.end());
  bytes.insert(bytes.end(), run.begin(), run.end());
  return blake2b(bytes);
}

}  // namespace

Digest restore_run(const RunId& run) { return run_of("dcr-restore", run); }
Digest sample_run(const RunId& run) { return run_of("dcr-sample", run); }

Status create_run(const RunConfig& config, const CancelToken* cancel) {
  DCR_TRY(make_ours(config.directory));
  DCR_TRY(make_ours(work_path(config)));
  for (const std::string& path : {objects_path(config), sources_path(config), keys_path(config)}) {
    DCR_TRY(make_ours(path));
  }
  // One process makes it. The mark comes first, so that it is there where the control plane is.
  DCR_ASSIGN(const std::unique_ptr<ProcessLock> creating,
             ProcessLock::open(join_path(config.directory, "creating.lock")));
  DCR_TRY(creating->lock(kCreateMs, cancel));
  Status opened = SqliteControl::open(store_of(config)).status();
  if (opened.code() == Code::kNotFound) {
    RunId run{};
    if (config.coordinators.empty()) {
      fill_random(run);
    } else {
      DCR_ASSIGN(run, begin_creation(config));
    }
    opened = SqliteControl::create(store_of(config), run, config.base).status();
  }
  return opened.ok() ? forget_creation(config) : opened;
}

Result<std::unique_ptr<ProcessContext>> ProcessContext::open(
    const RunConfig& config, ProcessOptions options, std::shared_ptr<const RunPeers> peers) {
  if (peers == nullptr) {
    DCR_ASSIGN(peers, listed_peers(config));
  }
  DCR_ASSIGN(std::unique_ptr<SqliteControl> control, SqliteControl::open(store_of(config)));
  DCR_ASSIGN(const ControlRecords records, control->read());
  return std::make_unique<ProcessContext>(config, std::move(options), std::move(peers),
                                          std::move(control), records.run);
}

ProcessContext::ProcessContext(const RunConfig& config, ProcessOptions options,
                               std::shared_ptr<const RunPeers> peers,
                               std::unique_ptr<SqliteControl> control, const RunId& run)
    : config_(config),
      options_(std::move(options)),
      peers_(std::move(peers)),
      control_(std::move(control)),
      run_(run),
      points_(options_.points,
              [this](const OperationPoint& point) {
                options_.log(kReachedPoint, format_operation_point(point));
              }),
      spans_(options_.span_file.empty() ? nullptr : options_.clock, true),
      objects_(posix_file_system(), objects_path(config)),
      caller_(*control_) {}

void ProcessContext::write_spans() {
  std::string text;
  for (const Span& span : spans_.take()) {
    text += std::string(span.stage) + " " + std::to_string(span.endpoint) + " " +
            std::to_string(span.begin_ns) + " " + std::to_string(span.end_ns) + " " +
            std::to_string(span.busy_ns) + "\n";
  }
  if (text.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (span_file_ == nullptr) {
    auto file = posix_file_system().create(options_.span_file, 0600);
    if (!file.ok()) return options_.log(options_.span_file, file.status().message());
    span_file_ = std::move(file).value();
  }
  const ByteSpan bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  const Status written = span_file_->write(span_file_bytes_, bytes);
  if (!written.ok()) options_.log(options_.span_file, written.message());
  span_file_bytes_ += bytes.size();
}

}  // namespace dcr
