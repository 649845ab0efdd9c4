// What all machines of the protocol share (docs/PROTOCOL.md): they are pure. `step` takes one event
// and the time, changes the machine's state and appends effects; shells and the simulator carry
// effects out and bring their answers as events. Nothing else happens: no I/O, no clock, no thread,
// no randomness; the same events give the same effects.
//
// Rules for whoever carries effects out:
//   - Messages may be lost, repeated and reordered. Control calls and work are each answered
//     exactly once, in any order, unless the process ends.
//   - Work goes on beside the machine; whatever it touches, the machine leaves alone until its
//     answer has come.
//   - `step` with TimePassed is due at wake_at(), and harmless at any other time.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "dcr/control.h"
#include "dcr/status.h"
#include "protocol/control_call.h"
#include "protocol/messages.h"

namespace dcr {

using Milliseconds = std::uint64_t;  // since some moment of the process; never goes back
inline constexpr Milliseconds kNever = ~Milliseconds{0};

// ---- events that every machine takes

struct Started {};  // first
struct TimePassed {};
struct MessageArrived {
  Endpoint from;
  Message message;
};
struct ControlAnswered {
  std::uint64_t call = 0;  // of CallControl
  ControlReply reply;
};

// ---- effects that every machine may have

struct SendMessage {
  std::string to;  // endpoint
  // 0: whichever it has now (its name and key are checked all the same).
  std::uint64_t incarnation = 0;
  Message message;
};
struct CallControl {
  std::uint64_t call = 0;  // counts the machine's calls
  ControlRequest request;
};
// A line of log, for people. Whoever writes it says which endpoint's it is.
struct Note {
  std::string text;
};
// The machine has ended: nothing follows. With an error: kConflict, this incarnation is barred, and
// the shell starts the machine anew; others are for the operator (exit code 5).
struct Ended {
  Status status;
};

// The table of waits (docs/PROTOCOL.md "Waits"). Milliseconds.
struct Waits {
  Milliseconds repeat_ms = 200;        // a message that is not answered is sent again
  Milliseconds look_ms = 500;          // records are read again by who waits for a change in them
  Milliseconds beat_ms = 500;          // the leader's
  Milliseconds leader_ms = 3'000;      // without a beat it is called dead
  Milliseconds prepare_ms = 30'000;    // Prepare → Prepared
  Milliseconds send_ms = 1'800'000;    // Prepared → Sent, without progress
  Milliseconds drain_ms = 120'000;     // CloseGate → GateClosed
  Milliseconds apply_ms = 600'000;     // all Sent and OpenApply → Completed, without progress
  Milliseconds stop_ms = 60'000;       // StopAndWait → Stopped; then the incarnation is barred
  Milliseconds baseline_ms = 600'000;  // commit → BaselineUpdated; then refit() ends without
  Milliseconds cleanup_ms = 60'000;
  Milliseconds join_hold_ms = 30'000;  // a join that was overtaken holds the next prepare back
  Milliseconds membership_ms =
      30'000;  // a serving engine that cannot read the control plane closes
  // A restore without progress begins anew; a receiver whose bits no attempt made whole restores.
  Milliseconds restore_ms = 600'000;
  Milliseconds restore_again_ms = 5'000;  // a restore that failed begins anew after it
  std::uint64_t attempts_max = 5;         // of a transition; then the operator is called
};

}  // namespace dcr
