#include "sim/process.h"

#include "base/assert.h"
#include "sim/world.h"

namespace dcr {

Microseconds SimProcess::pause_left() const {
  const Microseconds now = world_.schedule().now();
  return paused_until_ > now ? paused_until_ - now : 0;
}
bool SimProcess::isolated() const { return isolated_until_ > world_.schedule().now(); }

Microseconds SimProcess::until(Microseconds duration) const {
  return world_.schedule().now() + duration;
}

Milliseconds SimProcess::clock() const { return clock_offset_ + world_.schedule().now() / 1000; }

void SimProcess::start() {
  DCR_ASSERT(!alive_);
  alive_ = true;
  ++life_;
  paused_until_ = 0;
  dies_after_.reset();
  pauses_after_.reset();
  // No two processes' clocks have anything to do with each other.
  clock_offset_ = 1 + world_.prng().below(1'000'000);
  world_.trace([&] { return name_ + " starts"; });
  begin();
}

void SimProcess::die(const char* why) {
  if (!alive_) return;
  world_.trace([&] { return name_ + " dies: " + why; });
  alive_ = false;
  dies_after_.reset();
  pauses_after_.reset();
  lose();
}

void SimProcess::end_for_good(const char* why) {
  DCR_ASSERT(zombie_);
  over_ = true;
  die(why);
}

void SimProcess::pause(Microseconds duration) { paused_until_ = until(duration); }

void SimProcess::heal() {
  paused_until_ = 0;
  isolated_until_ = 0;
  dies_after_.reset();
  pauses_after_.reset();
}

void SimProcess::later(Microseconds delay, Happening what) {
  world_.schedule().after(delay, std::move(what), this, life_);
}

// In the order in which it came, as times are equal.
void SimProcess::postpone(Happening what) { later(pause_left(), std::move(what)); }

void SimProcess::begin_event() { world_.schedule().mix(incarnation()); }

bool SimProcess::goes_on(const char* effect, bool after) {
  if (!after && dies_after_) {
    if (*dies_after_ == 0) {
      die(effect);
      world_.died(*this);
      return false;
    }
    --*dies_after_;
  }
  if (!after && pauses_after_ && (*pauses_after_)-- == 0) {
    pauses_after_.reset();
    world_.count_fault("process pauses");
    pause(pause_);
  }
  if (world_.dies_here(*this, effect, after)) {
    die(effect);
    world_.died(*this);
    return false;
  }
  return true;
}

void SimProcess::send(SendMessage&& message) { world_.network().send(*this, std::move(message)); }
void SimProcess::call(CallControl&& call) { world_.control().call(*this, std::move(call)); }

void SimProcess::note(const Note& note) {
  world_.trace([&] { return name_ + ": " + note.text; });
}

void SimProcess::end(const Status& status) { world_.ended(*this, status); }

}  // namespace dcr
