#include "run.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "blocking.h"
#include "dcr/run.h"
#include "errors.h"
#include "handle.h"
#include "owner.h"
#include "receiver.h"
#include "run_session.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

// A call waits for no longer than this, so that Python can look for signals between calls.
constexpr double kWaitSecondsMax = 0.1;

std::uint64_t wait_ms(double seconds) {
  return static_cast<std::uint64_t>(1000 * std::clamp(seconds, 0.0, kWaitSecondsMax));
}

class PythonRunOwner : public Handle<RunOwner> {
 public:
  PythonRunOwner(PythonRun& run, nb::handle owner) : Handle("the owner", join(run, owner)) {}

  void begin_refit(const std::string& label, bool asynchronous) {
    check(core()->begin_refit(label, asynchronous));
  }

  // None: it is not over.
  nb::object wait(double seconds) {
    const std::shared_ptr<RunOwner> owner = core();
    const auto outcome = [&] {
      const nb::gil_scoped_release release;
      return owner->wait(wait_ms(seconds));
    }();
    if (!outcome) return nb::none();
    check(outcome->status());
    const RefitOutcome& of = **outcome;
    return nb::make_tuple(of.committed.id.version, of.committed.label, of.attempts,
                          of.without_baseline, of.gate_closed_early, prepared_object(of.sent));
  }

  nb::bytes replica_digests() {
    const std::shared_ptr<RunOwner> owner = core();
    const auto digests = run_blocking<std::vector<std::uint8_t>>([&](const Blocking& call) {
      return owner->replica_digests({call.cancel, call.progress});
    });
    return nb::bytes(reinterpret_cast<const char*>(digests.data()), digests.size());
  }

  std::string waits_for() {
    const std::shared_ptr<RunOwner> owner = core();
    return run_blocking<std::string>(
        [&](const Blocking& call) { return owner->waits_for(call.cancel); });
  }

  bool interrupt() {
    const std::shared_ptr<RunOwner> owner = core();
    const nb::gil_scoped_release release;
    return owner->interrupt();
  }

 private:
  static std::unique_ptr<RunOwner> join(PythonRun& run, nb::handle object) {
    const std::shared_ptr<RunSession> session = run.core();
    EmbeddedOwner& owner = embedded_owner(object);
    return run_blocking<std::unique_ptr<RunOwner>>(
        [&](const Blocking& call) { return RunOwner::join(*session, owner, call.cancel); });
  }
};

class PythonRunReceiver : public Handle<RunReceiver> {
 public:
  using Tensor = std::tuple<std::string, std::string, Shape>;
  using Box = std::tuple<std::uint32_t, std::uint64_t, Shape, Shape>;

  PythonRunReceiver(PythonRun& run, const std::string& name, const std::string& engine,
                    std::uint64_t engine_instance)
      : Handle("the receiver", join(run, name, {engine, engine_instance})) {}

