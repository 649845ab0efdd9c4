// Random operations on two stores: SQLite's gives what the reference gives, step for step, while
// clients go away and come back and replies are lost.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "base/prng.h"
#include "tests/control_store.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

struct Name {
  const char* name;
  Role role;
};
constexpr Name kNames[] = {
    {"c.0", Role::kCoordinator}, {"c.1", Role::kCoordinator}, {"o.0", Role::kOwner},
    {"o.1", Role::kOwner},       {"n.0", Role::kNode},        {"r.0", Role::kReceiver},
    {"r.1", Role::kReceiver},    {"r.2", Role::kReceiver},    {"e", Role::kGate}};

template <typename Value>
void expect_same(const Result<Value>& given, const Result<Value>& expected) {
  ASSERT_EQ(given.status().code(), expected.status().code()) << given.status().message();
  ASSERT_EQ(given.status().message(), expected.status().message());
  if (expected.ok()) {
    ASSERT_TRUE(*given == *expected);
  }
}

// What holds between the records before and after any operation.
void expect_lawful(const ControlRecords& before, const ControlRecords& after) {
  const TransitionRecord &old_one = before.transition, &new_one = after.transition;
  ASSERT_EQ(after.run, before.run);
  ASSERT_GE(after.leader.token, before.leader.token);
  ASSERT_GE(new_one.attempt, old_one.attempt);
  ASSERT_LE(new_one.attempt, old_one.attempt + 1);
  if (after.commit != before.commit) {
    ASSERT_EQ(old_one.state, AttemptState::kActive);
    ASSERT_EQ(new_one.state, AttemptState::kCommitted);
    ASSERT_EQ(after.commit.id, (VersionId{before.commit.id.version + 1, old_one.attempt}));
    ASSERT_FALSE(new_one.dirty());
  } else if (old_one.dirty()) {
    ASSERT_TRUE(new_one.dirty());
    ASSERT_TRUE(new_one.attempt == old_one.attempt || new_one.mode != AttemptMode::kMixed);
  }
  if (new_one.attempt == old_one.attempt) {
    ASSERT_TRUE(new_one.state == old_one.state || old_one.state == AttemptState::kActive);
  } else {
    ASSERT_NE(old_one.state, AttemptState::kActive);
    ASSERT_EQ(new_one.state, AttemptState::kActive);
  }
  if (after.leader.token != before.leader.token) {
    ASSERT_NE(new_one.state, AttemptState::kActive);
  }
}

class Walk {
 public:
  explicit Walk(std::uint64_t seed) : prng_(seed) {}

  void run(std::uint64_t steps) {
    set_up();
    for (std::uint64_t i = 0; i < steps; ++i) {
      const ControlRecords before = *reference_.client(0).read();
      step();
      if (::testing::Test::HasFatalFailure()) return;
      const Membership after = *reference_.client(0).read_members();
      expect_lawful(before, after.records);
      if (prng_.below(20) == 0) sqlite_.reopen();
      expect_same<Membership>(client().read_members(), after);
      if (::testing::Test::HasFatalFailure()) return;
      if (after.records.commit != before.commit) ++commits_;
    }
  }
  std::uint64_t commits() const { return commits_; }

 private:
  ControlPlane& client() { return sqlite_.client(static_cast<unsigned>(prng_.below(2))); }
  bool rarely() { return prng_.below(8) == 0; }

  // Does it on both. Sometimes the reply of the first try is lost.
  template <typename Value>
  void both(const std::function<Result<Value>(ControlPlane&)>& operation, bool repeatable = true) {
    if (repeatable && prng_.below(4) == 0) static_cast<void>(operation(client()));
    expect_same<Value>(operation(client()), operation(reference_.client(0)));
  }

  Membership members() { return *reference_.client(0).read_members(); }
  Endpoint endpoint(const std::string& name) {
    const auto row = *reference_.client(0).read_member(name);
    const std::uint64_t incarnation = row ? row->endpoint.incarnation : 1;
    return {name, rarely() && incarnation > 1 ? incarnation - 1 : incarnation};
  }
  // One that is near the current one, and mostly it.
  std::uint64_t near(std::uint64_t current) {
    return rarely() ? current + prng_.below(3) - std::min<std::uint64_t>(current, 1) : current;
  }

