#include "runtime/long_turns.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace dcr {
namespace {

constexpr std::uint64_t kTurnNs = 20'000'000;

// The kernel's sched_attr, as it began; libraries have no name for it.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // of the usual policy: one turn
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

}  // namespace

// Linux, since it schedules by deadlines, lets a thread that wakes take the place of one that asked
// for longer turns.
void take_long_turns() {
  SchedulingAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.size = sizeof(attributes);
  attributes.runtime_ns = kTurnNs;
  static_cast<void>(::syscall(SYS_sched_setattr, 0, &attributes, 0));
}

}  // namespace dcr
