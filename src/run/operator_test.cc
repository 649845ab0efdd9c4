#include "run/operator.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

TEST(Operator, ARefitThatWasGivenUpNeedsAnOperator) {
  OperatorReply reply;
  reply.failure = Failure{Code::kIo, "layer.weight", "attempt 6 of version 3: node-0: a full disk"};
  reply.committed.id = {2, 1};
  reply.attempts = 4;
  const Status failed = refit_failure("owner-0", reply, 5);
  EXPECT_EQ(failed.code(), Code::kIo);
  EXPECT_EQ(failed.message(), "owner-0: attempt 6 of version 3: node-0: a full disk");
  reply.attempts = 5;
  const Status given_up = refit_failure("owner-0", reply, 5);
  EXPECT_EQ(given_up.code(), Code::kConflict);  // exit code 5
  EXPECT_EQ(given_up.message(),
            "an operator is needed: the refit was given up after 5 attempts, version 2 stays "
            "committed; see to what fails every time, and refit again: owner-0: attempt 6 of "
            "version 3: node-0: a full disk");
  EXPECT_EQ(given_up.tensor(), "layer.weight");
}

StatusReply holding(std::optional<VersionId> version) {
  StatusReply reply;
  reply.held = version;
  return reply;
}

TEST(Operator, AnEngineHoldsWhatItsOldestReceiverHolds) {
  RunConfig config;
  config.engines.resize(2);
  config.engines[0].gate.name = "engine-0";
  config.engines[0].receivers = {{"receiver-0", "", ""}, {"receiver-1", "", ""}};
  config.engines[1].gate.name = "engine-1";
  config.engines[1].receivers = {{"receiver-2", "", ""}};
  RunStatus status;
  StatusReply gate;
  gate.gate_reason = "receiver-1 holds another version";
  gate.gate_for_ms = 2500;
  status.endpoints["engine-0"] = gate;
  status.endpoints["receiver-0"] = holding(VersionId{3, 4});
  status.endpoints["receiver-1"] = holding(VersionId{2, 2});
  std::vector<EngineStatus> engines = engines_of(config, status);
  ASSERT_EQ(engines.size(), 2U);
  EXPECT_EQ(engines[0].name, "engine-0");
  EXPECT_TRUE(engines[0].answered);
  EXPECT_FALSE(engines[0].open);
  EXPECT_EQ(engines[0].reason, "receiver-1 holds another version");
  EXPECT_EQ(engines[0].seconds, 2.5);
  EXPECT_EQ(engines[0].held, 2U);
  EXPECT_FALSE(engines[1].answered);
  EXPECT_EQ(engines[1].held, std::nullopt);
  status.endpoints["receiver-1"] = holding(std::nullopt);
  engines = engines_of(config, status);
  EXPECT_EQ(engines[0].held, std::nullopt);
}

TEST(Operator, EnginesThatNoConfigurationHasAreThoseOfTheControlPlane) {
  RunStatus status;
  const auto add = [&](const char* name, Role role, const char* engine) {
    Member member;
    member.endpoint = {name, 1};
    member.role = role;
    member.engine = engine;
    status.membership.members.push_back(member);
  };
  add("engine-b.0", Role::kReceiver, "engine-b");
  add("engine-a", Role::kGate, "");
  add("owner-0", Role::kOwner, "");
  status.endpoints["engine-b.0"] = holding(VersionId{1, 1});
  const std::vector<EngineStatus> engines = engines_of({}, status);
  ASSERT_EQ(engines.size(), 2U);
  EXPECT_EQ(engines[0].name, "engine-a");
  EXPECT_EQ(engines[1].name, "engine-b");
  EXPECT_EQ(engines[1].held, 1U);
}

}  // namespace
}  // namespace dcr
