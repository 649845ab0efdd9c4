#include "protocol/coordinator_gather.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

class GatherTest : public ::testing::Test {
 public:
  Membership members;
  AskedRefits asked;
  std::uint64_t incarnations = 0;

  Member& add(const std::string& name, Role role, Bytes details,
              MemberState state = MemberState::kMember) {
    Member member;
    member.endpoint = {name, ++incarnations};
    member.role = role;
    member.state = state;
    member.needs = std::move(details);
    if (role == Role::kReceiver) {
      member.engine = "engine-" + name.substr(name.size() - 1);
      member.restored = VersionId{};
    }
    members.members.push_back(member);
    std::sort(members.members.begin(), members.members.end(),
              [](const Member& a, const Member& b) { return a.endpoint.name < b.endpoint.name; });
    return *std::find_if(members.members.begin(), members.members.end(),
                         [&name](const Member& of) { return of.endpoint.name == name; });
  }
  void owner(const std::string& name, std::uint32_t rank, std::uint32_t owners,
             std::uint8_t catalogue = 7) {
    add(name, Role::kOwner, encode_owner_details({rank, owners, {catalogue}}));
  }
  void receiver(const std::string& name, const std::string& node, std::vector<Need> needs,
                std::uint8_t catalogue = 7) {
    add(name, Role::kReceiver, encode_receiver_details({node, {catalogue}, {1}, std::move(needs)}));
  }
  void ask(const std::string& name, const std::string& label = "next", bool asynchronous = false) {
    for (const Member& member : members.members) {
      if (member.endpoint.name != name) continue;
      asked[name] = {member.endpoint,
                     {{member.endpoint.incarnation, 1}, label, VersionId{}, asynchronous, 1}};
    }
  }
  // Two owners whose names are not in the order of their ranks, and what an attempt needs besides.
  void whole() {
    owner("owner-a", 1, 2);
    owner("owner-b", 0, 2);
    add("node-0", Role::kNode, {});
    receiver("receiver-0", "node-0", {Need::kAny, Need::kOverwrite, Need::kSkip, Need::kSkip});
    receiver("receiver-1", "node-0", {Need::kDense, Need::kAny, Need::kAny, Need::kSkip});
    members.records.members_revision = 17;
    members.records.transition.attempt = 3;
    ask("owner-a");
    ask("owner-b");
  }
  RefusedMembers refused;
  Gathered gather() { return gather_refit(members, asked, refused); }
  static std::vector<std::string> names(const std::vector<Endpoint>& endpoints) {
    std::vector<std::string> names;
    for (const Endpoint& endpoint : endpoints) names.push_back(endpoint.name);
    return names;
  }
};

using Names = std::vector<std::string>;

TEST_F(GatherTest, AttemptsAreMadeOfMembersAndRequests) {
  whole();
  const Gathered made = gather();
  EXPECT_EQ(made.waits_for, "");
  EXPECT_TRUE(made.asked);
  EXPECT_EQ(made.request.after, 3U);
  EXPECT_EQ(made.request.members_revision, 17U);
  EXPECT_EQ(made.request.label, "next");
  EXPECT_EQ(made.request.mode, AttemptMode::kMixed);
  ASSERT_EQ(made.request.candidates.size(), 2U);
  EXPECT_EQ(made.request.candidates[0].owner, "owner-a");  // by name
  EXPECT_EQ(made.request.candidates[0].candidate, (Candidate{1, 1}));
  ASSERT_EQ(made.prepare.owners.size(), 2U);
  EXPECT_EQ(made.prepare.owners[0].endpoint.name, "owner-b");  // by rank
  EXPECT_EQ(made.prepare.owners[0].candidate, (Candidate{2, 1}));
  ASSERT_EQ(made.prepare.receivers.size(), 2U);
  EXPECT_EQ(made.prepare.receivers[1],
            (Prepare::Receiver{{"receiver-1", 5}, "engine-1", "node-0"}));
  EXPECT_EQ(made.prepare.needs,
            (std::vector<Need>{Need::kDense, Need::kOverwrite, Need::kAny, Need::kSkip}));
}

