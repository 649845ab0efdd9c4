#include "runtime/long_turns.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/threads.h"

namespace dcr {
namespace {

TEST(LongTurns, ChangeNothingElseOfTheThread) {
  const auto thread = make_executor(2);
  thread->submit([] {
    const auto self = static_cast<id_t>(::gettid());
    ASSERT_EQ(::setpriority(PRIO_PROCESS, self, 3), 0);
    for (int i = 0; i < 2; ++i) {
      take_long_turns();
      EXPECT_EQ(::getpriority(PRIO_PROCESS, self), 3);
      EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
    }
  });
}

// Of a policy without turns: it stays as it is.
TEST(LongTurns, LeaveOtherPoliciesAlone) {
  const auto thread = make_executor(2);
  thread->submit([] {
    const sched_param none{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    take_long_turns();
    EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  });
}

}  // namespace
}  // namespace dcr
