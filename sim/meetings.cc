#include "sim/meetings.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "sim/processes.h"
#include "sim/world.h"

namespace dcr {
namespace {

constexpr Microseconds kLookAgain = 5'000;
constexpr std::uint64_t kReductionsMax = 4;  // most meetings have three
constexpr std::size_t kLeftRemembered = 64;

Status somebody_left() { return {Code::kUnavailable, "another owner has left the meeting"}; }

}  // namespace

bool Meetings::waits(const OwnerProcess& owner, const Meeting& meeting) const {
  const auto found = waiting_.find(meeting);
  return found != waiting_.end() &&
         std::find(found->second.begin(), found->second.end(), &owner) != found->second.end();
}

void Meetings::come(OwnerProcess& owner, const Meeting& meeting) {
  world_.trace([&] {
    return owner.name() + " comes to the " + (meeting.commit ? "update" : "construction") +
           " of attempt " + std::to_string(meeting.attempt);
  });
  if (left_.contains(meeting)) return owner.met(somebody_left(), world_.latency());
  std::vector<OwnerProcess*>& there = waiting_[meeting];
  there.push_back(&owner);
  if (there.size() == world_.model().owners()) {
    world_.schedule().after(world_.latency(), [this, meeting] { begin(meeting); });
  }
}

void Meetings::leave(OwnerProcess& owner, bool says) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    std::vector<OwnerProcess*>& there = at->second;
    if (std::erase(there, &owner) > 0 && says) {
      if (left_.size() == kLeftRemembered) left_.erase(left_.begin());
      left_.insert(at->first);
      // Those who do not hear of it lose patience by themselves.
      for (OwnerProcess* const other : std::vector<OwnerProcess*>(there)) {
        if (owner.isolated() != other->isolated() || world_.prng().below(8) == 0) continue;
        std::erase(there, other);
        other->met(somebody_left(), world_.latency());
      }
    }
    at = there.empty() ? waiting_.erase(at) : std::next(at);
  }
}

void Meetings::begin(const Meeting& meeting) {
  const auto found = waiting_.find(meeting);
  if (found == waiting_.end() || found->second.size() < world_.model().owners()) return;
  // Nothing comes of it while somebody does nothing, or cannot be reached.
  const bool ready =
      std::none_of(found->second.begin(), found->second.end(),
                   [](const OwnerProcess* owner) { return owner->paused() || owner->isolated(); });
  if (!ready) {
    world_.schedule().after(kLookAgain, [this, meeting] { begin(meeting); });
    return;
  }
  std::vector<OwnerProcess*> there = std::move(found->second);
  waiting_.erase(found);
  std::sort(there.begin(), there.end(),
            [](const OwnerProcess* a, const OwnerProcess* b) { return a->rank() < b->rank(); });
  CollectiveFault fault;
  if (world_.fault(world_.swarm().meetings_break, "meeting of owners breaks")) {
    fault = {world_.prng().below(kReductionsMax), world_.prng().next()};
  }
  std::vector<SimOwner*> owners;
  std::vector<std::function<Status()>> phases;
  for (OwnerProcess* const owner : there) {
    owners.push_back(&owner->model());
    phases.emplace_back([owner] { return owner->do_phase(); });
  }
  std::vector<Status> results = world_.model().together(owners, phases, fault);
  for (std::size_t i = 0; i < there.size(); ++i) {
    there[i]->met(std::move(results[i]), world_.latency());
  }
}

}  // namespace dcr
