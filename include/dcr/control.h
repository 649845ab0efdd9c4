// The control plane (paper Appendix B; docs/PROTOCOL.md rules 1, 2, 4, 6 and 7): the few records
// that decide which weights are committed, which attempt may change that, who leads, and who takes
// part.
//
// Every operation is one transaction: it checks what its comment says it requires and either does
// all of what it says, durably, or changes nothing. No operation reads a clock and nothing expires.
// All are linearizable, across processes too, and thread-safe.
//
// Errors that every operation may return, beside those that its comment names:
//   kInvalidArgument  the request itself is wrong; nothing was changed
//   kUnavailable      the store does not answer; nothing was changed
//   kUnknownOutcome   the store failed while it answered: the operation was done whole or not at
//                     all. Every operation may be repeated with the same arguments and then returns
//                     what it returned, or would have; `enrol` and `beat` count on, harmlessly.
//   kCorrupt, kUnsupported   the store holds what no store of this version holds: for the operator
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/options.h"
#include "dcr/status.h"

namespace dcr {

// Limits of what the records hold.
inline constexpr std::uint64_t kEndpointsMax = 16'384;
inline constexpr std::uint64_t kEndpointNameBytesMax = 64;
inline constexpr std::uint64_t kLabelBytesMax = 256;
inline constexpr std::uint64_t kNeedsBytesMax = std::uint64_t{1} << 20;
// Counters start at 0 or 1 and only ever grow by one; one above this is damage.
inline constexpr std::uint64_t kCounterMax = std::uint64_t{1} << 62;

// Random, made with the store; part of every message, payload and key.
using RunId = std::array<std::uint8_t, 16>;

// Which weights: version v, and the attempt that committed it (the identifier g of its baseline).
// The base that a run starts from is {0, 0}.
struct VersionId {
  std::uint64_t version = 0;
  std::uint64_t baseline = 0;
  bool operator==(const VersionId&) const = default;
};

// Every version but the base was committed by an attempt, and each attempt commits at most one.
bool plausible(VersionId id);

// K: changed by `commit` only.
struct CommitRecord {
  VersionId id;
  std::string label;  // the trainer's own name for these weights
  bool operator==(const CommitRecord&) const = default;
};

// A process in one of its lives. Names are letters, digits, '.', '_' and '-'. Incarnations are
// handed out by `enrol`, ascending over the whole run; 0 is none.
struct Endpoint {
  std::string name;
  std::uint64_t incarnation = 0;
  bool operator==(const Endpoint&) const = default;
};

// A set of weights as one owner knows it: made anew whenever its weights may have changed.
struct Candidate {
  std::uint64_t incarnation = 0;  // of the owner that made it; 0: unknown, equal to none
  std::uint64_t counter = 0;
  bool operator==(const Candidate&) const = default;
};

// What labels may be: kInvalidArgument says what is wrong.
Status check_label(const std::string& label);

enum class AttemptState : std::uint8_t { kNone = 0, kActive = 1, kObsolete = 2, kCommitted = 3 };

// "none", "active", "obsolete", "committed".
constexpr const char* attempt_state_name(AttemptState state) {
  switch (state) {
    case AttemptState::kNone:
      return "none";
    case AttemptState::kActive:
      return "active";
    case AttemptState::kObsolete:
      return "obsolete";
    case AttemptState::kCommitted:
      return "committed";
  }
  return "unknown";
}

struct OwnerBinding {
  Endpoint endpoint;
  Candidate candidate;
  // It must send all that it owns: the mode says so, or other weights than its candidate's may lie
  // on receivers. (An owner without the baseline of `base` does so by itself.)
  bool dense = false;
  bool operator==(const OwnerBinding&) const = default;
};

// Weights of which some may have been written to receivers since the last commit.
struct WrittenCandidate {
  std::string owner;
  Candidate candidate;  // unknown where there were several
  bool operator==(const WrittenCandidate&) const = default;
};

// The last attempt. Never removed and under no lease.
struct TransitionRecord {
  std::uint64_t attempt = 0;  // τ: counts all attempts of the run, from 1; 0: there was none
  std::uint64_t leader = 0;   // the token under which it was prepared
  VersionId base;     // K when it was prepared; its commit makes {base.version + 1, attempt}
  std::string label;  // that K gets
  AttemptMode mode = AttemptMode::kMixed;
  AttemptState state = AttemptState::kNone;
  std::array<std::uint8_t, 16>
      digest{};  // over catalogue, converters, every receiver's classification and layout
  // Whom it needs, in their incarnations; each ascending by name.
  std::vector<OwnerBinding> owners;
  std::vector<Endpoint> nodes;
  std::vector<Endpoint> receivers;
  // Ascending by owner. Outlives attempts until one is committed.
  std::vector<WrittenCandidate> written;

