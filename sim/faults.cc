#include "sim/faults.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace dcr {
namespace {

bool one_in(Prng& prng, std::uint64_t count) { return prng.below(count) == 0; }

// Mostly not at all, then rarely, sometimes often.
std::uint32_t frequency(Prng& prng) {
  constexpr std::uint32_t kFrequencies[] = {0, 0, 0, 5, 20, 80, 250};
  return kFrequencies[prng.below(std::size(kFrequencies))];
}

// Shorter than people would set them, in proportion to work and latencies, and with fewer looks and
// repetitions within the waits that they break: what machines do while nothing happens is most of
// what a simulated second costs.
Waits draw_waits(Prng& prng) {
  Waits waits;
  const auto around = [&prng](Milliseconds milliseconds) {
    return milliseconds / 2 + prng.below(milliseconds);
  };
  // Where leaders are suspected soon, they are often suspected wrongly.
  const bool hasty = one_in(prng, 3);
  waits.repeat_ms = around(200);
  waits.look_ms = around(hasty ? 200 : 1500);
  waits.beat_ms = around(hasty ? 100 : 600);
  // Followers must look several times within it.
  waits.leader_ms = 2 * waits.look_ms + around(hasty ? 50 : 300);
  waits.prepare_ms = around(1500);
  waits.send_ms = around(2000);
  waits.drain_ms = around(1500);
  waits.apply_ms = around(2000);
  waits.stop_ms = around(700);
  waits.baseline_ms = around(one_in(prng, 6) ? 20 : 2000);
  waits.cleanup_ms = around(700);
  waits.join_hold_ms = around(400);
  waits.membership_ms = 3 * waits.look_ms + around(hasty ? 300 : 1000);
  waits.restore_ms = around(2000);
  waits.restore_again_ms = around(200);
  waits.attempts_max = one_in(prng, 5) ? 1 + prng.below(3) : 5;
  return waits;
}

void draw_world(Prng& prng, Swarm* swarm) {
  swarm->nodes = one_in(prng, 32) ? 1 : one_in(prng, 3) ? 3 : 2;
  swarm->coordinators = one_in(prng, 4) ? 1 : 2;
  // Mostly several, as every world has to begin first.
  swarm->transitions = 4 - static_cast<std::uint32_t>(std::min(prng.below(4), prng.below(4)));
  if (!one_in(prng, 64)) {
    swarm->far_transition = static_cast<std::uint32_t>(prng.below(swarm->transitions));
  }
  swarm->unloaded_engines = one_in(prng, 8);
  swarm->other_bases = one_in(prng, 16);
  swarm->asynchronous = one_in(prng, 2) ? 0 : one_in(prng, 2) ? 1024 : 400;
  swarm->waits = draw_waits(prng);
  swarm->latency_min = between(prng, 50, 1000);
  swarm->latency_max = swarm->latency_min + between(prng, 10, 3000);
  swarm->work_max = one_in(prng, 4) ? 20'000 : between(prng, 10, 2000);
  constexpr std::uint64_t kBytes[] = {200, 2000, 1 << 20};
  swarm->staging_bytes_max = kBytes[prng.below(3)];
  swarm->decoded_bytes_max = kBytes[prng.below(3)];
  swarm->credit_bytes = kBytes[prng.below(3)];
  swarm->credit_payloads = one_in(prng, 3) ? 1 + prng.below(4) : 264;
  swarm->window_payloads = static_cast<std::uint32_t>(one_in(prng, 3) ? 1 + prng.below(4) : 264);
  swarm->post_drains_fail = one_in(prng, 4);
  swarm->through_bytes = one_in(prng, 8) ? 1024 : 16;
  swarm->slices_max = one_in(prng, 2) ? 1 : 4;
}

void draw_sudden(Prng& prng, Swarm* swarm) {
  swarm->sudden_max = 2 + static_cast<std::uint32_t>(prng.below(4));
  swarm->crashes = !one_in(prng, 4);
  swarm->pauses = one_in(prng, 2);
  swarm->partitions = one_in(prng, 3);
  swarm->slowness = one_in(prng, 4);
  swarm->kills_coordinators = one_in(prng, 2);
  swarm->kills_nodes = one_in(prng, 3);
  swarm->kills_gates = one_in(prng, 3);
  swarm->restarts_receivers = one_in(prng, 2);
  swarm->kills_engines = one_in(prng, 2);
  swarm->kills_owners = one_in(prng, 3);
  swarm->zombies = one_in(prng, 4);
  swarm->aborts = one_in(prng, 8);
  swarm->asks_outcomes = one_in(prng, 8);
}

}  // namespace

