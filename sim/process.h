// A process of a simulated world: one machine of the protocol, in one life after another. A life
// ends when the process is killed, when its machine ends, or with the world; whatever it had sent
// by then lives on. A paused process does nothing, not even the rest of a step's effects, and
// catches up when it goes on. A zombie is a process that is taken for dead and is not: another one
// of its name was started, and it goes on beside that with all it had.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/coordinator.h"
#include "protocol/gate.h"
#include "protocol/machine.h"
#include "protocol/node.h"
#include "protocol/owner.h"
#include "protocol/receiver.h"
#include "sim/schedule.h"

namespace dcr {

class World;

class SimProcess {
 public:
  SimProcess(World& world, Role role, std::string name)
      : world_(world), role_(role), name_(std::move(name)) {}
  virtual ~SimProcess() = default;
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  Role role() const { return role_; }
  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }
  std::uint64_t life() const { return life_; }
  bool zombie() const { return zombie_; }
  bool paused() const { return pause_left() > 0; }
  // Reaches neither other processes nor, if `control`, the control plane.
  bool isolated() const;

  // Its next life begins. REQUIRES: !alive().
  void start();
  // Its life ends here. `why`: for the trace.
  void die(const char* why);
  void pause(Microseconds duration);
  void isolate(Microseconds duration) { isolated_until_ = until(duration); }
  void heal();
  // Another process of its name is about to be started. This one goes on, if it lives.
  virtual void become_zombie() { zombie_ = true; }
  // Of a zombie: no other life comes.
  void end_for_good(const char* why);
  // It lives, or another life of it may come.
  bool there() const { return !zombie_ || !over_; }

  // Dies when its machines have had so many more effects.
  void die_after(std::uint64_t effects) { dies_after_ = effects; }
  void pause_after(std::uint64_t effects, Microseconds duration) {
    pauses_after_ = effects;
    pause_ = duration;
  }

  virtual std::uint64_t incarnation() const = 0;  // 0: none
  virtual StatusReply status() const = 0;
  virtual void deliver(MessageArrived arrived) = 0;
  virtual void answer(ControlAnswered answered) = 0;

  // `what` happens to this life of the process, if it lasts.
  void later(Microseconds delay, Happening what);
  // Now, or when it goes on, if `life` still lasts.
  template <typename What>
  void happen(std::uint64_t life, What&& what) {
    if (!alive_ || life != life_) return;
    if (paused()) return postpone(Happening(std::forward<What>(what)));
    begin_event();
    what();
  }

 protected:
  // The process, and its machine, begin.
  virtual void begin() = 0;
  // What it held in memory is gone.
  virtual void lose() = 0;

  Milliseconds clock() const;
  Microseconds until(Microseconds duration) const;
  Microseconds pause_left() const;
  void postpone(Happening what);
  void begin_event();
  // Between effects: false if the process dies here.
  bool goes_on(const char* effect, bool after);
  // Of every machine.
  void send(SendMessage&& message);
  void call(CallControl&& call);
  void note(const Note& note);
  void end(const Status& status);

  World& world_;

 private:
  const Role role_;
  const std::string name_;
  bool alive_ = false;
  bool zombie_ = false;
  bool over_ = false;
  std::uint64_t life_ = 0;
  Milliseconds clock_offset_ = 0;
  Microseconds paused_until_ = 0;
  Microseconds isolated_until_ = 0;
  std::optional<std::uint64_t> dies_after_;
  std::optional<std::uint64_t> pauses_after_;
  Microseconds pause_ = 0;  // then, so long
};

// The names of effects, by which points between them are known, and of events.
const char* effect_name(const CoordinatorEffect& effect);
const char* effect_name(const OwnerEffect& effect);
const char* effect_name(const NodeEffect& effect);
const char* effect_name(const ReceiverEffect& effect);
const char* effect_name(const GateEffect& effect);

// A process around one type of machine.
template <typename Machine, typename Event, typename Effect>
class MachineProcess : public SimProcess {
 public:
  using SimProcess::SimProcess;

  std::uint64_t incarnation() const override { return machine_ ? machine_->incarnation() : 0; }
  StatusReply status() const override { return machine_ ? machine_->status() : StatusReply{}; }
  void deliver(MessageArrived arrived) override { step(arrived); }
  void answer(ControlAnswered answered) override { step(answered); }

 protected:
  // Begins work, or whatever else the machine alone has.
  virtual void carry_out(Effect& effect) = 0;

  template <typename... Arguments>
  void make_machine(Arguments&&... arguments) {
    machine_.emplace(std::forward<Arguments>(arguments)...);
    timer_.reset();
    step(Started{});
  }
  void drop_machine() {
    machine_.reset();
    effects_.clear();
    next_ = 0;
  }

  void step(const Event& event) {
    if (!machine_) return;
    // What a pause has held up comes first, and may run into another pause.
    if (next_ < effects_.size() && !carry_out_effects()) {
      if (!machine_ || !paused()) return;
      return later(pause_left(), [this, kept = std::make_unique<Event>(event)] { step(*kept); });
    }
    // Whatever an effect does, no machine is stepped in it.
    effects_.clear();
    next_ = 0;
    machine_->step(event, clock(), &effects_);
    carry_out_effects();
  }

  // The machine gets an event later, unless other work has had its turn by then.
  void step_later(Microseconds delay, Event event, const std::uint64_t* turn) {
    later(delay, [this, turn, now = turn == nullptr ? 0 : *turn,
                  kept = std::make_unique<Event>(std::move(event))] {
      if (turn != nullptr && *turn != now) return;
      answered(*kept);
    });
  }
  // The event is the answer of work.
  virtual void answered(const Event& event) { step(event); }

  std::optional<Machine> machine_;

 private:
  // False: the process is dead, ended or paused.
  bool carry_out_effects() {
    while (next_ < effects_.size()) {
      Effect& effect = effects_[next_];
      const char* const name = effect_name(effect);
      if (!goes_on(name, false)) return false;
      if (paused()) {
        later(pause_left(), [this] { carry_out_effects(); });
        return false;
      }
      ++next_;
      if (auto* const message = std::get_if<SendMessage>(&effect)) {
        send(std::move(*message));
      } else if (auto* const asked = std::get_if<CallControl>(&effect)) {
        call(std::move(*asked));
      } else if (const auto* const noted = std::get_if<Note>(&effect)) {
        note(*noted);
      } else if (const auto* const over = std::get_if<Ended>(&effect)) {
        // Nothing follows.
        const Status status = over->status;
        if (goes_on(name, true)) end(status);
        return false;
      } else {
        carry_out(effect);
      }
      if (!goes_on(name, true)) return false;
    }
    if (machine_) set_timer();
    return machine_.has_value();
  }

  void set_timer() {
    const Milliseconds wake = machine_->wake_at();
    if (wake == kNever || (timer_ && *timer_ <= wake)) return;
    timer_ = wake;
    const Milliseconds now = clock();
    // A machine that is due at once has a millisecond's rest.
    const Milliseconds wait = wake > now ? wake - now : 1;
    later(wait * 1000, [this, wake] {
      if (timer_ != wake) return;
      timer_.reset();
      if (!machine_) return;
      if (machine_->wake_at() <= clock()) {
        step(TimePassed{});
      } else {
        set_timer();
      }
    });
  }

  std::vector<Effect> effects_;        // of the last step
  std::size_t next_ = 0;               // of them
  std::optional<Milliseconds> timer_;  // what is scheduled, on the process's clock
};

}  // namespace dcr