  // Receivers may hold a mixture: no attempt may be mixed.
  bool dirty() const { return !written.empty(); }
  bool operator==(const TransitionRecord&) const = default;
};

struct LeaderRow {
  Endpoint holder;          // nobody before the first claim
  std::uint64_t token = 0;  // raised by every claim
  std::uint64_t beat = 0;   // raised by the holder while it lives
  bool operator==(const LeaderRow&) const = default;
};

enum class Role : std::uint8_t {
  kCoordinator = 0,
  kOwner = 1,
  kNode = 2,
  kReceiver = 3,
  kGate = 4,  // an engine's request gate, under the engine's name: never joins, bound by nothing
};
std::string_view role_name(Role role);

enum class MemberState : std::uint8_t {
  kEnrolled = 0,  // has an incarnation and the fence; a receiver restores
  kWaiting = 1,   // joined while an attempt was active, or without a version: a prepare admits it
  kMember = 2,    // the next prepare binds it
};

// "enrolled", "waiting", "member".
constexpr const char* member_state_name(MemberState state) {
  switch (state) {
    case MemberState::kEnrolled:
      return "enrolled";
    case MemberState::kWaiting:
      return "waiting";
    case MemberState::kMember:
      return "member";
  }
  return "unknown";
}

// One endpoint. An incarnation that is not in its row is barred: a later one replaced it, or `bar`
// removed the row.
struct Member {
  Endpoint endpoint;
  Role role = Role::kOwner;
  std::string engine;  // of a receiver: those that serve a request together; else empty
  MemberState state = MemberState::kEnrolled;
  // Of a receiver that joined: the version that it proved then; of one that had none, what the
  // attempt that admitted it would commit (has_version).
  std::optional<VersionId> restored;
  std::uint64_t overtaken = 0;      // restores that a commit overtook since it last was a member
  std::vector<std::uint8_t> needs;  // what its join said; the control plane does not look into it
  bool operator==(const Member&) const = default;
};

// Whether a receiver that is a member holds what K's attempts began with, or made: some attempt
// that bound it was committed, or it joined by a version. Otherwise all of it has to be sent.
bool has_version(const Member& member, VersionId committed);

struct ControlRecords {
  RunId run{};
  CommitRecord commit;
  TransitionRecord transition;
  LeaderRow leader;
  std::uint64_t members_revision = 0;  // raised by every change of the membership
  bool operator==(const ControlRecords&) const = default;
};

struct Membership {
  ControlRecords records;
  std::vector<Member> members;  // ascending by name
  bool operator==(const Membership&) const = default;
};

// Those that a prepare over these members binds, coordinators and gates left out: every member, and
// every one waiting unless it is a receiver that restored another version than `committed`, or none
// while some receiver is bound that did: that one's next commit can be restored. In their order.
std::vector<const Member*> bound_members(const std::vector<Member>& members, VersionId committed);

struct EnrolRequest {
  std::string name;
  Role role = Role::kOwner;
  std::string engine;  // of a receiver
};

struct Enrolment {
  std::uint64_t incarnation = 0;
  ControlRecords records;  // of the same moment: transition.attempt is the endpoint's first fence
  bool operator==(const Enrolment&) const = default;
};

struct JoinRequest {
  Endpoint endpoint;
  // A receiver's proven version; nothing for others, and of a receiver that cannot restore K from
  // anybody: it waits for an attempt that sends all.
  std::optional<VersionId> restored;
  std::vector<std::uint8_t> needs;
};

enum class JoinOutcome : std::uint8_t {
  kJoined,     // a member, and its version is K's: a gate may open
  kAdmitted,   // a member by a prepare: the gate stays closed until that attempt's commit
  kWaiting,    // an attempt is active, or it has no version: ask again, or wait for a prepare
  kOvertaken,  // K moved on: restore again
};

struct Joined {
  JoinOutcome outcome = JoinOutcome::kWaiting;
  ControlRecords records;
  bool operator==(const Joined&) const = default;
};

struct OwnerCandidate {
  std::string owner;
  Candidate candidate;
};

struct PrepareRequest {
  std::uint64_t token = 0;             // of my leadership
  std::uint64_t after = 0;             // the last attempt that I know of
  std::uint64_t members_revision = 0;  // of the membership that all below was made from
  VersionId base;
  std::string label;
  AttemptMode mode = AttemptMode::kMixed;
  std::array<std::uint8_t, 16> digest{};
  std::vector<OwnerCandidate> candidates;  // of every owner that is bound, ascending by name
};

// What became of an attempt after which nothing can change it (paper: read_commit).
enum class AttemptOutcome : std::uint8_t { kCommitted, kNotCommitted, kConflict };

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  virtual Result<ControlRecords> read() = 0;