  bool find_owners(double seconds) {
    const std::shared_ptr<RunReceiver> receiver = core();
    return without_gil([&] { return receiver->find_owners(wait_ms(seconds)); });
  }

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> all;
    const std::shared_ptr<RunReceiver> receiver = core();
    for (const CanonicalTensor& tensor : receiver->tensors()) {
      all.emplace_back(tensor.name, std::string(dtype_name(tensor.dtype)), tensor.shape);
    }
    return all;
  }

  std::vector<std::vector<Box>> boxes() const {
    std::vector<std::vector<Box>> all;
    const std::shared_ptr<RunReceiver> receiver = core();
    for (const std::vector<CanonicalBox>& owner : receiver->boxes()) {
      std::vector<Box>& of = all.emplace_back();
      for (const CanonicalBox& box : owner) {
        of.emplace_back(box.tensor, box.offset, box.sizes, box.strides);
      }
    }
    return all;
  }

  // False: it was stopped.
  bool serve(nb::handle object, const nb::object& applied, bool audit) {
    const std::shared_ptr<RunReceiver> of = core();
    EmbeddedReceiver& receiver = embedded_receiver(object);
    ServeOptions options;
    options.audit = audit;
    if (!applied.is_none()) {
      options.applied = [&applied]() -> Status {
        const nb::gil_scoped_acquire acquire;
        try {
          applied();
          return {};
        } catch (nb::python_error& error) {
          return {Code::kInternal,
                  std::string("what follows an application failed: ") + error.what()};
        }
      };
    }
    const Status status = [&] {
      const nb::gil_scoped_release release;
      return of->serve(receiver, options);
    }();
    if (status.code() == Code::kCancelled) return false;
    check(status);
    return true;
  }

  // Returns when it was stopped.
  void refuse(const std::string& why) {
    const std::shared_ptr<RunReceiver> receiver = core();
    const Status status = [&] {
      const nb::gil_scoped_release release;
      return receiver->refuse({Code::kUnsupported, why});
    }();
    if (status.code() != Code::kCancelled) check(status);
  }

  std::string status() {
    const std::shared_ptr<RunReceiver> receiver = core();
    return run_blocking<std::string>(
        [&](const Blocking& call) { return receiver->status(call.cancel); });
  }

 private:
  static std::unique_ptr<RunReceiver> join(PythonRun& run, const std::string& name,
                                           RunReceiverOptions options) {
    const std::shared_ptr<RunSession> session = run.core();
    return run_blocking<std::unique_ptr<RunReceiver>>([&](const Blocking& call) {
      return RunReceiver::join(*session, name, std::move(options), call.cancel);
    });
  }
};

class PythonRunGate : public Handle<RunGate> {
 public:
  PythonRunGate(PythonRun& run, const std::string& engine, std::vector<std::string> receivers,
                bool fail_overdue, std::uint64_t engine_instance)
      : Handle("the gate",
               join(run, engine, {std::move(receivers), fail_overdue, engine_instance})) {}

  std::optional<std::tuple<std::uint64_t, bool, std::string, bool>> next(double seconds) {
    const std::shared_ptr<RunGate> gate = core();
    const nb::gil_scoped_release release;
    const std::optional<GateWork> work = gate->next(wait_ms(seconds));
    if (!work) return std::nullopt;
    return std::tuple(work->number, work->open, work->label, work->fail_requests);
  }

  void done(std::uint64_t number, const std::optional<std::string>& failure) {
    GateWork work;
    work.number = number;
    core()->done(work, failure ? Status(Code::kUnavailable, *failure) : Status());
  }

  std::optional<std::string> refusal() {
    const std::shared_ptr<RunGate> gate = core();
    const nb::gil_scoped_release release;
    return gate->refusal();
  }

  std::string closed_because() {
    const std::shared_ptr<RunGate> gate = core();
    return run_blocking<std::string>(
        [&](const Blocking& call) { return gate->closed_because(call.cancel); });
  }

 private:
  static std::unique_ptr<RunGate> join(PythonRun& run, const std::string& engine,
                                       RunGateOptions options) {
    const std::shared_ptr<RunSession> session = run.core();
    return run_blocking<std::unique_ptr<RunGate>>([&](const Blocking& call) {
      return RunGate::join(*session, engine, std::move(options), call.cancel);
    });
  }
};

void bind_session(nb::module_& module) {
  nb::class_<PythonRun> run(module, "RunSession", "What this process has open of a run.");
  run.def(nb::init<const std::string&, const std::string&, const std::vector<std::string>&, bool>(),
          nb::arg("path"), nb::kw_only(), nb::arg("program") = "",
          nb::arg("kill_points") = std::vector<std::string>(), nb::arg("create") = false);
  run.def("take_logs", &PythonRun::take_logs,
          "(a problem, endpoint, text) of what was logged since.");
  run.def("committed", &PythonRun::committed, "(version, label) of what is committed now.");
  run.def("close", &PythonRun::close, "After all that has joined is closed.");
  forbid_pickling(run);
}

