#include "run/coordinator_process.h"

#include <algorithm>
#include <map>
#include <utility>

#include "run/mailbox.h"

namespace dcr {
namespace {

using Loop = EndpointLoop<Coordinator, CoordinatorEvent, CoordinatorEffect>;

// Takes the times of what is between processes: acknowledgments, from the flush that asks a
// receiver for its completion to the completion; and commits, from the call to its outcome.
class CoordinatorSpans {
 public:
  CoordinatorSpans(ProcessContext& context, std::uint32_t number)
      : context_(context), number_(number) {
    for (const EngineConfig& engine : context.config().engines) {
      for (const PeerConfig& receiver : engine.receivers) {
        const auto index = static_cast<std::uint32_t>(receivers_.size());
        receivers_[receiver.name] = index;
      }
    }
  }

  void watch(Loop& loop) {
    loop.set_watch([this](const CoordinatorEvent& event) { on(event); },
                   [this](const CoordinatorEffect& effect) { on(effect); });
  }

 private:
  std::uint64_t now() const { return context_.options().clock->nanoseconds(); }

  void on(const CoordinatorEffect& effect) {
    if (const auto* const send = std::get_if<SendMessage>(&effect)) {
      const auto* const flush = std::get_if<Flush>(&send->message);
      if (flush == nullptr) return;
      if (flush->attempt != attempt_) flushed_at_.clear();
      attempt_ = flush->attempt;
      flushed_at_.try_emplace(send->to, now());
    } else if (const auto* const call = std::get_if<CallControl>(&effect)) {
      const auto* const commit = std::get_if<CommitRequest>(&call->request);
      if (commit == nullptr) return;
      // While its outcome is unknown it is called again.
      if (commit->attempt != committing_) committed_at_ = now();
      committing_ = commit->attempt;
      commit_call_ = call->call;
    }
  }

  void on(const CoordinatorEvent& event) {
    if (const auto* const arrived = std::get_if<MessageArrived>(&event)) {
      const auto* const completed = std::get_if<Completed>(&arrived->message);
      if (completed == nullptr || completed->attempt != attempt_) return;
      const auto flushed = flushed_at_.find(arrived->from.name);
      const auto receiver = receivers_.find(arrived->from.name);
      // It is said again until everybody has completed.
      if (flushed == flushed_at_.end() || flushed->second == 0 || receiver == receivers_.end()) {
        return;
      }
      context_.spans().add({"acknowledge", receiver->second, flushed->second, now(), 0});
      flushed->second = 0;
    } else if (const auto* const answered = std::get_if<ControlAnswered>(&event)) {
      if (answered->call != commit_call_ || !answered->reply.status.ok()) return;
      context_.spans().add({"commit", number_, committed_at_, now(), 0});
      commit_call_ = 0;
    }
  }

  ProcessContext& context_;
  const std::uint32_t number_;  // of the coordinator
  std::map<std::string, std::uint32_t> receivers_;
  std::uint64_t attempt_ = 0;                        // of what follows
  std::map<std::string, std::uint64_t> flushed_at_;  // by receiver; 0: it has completed
  std::uint64_t committing_ = 0, commit_call_ = 0, committed_at_ = 0;
};

}  // namespace

Status run_coordinator(ProcessContext& context, const std::string& name, bool abort,
                       const std::function<void(const CoordinatorProgress&)>& progress,
                       const std::function<bool()>& cancelled) {
  const RunConfig& config = context.config();
  DCR_ASSIGN(const std::unique_ptr<Mailbox> mailbox, Mailbox::open(context, name));
  LoopParts parts = context.parts();
  if (cancelled) {
    parts.cancelled = [&] { return context.options().cancel->cancelled() || cancelled(); };
  }
  Loop loop(name, std::move(parts), *mailbox);
  const auto found = std::find_if(config.coordinators.begin(), config.coordinators.end(),
                                  [&](const PeerConfig& peer) { return peer.name == name; });
  CoordinatorSpans spans(context, static_cast<std::uint32_t>(found - config.coordinators.begin()));
  spans.watch(loop);
  return loop.run(
      [&] {
        CoordinatorOptions options;
        options.name = name;
        options.abort_transition = abort;
        options.waits = config.waits;
        return Coordinator(std::move(options));
      },
      [&](const CoordinatorEffect& effect, const auto&) {
        if (const auto* const needed = std::get_if<OperatorNeeded>(&effect)) {
          context.options().log(name, "an operator is needed: " + needed->text);
        }
        const auto* const now = std::get_if<CoordinatorProgress>(&effect);
        if (now != nullptr && progress) progress(*now);
      });
}

}  // namespace dcr
