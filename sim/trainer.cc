#include "sim/trainer.h"

#include <algorithm>

#include "base/assert.h"
#include "sim/world.h"

namespace dcr {
namespace {

// So long an owner may take to see what the others have seen, before it is called lost.
constexpr Microseconds kStragglers = 20'000'000;
constexpr std::size_t kRemembered = 64;

}  // namespace

Trainer::Trainer(World& world) : world_(world), calls_(world.model().owners()) {
  labels_[World::kBaseLabel] = {0, 0, false};
}

std::optional<std::uint32_t> Trainer::weights_of(const std::string& label) const {
  const auto found = labels_.find(label);
  if (found == labels_.end()) return std::nullopt;
  return found->second.weights;
}

void Trainer::choose_weights() {
  // Steps to neighbours, steps to anything, and steps that change nothing.
  Prng& prng = world_.prng();
  if (called_ == world_.swarm().far_transition + 1) {
    // Most of what owners have is sent.
    const bool near = weights_ < SimModel::kUnrelated;
    weights_ = static_cast<std::uint32_t>(
        near ? SimModel::kUnrelated + prng.below(SimModel::kWeights - SimModel::kUnrelated)
             : prng.below(SimModel::kUnrelated));
    return;
  }
  const std::uint64_t kind = prng.below(8);
  if (kind == 0) return;
  if (kind < 3) {
    weights_ = static_cast<std::uint32_t>(prng.below(SimModel::kWeights));
  } else {
    weights_ = static_cast<std::uint32_t>(
        (weights_ + 1 + prng.below(2) * (SimModel::kWeights - 2)) % SimModel::kWeights);
  }
}

void Trainer::call() {
  DCR_ASSERT(!calling_);
  ++called_;
  choose_weights();
  same_candidate_ = false;
  call_again();
}

void Trainer::call_again() {
  ++calls_made_;
  calling_ = true;
  calls_again_ = false;
  if (!same_candidate_) {
    label_ = "step-" + std::to_string(++number_);
    labels_[label_] = {number_, weights_, false};
    forget_labels();
    for (Call& one : calls_) one.zombie = false;
    asynchronous_ = happens(world_.prng(), world_.swarm().asynchronous);
  } else {
    labels_[label_].failed = false;
  }
  world_.trace([&] {
    return "trainer calls refit " + label_ + " of weights " + std::to_string(weights_) +
           (same_candidate_ ? " again" : "");
  });
  for (std::uint32_t rank = 0; rank < calls_.size(); ++rank) {
    calls_[rank].finished.reset();
    refit(rank);
  }
}

// But the committed one's, what was called long ago.
void Trainer::forget_labels() {
  if (labels_.size() < 2 * kRemembered) return;
  const std::string& committed = world_.oracle().committed().label;
  std::erase_if(labels_, [&](const auto& entry) {
    return entry.first != committed && entry.second.number + kRemembered < number_;
  });
}

void Trainer::refit(std::uint32_t rank) {
  OwnerProcess& owner = world_.owner(rank);
  if (!owner.alive()) return;
  const bool same = same_candidate_ && calls_[rank].called;
  calls_[rank].called = true;
  if (!same) owner.load(weights_);
  owner.later(between(world_.prng(), 0, 3000), [this, rank, same, call = calls_made_, &owner] {
    if (call != calls_made_ || !calling_ || owner.zombie()) return;
    calls_[rank].after = world_.control().plane().read().value().transition.attempt;
    owner.refit({label_, asynchronous_, same});
  });
}

void Trainer::started(std::uint32_t rank) {
  calls_[rank].called = false;
  if (calling_ && !calls_[rank].finished) refit(rank);
}

void Trainer::died(std::uint32_t rank) { calls_[rank].called = false; }

void Trainer::became_zombie(std::uint32_t rank) {
  Call& call = calls_[rank];
  call.zombie = call.zombie || (call.called && !call.finished);
  died(rank);
}

void Trainer::finished(std::uint32_t rank, const RefitFinished& refit) {
  world_.trace([&] {
    return "refit of owner-" + std::to_string(rank) + " ends: " +
           (refit.status.ok()
                ? "version " + std::to_string(refit.committed.id.version)
                : std::string(code_name(refit.status.code())) + ": " + refit.status.message());
  });
  if (!calling_ || calls_[rank].finished) {
    return world_.fail("refit of owner-" + std::to_string(rank) + " ends, but none is open");
  }
  if (refit.status.ok()) world_.oracle().on_refit(label_, refit.committed);
  calls_[rank].finished = refit;
  const bool all = std::all_of(calls_.begin(), calls_.end(),
                               [](const Call& one) { return one.finished.has_value(); });
  if (all) return judge();
  world_.schedule().after(kStragglers, [this, call = calls_made_] {
    if (call == calls_made_ && calling_) watch_stragglers();
  });
}

// The others have gone on without some: a job scheduler starts those anew.
void Trainer::watch_stragglers() {
  const bool committed = std::any_of(calls_.begin(), calls_.end(), [](const Call& one) {
    return one.finished && one.finished->status.ok();
  });
  world_.count_fault("owner left behind");
  for (std::uint32_t rank = 0; rank < calls_.size(); ++rank) {
    if (calls_[rank].finished) continue;
    RefitFinished unknown;
    if (!committed) unknown.status = {Code::kUnknownOutcome, "the owner is started anew"};
    calls_[rank].finished = unknown;
    world_.owner(rank).die("the others have gone on");
    world_.start_later(world_.owner(rank), 1000);
  }
  judge();
}

// All owners have said how it ended.
void Trainer::judge() {
  calling_ = false;
  ++transitions_;
  std::uint64_t attempts = 0;
  bool committed = false;
  bool unknown = false;
  std::uint64_t after = calls_[0].after;
  for (const Call& one : calls_) {
    after = std::min(after, one.after);
    attempts = std::max(attempts, one.finished->attempts);
    committed = committed || one.finished->status.ok();
    unknown = unknown || one.zombie || one.finished->status.code() == Code::kUnknownOutcome;
  }
  if (attempts > 1) ++retried_;
  if (committed) {
    failed_in_a_row_ = 0;
    return world_.refit_ended(true);
  }
  ++failures_;
  labels_[label_].failed = !unknown;
  world_.oracle().on_refit_failed(label_, after, unknown);
  world_.refit_ended(false);
  // Some other weights, or the same again.
  const bool changes = happens(world_.prng(), world_.swarm().changes_candidate);
  if (changes) choose_weights();
  same_candidate_ = !changes;
  // Where it fails again and again it is no use to hurry.
  const Microseconds pause = Microseconds{50'000} << std::min(failed_in_a_row_++, 6U);
  calls_again_ = true;
  world_.schedule().after(between(world_.prng(), 1000, pause), [this, call = calls_made_] {
    if (call == calls_made_ && !calling_) call_again();
  });
}

void Trainer::restart() {
  if (world_.prng().below(2) == 0) {
    weights_ = static_cast<std::uint32_t>(world_.prng().below(SimModel::kWeights));
  }
  const bool was_calling = calling_ || calls_again_;
  calling_ = calls_again_ = false;
  ++calls_made_;
  for (std::uint32_t rank = 0; rank < calls_.size(); ++rank) {
    OwnerProcess& owner = world_.owner(rank);
    owner.die("the trainer starts anew");
    owner.begin_with(weights_);
    world_.start_later(owner, between(world_.prng(), 1000, 300'000));
  }
  if (!was_calling) return;
  same_candidate_ = false;
  calls_again_ = true;
  world_.schedule().after(between(world_.prng(), 1000, 400'000), [this, call = calls_made_] {
    if (call == calls_made_ && !calling_) call_again();
  });
}

void Trainer::heal() {
  for (std::uint32_t rank = 0; rank < calls_.size(); ++rank) {
    if (!world_.owner(rank).alive()) world_.start_later(world_.owner(rank), 1000);
  }
}

}  // namespace dcr