  // The endpoint's row, or nothing: how an endpoint learns that it is barred.
  virtual Result<std::optional<Member>> read_member(const std::string& name) = 0;

  virtual Result<Membership> read_members() = 0;

  // Gives an endpoint a new incarnation and bars its earlier ones. What a running attempt has bound
  // stays bound; with a bound incarnation gone it cannot be acknowledged. Errors: kMismatch, the
  // name is that of an endpoint of another role; kTooLarge, kEndpointsMax.
  virtual Result<Enrolment> enrol(const EnrolRequest& request) = 0;

  // Makes the endpoint a member: at once if no attempt is active, else through the next prepare. A
  // receiver must have restored exactly K, or waits without a version. Errors: kConflict, the
  // incarnation is barred; kInvalidArgument for a gate.
  virtual Result<Joined> join(const JoinRequest& request) = 0;

  // Bars incarnations; needs no proof of their death. Endpoints that are gone or live on in a later
  // incarnation are passed over. Requires the leader's token and that no attempt is active. Errors:
  // kLostLeadership, kConflict.
  virtual Result<ControlRecords> bar(std::uint64_t token, const std::vector<Endpoint>& barred) = 0;

  // Takes leadership from the holder that the caller saw as `seen` for as long as it takes to call
  // it dead: requires that neither token nor beat moved since. Makes an active attempt obsolete.
  // The records have the new token. Errors: kConflict, the leader lives or another claimed; also if
  // `holder` is no enrolled coordinator.
  virtual Result<ControlRecords> claim(const Endpoint& holder, const LeaderRow& seen) = 0;

  // Raises the beat. Error: kLostLeadership.
  virtual Result<LeaderRow> beat(std::uint64_t token) = 0;

  // Begins attempt `after` + 1, binds the members and admits those waiting. Requires: the leader's
  // token; `after` the last attempt, and not active; K = `base`; `members_revision` the current
  // one; at least one owner and one receiver; no mixed mode while the record is dirty, and none but
  // dense where a receiver is bound that has no version. Errors: kLostLeadership; kConflict
  // for the others, for then the caller's view is out of date.
  virtual Result<TransitionRecord> prepare(const PrepareRequest& request) = 0;

  // Before the first open_apply is sent: notes that this attempt's candidates may be written from
  // now on. Requires that `attempt` is the active one. Error: kConflict.
  virtual Result<TransitionRecord> open(std::uint64_t attempt) = 0;

  // K := {base.version + 1, attempt}, with the label. Requires that `attempt` is active and K its
  // base. Error: kConflict.
  virtual Result<ControlRecords> commit(std::uint64_t attempt) = 0;

  // Ends the attempt unless it was committed or is over already: after success neither it nor an
  // earlier one can be committed any more. Asks for no token.
  virtual Result<ControlRecords> mark_obsolete(std::uint64_t attempt) = 0;

  // The operator's way out: ends an active attempt and, unless the last one was committed, has all
  // owners send everything next time. Error: kLostLeadership.
  virtual Result<ControlRecords> abort_transition(std::uint64_t token) = 0;

  // Whether `attempt`, which was prepared on `base`, was committed: final. As mark_obsolete.
  Result<AttemptOutcome> read_commit(std::uint64_t attempt, VersionId base);
};

}  // namespace dcr
