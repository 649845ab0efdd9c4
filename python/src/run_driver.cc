// What a driver does with a run: how it stands, its operator's commands, a coordinator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blocking.h"
#include "dcr/coordinator.h"
#include "records.h"
#include "run_session.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

struct MemberRow {
  std::string name;
  std::string role;
  std::string membership;
  std::string engine;
  bool answers = false;
  std::string state;
  std::string detail;
  std::optional<std::uint64_t> version;
};

struct StatusRow {
  std::uint64_t version = 0;
  std::string label;
  std::uint64_t attempt = 0;
  std::string attempt_state;
  std::string attempt_mode;
  std::uint64_t attempt_version = 0;
  std::string leader;
  std::vector<EngineOverview> engines;
  std::vector<MemberRow> members;
};

StatusRow row_of(RunOverview seen) {
  const TransitionRecord& attempt = seen.records.transition;
  StatusRow row;
  row.version = seen.records.commit.id.version;
  row.label = seen.records.commit.label;
  row.attempt = attempt.attempt;
  row.attempt_state = attempt_state_name(attempt.state);
  row.attempt_mode = attempt_mode_name(attempt.mode);
  row.attempt_version = attempt.attempt == 0 ? 0 : attempt.base.version + 1;
  row.leader = seen.records.leader.holder.name;
  row.engines = std::move(seen.engines);
  for (const MemberOverview& one : seen.members) {
    row.members.push_back({one.member.endpoint.name, std::string(role_name(one.member.role)),
                           member_state_name(one.member.state), one.member.engine, one.answered,
                           one.state, one.detail, one.held});
  }
  return row;
}

std::uint64_t milliseconds(double seconds) {
  return static_cast<std::uint64_t>(1000 * std::clamp(seconds, 0.0, 60.0));
}

class PythonRunOperator : public Handle<RunOperator> {
 public:
  explicit PythonRunOperator(PythonRun& run) : Handle("the operator", join(run)) {}

  StatusRow look(double seconds) {
    const std::shared_ptr<RunOperator> as = core();
    return row_of(run_blocking<RunOverview>(
        [&](const Blocking& call) { return as->look(milliseconds(seconds), call.cancel); }));
  }

  void end_transition() {
    const std::shared_ptr<RunOperator> as = core();
    run_blocking([&](const Blocking& call) { return as->end_transition(call.cancel).status(); });
  }

  std::vector<std::string> restore(double seconds) {
    const std::shared_ptr<RunOperator> as = core();
    return run_blocking<std::vector<std::string>>(
        [&](const Blocking& call) { return as->restore(milliseconds(seconds), call.cancel); });
  }

 private:
  static std::unique_ptr<RunOperator> join(PythonRun& run) {
    const std::shared_ptr<RunSession> session = run.core();
    return without_gil([&] { return RunOperator::join(*session); });
  }
};

class PythonRunCoordinator : public Handle<RunCoordinator> {
 public:
  PythonRunCoordinator(PythonRun& run, const std::string& name)
      : Handle("the coordinator", join(run, name)) {}

  std::string failure() { return core()->failure().message(); }

 private:
  static std::unique_ptr<RunCoordinator> join(PythonRun& run, const std::string& name) {
    const std::shared_ptr<RunSession> session = run.core();
    return run_blocking<std::unique_ptr<RunCoordinator>>(
        [&](const Blocking& call) { return RunCoordinator::join(*session, name, call.cancel); });
  }
};

void bind_rows(nb::module_& module) {
  Record<EngineOverview>(module, "EngineStatus", "An engine of a run.")
      .field("name", &EngineOverview::name, "Its own.")
      .field("answers", &EngineOverview::answered, "Its gate does; else only the version is known.")
      .field("open", &EngineOverview::open, "It admits requests.")
      .field("reason", &EngineOverview::reason, "Why it does not.")
      .field("seconds", &EngineOverview::seconds, "That it has been open, or not.")
      .field("version", &EngineOverview::held,
             "The oldest that its receivers hold; None: one holds none.");
  Record<MemberRow>(module, "MemberStatus", "An endpoint of a run.")
      .field("name", &MemberRow::name, "Its own.")
      .field("role", &MemberRow::role, "coordinator, owner, node, receiver or gate.")
      .field("membership", &MemberRow::membership,
             "enrolled: takes no part yet; waiting: for the next refit; member.")
      .field("engine", &MemberRow::engine, "Of a receiver.")
      .field("answers", &MemberRow::answers, "Else the rest is not known.")
      .field("state", &MemberRow::state, "What it does, in a word.")
      .field("detail", &MemberRow::detail, "What it waits for, or why not.")
      .field("version", &MemberRow::version, "That it holds.");
  Record<StatusRow>(module, "RunStatus", "How a run stands.")
      .field("version", &StatusRow::version, "That is committed; 0: none is.")
      .field("label", &StatusRow::label, "Of that version.")
      .field("attempt", &StatusRow::attempt, "The last; 0: there was none.")
      .field("attempt_state", &StatusRow::attempt_state,
             "Of the last attempt: none, active, obsolete or committed.")
      .field("attempt_mode", &StatusRow::attempt_mode, "mixed, overwrite or dense.")
      .field("attempt_version", &StatusRow::attempt_version, "That it makes, or was to make.")
      .field("leader", &StatusRow::leader, "The coordinator that leads, or did last.")
      .field("engines", &StatusRow::engines, "Ascending by name.")
      .field("members", &StatusRow::members, "Ascending by name.");
}

}  // namespace

void bind_driver(nb::module_& module) {
  bind_rows(module);
  nb::class_<PythonRunOperator> as(module, "RunOperator", "An operator of a run.");
  as.def(nb::init<PythonRun&>(), nb::arg("run"), nb::keep_alive<1, 2>());
  as.def("look", &PythonRunOperator::look, nb::arg("seconds"),
         "How the run stands; waits for answers for so long at most.");
  as.def("end_transition", &PythonRunOperator::end_transition,
         "Ends the transition that is under way.");
  as.def("restore", &PythonRunOperator::restore, nb::arg("seconds"),
         "Has receivers that are behind restore; their names.");
  as.def("close", &PythonRunOperator::close, "Leaves the run.");
  forbid_pickling(as);

  nb::class_<PythonRunCoordinator> coordinator(module, "RunCoordinator",
                                               "A coordinator in this process.");
  coordinator.def(nb::init<PythonRun&, const std::string&>(), nb::arg("run"), nb::arg("name"),
                  nb::keep_alive<1, 2>());
  coordinator.def("failure", &PythonRunCoordinator::failure,
                  "What it has ended with; empty: it goes on.");
  coordinator.def("close", &PythonRunCoordinator::close, "Leaves the run; another takes over.");
  forbid_pickling(coordinator);
}

}  // namespace dcr::python
