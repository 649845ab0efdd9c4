#include "control/records.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/endpoint_name.h"
#include "control/transactions.h"

namespace dcr {
namespace {

constexpr std::uint8_t kFormat = 0;
constexpr std::uint8_t kHead = 1, kTransition = 2, kMember = 3;
constexpr std::size_t kDigestBytes = sizeof(Digest);

// 4 lists of kEndpointsMax entries of a name and at most four numbers of ten bytes.
static_assert(4 * kEndpointsMax * (kEndpointNameBytesMax + 41) + 2048 <= kRecordBytesMax);
static_assert(kNeedsBytesMax + 2048 <= kRecordBytesMax);

class RecordWriter {
 public:
  explicit RecordWriter(std::uint8_t kind) : out_(&bytes_) {
    out_.u8(kind);
    out_.u8(kFormat);
  }

  void number(std::uint64_t value) { out_.varint(value); }
  template <typename Enum>
  void choice(Enum value) {
    out_.u8(static_cast<std::uint8_t>(value));
  }
  void fixed(const std::array<std::uint8_t, 16>& value) { out_.bytes(value); }
  void text(const std::string& value) {
    out_.varint(value.size());
    out_.text(value);
  }
  void bytes(ByteSpan value) {
    out_.varint(value.size());
    out_.bytes(value);
  }
  void endpoint(const Endpoint& value) {
    text(value.name);
    number(value.incarnation);
  }
  void candidate(const Candidate& value) {
    number(value.incarnation);
    number(value.counter);
  }
  void version(VersionId value) {
    number(value.version);
    number(value.baseline);
  }

  Bytes finish() {
    out_.bytes(blake2b(bytes_));
    return std::move(bytes_);
  }

 private:
  Bytes bytes_;
  ByteWriter out_;
};

// Reads fields; what does not hold makes the reader fail, once and for all.
class RecordReader {
 public:
  explicit RecordReader(ByteSpan body) : in_(body) {}

  void require(bool holds) { valid_ = valid_ && holds; }
  bool valid() const { return valid_ && in_.ok(); }
  bool complete() const { return valid() && in_.remaining() == 0; }

  std::uint64_t number() {
    const std::uint64_t value = in_.varint();
    require(value <= kCounterMax);
    return value;
  }
  template <typename Enum>
  Enum choice(Enum last) {
    const std::uint8_t value = in_.u8();
    require(value <= static_cast<std::uint8_t>(last));
    return valid() ? static_cast<Enum>(value) : Enum{};
  }
  bool flag() {
    const std::uint8_t value = in_.u8();
    require(value <= 1);
    return value == 1;
  }
  std::array<std::uint8_t, 16> fixed() {
    std::array<std::uint8_t, 16> value{};
    const ByteSpan taken = in_.bytes(value.size());
    if (!taken.empty()) std::copy(taken.begin(), taken.end(), value.begin());
    return value;
  }
  std::string label() {
    std::string value(in_.text(in_.varint()));
    require(check_label(value).ok());
    return value;
  }
  std::string name() {
    std::string value(in_.text(in_.varint()));
    require(check_endpoint_name(value).ok());
    return value;
  }
  Bytes bytes(std::uint64_t bytes_max) {
    const std::uint64_t size = in_.varint();
    require(size <= bytes_max);
    if (!valid()) return {};
    const ByteSpan taken = in_.bytes(size);
    return {taken.begin(), taken.end()};
  }
  Endpoint endpoint() {
    Endpoint value{name(), number()};
    require(value.incarnation > 0);
    return value;
  }
  Candidate candidate() {
    Candidate value;
    value.incarnation = number();
    value.counter = number();
    return value;
  }
  VersionId version() {
    VersionId value;
    value.version = number();
    value.baseline = number();
    require(plausible(value));
    return value;
  }
  // Entries ascending by the name that `name_of` gives.
  template <typename Entry, typename Read, typename NameOf>
  std::vector<Entry> list(Read read, NameOf name_of) {
    const std::uint64_t count = in_.varint();
    require(count <= kEndpointsMax);
    std::vector<Entry> entries;
    for (std::uint64_t i = 0; valid() && i < count; ++i) {
      entries.push_back(read());
      if (i > 0) require(name_of(entries[entries.size() - 2]) < name_of(entries.back()));
    }
    return entries;
  }

