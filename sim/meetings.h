// Where owners of a model with residual tensors meet: to construct an attempt, and to update their
// baselines after it (paper §4.3; src/channel/channel_collective.h is what processes have). Whoever
// comes waits for the others, as long as it has patience; once all are there, each does its phase.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace dcr {

class OwnerProcess;
class World;

struct Meeting {
  std::uint64_t attempt = 0;
  bool commit = false;                               // the update of baselines
  auto operator<=>(const Meeting&) const = default;  // NOLINT(modernize-use-nullptr)
};

class Meetings {
 public:
  explicit Meetings(World& world) : world_(world) {}

  // It hears of it by OwnerProcess::met, unless it leaves before.
  void come(OwnerProcess& owner, const Meeting& meeting);
  bool waits(const OwnerProcess& owner, const Meeting& meeting) const;
  // Wherever it waits it does so no longer. `says`: those that wait with it may hear of that.
  void leave(OwnerProcess& owner, bool says);

 private:
  void begin(const Meeting& meeting);

  World& world_;
  std::map<Meeting, std::vector<OwnerProcess*>> waiting_;
  std::set<Meeting> left_;  // those that somebody has left, and said so
};

}  // namespace dcr