TEST_F(GatherTest, NeedsAreWhatAnyReceiverNeedsAtMost) {
  const Need all[] = {Need::kAny, Need::kOverwrite, Need::kDense, Need::kSkip};
  const Need expected[4][4] = {{Need::kAny, Need::kOverwrite, Need::kDense, Need::kAny},
                               {Need::kOverwrite, Need::kOverwrite, Need::kDense, Need::kOverwrite},
                               {Need::kDense, Need::kDense, Need::kDense, Need::kDense},
                               {Need::kAny, Need::kOverwrite, Need::kDense, Need::kSkip}};
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b < 4; ++b) {
      members = {};
      owner("owner-0", 0, 1);
      add("node-0", Role::kNode, {});
      receiver("receiver-0", "node-0", {all[a]});
      receiver("receiver-1", "node-0", {all[b]});
      ask("owner-0");
      EXPECT_EQ(gather().prepare.needs, std::vector<Need>{expected[a][b]}) << a << " " << b;
    }
  }
  receiver("receiver-2", "node-0", {});  // any of each
  EXPECT_EQ(gather().prepare.needs, std::vector<Need>{Need::kAny});
}

TEST_F(GatherTest, TheDigestCoversAllThatJoinsSaid) {
  whole();
  const Digest digest = gather().request.digest;
  EXPECT_EQ(gather().request.digest, digest);
  const std::vector<Member> before = members.members;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].role != Role::kReceiver) continue;
    members.members = before;
    const ReceiverDetails said = *decode_receiver_details(before[i].needs);
    for (ReceiverDetails other : {said, said, said}) {
      other.fingerprint[3] ^= 1;
      members.members[i].needs = encode_receiver_details(other);
      EXPECT_NE(gather().request.digest, digest) << i;
    }
    members.members[i] = before[i];
    members.members[i].engine = "another";
    EXPECT_NE(gather().request.digest, digest) << i;
  }
}

TEST_F(GatherTest, NothingIsMadeWithoutEverybody) {
  whole();
  const AskedRefits all = asked;
  asked.clear();
  EXPECT_EQ(gather().waits_for, "a refit");
  EXPECT_FALSE(gather().asked);
  asked = all;
  asked.erase("owner-a");
  EXPECT_EQ(gather().waits_for, "owner-a to ask for a refit");
  asked = all;
  asked["owner-a"].owner.incarnation = 9;  // of another life
  EXPECT_EQ(gather().waits_for, "owner-a to ask for a refit");
  asked = all;
  const std::vector<Member> before = members.members;
  std::erase_if(members.members, [](const Member& of) { return of.endpoint.name == "owner-a"; });
  EXPECT_EQ(gather().waits_for, "an owner of rank 1 of 2 to join");
  members.members = before;
  std::erase_if(members.members, [](const Member& of) { return of.role == Role::kReceiver; });
  EXPECT_EQ(gather().waits_for, "a receiver to join");
  members.members = before;
  for (Member& member : members.members) {
    if (member.endpoint.name == "owner-b") member.state = MemberState::kEnrolled;
  }
  EXPECT_EQ(gather().waits_for, "an owner of rank 0 of 2 to join");
}

TEST_F(GatherTest, ReceiversWithoutTheirNodeAreNamed) {
  whole();
  receiver("receiver-2", "node-9", {Need::kAny, Need::kAny, Need::kAny, Need::kAny});
  const Gathered made = gather();
  EXPECT_EQ(names(made.unfed), Names{"receiver-2"});
  EXPECT_EQ(made.unfed_node, "node-9");
}

// An engine of which one receiver takes no part cannot serve.
TEST_F(GatherTest, EnginesThatCannotServeAreNotWaitedFor) {
  whole();
  const Failure why{Code::kUnsupported, "w", "w cannot be refitted exactly"};
  refused["receiver-0"] = {{"receiver-0", 4}, why};  // of engine-0
  EXPECT_EQ(gather().waits_for, "");                 // there is another engine
  EXPECT_EQ(gather().no_engine, std::nullopt);
  std::erase_if(members.members, [](const Member& of) { return of.endpoint.name == "receiver-1"; });
  EXPECT_EQ(gather().waits_for,
            "a receiver to join; receiver-0 takes no part: w cannot be refitted exactly");
  EXPECT_EQ(gather().no_engine,
            (Failure{Code::kUnsupported, "w",
                     "no engine can take the refit: receiver-0 takes no part: w cannot be refitted "
                     "exactly"}));
  receiver("receiver-2", "node-0", {Need::kAny, Need::kAny, Need::kAny, Need::kAny});
  for (Member& member : members.members) {
    if (member.role == Role::kReceiver) member.engine = "engine-0";
  }
  EXPECT_TRUE(gather().no_engine.has_value());     // its other rank is fit, and serves nothing
  refused["receiver-0"].receiver.incarnation = 1;  // of an earlier life
  EXPECT_EQ(gather().waits_for, "");
}

