#include "protocol/member.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace dcr {

MemberSession::MemberSession(MemberOptions options) : options_(std::move(options)) {}

void MemberSession::start(Milliseconds now) { due_at_ = now; }

void MemberSession::join(std::optional<VersionId> restored, Bytes needs) {
  DCR_ASSERT(enrolled());
  wanted_ = JoinRequest{{options_.name, incarnation_}, restored, std::move(needs)};
  joined_.reset();
  join_called_ = false;
  look_soon_ = true;
}

void MemberSession::leave_waiting() {
  wanted_.reset();
  join_called_ = false;
  if (joined_ == JoinOutcome::kWaiting || joined_ == JoinOutcome::kOvertaken) joined_.reset();
}

void MemberSession::look() { look_soon_ = true; }

bool MemberSession::joining() const {
  return wanted_ && (!joined_ || joined_ == JoinOutcome::kWaiting);
}

ControlRequest MemberSession::next_request() const {
  if (!enrolled()) return EnrolRequest{options_.name, options_.role, options_.engine};
  // A join says whatever a look would.
  if (joining()) return *wanted_;
  if (records_->members_revision != row_revision_) return ReadMemberRequest{options_.name};
  return ReadRequest{};
}

std::optional<CallControl> MemberSession::next_call(Milliseconds now) {
  if (now < wake_at()) return std::nullopt;
  CallControl call{++calls_, next_request()};
  calling_ = true;
  called_at_ = now;
  due_at_ = now + options_.waits.look_ms;
  join_called_ = std::holds_alternative<JoinRequest>(call.request);
  // The row alone is not all of a look.
  if (!std::holds_alternative<ReadMemberRequest>(call.request)) look_soon_ = false;
  return call;
}

Milliseconds MemberSession::wake_at() const {
  if (calling_ || barred_ || !failure_.ok() || due_at_ == kNever) return kNever;
  return std::max(retry_at_, look_soon_ ? Milliseconds{0} : due_at_);
}

void MemberSession::answered(const ControlAnswered& answer, Milliseconds now) {
  if (!calling_ || answer.call != calls_) return;
  calling_ = false;
  if (!answer.reply.status.ok()) {
    take_error(answer.reply.status, now);
    return;
  }
  const auto& value = answer.reply.value;
  if (const auto* enrolment = std::get_if<Enrolment>(&value)) {
    incarnation_ = enrolment->incarnation;
    row_revision_ = enrolment->records.members_revision;
    take_records(enrolment->records);
  } else if (const auto* joined = std::get_if<Joined>(&value)) {
    take_joined(*joined);
  } else if (const auto* records = std::get_if<ControlRecords>(&value)) {
    take_records(*records);
    if (records->members_revision != row_revision_) due_at_ = now;
  } else {
    take_row(control_value<std::optional<Member>>(answer.reply));
  }
}

void MemberSession::take_records(const ControlRecords& records) {
  records_ = records;
  read_at_ = called_at_;
  const bool unchanged =
      wanted_ && (options_.role != Role::kReceiver || wanted_->restored == records.commit.id);
  if (joined_ == JoinOutcome::kAdmitted && unchanged &&
      records.transition.state != AttemptState::kActive) {
    joined_ = JoinOutcome::kJoined;
  }
}

void MemberSession::take_joined(const Joined& joined) {
  // The row was there at that moment.
  row_revision_ = joined.records.members_revision;
  if (join_called_) joined_ = joined.outcome;
  take_records(joined.records);
}

void MemberSession::take_row(const std::optional<Member>& row) {
  // Incarnations do not come back, so the row was there too when the records were read.
  row_revision_ = records_->members_revision;
  barred_ = !row || row->endpoint.incarnation != incarnation_;
}

void MemberSession::take_error(const Status& status, Milliseconds now) {
  look_soon_ = true;
  if (status.code() == Code::kUnavailable || status.code() == Code::kUnknownOutcome) {
    retry_at_ = now + options_.waits.repeat_ms;
  } else if (status.code() == Code::kConflict) {  // of a join
    barred_ = true;
  } else {
    failure_ = status;
  }
}

std::string MemberSession::leader() const {
  return records_ ? records_->leader.holder.name : std::string();
}

}  // namespace dcr