  void step() {
    const ControlRecords records = members().records;
    const std::uint64_t attempt = near(records.transition.attempt);
    const std::uint64_t token = near(records.leader.token);
    switch (prng_.below(14)) {
      case 0:
        return enrol();
      case 1:
      case 2:
      case 3:
        return join(records);
      case 4:
        return bar(token);
      case 5:
        return claim(records);
      case 6:
        return both<LeaderRow>([=](ControlPlane& on) { return on.beat(token); }, false);
      case 7:
      case 8:
        return prepare(token);
      case 9:
        return both<TransitionRecord>([=](ControlPlane& on) { return on.open(attempt); });
      case 10:
      case 11:
        return both<ControlRecords>([=](ControlPlane& on) { return on.commit(attempt); });
      case 12:
        return both<ControlRecords>([=](ControlPlane& on) { return on.mark_obsolete(attempt); });
      default:
        if (!rarely()) return enrol();
        return both<ControlRecords>([=](ControlPlane& on) { return on.abort_transition(token); });
    }
  }

  // All there are, joined, and led by the first.
  void set_up() {
    for (const Name& each : kNames) {
      const bool receiver = each.role == Role::kReceiver;
      const EnrolRequest request{each.name, each.role, receiver ? "e" : ""};
      both<Enrolment>([&](ControlPlane& on) { return on.enrol(request); }, false);
      JoinRequest joining;
      joining.endpoint = reference_.client(0).read_member(each.name).value()->endpoint;
      if (receiver) joining.restored = VersionId{};
      both<Joined>([&](ControlPlane& on) { return on.join(joining); });
    }
    const Endpoint holder = reference_.client(0).read_member("c.0").value()->endpoint;
    both<ControlRecords>([&](ControlPlane& on) { return on.claim(holder, {}); });
  }

  void enrol() {
    const Name& chosen = kNames[prng_.below(std::size(kNames))];
    const Role role = rarely() ? Role::kOwner : chosen.role;
    const EnrolRequest request{chosen.name, role, role == Role::kReceiver ? "e" : ""};
    both<Enrolment>([&](ControlPlane& on) { return on.enrol(request); }, false);
  }

  void join(const ControlRecords& records) {
    const Name& chosen = kNames[prng_.below(std::size(kNames))];
    JoinRequest request;
    request.endpoint = endpoint(chosen.name);
    if (chosen.role == Role::kReceiver) request.restored = records.commit.id;
    if (rarely()) request.restored = VersionId{prng_.below(3), prng_.below(3)};
    if (rarely()) request.restored.reset();
    request.needs.assign(prng_.below(4), static_cast<std::uint8_t>(prng_.below(256)));
    both<Joined>([&](ControlPlane& on) { return on.join(request); });
  }

  void bar(std::uint64_t token) {
    std::vector<Endpoint> barred;
    for (const Name& each : kNames) {
      if (prng_.below(6) == 0) barred.push_back(endpoint(each.name));
    }
    both<ControlRecords>([&](ControlPlane& on) { return on.bar(token, barred); });
  }

  void claim(const ControlRecords& records) {
    const Endpoint holder = endpoint(kNames[prng_.below(3)].name);
    LeaderRow seen = records.leader;
    seen.beat = near(seen.beat);
    both<ControlRecords>([&](ControlPlane& on) { return on.claim(holder, seen); });
  }

  void prepare(std::uint64_t token) {
    const Membership all = members();
    PrepareRequest request;
    request.token = token;
    request.after = near(all.records.transition.attempt);
    request.members_revision = near(all.records.members_revision);
    request.base = all.records.commit.id;
    request.label = std::to_string(prng_.below(100));
    request.mode = static_cast<AttemptMode>(prng_.below(3));
    request.digest.fill(static_cast<std::uint8_t>(prng_.below(256)));
    for (const Member* member : bound_members(all.members, request.base)) {
      if (member->role != Role::kOwner || prng_.below(30) == 0) continue;
      request.candidates.push_back(
          {member->endpoint.name, {member->endpoint.incarnation, prng_.below(3)}});
    }
    both<TransitionRecord>([&](ControlPlane& on) { return on.prepare(request); });
  }

  Prng prng_;
  MemoryStore reference_;
  SqliteStore sqlite_{TempDirectory::in_memory()};
  std::uint64_t commits_ = 0;
};

TEST(ControlProperty, SqliteIsTheReferenceStepForStep) {
  std::uint64_t commits = 0;
  for (std::uint64_t seed = 0; seed < campaign_cases(100); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed);
    walk.run(200);
    if (HasFatalFailure()) return;
    commits += walk.commits();
  }
  EXPECT_GE(commits, campaign_cases(100));
}

}  // namespace
}  // namespace dcr
