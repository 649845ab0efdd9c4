// The trainer of a simulated world: has a next set of weights, calls refit on every owner, waits
// for what they all say, calls again after a failure, and comes back when its processes are killed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/owner.h"
#include "sim/schedule.h"

namespace dcr {

class World;

class Trainer {
 public:
  explicit Trainer(World& world);

  // Calls refit. REQUIRES: no call is open.
  void call();
  bool calling() const { return calling_; }

  // The owners are others now: new processes, without baseline and with any weights.
  void restart();
  // Whatever was killed comes back.
  void heal();

  // ---- from owners' processes
  void started(std::uint32_t rank);
  void died(std::uint32_t rank);
  void became_zombie(std::uint32_t rank);
  void finished(std::uint32_t rank, const RefitFinished& refit);

  // Calls that ended, with and without a commit, and those of them that failed at least one
  // attempt.
  std::uint64_t transitions() const { return transitions_; }
  std::uint64_t failures() const { return failures_; }
  std::uint64_t retried() const { return retried_; }

  // Which weights a label means; nothing: no refit was ever called under it.
  std::optional<std::uint32_t> weights_of(const std::string& label) const;
  // The trainer was told for sure that the call under this label had failed.
  bool told_failed(const std::string& label) const { return labels_.at(label).failed; }

 private:
  struct Label {
    std::uint64_t number = 0;
    std::uint32_t weights = 0;
    bool failed = false;
  };
  struct Call {
    bool called = false;      // in the owner's present life
    std::uint64_t after = 0;  // the last attempt when it called: no earlier one binds its candidate
    std::optional<RefitFinished> finished;
    bool zombie = false;  // one has called for the label too, and it may be that which is committed
  };

  void call_again();
  void forget_labels();
  void choose_weights();
  void refit(std::uint32_t rank);
  void judge();
  void watch_stragglers();

  World& world_;
  std::vector<Call> calls_;  // by rank
  std::map<std::string, Label> labels_;
  std::uint32_t weights_ = 0;
  std::string label_;
  bool calling_ = false;
  bool calls_again_ = false;  // soon
  bool asynchronous_ = false;
  bool same_candidate_ = false;
  std::uint64_t number_ = 0;  // of labels
  std::uint32_t called_ = 0;  // transitions
  std::uint64_t calls_made_ = 0;
  std::uint64_t transitions_ = 0;
  std::uint64_t failures_ = 0;
  unsigned failed_in_a_row_ = 0;
  std::uint64_t retried_ = 0;
};

}  // namespace dcr
