// A node's work with threads of its own, whose order the machine does not know.
#include "run/node_work.h"

#include <gtest/gtest.h>

#include "runtime/clock.h"
#include "runtime/event_queue.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

constexpr StreamId kStream = {false, 1};
constexpr std::uint64_t kAnswerMs = 60'000;

class NodeWorkTest : public testing::Test {
 public:
  void SetUp() override {
    source.catalogue = *Catalogue::make({{"a", Dtype::kBF16, {4}, 0}});
    source.boxes = {{{0, {0, {{4, 1}}}}}};
    source.digest = source_digest(source);
    config.directory = directory.path();
    ASSERT_TRUE(create_run(config).ok());
    ProcessOptions process;
    process.cancel = &never;
    process.clock = &monotonic_clock();
    process.log = [](const std::string&, const std::string&) {};
    auto opened = ProcessContext::open(config, process);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    context = std::move(opened).value();
    work.emplace(*context, source);
    send(2);
  }

  void send(std::uint64_t payloads) {
    ObjectOwnerTransport transport(context->objects(), {context->run(), 1, {}}, 0);
    ASSERT_TRUE(transport.begin(kStream.number).ok());
    for (std::uint64_t number = 0; number < payloads; ++number) {
      PayloadHeader header;
      header.run = context->run();
      header.attempt = kStream.number;
      header.number = number;
      header.target_version = 1;
      header.schema = source.catalogue.schema();
      const Bytes bytes = PayloadWriter().seal(header);
      ASSERT_TRUE(transport.send(kStream.number, number, bytes, stored_digest(bytes)).ok());
    }
  }

  // The answer to work, once it is there.
  template <typename Answer>
  Answer answer_to(const NodeEffect& effect) {
    work->begin(effect, [this](NodeEvent event) { answers.push(std::move(event)); });
    return std::get<Answer>(*answers.pop(kAnswerMs));
  }
  void fetch(std::uint64_t number) {
    const auto fetched = answer_to<PayloadFetched>(FetchPayload{kStream, 0, number, std::nullopt});
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.message();
    ASSERT_TRUE(fetched.there);
  }

  const TempDirectory directory;
  CancelToken never;
  RunConfig config;
  PublishedSource source;
  std::unique_ptr<ProcessContext> context;
  EventQueue<NodeEvent> answers;
  std::optional<NodeWork> work;
};

TEST_F(NodeWorkTest, WhatIsDroppedIsNeitherDecodedNorHandedOver) {
  fetch(0);
  work->begin(DropPayloads{kStream, 1}, {});
  const auto decoded = answer_to<PayloadDecoded>(DecodePayload{kStream, 0, 0});
  EXPECT_EQ(decoded.status.code(), Code::kNotFound);
  EXPECT_EQ(decoded.status.message(), "payload 0 of owner 0: it was let go");
}

// A receiver that takes a stream a second time has the node fetch again what it has just dropped,
// which may be there before the thread that decodes comes to anything.
TEST_F(NodeWorkTest, WhatIsFetchedAgainIsNotWhatWasDropped) {
  fetch(0);
  fetch(1);
  EventQueue<bool> decodes;
  EventQueue<bool> go_on;
  work->begin(DecodePayload{kStream, 0, 1}, [&](const NodeEvent&) {
    decodes.push(true);
    go_on.pop(kAnswerMs);
  });
  ASSERT_TRUE(decodes.pop(kAnswerMs));
  work->begin(DropPayloads{kStream, 1}, {});
  fetch(0);
  go_on.push(true);
  const auto decoded = answer_to<PayloadDecoded>(DecodePayload{kStream, 0, 0});
  EXPECT_TRUE(decoded.status.ok()) << decoded.status.message();
}

}  // namespace
}  // namespace dcr
