#include "run/operation_points.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>

namespace dcr {
namespace {

TEST(OperationPoint, IsRead) {
  const auto read = [](const char* text) {
    const auto point = parse_operation_point(text);
    EXPECT_TRUE(point.ok()) << text << ": " << point.status().message();
    return point.ok() ? *point : OperationPoint();
  };
  EXPECT_EQ(read("receiver@apply"), (OperationPoint{"receiver", 0, "apply"}));
  EXPECT_EQ(read("receiver@apply:2"), (OperationPoint{"receiver", 0, "apply", false, 2}));
  EXPECT_EQ(read("coordinator@commit"), (OperationPoint{"coordinator", 0, "commit"}));
  EXPECT_EQ(read("owner.3@send.after:7"), (OperationPoint{"owner", 3, "send", true, 7}));
  EXPECT_EQ(read("node.1@receive.before"), (OperationPoint{"node", 1, "receive"}));
  EXPECT_EQ(read("pause:receiver.2@apply.after:4,9"),
            (OperationPoint{"receiver", 2, "apply", true, 4, true, 9}));
  EXPECT_EQ(read("pause:owner@send").seconds, OperationPoint::kPauseSeconds);
}

TEST(OperationPoint, EveryOneThatIsWrittenIsRead) {
  for (const char* const role : {"coordinator", "owner", "node", "receiver"}) {
    ASSERT_FALSE(operations_of(role).empty());
    for (const std::string& operation : operations_of(role)) {
      for (const bool after : {false, true}) {
        for (const bool pause : {false, true}) {
          const OperationPoint point{role, 5, operation, after, 3, pause, pause ? 8U : 5U};
          const auto read = parse_operation_point(format_operation_point(point));
          ASSERT_TRUE(read.ok()) << format_operation_point(point);
          EXPECT_EQ(*read, point);
        }
      }
    }
  }
}

TEST(OperationPoint, SaysWhatIsWrong) {
  const auto refused = [](const std::string& text, const std::string& message) {
    const auto point = parse_operation_point(text);
    ASSERT_FALSE(point.ok()) << text;
    EXPECT_EQ(point.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(point.status().message(),
              text + " is no ROLE[.INDEX]@OPERATION[.before|.after][:NTH]: " + message);
  };
  refused("apply", "there is no @");
  refused("engine@apply", "no role is named engine: it is coordinator, owner, node or receiver");
  refused("node@recieve",
          "the node has no operation recieve (did you mean receive?); it has receive, decode, "
          "hand_over");
  refused("receiver@apply.during", "during is neither before nor after");
  refused("receiver@apply:two", "NTH is no number: two");
  refused("receiver@apply:0", "NTH counts from 1");
  refused("receiver.x@apply", "INDEX is no number: x");
  refused("pause:receiver@apply,long", "SECONDS is no number: long");
}

TEST(OperationPoints, KillsAtTheNthTime) {
  const auto reach = [](OperationPoint point, int times) {
    OperationPoints points({std::move(point)}, [](const OperationPoint& reached) {
      fputs(format_operation_point(reached).c_str(), stderr);
    });
    for (int i = 0; i < times; ++i) {
      points.before("apply");
      points.after("apply");
      points.before("");
      points.before("ingest");
    }
  };
  reach({"receiver", 0, "apply", true, 3}, 2);  // comes back
  EXPECT_EXIT(reach({"receiver", 0, "apply", true, 3}, 3), testing::KilledBySignal(SIGKILL),
              "^receiver.0@apply.after:3$");
  EXPECT_EXIT(reach({"receiver", 0, "apply"}, 1), testing::KilledBySignal(SIGKILL),
              "^receiver.0@apply.before:1$");
}

}  // namespace
}  // namespace dcr
