#include "control/records.h"

#include <gtest/gtest.h>

#include "base/digest.h"
#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

TransitionRecord transition() {
  TransitionRecord made;
  made.attempt = 7;
  made.leader = 2;
  made.base = {3, 5};
  made.label = "step 400";
  made.mode = AttemptMode::kOverwrite;
  made.state = AttemptState::kObsolete;
  made.digest = {1, 2, 3};
  made.owners = {{{"owner.0", 4}, {4, 300}, false}, {{"owner.1", 5}, {5, 2}, true}};
  made.nodes = {{"node.0", 6}};
  made.receivers = {{"receiver.0", 7}, {"receiver.1", 200}};
  made.written = {{"owner.0", {4, 300}}, {"owner.1", {}}};
  return made;
}

Member member() {
  Member made;
  made.endpoint = {"receiver.0", 9};
  made.role = Role::kReceiver;
  made.engine = "engine.0";
  made.state = MemberState::kWaiting;
  made.restored = VersionId{2, 3};
  made.overtaken = 1;
  made.needs = {0, 1, 2, 255};
  return made;
}

ControlHead head() { return {{1, 2, 3}, {{4, 9}, "a label"}, {{"c", 3}, 8, 1000}, 77, 12}; }

// `blob` with `change` made to what its digest covers, under a digest that fits.
template <typename Change>
Bytes forge(Bytes blob, Change change) {
  blob.resize(blob.size() - sizeof(Digest));
  change(&blob);
  const Digest digest = blake2b(blob);
  blob.insert(blob.end(), digest.begin(), digest.end());
  return blob;
}

TEST(Records, ComeBackAsTheyWere) {
  EXPECT_EQ(*decode_transition(encode_transition(transition())), transition());
  EXPECT_EQ(*decode_transition(encode_transition({})), TransitionRecord{});
  EXPECT_EQ(*decode_member(encode_member(member())), member());
  const ControlHead back = *decode_head(encode_head(head()));
  EXPECT_EQ(back.run, head().run);
  EXPECT_EQ(back.commit, head().commit);
  EXPECT_EQ(back.leader, head().leader);
  EXPECT_EQ(back.members_revision, 77U);
  EXPECT_EQ(back.incarnations, 12U);
}

TEST(Records, OfLaterFormatsAreRefused) {
  const Bytes later = forge(encode_member(member()), [](Bytes* blob) { (*blob)[1] = 1; });
  const Status status = decode_member(later).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(), "a member's record has format 1; this build knows format 0");
}

TEST(Records, OfAnotherKindAreRefused) {
  EXPECT_EQ(decode_head(encode_member(member())).status().message(),
            "the head of the control plane's records is a record of another kind");
  EXPECT_EQ(decode_member({}).status().message(), "a member's record is cut short");
}

TEST(Records, EveryDamagedByteIsSeen) {
  const Bytes whole = encode_transition(transition());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Bytes damaged = whole;
    damaged[at] ^= 0x10;
    EXPECT_EQ(decode_transition(damaged).status().message(),
              "the transition record is damaged: its digest differs");
    EXPECT_EQ(decode_transition(ByteSpan(whole).first(at)).status().code(), Code::kCorrupt);
  }
}

// Whatever is accepted is what writing it would give: no two blobs mean the same.
TEST(Records, ForgedOnesAreCanonicalOrRefused) {
  const Bytes blobs[] = {encode_head(head()), encode_transition(transition()),
                         encode_member(member())};
  std::uint64_t accepted = 0;
  for (std::uint64_t seed = 0; seed < campaign_cases(200'000); ++seed) {
    Prng prng(seed);
    const Bytes forged = forge(blobs[seed % 3], [&prng](Bytes* blob) {
      for (std::uint64_t i = 0; i <= prng.below(3); ++i) {
        const std::size_t at = 2 + prng.below(blob->size() - 2);
        if (prng.below(4) == 0) {
          blob->erase(blob->begin() + static_cast<std::ptrdiff_t>(at));
        } else {
          (*blob)[at] = static_cast<std::uint8_t>(prng.next());
        }
      }
    });
    if (seed % 3 == 0) {
      const Result<ControlHead> read = decode_head(forged);
      if (!read.ok()) continue;
      EXPECT_EQ(encode_head(*read), forged) << seed;
    } else if (seed % 3 == 1) {
      const Result<TransitionRecord> read = decode_transition(forged);
      if (!read.ok()) continue;
      EXPECT_EQ(encode_transition(*read), forged) << seed;
    } else {
      const Result<Member> read = decode_member(forged);
      if (!read.ok()) continue;
      EXPECT_EQ(encode_member(*read), forged) << seed;
    }
    ++accepted;
  }
  EXPECT_GT(accepted, 0U);
}

TransitionRecord with(void (*change)(TransitionRecord*)) {
  TransitionRecord made = transition();
  change(&made);
  return made;
}

TEST(Records, WhatNoTransactionLeavesIsRefused) {
  const TransitionRecord wrong[] = {
      with([](TransitionRecord* t) { t->state = AttemptState::kNone; }),
      with([](TransitionRecord* t) { t->state = AttemptState::kCommitted; }),
      with([](TransitionRecord* t) { t->base.baseline = 7; }),
      with([](TransitionRecord* t) {
        t->base = {0, 1};
      }),
      with([](TransitionRecord* t) { t->leader = 0; }),
      with([](TransitionRecord* t) { t->label = "\n"; }),
      with([](TransitionRecord* t) { t->owners.clear(); }),
      with([](TransitionRecord* t) { t->receivers.clear(); }),
      with([](TransitionRecord* t) { std::swap(t->owners[0], t->owners[1]); }),
      with([](TransitionRecord* t) { t->nodes.push_back(t->nodes[0]); }),
      with([](TransitionRecord* t) { t->nodes[0].name = "a b"; }),
      with([](TransitionRecord* t) { t->nodes[0].incarnation = 0; }),
      with([](TransitionRecord* t) { t->nodes[0].incarnation = kCounterMax + 1; }),
      with([](TransitionRecord* t) { t->owners[0].candidate.incarnation = 9; })};
  for (const TransitionRecord& each : wrong) {
    EXPECT_EQ(decode_transition(encode_transition(each)).status().message(),
              "the transition record holds what no store writes");
  }
}

TEST(Records, GatesAreNoMembers) {
  Member gate;
  gate.endpoint = {"engine.0", 3};
  gate.role = Role::kGate;
  EXPECT_EQ(*decode_member(encode_member(gate)), gate);
  Member joined = gate, asking = gate;
  joined.state = MemberState::kWaiting;
  asking.needs = {1};
  for (const Member& wrong : {joined, asking}) {
    EXPECT_EQ(decode_member(encode_member(wrong)).status().message(),
              "a member's record holds what no store writes");
  }
}

}  // namespace
}  // namespace dcr
