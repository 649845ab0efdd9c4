// What must be true in every simulated world, looked at when it happens.
//
//   exactness    at a commit every receiver that it needs, at a join the receiver, and whenever a
//                gate opens all of its engine's receivers hold, bit for bit, what a dense load
//                makes of the committed weights
//   gate         nobody writes to a receiver whose gate is open or drains, and no gate opens while
//                somebody writes; a gate's label is the one that was committed with those weights
//   one commit   versions rise one by one, each by the attempt that is active; what was called
//                obsolete, or a refit that the trainer was told had failed, is never committed
//   repair       what an attempt without commit may have written is overwritten by the next one
//   fences       after Stopped, or Prepared for a later one, nothing of an attempt is written or
//                sent or handed over, and nobody is prepared again for what it called stopped
//   baselines    none is ahead of the commit record
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "dcr/control.h"
#include "protocol/machine.h"
#include "protocol/owner.h"

namespace dcr {

class World;
class SimProcess;
class GateProcess;
class NodeProcess;
class OwnerProcess;
class ReceiverProcess;

class Oracle {
 public:
  explicit Oracle(World& world);

  void on_send(const SimProcess& from, const Message& message);
  void on_call(const ControlRequest& request, const ControlReply& reply);
  void on_commit(const ControlRecords& before, const ControlRecords& after);
  void on_write(const ReceiverProcess& receiver, const StreamId& stream);
  void on_open(const GateProcess& gate, const CommitRecord& committed);
  void on_put(const OwnerProcess& owner, std::uint64_t attempt, bool restore);
  void on_hand_over(const NodeProcess& node, const StreamId& stream);
  void on_baseline(const OwnerProcess& owner, std::uint64_t version);
  void on_constructed(std::uint64_t attempt, const PrepareResult& result);
  void on_refit(const std::string& label, const CommitRecord& committed);
  // `after`: the last attempt when the first owner called; one that starts anew calls again, and
  // what its earlier life sent may be committed though its call fails.
  void on_refit_failed(const std::string& label, std::uint64_t after, bool unknown);

  // What a receiver that loaded `weights` as the base finds when it compares.
  Status check_base(const std::vector<std::vector<Digest>>& digests, std::uint32_t weights) const;

  // What was committed last.
  const CommitRecord& committed() const { return history_.rbegin()->second; }
  // That a receiver holds the weights of a commit. `when`: for the violation.
  void compare(const ReceiverProcess& receiver, const CommitRecord& committed, const char* when);

  std::uint64_t commits() const { return committed().id.version; }
  std::uint64_t payloads_most() const { return payloads_most_; }  // of an attempt

 private:
  struct Fence {
    std::uint64_t life = 0;
    std::uint64_t stopped = 0;   // attempts up to this one
    std::uint64_t prepared = 0;  // the last one
  };

  // What is older nobody can mean any more, or only wrongly.
  static constexpr std::size_t kRemembered = 64;

  const Fence& fence(const SimProcess& process);
  bool was_committed(const CommitRecord& record) const;
  void check_repair(const TransitionRecord& attempt);
  void check_members();

  World& world_;
  std::map<std::uint64_t, CommitRecord> history_;  // by version; the last ones
  std::set<std::uint64_t> obsolete_;
  std::uint64_t opened_ = 0;  // the last attempt that was
  // Since the last commit: owners of attempts that were opened, and whether an operator aborted.
  std::map<std::uint64_t, std::vector<OwnerBinding>> written_;
  bool aborted_ = false;
  std::unordered_map<const SimProcess*, Fence> fences_;
  std::map<std::uint64_t, std::uint64_t> payloads_;  // by attempt
  std::uint64_t payloads_most_ = 0;
};

}  // namespace dcr
