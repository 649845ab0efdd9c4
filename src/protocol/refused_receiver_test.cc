// A receiver that takes no part says so (docs/PROTOCOL.md "Receiver").
#include "protocol/refused_receiver.h"

#include <gtest/gtest.h>

#include <string>

#include "control/memory_control.h"

namespace dcr {
namespace {

class RefusedReceiverTest : public ::testing::Test {
 public:
  RefusedReceiverTest() {
    options.name = "receiver-0";
    options.engine = "engine";
    options.engine_instance = 7;
    options.failure = {Code::kUnsupported, "w", "w cannot be refitted exactly"};
    receiver.emplace(options);
  }

  // What it sends, and how it ends.
  std::string step(const ReceiverEvent& event) {
    std::vector<ReceiverEvent> events = {event};
    std::string lines;
    while (!events.empty()) {
      std::vector<ReceiverEffect> effects;
      receiver->step(events.front(), now, &effects);
      events.erase(events.begin());
      for (const ReceiverEffect& effect : effects) {
        if (const auto* call = std::get_if<CallControl>(&effect)) {
          events.emplace_back(ControlAnswered{call->call, call_control(control, call->request)});
        } else if (const auto* send = std::get_if<SendMessage>(&effect)) {
          lines += send->to + ": " + message_name(send->message) + "\n";
          const auto* const refused = std::get_if<Refused>(&send->message);
          EXPECT_TRUE(refused == nullptr || refused->engine_instance == 7U);
        } else if (const auto* ended = std::get_if<Ended>(&effect)) {
          lines += "ended: " + ended->status.message() + "\n";
        }
      }
    }
    return lines;
  }

  MemoryControl control{*new_control_state({1}, "")};
  RefusedReceiverOptions options;
  std::optional<RefusedReceiver> receiver;
  Milliseconds now = 0;
};

TEST_F(RefusedReceiverTest, TellsItsGateAndWhoeverLeads) {
  EXPECT_EQ(step(Started{}), "engine: refused\n");
  const std::uint64_t leader =
      control.enrol({"coordinator-0", Role::kCoordinator, ""})->incarnation;
  ASSERT_TRUE(control.claim({"coordinator-0", leader}, control.read()->leader).ok());
  std::string said;
  for (const Milliseconds end = now + 3 * options.waits.look_ms; now < end; now += 100) {
    said += step(TimePassed{});
  }
  EXPECT_NE(said.find("engine: refused\ncoordinator-0: refused\n"), std::string::npos) << said;
  const Membership members = *control.read_members();
  ASSERT_EQ(members.members.size(), 2U);
  EXPECT_EQ(members.members[1].engine, "engine");
  EXPECT_EQ(members.members[1].state, MemberState::kEnrolled);  // it never joins
  EXPECT_TRUE(step(MessageArrived{{"operator", 5}, StatusRequest{}})
                  .starts_with("operator: status_reply\n"));
  EXPECT_EQ(receiver->status().state, "refused");
  EXPECT_EQ(receiver->status().detail, "w cannot be refitted exactly");
}

TEST_F(RefusedReceiverTest, EndsWhenAnotherIsInItsPlace) {
  step(Started{});
  ASSERT_TRUE(control.enrol({"receiver-0", Role::kReceiver, "engine"}).ok());
  std::string said;
  for (const Milliseconds end = now + 2 * options.waits.look_ms; now < end; now += 100) {
    said += step(TimePassed{});
  }
  EXPECT_NE(said.find("ended: it was barred\n"), std::string::npos) << said;
  EXPECT_EQ(receiver->wake_at(), kNever);
  EXPECT_EQ(step(MessageArrived{{"operator", 5}, StatusRequest{}}), "");
}

}  // namespace
}  // namespace dcr
