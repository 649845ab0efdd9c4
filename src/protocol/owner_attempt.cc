#include <algorithm>
#include <utility>

#include "base/digest.h"
#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/owner_machine.h"

namespace dcr {
namespace {

constexpr std::size_t kOwnerStopsMax = 16;  // coordinators that wait for an answer

// The number by which owners' groups know a candidate: of no other life of this owner either.
std::uint64_t candidate_number(const Candidate& candidate) {
  Bytes bytes;
  for (const std::uint64_t value : {candidate.incarnation, candidate.counter}) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      bytes.push_back(static_cast<std::uint8_t>(value >> shift));
    }
  }
  return xxh3_64(bytes);
}

}  // namespace

void OwnerEndpoint::Machine::on_message(const Endpoint& from, const Prepare& message) {
  if (current_ && current_->prepare.attempt == message.attempt) {
    current_->coordinator = from;
    return answer_prepare();
  }
  if (message.attempt <= fence_ && !DCR_MUTANT("owner_without_fence")) return;
  const auto mine =
      std::find_if(message.owners.begin(), message.owners.end(),
                   [this](const OwnerBinding& binding) { return binding.endpoint == self(); });
  if (mine == message.owners.end()) return;
  // What this attempt is made from was committed: it still has to become the baseline.
  if (current_) drop_current(prepared_ != 0 && message.base.baseline == prepared_);
  fence_ = message.attempt;
  current_ = Current();
  current_->prepare = message;
  current_->binding = *mine;
  current_->coordinator = from;
  current_->call = called_;
  current_->failed = rejection(message);
  if (!current_->failed) {
    ++refit_->attempts;
    refit_->ended.reset();
    refit_->sent_base = message.base;
  }
  if (committed() != message.base) session_.look();
  answer_prepare();
}

std::optional<AttemptFailed> OwnerEndpoint::Machine::rejection(const Prepare& prepare) const {
  const auto rejected = [&](Code code, const std::string& message) {
    return AttemptFailed{prepare.attempt, true, {code, "", options_.name + ": " + message}};
  };
  const std::size_t rank = options_.details.rank;
  if (prepare.owners.size() != options_.details.owners || prepare.owners[rank].endpoint != self()) {
    return rejected(Code::kMismatch, "the attempt binds " + std::to_string(prepare.owners.size()) +
                                         " owners, and this one has rank " + std::to_string(rank) +
                                         " of " + std::to_string(options_.details.owners));
  }
  const bool open = refit_ && refit_->candidate == prepare.owners[rank].candidate &&
                    !refit_->failing && !refit_->committed;
  if (open) return std::nullopt;
  return rejected(Code::kConflict, "no refit waits for candidate " +
                                       std::to_string(prepare.owners[rank].candidate.counter) +
                                       " any more");
}

void OwnerEndpoint::Machine::answer_prepare() {
  if (current_->failed) return send(current_->coordinator, *current_->failed);
  send(current_->coordinator, Prepared{current_->prepare.attempt});
  if (current_->sent) send(current_->coordinator, *current_->sent);
}

// Of what the attempt constructed, or still constructs, nothing may get out any more.
void OwnerEndpoint::Machine::drop_current(bool keep_prepared) {
  const std::uint64_t attempt = current_->prepare.attempt;
  const bool prepared = prepared_ != 0 && prepared_ <= attempt && !keep_prepared;
  if (constructing() || prepared) stop_sending(attempt);
  current_.reset();
}

void OwnerEndpoint::Machine::on_message(const Endpoint& from, const StopAndWait& message) {
  fence_ = std::max(fence_, message.attempt);
  if (current_ && current_->prepare.attempt <= message.attempt) {
    drop_current(update_due());
  } else if (!current_ && prepared_ != 0 && prepared_ <= message.attempt && !update_due()) {
    stop_sending(prepared_);
  }
  std::erase_if(stops_, [&](const Stopping& stop) { return stop.who.name == from.name; });
  if (stops_.size() == kOwnerStopsMax) stops_.erase(stops_.begin());
  stops_.push_back({from, message.attempt});
}

