#include "run/run_identity.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cancelled.h"
#include "base/digest.h"
#include "base/hexadecimal.h"
#include "base/secure_random.h"
#include "channel/keys.h"
#include "run/mailbox.h"
#include "runtime/event_queue.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kMarkBytesMax = 256;
constexpr std::uint32_t kMarkPermissions = 0600;
constexpr std::uint64_t kAskAgainMs = 200;
constexpr std::uint64_t kLookMs = 50;
constexpr std::uint64_t kAnswerMs = 10'000;
// Of coordinators, which do not wait for one another.
constexpr std::uint64_t kLeaderAnswerMs = 1'000;
constexpr std::uint64_t kSilentMs = 1'000;
constexpr std::uint64_t kBeatSlackMs = 5'000;

std::string mark_path(const RunConfig& config) { return join_path(objects_path(config), "run"); }
std::string creation_path(const RunConfig& config) {
  return join_path(config.directory, "creating.run");
}

std::string mark_text(const RunId& run) { return digest_text(run) + "\n"; }

std::optional<RunId> run_of_mark(const Bytes& mark) {
  const std::string_view text(reinterpret_cast<const char*>(mark.data()), mark.size());
  RunId run{};
  if (!text.ends_with('\n') || !parse_hexadecimal(text.substr(0, text.size() - 1), run)) {
    return std::nullopt;
  }
  return run;
}

Status write_mark(const std::string& path, const RunId& run) {
  const std::string text = mark_text(run);
  return replace_file(posix_file_system(), path,
                      {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                      kMarkPermissions);
}

// Of the creation that was cut short, if one was.
Result<RunId> id_to_create(const RunConfig& config) {
  const std::string path = creation_path(config);
  const Result<Bytes> begun = read_file(posix_file_system(), path, kMarkBytesMax);
  if (begun.status().code() == Code::kNotFound) {
    RunId run{};
    fill_random(run);
    DCR_TRY(write_mark(path, run));
    return run;
  }
  if (!begun.ok()) return begun.status();
  if (const std::optional<RunId> run = run_of_mark(*begun)) return *run;
  return Status(Code::kCorrupt, path + " holds no run's id: remove that file");
}

std::string must_be_shared(const char* key) {
  return std::string("\"") + key +
         "\" has to be the same directory on all machines of the run, on a file system that they "
         "share";
}

// The question, until it is answered.
class StoreCheck {
 public:
  StoreCheck(ProcessContext& context, std::string name, bool leads, const CancelToken* cancel)
      : context_(context), name_(std::move(name)), leads_(leads), cancel_(cancel) {}

  Status run() {
    DCR_ASSIGN(const std::unique_ptr<Mailbox> mailbox, Mailbox::open(context_, name_));
    mailbox->set_foreign([this](const std::string& name) { heard_.push({name, false}); });
    // Of no incarnation that the control plane has given out: an answer is all that it gets.
    mailbox->set_incarnation(context_.options().clock->nanoseconds());
    mailbox->start([this](const Endpoint& from, const Message& message) {
      if (std::holds_alternative<StatusReply>(message)) heard_.push({from.name, true});
    });
    DCR_ASSIGN(const ControlRecords first, context_.control().read());
    leader_ = first.leader;
    const std::uint64_t begin = now_ms();
    std::uint64_t ask_at = 0;
    while (!context_.options().cancel->cancelled() && check_cancelled(cancel_).ok()) {
      const std::uint64_t spent = now_ms() - begin;
      if (spent >= ask_at) {
        ask(*mailbox);
        ask_at = spent + kAskAgainMs;
      }
      const std::optional<Heard> heard = heard_.pop(kLookMs);
      if (heard && !heard->same_run) return another(heard->name);
      if (heard) answer(heard->name, spent);
      // Whoever answered is gone, and takes its beat along.
      if (spent > heard_at_ + kSilentMs) answered_.clear();
      if (!answered_.empty() && beats()) return {};
      if (std::optional<Status> over = overdue(spent)) return *over;
    }
    return {Code::kCancelled, name_ + " was asked to end"};
  }

 private:
  struct Heard {
    std::string name;
    bool same_run = false;
  };

  std::uint64_t now_ms() const { return context_.options().clock->nanoseconds() / 1'000'000; }

  void ask(Mailbox& mailbox) {
    for (const PeerConfig& peer : context_.config().coordinators) {
      if (peer.name != name_) mailbox.send(peer.name, 0, StatusRequest{});
    }
  }

  void answer(const std::string& name, std::uint64_t at) {
    if (answered_.empty()) answered_since_ = at;
    answered_ = name;
    heard_at_ = at;
  }

  // Whether whoever leads has written to this control plane since.
  bool beats() {
    const Result<ControlRecords> records = context_.control().read();
    return records.ok() && records->leader != leader_;
  }

  // What it is if no more is waited for.
  std::optional<Status> overdue(std::uint64_t spent) const {
    if (!answered_.empty()) {
      const std::uint64_t beats_within = context_.config().waits.leader_ms + kBeatSlackMs;
      if (spent < answered_since_ + beats_within) return std::nullopt;
      return Status(Code::kMismatch,
                    directory() + ": the control plane there is a copy of that of " +
                        with_address(answered_) + ", whose beat does not come to it; " +
                        must_be_shared("directory"));
    }
    if (leads_) return spent < kLeaderAnswerMs ? std::nullopt : std::optional<Status>(Status());
    if (spent < kAnswerMs) return std::nullopt;
    return Status(Code::kUnavailable,
                  "no coordinator of the run answers " + name_ +
                      ": start one (dcr coordinator), or see whether these addresses can be "
                      "reached and whether keys are those of the file: " +
                      addresses());
  }

  Status another(const std::string& coordinator) const {
    return {Code::kMismatch, directory() +
                                 ": the control plane there is of another run than that of " +
                                 with_address(coordinator) + "; " + must_be_shared("directory")};
  }

  const std::string& directory() const { return context_.config().directory; }

  std::string with_address(const std::string& coordinator) const {
    const std::optional<RunPeer> peer = context_.peers()->find(coordinator);
    return coordinator + (peer ? " (" + peer->address + ")" : "");
  }

  std::string addresses() const {
    std::string all;
    for (const PeerConfig& peer : context_.config().coordinators) {
      if (peer.name != name_) all += (all.empty() ? "" : ", ") + peer.address;
    }
    return all;
  }

  ProcessContext& context_;
  const std::string name_;
  const bool leads_;
  const CancelToken* const cancel_;
  EventQueue<Heard> heard_;
  LeaderRow leader_;      // at the beginning
  std::string answered_;  // a coordinator of the same run, while it does
  std::uint64_t answered_since_ = 0, heard_at_ = 0;
};

}  // namespace