Swarm draw_swarm(Prng& prng) {
  Swarm swarm;
  draw_world(prng, &swarm);
  swarm.faulty = !one_in(prng, 12);
  swarm.changes_candidate = one_in(prng, 2) ? 0 : 300;
  swarm.audits = one_in(prng, 2);
  if (!swarm.faulty) return swarm;
  if (one_in(prng, 2)) {
    swarm.lose = frequency(prng);
    swarm.repeat = frequency(prng);
    swarm.delay = frequency(prng);
  }
  constexpr Microseconds kDelays[] = {5'000, 100'000, 3'000'000};
  swarm.delay_max = kDelays[prng.below(std::size(kDelays))];
  if (one_in(prng, 4)) swarm.hand_over_lost = frequency(prng);
  if (one_in(prng, 3)) {
    swarm.control_refuses = frequency(prng);
    swarm.control_forgets = frequency(prng);
    swarm.control_slow = frequency(prng);
  }
  if (one_in(prng, 3)) {
    swarm.store_refuses = frequency(prng);
    swarm.store_corrupts = frequency(prng) / 4;
    swarm.store_tears = frequency(prng) / 4;
    swarm.store_late = frequency(prng);
  }
  if (one_in(prng, 3)) swarm.open_fails = frequency(prng);
  if (one_in(prng, 8)) swarm.long_requests = frequency(prng);
  swarm.meetings_break = frequency(prng);
  draw_sudden(prng, &swarm);
  constexpr Microseconds kLast[] = {50'000, 200'000, 1'000'000, 4'000'000};
  swarm.faults_last = kLast[prng.below(std::size(kLast))];
  swarm.continuous = one_in(prng, 5);
  return swarm;
}

std::string Swarm::text() const {
  const auto number = [](const char* name, std::uint64_t value) {
    return value == 0 ? std::string() : std::string(" ") + name + "=" + std::to_string(value);
  };
  return "nodes=" + std::to_string(nodes) + number("coordinators", coordinators) +
         number("transitions", transitions) + number("asynchronous", asynchronous) +
         number("unloaded_engines", unloaded_engines ? 1 : 0) + number("lose", lose) +
         number("repeat", repeat) + number("delay", delay) + number("delay_max", delay_max) +
         number("hand_over_lost", hand_over_lost) + number("control_refuses", control_refuses) +
         number("control_forgets", control_forgets) + number("control_slow", control_slow) +
         number("store_refuses", store_refuses) + number("store_corrupts", store_corrupts) +
         number("store_tears", store_tears) + number("store_late", store_late) +
         number("open_fails", open_fails) + number("long_requests", long_requests) +
         number("meetings_break", meetings_break) + number("other_bases", other_bases ? 1 : 0) +
         number("audits", audits ? 1 : 0) + number("sudden_max", sudden_max) +
         number("crashes", crashes ? 1 : 0) + number("pauses", pauses ? 1 : 0) +
         number("partitions", partitions ? 1 : 0) + number("slowness", slowness ? 1 : 0) +
         number("zombies", zombies ? 1 : 0) + number("slices_max", slices_max) +
         number("aborts", aborts ? 1 : 0) + number("asks_outcomes", asks_outcomes ? 1 : 0) +
         number("faults_last", faults_last) + number("continuous", continuous ? 1 : 0);
}

}  // namespace dcr