bool OwnerEndpoint::Machine::draining(std::uint64_t attempt) const {
  if (DCR_MUTANT("owner_stops_without_waiting")) return false;
  const bool running = constructing() && running_->number <= attempt;
  return running || stopping_ != 0 || stop_next_ != 0;
}

void OwnerEndpoint::Machine::answer_stops() {
  std::erase_if(stops_, [this](const Stopping& stop) {
    if (draining(stop.attempt)) return false;
    send(stop.who, Stopped{stop.attempt});
    return true;
  });
}

void OwnerEndpoint::Machine::on_message(const Endpoint& from, const Cleanup& message) {
  // Not before it was stopped here, or is known to be committed; repeated until then.
  if (message.attempt > fence_) return;
  if (current_ && current_->prepare.attempt <= message.attempt &&
      committed().baseline != current_->prepare.attempt) {
    return session_.look();
  }
  if (message.attempt <= removed_) return send(from, CleanedUp{message.attempt});
  removal_wanted_ = std::max(removal_wanted_, message.attempt);
  removal_for_ = from;
}

void OwnerEndpoint::Machine::begin_construction() {
  if (!current_ || current_->begun || current_->failed) return;
  const Prepare& prepare = current_->prepare;
  // Only what the control plane says is a base: before that the baseline may be about to change.
  if (committed() != prepare.base) return;
  current_->failed = rejection(prepare);  // the refit may have ended meanwhile
  if (current_->failed) return send(current_->coordinator, *current_->failed);
  Attempt attempt;
  attempt.run = records().run;
  attempt.attempt = prepare.attempt;
  attempt.candidate = candidate_number(current_->binding.candidate);
  attempt.base_version = prepare.base.version;
  attempt.target_version = prepare.base.version + 1;
  const bool dense = current_->binding.dense || baseline_ != prepare.base;
  if (dense) DCR_PROBE("an owner is dense");
  const bool repairs = !DCR_MUTANT("retry_encodes_mixed");
  attempt.mode = dense ? AttemptMode::kDense : repairs ? prepare.mode : AttemptMode::kMixed;
  attempt.needs = prepare.needs;
  current_->begun = true;
  prepared_ = 0;
  run(Kind::kConstructAndSend, prepare.attempt, ConstructAndSend{std::move(attempt)});
}

void OwnerEndpoint::Machine::construction_done(const OwnerWorkDone& done) {
  if (done.status.code() == Code::kMismatch && baseline_) {
    note("the baseline is void until the next commit: " + done.status.message());
    baseline_.reset();
  }
  // Of a stopped attempt nobody hears any more; what it prepared is dropped by StopSending.
  if (!current_ || current_->prepare.attempt != done.number || !current_->begun) return;
  if (!done.status.ok()) {
    current_->failed = AttemptFailed{done.number, false, failure_of(done.status)};
    return send(current_->coordinator, *current_->failed);
  }
  prepared_ = done.number;
  prepared_candidate_ = current_->binding.candidate;
  Sent sent;
  sent.attempt = done.number;
  sent.mode = done.result.mode;
  sent.payloads = done.result.pipeline.payloads;
  sent.payload_bytes = done.result.pipeline.payload_bytes;
  sent.elements = options_.elements;
  sent.changed_elements = done.result.changed_source_elements;
  current_->sent = sent;
  current_->payloads = sent.payloads;
  send(current_->coordinator, sent);
  send_hints(true);
}

void OwnerEndpoint::Machine::send_hints(bool ended) {
  const StreamId stream{false, current_->prepare.attempt};
  for (const Endpoint& node : current_->prepare.nodes) {
    send(node, PayloadsSent{stream, current_->payloads, ended});
  }
}

}  // namespace dcr
