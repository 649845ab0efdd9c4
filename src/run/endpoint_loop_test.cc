// A loop that is gone: nothing that still sends to it, or answers it, reaches what it was.
#include "run/endpoint_loop.h"

#include <gtest/gtest.h>

#include "channel/test_channel.h"
#include "protocol/owner.h"
#include "run/process_context.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

// Asks for work, and ends at the next event.
struct BriefMachine {
  bool begun = false;

  void step(const OwnerEvent&, Milliseconds, std::vector<OwnerEffect>* effects) {
    if (begun) {
      effects->push_back(Ended{{Code::kIo, "the end"}});
    } else {
      effects->push_back(RefitFinished{});
    }
    begun = true;
  }
  Milliseconds wake_at() const { return 0; }
  std::uint64_t incarnation() const { return 1; }
};

class EndpointLoopTest : public ChannelTest {};

TEST_F(EndpointLoopTest, NothingReachesALoopThatIsGone) {
  const TempDirectory directory;
  const CancelToken never;
  RunConfig config;
  config.directory = directory.path();
  ASSERT_TRUE(create_run(config).ok());
  ProcessOptions process;
  process.cancel = &never;
  process.clock = &monotonic_clock();
  process.log = [](const std::string&, const std::string&) {};
  auto context = ProcessContext::open(config, process);
  ASSERT_TRUE(context.ok()) << context.status().message();
  Inboxes inboxes;
  const auto peers = std::make_shared<ListedPeers>();
  const auto key = [this](const char* name) { return keys_.at(name).public_key; };
  ASSERT_TRUE(peers->add("a", {"", {Role::kCoordinator}, key("a")}).ok());
  ASSERT_TRUE(peers->add("c", {"", {Role::kOwner}, key("c")}).ok());
  const auto ignore = [](const std::string&) {};
  Mailbox coordinator(RunId{7}, "a", peers, open("a"), inboxes, ignore);
  coordinator.set_incarnation(1);
  Mailbox own(RunId{7}, "c", peers, open("c"), inboxes, ignore);

  using Loop = EndpointLoop<OwnerEndpoint, OwnerEvent, OwnerEffect>;
  using BriefLoop = EndpointLoop<BriefMachine, OwnerEvent, OwnerEffect>;
  static_assert(std::is_same_v<Loop::Post, BriefLoop::Post>);
  BriefLoop::Post post;
  int messages = 0;
  // What the loop's hooks look at is gone with it, too.
  auto counted = std::make_unique<int>(0);
  {
    BriefLoop loop("c", (*context)->parts(), own);
    loop.set_intercept([&messages, count = counted.get()](const Endpoint&, const Message&) {
      ++*count;
      ++messages;
      return true;
    });
    const Status ended = loop.run([] { return BriefMachine(); },
                                  [&](const OwnerEffect&, const BriefLoop::Post& given) {
                                    post = given;
                                    coordinator.send("c", 1, Look{});
                                  });
    EXPECT_EQ(ended.message(), "the end");
  }
  counted.reset();
  EXPECT_EQ(messages, 1);
  coordinator.send("c", 1, Look{});
  post(TimePassed{});
  EXPECT_EQ(messages, 1);
}

}  // namespace
}  // namespace dcr
