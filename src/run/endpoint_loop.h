// Runs one machine of the protocol: gives it events, carries out its messages and control calls,
// and hands its own work to who can do it (docs/ARCHITECTURE.md "Processes").
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/machine.h"
#include "run/control_caller.h"
#include "run/mailbox.h"
#include "run/operation_points.h"
#include "run/operations.h"
#include "runtime/clock.h"
#include "runtime/event_queue.h"
#include "runtime/threads.h"

namespace dcr {

// What the loops of a process share. Nothing is owned.
struct LoopParts {
  ControlCaller& control;
  OperationPoints& points;
  Clock& clock;
  std::function<bool()> cancelled;
  std::function<void(const std::string& endpoint, const std::string& text)> log;  // thread-safe
  std::function<void()> idle;  // called now and then, and every second however much there is to do
};

template <typename Machine, typename Event, typename Effect>
class EndpointLoop {
 public:
  // Takes the answer of work that a machine asked for. Thread-safe; may be kept, and called when
  // the machine is gone: then nothing happens.
  using Post = std::function<void(Event)>;
  // Begins work; must not wait for it.
  using Work = std::function<void(const Effect&, const Post&)>;

  // `mailbox` must outlive it.
  EndpointLoop(std::string name, LoopParts parts, Mailbox& mailbox)
      : name_(std::move(name)), parts_(std::move(parts)), mailbox_(mailbox) {}
  ~EndpointLoop() { mailbox_.stop(); }
  EndpointLoop(const EndpointLoop&) = delete;
  EndpointLoop& operator=(const EndpointLoop&) = delete;

  // Gets every message before the machine does, on the mailbox's thread; true: it is not for the
  // machine. Before run().
  void set_intercept(std::function<bool(const Endpoint& from, const Message& message)> intercept) {
    intercept_ = std::move(intercept);
  }

  // Sees every event before and every effect after the machine, on the loop's thread. Before run().
  void set_watch(std::function<void(const Event&)> event,
                 std::function<void(const Effect&)> effect) {
    watch_event_ = std::move(event);
    watch_effect_ = std::move(effect);
  }

  // Runs machines that `make` gives, one after another, each until it is barred, and returns the
  // first other error; kCancelled when the process is asked to end.
  Status run(const std::function<Machine()>& make, const Work& work) {
    mailbox_.start([this](const Endpoint& from, Message message) {
      if (intercept_ && intercept_(from, message)) return;
      static_cast<void>(events_->try_push({0, MessageArrived{from, std::move(message)}, nullptr},
                                          kMessagesWaitingMax));
    });
    while (true) {
      Machine machine = make();
      Status status = run_one(machine, work);
      if (status.code() != Code::kConflict) return status;
      parts_.log(name_, "begins anew: " + status.message());
    }
  }

  // An event of the outside, for whichever machine runs. Thread-safe.
  void post(Event event) { events_->push({0, std::move(event), nullptr}); }

  // Has a question answered on the loop's thread, if it runs. Thread-safe.
  void ask(std::function<void(const Machine&)> question) {
    events_->push({0, Event{}, std::move(question)});
  }

 private:
  // Messages beyond are dropped, as if they had been lost.
  static constexpr std::size_t kMessagesWaitingMax = 4096;
  static constexpr Milliseconds kLookAtCancelMs = 100;
  static constexpr Milliseconds kIdleMs = 1000;

  struct Posted {
    std::uint64_t machine = 0;  // it is for; 0: any
    Event event;
    std::function<void(const Machine&)> question;  // in place of an event; or empty
  };

  Milliseconds now() const { return parts_.clock.nanoseconds() / 1'000'000; }

  Status run_one(Machine& machine, const Work& work) {
    const std::uint64_t number = ++machines_;
    mailbox_.set_incarnation(0);
    Status ended;
    bool running = step(machine, Started{}, number, work, &ended);
    while (running) {
      if (parts_.cancelled()) return {Code::kCancelled, name_ + " was asked to end"};
      const Milliseconds time = now();
      const Milliseconds wake = machine.wake_at();
      if (wake <= time) {
        running = step(machine, TimePassed{}, number, work, &ended);
        continue;
      }
      auto posted = events_->pop(std::min(wake - time, kLookAtCancelMs));
      if (!posted || time >= idled_at_ + kIdleMs) {
        idled_at_ = time;
        parts_.idle();
      }
      if (!posted || (posted->machine != 0 && posted->machine != number)) continue;
      if (posted->question) {
        posted->question(machine);
        continue;
      }
      parts_.points.after(operation_of(posted->event));
      running = step(machine, posted->event, number, work, &ended);
    }
    return ended;
  }

  // One step and its effects. False: the machine has ended.
  bool step(Machine& machine, const Event& event, std::uint64_t number, const Work& work,
            Status* ended) {
    if (watch_event_) watch_event_(event);
    std::vector<Effect> effects;
    machine.step(event, now(), &effects);
    mailbox_.set_incarnation(machine.incarnation());
    const Post post = [events = events_, number](Event answer) {
      events->push({number, std::move(answer), nullptr});
    };
    for (const Effect& effect : effects) {
      if (watch_effect_) watch_effect_(effect);
      const char* const operation = operation_of(effect);
      parts_.points.before(operation);
      if (const auto* const send = std::get_if<SendMessage>(&effect)) {
        mailbox_.send(send->to, send->incarnation, send->message);
        parts_.points.after(operation);
      } else if (const auto* const call = std::get_if<CallControl>(&effect)) {
        parts_.control.call(call->request, [&points = parts_.points, post, operation,
                                            id = call->call](ControlReply reply) {
          points.after(operation);
          post(ControlAnswered{id, std::move(reply)});
        });
      } else if (const auto* const note = std::get_if<Note>(&effect)) {
        parts_.log(name_, note->text);
      } else if (const auto* const end = std::get_if<Ended>(&effect)) {
        *ended = end->status;
        return false;
      } else {
        work(effect, post);
      }
    }
    return true;
  }

  const std::string name_;
  const LoopParts parts_;
  Mailbox& mailbox_;
  std::function<bool(const Endpoint& from, const Message& message)> intercept_;
  std::function<void(const Event&)> watch_event_;
  std::function<void(const Effect&)> watch_effect_;
  // Shared with what may still post when the loop is gone.
  const std::shared_ptr<EventQueue<Posted>> events_ = std::make_shared<EventQueue<Posted>>();
  std::uint64_t machines_ = 0;
  Milliseconds idled_at_ = 0;
};

}  // namespace dcr