void bind_members(nb::module_& module) {
  nb::class_<PythonRunOwner> owner(module, "RunOwner", "A trainer rank's owner in a run.");
  owner.def(nb::init<PythonRun&, nb::handle>(), nb::arg("run"), nb::arg("owner"),
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());
  owner.def_prop_ro(
      "name", [](const PythonRunOwner& self) { return self.core()->name(); }, "In the run.");
  owner.def("begin_refit", &PythonRunOwner::begin_refit, nb::arg("label"), nb::kw_only(),
            nb::arg("asynchronous") = false, "Begins a refit of the weights as they are.");
  owner.def("wait", &PythonRunOwner::wait, nb::arg("seconds"),
            nb::sig("def wait(self, seconds: float) -> "
                    "tuple[int, str, int, list[str], str, Prepared] | None"),
            "(version, label, attempts, owners without baseline, why gates closed early, what this "
            "rank sent), or None if it is not over yet; waits for a tenth of a second at most.");
  owner.def("replica_digests", &PythonRunOwner::replica_digests,
            "EmbeddedOwner's, between what the run asks of it.");
  owner.def("waits_for", &PythonRunOwner::waits_for,
            "What the refit that is open waits for, as whoever leads says.");
  owner.def("interrupt", &PythonRunOwner::interrupt,
            "Ends the refit that is open. False: none is.");
  owner.def("close", &PythonRunOwner::close, "Leaves the run.");
  forbid_pickling(owner);

  nb::class_<PythonRunReceiver> receiver(module, "RunReceiver",
                                         "A serving rank's receiver in a run.");
  receiver.def(nb::init<PythonRun&, const std::string&, const std::string&, std::uint64_t>(),
               nb::arg("run"), nb::arg("name"), nb::arg("engine"), nb::kw_only(),
               nb::arg("engine_instance") = 0, nb::keep_alive<1, 2>());
  receiver.def("find_owners", &PythonRunReceiver::find_owners, nb::arg("seconds"),
               "Whether owners are there; waits for a tenth of a second at most.");
  receiver.def_prop_ro("tensors", &PythonRunReceiver::tensors, "(name, dtype, shape), ascending.");
  receiver.def_prop_ro("boxes", &PythonRunReceiver::boxes, "Of each owner, as EmbeddedReceiver's.");
  receiver.def("serve", &PythonRunReceiver::serve, nb::arg("receiver"),
               nb::arg("applied").none() = nb::none(), nb::kw_only(), nb::arg("audit") = false,
               "Takes part until it is stopped (False) or other owners have come (True).");
  receiver.def(
      "refuse", &PythonRunReceiver::refuse, nb::arg("why"),
      "Takes no part, and says why to the engine's gate and the run, until it is stopped.");
  receiver.def(
      "stop", [](const PythonRunReceiver& self) { self.core()->stop(); },
      "Has serve() and refuse() return.");
  receiver.def_prop_ro(
      "has_applied", [](const PythonRunReceiver& self) { return self.core()->has_applied(); },
      "Whether it has ever held what was committed: then its engine may be serving.");
  receiver.def("status", &PythonRunReceiver::status, "What it does or waits for.");
  receiver.def("close", &PythonRunReceiver::close, "Leaves the run. Not while it serves.");
  forbid_pickling(receiver);

  nb::class_<PythonRunGate> gate(module, "RunGate", "An engine's request gate in a run.");
  gate.def(
      nb::init<PythonRun&, const std::string&, std::vector<std::string>, bool, std::uint64_t>(),
      nb::arg("run"), nb::arg("engine"), nb::arg("receivers"), nb::kw_only(),
      nb::arg("fail_overdue") = false, nb::arg("engine_instance") = 0, nb::keep_alive<1, 2>());
  gate.def("next", &PythonRunGate::next, nb::arg("seconds"),
           "(number, open, label, fail requests), or None; waits for a tenth of a second at most. "
           "One that fails requests comes while one that waits for them is not done.");
  gate.def("done", &PythonRunGate::done, nb::arg("number"), nb::arg("failure").none() = nb::none(),
           "Answers what next() gave.");
  gate.def("closed_because", &PythonRunGate::closed_because, "Why it is not open; empty: it is.");
  gate.def("refusal", &PythonRunGate::refusal,
           "Which receiver takes no part, and why; empty: none that is known of; None: "
           "the gate does not answer.");
  gate.def("close", &PythonRunGate::close, "Leaves the run.");
  forbid_pickling(gate);
}

}  // namespace

void bind_run(nb::module_& module) {
  bind_session(module);
  bind_members(module);
  bind_driver(module);
}

}  // namespace dcr::python
