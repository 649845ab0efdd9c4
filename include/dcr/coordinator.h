// What somebody who drives a run does with it beside taking part (paper Appendix B): sees how it
// stands, ends a transition that does not come to an end, has receivers restored, leads it.
//
//   auto as = dcr::RunOperator::join(*run);
//   // What is committed, engines, members, what they wait for:
//   const auto seen = as->look(2000);
//   as->end_transition();
//   as->restore(2000);
//
//   // Until it is destroyed:
//   auto coordinator = dcr::RunCoordinator::join(*run, "coordinator-0");
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dcr/cancel.h"
#include "dcr/control.h"
#include "dcr/status.h"

namespace dcr {

class RunSession;

struct EngineOverview {
  std::string name;
  bool answered = false;  // its gate; else only `held` is known
  bool open = false;
  std::string reason;  // of a gate that is not open
  double seconds = 0;  // that it has been open, or not
  std::optional<std::uint64_t>
      held;  // the oldest version of its receivers; nothing: one holds none
};

struct MemberOverview {
  Member member;
  bool answered = false;
  // What it does, in a word, and what it waits for or why not, if it answered.
  std::string state, detail;
  std::optional<std::uint64_t> held;  // the version that an owner's or a receiver's bits are
};

struct RunOverview {
  ControlRecords records;
  std::vector<EngineOverview> engines;  // ascending by name
  std::vector<MemberOverview> members;  // ascending by name
};

// Thread-safe; one call at a time.
class RunOperator {
 public:
  // In a run directory as "operator", or another of that name with a number; where a file lists who
  // takes part, as the first of its operators. Errors: kInvalidArgument, the file has none; those
  // of RunOwner::join.
  static Result<std::unique_ptr<RunOperator>> join(RunSession& run);
  ~RunOperator();
  RunOperator(const RunOperator&) = delete;
  RunOperator& operator=(const RunOperator&) = delete;

  // How the run stands. Waits for answers for at most `wait_ms`; members connect again within a
  // second to an operator that was away.
  Result<RunOverview> look(std::uint64_t wait_ms, const CancelToken* cancel = nullptr);
  // Ends the transition that is under way: owners that wait are told, and send everything next
  // time. Returns the records afterwards, which may show a commit that came before.
  Result<ControlRecords> end_transition(const CancelToken* cancel = nullptr);
  // Has every receiver that does not hold the committed version restore it; returns their names,
  // and those of a file's receivers that take no part at present, which restore it when they come.
  // Waits for answers as look() does, not until they have restored it: look() says how they stand.
  // Error kConflict: an attempt is active.
  Result<std::vector<std::string>> restore(std::uint64_t wait_ms,
                                           const CancelToken* cancel = nullptr);

  struct State;
  explicit RunOperator(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

// A coordinator in this process: it leads, or stands by. Thread-safe. Leaves when it is destroyed,
// and another takes over what it was at.
class RunCoordinator {
 public:
  // Errors: as RunOwner::join.
  static Result<std::unique_ptr<RunCoordinator>> join(RunSession& run, const std::string& name,
                                                      const CancelToken* cancel = nullptr);
  ~RunCoordinator();
  RunCoordinator(const RunCoordinator&) = delete;
  RunCoordinator& operator=(const RunCoordinator&) = delete;

  // What it has ended with, for somebody to see to; OK: it goes on.
  Status failure();

  struct State;
  explicit RunCoordinator(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

}  // namespace dcr