TEST_F(GatherTest, WhomNoAttemptCanBindIsNamed) {
  whole();
  receiver("receiver-2", "node-0", {Need::kAny, Need::kAny, Need::kAny, Need::kAny}, 8);
  EXPECT_EQ(names(gather().unfit), Names{"receiver-2"});
  EXPECT_EQ(gather().unfit_why,
            "receiver-2 (incarnation 6) was prewarmed for another catalogue than the owners'; "
            "restart it with theirs");
  members.members.pop_back();
  receiver("receiver-3", "node-0", {Need::kAny});
  EXPECT_EQ(gather().unfit_why,
            "receiver-3 (incarnation 7) counts other canonical tensors than receivers before it");
  members.members.pop_back();
  add("receiver-4", Role::kReceiver, {9});
  EXPECT_EQ(gather().unfit_why,
            "receiver-4 (incarnation 8) joined with what is no receiver's: a receiver's details "
            "have format 9; this build knows format 0");
  members.members.pop_back();
  add("owner-c", Role::kOwner, {});
  EXPECT_EQ(names(gather().unfit), Names{"owner-c"});
}

// A source whose membership changed: the owners that are left from before are not waited for.
TEST_F(GatherTest, OwnersOfAnEarlierSourceAreUnfit) {
  whole();
  owner("owner-x", 0, 1);
  EXPECT_EQ(gather().waits_for, "");  // it does not ask, so the others go on
  EXPECT_EQ(names(gather().unfit), Names{"owner-x"});
  ask("owner-x");  // it began last
  EXPECT_EQ(names(gather().unfit), (Names{"owner-a", "owner-b"}));
  members.members.clear();
  whole();
  owner("owner-y", 1, 2);  // took the place of owner-a under another name
  ask("owner-y");
  EXPECT_EQ(names(gather().unfit), Names{"owner-a"});
  members.members.clear();
  whole();
  owner("owner-z", 1, 2, 9);  // another catalogue
  EXPECT_EQ(names(gather().unfit), Names{"owner-z"});
}

TEST_F(GatherTest, OwnersThatAskForDifferentThingsAreRefused) {
  whole();
  ask("owner-a", "other");
  ASSERT_TRUE(gather().refused.has_value());
  EXPECT_EQ(gather().refused->message,
            "owners ask for different refits: owner-b and owner-a under the labels \"next\" and "
            "\"other\"");
  ask("owner-a", "next", true);
  EXPECT_EQ(gather().refused->message,
            "owners ask for different refits: of owner-b and owner-a only one asynchronous");
}

TEST_F(GatherTest, ADirtyRecordIsOverwritten) {
  whole();
  members.records.transition.written = {{"owner-a", {1, 1}}};
  EXPECT_EQ(gather().request.mode, AttemptMode::kOverwrite);
}

TEST_F(GatherTest, ReceiversThatWereOvertakenAreNamedWhileTheyRestore) {
  whole();
  add("receiver-2", Role::kReceiver, {}, MemberState::kEnrolled).overtaken = 2;
  add("receiver-3", Role::kReceiver, {}, MemberState::kEnrolled);
  members.members.front().overtaken = 0;
  EXPECT_EQ(gather().overtaken, (std::map<std::string, std::uint64_t>{{"receiver-2", 2}}));
}

TEST_F(GatherTest, WhatIsCommittedAlreadyIsNotAskedFor) {
  whole();
  TransitionRecord& last = members.records.transition;
  last.state = AttemptState::kCommitted;
  last.owners = {{{"owner-a", 1}, {1, 1}, false}, {{"owner-b", 2}, {2, 1}, false}};
  members.records.commit = {{1, 3}, "next"};
  for (Member& member : members.members) {
    if (member.role == Role::kReceiver) member.restored = members.records.commit.id;
  }
  EXPECT_EQ(gather().ended, (Names{"owner-a", "owner-b"}));
  EXPECT_EQ(gather().waits_for, "a refit");
  // They know of the commit, and ask for the same weights again.
  for (auto& [name, refit] : asked) refit.request.baseline = members.records.commit.id;
  EXPECT_EQ(gather().ended, Names{});
  EXPECT_EQ(gather().waits_for, "");
  for (auto& [name, refit] : asked) {
    refit.request.baseline = VersionId{};
    refit.request.label = "under another label";
  }
  EXPECT_EQ(gather().ended, Names{});
}

TEST_F(GatherTest, EnginesAreRetiredWhole) {
  whole();
  receiver("receiver-20", "node-0", {});  // engine-0 as receiver-0
  EXPECT_EQ(names(with_engines(members, {{"receiver-0", 4}})),
            (Names{"receiver-0", "receiver-20"}));
  EXPECT_EQ(names(with_engines(members, {{"owner-a", 1}})), Names{"owner-a"});
  EXPECT_EQ(names(with_engines(members, {{"receiver-0", 3}})), Names{"receiver-0"});  // not alive
}

}  // namespace
}  // namespace dcr
