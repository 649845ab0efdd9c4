// How a receiver gets a version that it can prove (docs/PROTOCOL.md "Receiver"): the base, by
// digests of what it loaded, or K, whole, from the owners' baselines.
#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/receiver_machine.h"

namespace dcr {

using Kind = ReceiverWorkDone::Kind;

void ReceiverEndpoint::Machine::begin_proof_or_restore() {
  if (!options_.base_exists && records().commit.id == VersionId{}) {
    trouble_ = "nothing is committed yet";
    return join_without_version();
  }
  if (!base_loaded_ || records().commit.id != VersionId{}) return begin_restore();
  life_ = Life::kProving;
  base_digests_.assign(options_.owners.size(), std::nullopt);
  ask_at_ = now_;
}

void ReceiverEndpoint::Machine::begin_restore() {
  life_ = Life::kRestoring;
  base_digests_.clear();
  ask_at_ = kNever;
  refused_since_ = kNever;
  const VersionId version = records().commit.id;
  if (DCR_MUTANT("receiver_restores_nothing")) {
    restore_ = Restore{version, {}, trouble_, now_, now_};
    return restored();
  }
  restore_ = Restore{version, std::vector<bool>(options_.owners.size()), trouble_, now_, now_};
  begin_stream({true, version.version + 1}, version, version.version, Pass::kOverwrites);
}

std::int64_t ReceiverEndpoint::Machine::rank_of(const Endpoint& owner) const {
  const auto found = std::find(options_.owners.begin(), options_.owners.end(), owner.name);
  return found == options_.owners.end() ? -1 : found - options_.owners.begin();
}

void ReceiverEndpoint::Machine::on_base_digests(const Endpoint& from, const BaseDigests& message) {
  const std::int64_t rank = rank_of(from);
  if (life_ != Life::kProving || base_digests_.empty() || rank < 0) return;
  std::optional<std::vector<Digest>>& digests = base_digests_[static_cast<std::size_t>(rank)];
  if (message.failure) {
    if (digests) return;  // a word from before
    trouble_ = from.name + " has no digests of the base: " + message.failure->message;
    refused();
  } else {
    refused_since_ = kNever;
    digests = message.digests;
  }
}

void ReceiverEndpoint::Machine::base_checked(const Status& status) {
  if (status.ok()) {
    made_whole({});
    life_ = Life::kReady;
    session_.join(VersionId{}, needs_);
    return;
  }
  DCR_PROBE("a receiver's base differs from the owners'");
  base_loaded_ = false;
  trouble_ = "the base that it loaded is not the owners': " + status.message();
  note(trouble_ + "; it restores");
  begin_restore();
}

void ReceiverEndpoint::Machine::on_restore_sent(const Endpoint& from, const RestoreSent& message) {
  const std::int64_t rank = rank_of(from);
  if (!restore_ || restore_->version != message.version || rank < 0) return;
  const auto place = static_cast<std::size_t>(rank);
  if (message.failure) {
    if (restore_->sent[place]) return;  // a word from before, or of a later life
    // It may be able to after the next commit, or when its baseline is updated.
    restore_->trouble = from.name + " sends no baseline: " + message.failure->message;
    const Milliseconds pause = std::min(options_.waits.look_ms, options_.waits.restore_again_ms);
    restore_->ask_at = std::max(restore_->ask_at, now_ + pause);
    return refused();
  }
  refused_since_ = kNever;
  restore_->sent[place] = true;
  restore_->progress_at = now_;
}

void ReceiverEndpoint::Machine::restored() {
  made_whole(restore_->version);
  session_.join(restore_->version, needs_);
  restore_.reset();
  stream_.reset();
  life_ = Life::kReady;
}

// One that lacks a baseline says so again and again; one that is about to have it, once.
void ReceiverEndpoint::Machine::refused() {
  refused_since_ = std::min(refused_since_, now_);
  if (now_ >= refused_since_ + options_.waits.restore_again_ms) join_without_version();
}

// K can be had from nobody, for as long as some owner has no baseline: it asks to be bound by an
// attempt that sends all, long enough for a leader to see that none can be made, and tries again.
void ReceiverEndpoint::Machine::join_without_version() {
  DCR_PROBE("a receiver joins without a version");
  if (restore_) trouble_ = restore_->trouble;
  trouble_ = "waits for a dense attempt: " + trouble_;
  note(trouble_);
  stop_stream();
  works_.forget();
  restore_.reset();
  base_digests_.clear();
  ask_at_ = kNever;
  resident_.set_unknown();
  unbound_ = records().commit.id;
  broken_until_ = now_ + options_.waits.prepare_ms + options_.waits.restore_again_ms;
  session_.join(std::nullopt, needs_);
  life_ = Life::kReady;
}

void ReceiverEndpoint::Machine::drive_restore() {
  const VersionId committed = records().commit.id;
  if (life_ == Life::kProving) {
    if (committed != VersionId{}) {
      works_.forget();
      return begin_restore();
    }
    const bool all = std::all_of(base_digests_.begin(), base_digests_.end(),
                                 [](const auto& digests) { return digests.has_value(); });
    if (all && !base_digests_.empty()) {
      CheckBase check;
      for (auto& digests : base_digests_) check.digests.push_back(std::move(*digests));
      base_digests_.clear();
      ask_at_ = kNever;
      works_.add(std::move(check));
    }
  } else if (committed != restore_->version) {
    // Nobody sends it any more. To join with it, which cannot succeed, has the loss counted, so
    // that the next prepare is held back for the next restore.
    stop_stream();
    session_.join(restore_->version, needs_);
    restore_.reset();
    life_ = Life::kReady;
    return;
  } else if (now_ >= restore_->progress_at + options_.waits.restore_ms) {
    DCR_PROBE("a restore makes no progress");
    std::string why = refused_since_ == kNever ? stream_state() : restore_->trouble;
    if (!gate_.closed()) why = "gate " + gate_.gate() + " stays open";
    return begin_life("its restore made no progress for " +
                          std::to_string(options_.waits.restore_ms) +
                          (why.empty() ? " ms" : " ms: " + why),
                      0);
  }
}

void ReceiverEndpoint::Machine::ask_owners() {
  Milliseconds& at = restore_ ? restore_->ask_at : ask_at_;
  if (now_ < at) return;
  bool asked = false;
  for (std::size_t rank = 0; rank < options_.owners.size(); ++rank) {
    const Endpoint owner{options_.owners[rank], 0};
    if (restore_ && !restore_->sent[rank]) {
      send(owner, RestoreRequest{restore_->version});
    } else if (!restore_ && !base_digests_[rank]) {
      send(owner, BaseDigestsRequest{});
    } else {
      continue;
    }
    asked = true;
  }
  at = asked ? now_ + options_.waits.repeat_ms : kNever;
}

}  // namespace dcr