 private:
  ByteReader in_;
  bool valid_ = true;
};

// Looks at the frame of a blob and returns its fields.
Result<ByteSpan> open_record(ByteSpan blob, std::uint8_t kind, const char* what) {
  if (blob.size() < 2 + kDigestBytes) {
    return Status(Code::kCorrupt, std::string(what) + " is cut short");
  }
  const ByteSpan covered = blob.first(blob.size() - kDigestBytes);
  Digest stored;
  std::copy(blob.end() - kDigestBytes, blob.end(), stored.begin());
  if (!digest_equal(stored, blake2b(covered))) {
    return Status(Code::kCorrupt, std::string(what) + " is damaged: its digest differs");
  }
  if (covered[0] != kind) {
    return Status(Code::kCorrupt, std::string(what) + " is a record of another kind");
  }
  if (covered[1] != kFormat) {
    return Status(Code::kUnsupported, std::string(what) + " has format " +
                                          std::to_string(covered[1]) +
                                          "; this build knows format 0");
  }
  return covered.subspan(2);
}

Status malformed(const char* what) {
  return {Code::kCorrupt, std::string(what) + " holds what no store writes"};
}

void check_transition(const TransitionRecord& transition, RecordReader& in) {
  const bool none = transition.state == AttemptState::kNone;
  in.require(none == (transition.attempt == 0));
  if (none) {
    in.require(transition == TransitionRecord{});
    return;
  }
  in.require(transition.leader > 0);
  in.require(transition.base.baseline < transition.attempt);
  in.require(!transition.owners.empty() && !transition.receivers.empty());
  in.require(transition.state != AttemptState::kCommitted || !transition.dirty());
}

}  // namespace

Bytes encode_head(const ControlHead& head) {
  RecordWriter out(kHead);
  out.fixed(head.run);
  out.version(head.commit.id);
  out.text(head.commit.label);
  out.number(head.leader.token);
  if (head.leader.token > 0) {
    out.endpoint(head.leader.holder);
    out.number(head.leader.beat);
  }
  out.number(head.members_revision);
  out.number(head.incarnations);
  return out.finish();
}

Result<ControlHead> decode_head(ByteSpan blob) {
  constexpr const char* kWhat = "the head of the control plane's records";
  DCR_ASSIGN(const ByteSpan fields, open_record(blob, kHead, kWhat));
  RecordReader in(fields);
  ControlHead head;
  head.run = in.fixed();
  head.commit.id = in.version();
  head.commit.label = in.label();
  head.leader.token = in.number();
  if (head.leader.token > 0) {
    head.leader.holder = in.endpoint();
    head.leader.beat = in.number();
  }
  head.members_revision = in.number();
  head.incarnations = in.number();
  if (!in.complete()) return malformed(kWhat);
  return head;
}

Bytes encode_transition(const TransitionRecord& transition) {
  RecordWriter out(kTransition);
  out.number(transition.attempt);
  out.number(transition.leader);
  out.version(transition.base);
  out.text(transition.label);
  out.choice(transition.mode);
  out.choice(transition.state);
  out.fixed(transition.digest);
  out.number(transition.owners.size());
  for (const OwnerBinding& owner : transition.owners) {
    out.endpoint(owner.endpoint);
    out.candidate(owner.candidate);
    out.choice(owner.dense);
  }
  for (const auto* list : {&transition.nodes, &transition.receivers}) {
    out.number(list->size());
    for (const Endpoint& endpoint : *list) out.endpoint(endpoint);
  }
  out.number(transition.written.size());
  for (const WrittenCandidate& written : transition.written) {
    out.text(written.owner);
    out.candidate(written.candidate);
  }
  return out.finish();
}

Result<TransitionRecord> decode_transition(ByteSpan blob) {
  constexpr const char* kWhat = "the transition record";
  DCR_ASSIGN(const ByteSpan fields, open_record(blob, kTransition, kWhat));
  RecordReader in(fields);
  TransitionRecord transition;
  transition.attempt = in.number();
  transition.leader = in.number();
  transition.base = in.version();
  transition.label = in.label();
  transition.mode = in.choice(AttemptMode::kDense);
  transition.state = in.choice(AttemptState::kCommitted);
  transition.digest = in.fixed();
  transition.owners = in.list<OwnerBinding>(
      [&in] {
        OwnerBinding owner;
        owner.endpoint = in.endpoint();
        owner.candidate = in.candidate();
        owner.dense = in.flag();
        in.require(owner.candidate.incarnation == owner.endpoint.incarnation);
        return owner;
      },
      [](const OwnerBinding& owner) -> const std::string& { return owner.endpoint.name; });
  for (auto* list : {&transition.nodes, &transition.receivers}) {
    *list = in.list<Endpoint>(
        [&in] { return in.endpoint(); },
        [](const Endpoint& endpoint) -> const std::string& { return endpoint.name; });
  }
  transition.written = in.list<WrittenCandidate>(
      [&in] {
        WrittenCandidate written;
        written.owner = in.name();
        written.candidate = in.candidate();
        return written;
      },
      [](const WrittenCandidate& written) -> const std::string& { return written.owner; });
  if (in.valid()) check_transition(transition, in);
  if (!in.complete()) return malformed(kWhat);
  return transition;
}

Bytes encode_member(const Member& member) {
  RecordWriter out(kMember);
  out.endpoint(member.endpoint);
  out.choice(member.role);
  out.choice(member.state);
  if (member.role == Role::kReceiver) out.text(member.engine);
  out.choice(member.restored.has_value());
  if (member.restored) out.version(*member.restored);
  out.number(member.overtaken);
  out.bytes(member.needs);
  return out.finish();
}

Result<Member> decode_member(ByteSpan blob) {
  constexpr const char* kWhat = "a member's record";
  DCR_ASSIGN(const ByteSpan fields, open_record(blob, kMember, kWhat));
  RecordReader in(fields);
  Member member;
  member.endpoint = in.endpoint();
  member.role = in.choice(Role::kGate);
  member.state = in.choice(MemberState::kMember);
  if (member.role == Role::kReceiver) member.engine = in.name();
  if (in.flag()) member.restored = in.version();
  member.overtaken = in.number();
  member.needs = in.bytes(kNeedsBytesMax);
  const bool receiver = member.role == Role::kReceiver;
  in.require(receiver || !member.restored);
  in.require(member.role != Role::kGate ||
             (member.state == MemberState::kEnrolled && member.needs.empty()));
  if (!in.complete()) return malformed(kWhat);
  return member;
}

}  // namespace dcr