Result<RunId> begin_creation(const RunConfig& config) {
  DCR_ASSIGN(const RunId run, id_to_create(config));
  const std::string path = mark_path(config);
  const Result<Bytes> mark = read_file(posix_file_system(), path, kMarkBytesMax);
  if (mark.ok() && run_of_mark(*mark) == run) return run;
  if (mark.ok()) {
    return Status(Code::kMismatch,
                  path +
                      " says that another run's objects lie there: remove that file with all "
                      "that is beside it, or name another directory; where that run is this "
                      "one, " +
                      must_be_shared("directory"));
  }
  if (mark.status().code() != Code::kNotFound) return mark.status();
  DCR_TRY(write_mark(path, run));
  return run;
}

Status forget_creation(const RunConfig& config) {
  const Status removed = posix_file_system().remove(creation_path(config));
  return removed.code() == Code::kNotFound ? Status() : removed;
}

Status check_objects(const RunConfig& config, const RunId& run) {
  const Result<Bytes> mark = read_file(posix_file_system(), mark_path(config), kMarkBytesMax);
  if (mark.ok() && run_of_mark(*mark) == run) return {};
  if (!mark.ok() && mark.status().code() != Code::kNotFound) return mark.status();
  return {Code::kMismatch, objects_path(config) +
                               ": the objects there are not those of the run in " +
                               config.directory + "; " + must_be_shared("objects")};
}

Result<std::unique_ptr<ProcessContext>> open_shared_run(const RunConfig& config,
                                                        ProcessOptions options) {
  DCR_TRY(check_folders(config));
  auto context = ProcessContext::open(config, std::move(options));
  if (context.status().code() == Code::kNotFound) {
    return Status(Code::kNotFound,
                  config.directory +
                      " holds no control plane: start the run's coordinators first "
                      "(dcr coordinator); where they run, " +
                      must_be_shared("directory"));
  }
  if (!context.ok()) return context.status();
  DCR_TRY(check_objects(config, (*context)->run()));
  return context;
}

Status check_store(ProcessContext& context, const std::string& name, bool leads,
                   const CancelToken* cancel) {
  return StoreCheck(context, name, leads, cancel).run();
}

}  // namespace dcr
