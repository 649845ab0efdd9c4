#include "control/sqlite_control.h"

#include <utility>

#include "base/endpoint_name.h"
#include "control/records.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::int64_t kApplicationId = 0x44435243;  // "DCRC"
constexpr std::int64_t kSchemaVersion = 1;
constexpr std::uint64_t kValueBytesMax = kRecordBytesMax;

constexpr const char* kCreateMembers =
    "CREATE TABLE members(name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT";
constexpr const char* kCreateRecords =
    "CREATE TABLE records(name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT";
constexpr const char* kPutMember =
    "INSERT INTO members VALUES(?1, ?2) ON CONFLICT DO UPDATE SET value=?2";
constexpr const char* kPutRecord =
    "INSERT INTO records VALUES(?1, ?2) ON CONFLICT DO UPDATE SET value=?2";

ControlHead head_of(const ControlState& state) {
  const ControlRecords& records = state.records;
  return {records.run, records.commit, records.leader, records.members_revision,
          state.incarnations};
}

bool same_head(const ControlState& a, const ControlState& b) {
  return a.records.run == b.records.run && a.records.commit == b.records.commit &&
         a.records.leader == b.records.leader &&
         a.records.members_revision == b.records.members_revision &&
         a.incarnations == b.incarnations;
}

Result<Member> member_in(const SqliteRow& row) {
  DCR_ASSIGN(Member member, decode_member(row.blob(1)));
  if (member.endpoint.name != row.text(0)) {
    return Status(Code::kCorrupt,
                  "the record of " + member.endpoint.name + " lies under another name");
  }
  return member;
}

}  // namespace

std::string SqliteControl::path() const { return join_path(options_.directory, "control.sqlite"); }

Result<std::unique_ptr<SqliteControl>> SqliteControl::make(Options options) {
  DCR_ASSIGN(const std::string network, options.network_of(options.directory));
  if (!network.empty()) {
    return Status(Code::kUnsupported, options.directory + " is on a network file system (" +
                                          network +
                                          "), where locks cannot be trusted: put the run "
                                          "directory on a local disk");
  }
  DCR_ASSIGN(std::unique_ptr<ProcessLock> lock,
             ProcessLock::open(join_path(options.directory, "control.lock")));
  struct Made : SqliteControl {
    Made(Options with, std::unique_ptr<ProcessLock> taken)
        : SqliteControl(std::move(with), std::move(taken)) {}
  };
  return std::unique_ptr<SqliteControl>(
      std::make_unique<Made>(std::move(options), std::move(lock)));
}

Result<std::unique_ptr<SqliteControl>> SqliteControl::create(Options options, const RunId& run,
                                                             const std::string& label) {
  DCR_ASSIGN(const ControlState state, new_control_state(run, label));
  DCR_ASSIGN(std::unique_ptr<SqliteControl> control, make(std::move(options)));
  DCR_TRY(control->lock_->lock(control->options_.lock_deadline_ms));
  const Status status = control->initialize(state);
  control->lock_->unlock();
  DCR_TRY(status);
  return control;
}

Result<std::unique_ptr<SqliteControl>> SqliteControl::open(Options options) {
  DCR_ASSIGN(std::unique_ptr<SqliteControl> control, make(std::move(options)));
  DCR_TRY(control->connect(false));
  return control;
}

Status SqliteControl::initialize(const ControlState& state) {
  DCR_TRY(connect(true));
  const auto write_all = [&]() -> Status {
    DCR_TRY(database_->run(kCreateMembers));
    DCR_TRY(database_->run(kCreateRecords));
    DCR_TRY(database_->run(kPutRecord, "head", encode_head(head_of(state))));
    DCR_TRY(database_->run(kPutRecord, "transition", encode_transition(state.records.transition)));
    DCR_TRY(database_->run("PRAGMA application_id=" + std::to_string(kApplicationId)));
    return database_->run("PRAGMA user_version=" + std::to_string(kSchemaVersion));
  };
  DCR_TRY(transaction("BEGIN IMMEDIATE", write_all));
  return posix_file_system().sync_directory(options_.directory);
}

Status SqliteControl::connect(bool create) {
  if (database_) return {};
  if (!create) {
    DCR_ASSIGN(const FileInfo info, posix_file_system().info(path(), true));
    if (info.kind != FileKind::kRegular) return {Code::kCorrupt, path() + " is not a regular file"};
  }
  SqliteDatabase::Options options;
  options.create = create;
  options.busy_ms = options_.lock_deadline_ms;
  options.value_bytes_max = kValueBytesMax;
  options.before_statement = options_.fault;
  DCR_ASSIGN(database_, SqliteDatabase::open(path(), std::move(options)));
  Status status = create ? check_empty() : examine();
  if (status.ok()) {
    const Result<std::string> mode = database_->text("PRAGMA journal_mode=WAL");
    status = mode.status();
    if (mode.ok() && *mode != "wal") {
      status = {Code::kUnavailable, path() + " cannot have a write-ahead log here"};
    }
  }
  if (!status.ok()) database_.reset();
  return status;
}

Status SqliteControl::check_empty() {
  DCR_ASSIGN(const std::int64_t tables, database_->number("SELECT count(*) FROM sqlite_schema"));
  if (tables == 0) return {};
  return {Code::kExists, path() + " exists: open it, or choose another directory"};
}

Status SqliteControl::examine() {
  DCR_ASSIGN(const std::int64_t application, database_->number("PRAGMA application_id"));
  DCR_ASSIGN(const std::int64_t version, database_->number("PRAGMA user_version"));
  if (application == 0 && version == 0) {
    return {Code::kNotFound, path() +
                                 " holds no control plane: its creation was cut short; repeat "
                                 "it"};
  }
  if (application != kApplicationId) {
    return {Code::kMismatch, path() + " is the database of another program"};
  }
  if (version != kSchemaVersion) {
    return {Code::kUnsupported, path() + " has schema version " + std::to_string(version) +
                                    "; this build knows version " + std::to_string(kSchemaVersion)};
  }
  std::string schema;
  DCR_TRY(database_->run("SELECT type, name, ifnull(sql, '') FROM sqlite_schema ORDER BY name",
                         [&schema](const SqliteRow& row) {
                           if (schema.size() > 4096) return Status();
                           for (const int column : {0, 1, 2}) {
                             schema.append(row.text(column)).append("\n");
                           }
                           return Status();
                         }));
  const std::string expected = std::string("table\nmembers\n") + kCreateMembers +
                               "\ntable\nrecords\n" + kCreateRecords +
                               "\nindex\nsqlite_autoindex_members_1\n\n"
                               "index\nsqlite_autoindex_records_1\n\n";
  if (schema != expected) {
    return {Code::kCorrupt, path() + " has other tables than a control plane's"};
  }
  DCR_ASSIGN(const std::string check, database_->text("PRAGMA quick_check(1)"));
  if (check != "ok") return {Code::kCorrupt, path() + " is damaged: " + check};
  return transaction("BEGIN", [&] { return load(Load::kMembers).status(); });
}

Result<ControlState> SqliteControl::load(Load what) {
  std::optional<ControlHead> head;
  std::optional<TransitionRecord> transition;
  DCR_TRY(database_->run("SELECT name, value FROM records", [&](const SqliteRow& row) -> Status {
    if (row.text(0) == "head") {
      DCR_ASSIGN(head, decode_head(row.blob(1)));
    } else if (row.text(0) == "transition") {
      DCR_ASSIGN(transition, decode_transition(row.blob(1)));
    } else {
      return {Code::kCorrupt, path() + " has an unknown record"};
    }
    return {};
  }));
  if (!head || !transition) return Status(Code::kCorrupt, path() + " lacks a record");
  ControlState state;
  state.records = {head->run, std::move(head->commit), *std::move(transition),
                   std::move(head->leader), head->members_revision};
  state.incarnations = head->incarnations;
  DCR_TRY(check_records(state.records, state.incarnations));
  if (what == Load::kRecords) return state;
  DCR_TRY(database_->run("SELECT name, value FROM members", [&](const SqliteRow& row) -> Status {
    DCR_ASSIGN(Member member, member_in(row));
    if (member.endpoint.incarnation > state.incarnations) {
      return {Code::kCorrupt, member.endpoint.name + " has an incarnation that was never given"};
    }
    if (state.members.size() >= kEndpointsMax) {
      return {Code::kCorrupt, path() + " has too many members"};
    }
    std::string name = member.endpoint.name;
    state.members.emplace(std::move(name), std::move(member));
    return {};
  }));
  return state;
}

Status SqliteControl::save(const ControlState& before, const ControlState& after) {
  if (!same_head(before, after)) {
    DCR_TRY(database_->run(kPutRecord, "head", encode_head(head_of(after))));
  }
  if (before.records.transition != after.records.transition) {
    DCR_TRY(database_->run(kPutRecord, "transition", encode_transition(after.records.transition)));
  }
  for (const auto& [name, member] : after.members) {
    const auto found = before.members.find(name);
    if (found != before.members.end() && found->second == member) continue;
    DCR_TRY(database_->run(kPutMember, name, encode_member(member)));
  }
  for (const auto& [name, member] : before.members) {
    if (after.members.contains(name)) continue;
    DCR_TRY(database_->run("DELETE FROM members WHERE name=?1", name, {}));
  }
  return {};
}

Status SqliteControl::transaction(const char* begin, const std::function<Status()>& work) {
  DCR_TRY(database_->run(begin));
  Status status = work();
  if (status.ok()) {
    status = database_->run("COMMIT");
    if (status.ok() && options_.fault) status = options_.fault("committed");
    if (status.ok()) return {};
    // Its log may have it, though the connection does not say so.
    status = {Code::kUnknownOutcome, "the commit's outcome is unknown: " + status.message()};
  }
  const bool rolled_back = database_->in_transaction() && database_->run("ROLLBACK").ok();
  if (!rolled_back) database_.reset();
  return status;
}

template <typename Value>
Result<Value> SqliteControl::change(Load what,
                                    const std::function<Result<Value>(ControlState*)>& operation) {
  const std::lock_guard<std::mutex> guard(mutex_);
  DCR_TRY(lock_->lock(options_.lock_deadline_ms));
  Result<Value> result = Status(Code::kInternal, "no transaction was made");
  Status status = connect(false);
  if (status.ok()) {
    status = transaction("BEGIN IMMEDIATE", [&]() -> Status {
      DCR_ASSIGN(const ControlState before, load(what));
      ControlState after = before;
      result = operation(&after);
      DCR_TRY(result.status());
      return save(before, after);
    });
  }
  lock_->unlock();
  DCR_TRY(status);
  return result;
}

template <typename Value>
Result<Value> SqliteControl::look(const std::function<Result<Value>()>& work) {
  const std::lock_guard<std::mutex> guard(mutex_);
  DCR_TRY(connect(false));
  Result<Value> result = Status(Code::kInternal, "no transaction was made");
  const Status status = transaction("BEGIN", [&] {
    result = work();
    return result.status();
  });
  // A reading that cannot be ended has been done all the same.
  if (status.code() == Code::kUnknownOutcome) return Status(Code::kUnavailable, status.message());
  DCR_TRY(status);
  return result;
}

Result<ControlRecords> SqliteControl::read() {
  return look<ControlRecords>([this]() -> Result<ControlRecords> {
    DCR_ASSIGN(ControlState state, load(Load::kRecords));
    return std::move(state.records);
  });
}

Result<std::optional<Member>> SqliteControl::read_member(const std::string& name) {
  DCR_TRY(check_endpoint_name(name));
  using Found = std::optional<Member>;
  return look<Found>([&]() -> Result<Found> {
    Found found;
    DCR_TRY(database_->run("SELECT name, value FROM members WHERE name=?1", name, {},
                           [&found](const SqliteRow& row) -> Status {
                             DCR_ASSIGN(found, member_in(row));
                             return {};
                           }));
    return found;
  });
}

Result<Membership> SqliteControl::read_members() {
  return look<Membership>([this]() -> Result<Membership> {
    DCR_ASSIGN(const ControlState state, load(Load::kMembers));
    return Membership{state.records, member_list(state)};
  });
}

Result<Enrolment> SqliteControl::enrol(const EnrolRequest& request) {
  return change<Enrolment>(Load::kMembers,
                           [&](ControlState* state) { return enrol_in(state, request); });
}

Result<Joined> SqliteControl::join(const JoinRequest& request) {
  return change<Joined>(Load::kMembers,
                        [&](ControlState* state) { return join_in(state, request); });
}

Result<ControlRecords> SqliteControl::bar(std::uint64_t token,
                                          const std::vector<Endpoint>& barred) {
  return change<ControlRecords>(Load::kMembers,
                                [&](ControlState* state) { return bar_in(state, token, barred); });
}

Result<ControlRecords> SqliteControl::claim(const Endpoint& holder, const LeaderRow& seen) {
  return change<ControlRecords>(Load::kMembers,
                                [&](ControlState* state) { return claim_in(state, holder, seen); });
}

Result<LeaderRow> SqliteControl::beat(std::uint64_t token) {
  return change<LeaderRow>(Load::kRecords,
                           [&](ControlState* state) { return beat_in(state, token); });
}

Result<TransitionRecord> SqliteControl::prepare(const PrepareRequest& request) {
  return change<TransitionRecord>(Load::kMembers,
                                  [&](ControlState* state) { return prepare_in(state, request); });
}

Result<TransitionRecord> SqliteControl::open(std::uint64_t attempt) {
  return change<TransitionRecord>(Load::kRecords,
                                  [&](ControlState* state) { return open_in(state, attempt); });
}

Result<ControlRecords> SqliteControl::commit(std::uint64_t attempt) {
  return change<ControlRecords>(Load::kRecords,
                                [&](ControlState* state) { return commit_in(state, attempt); });
}

Result<ControlRecords> SqliteControl::mark_obsolete(std::uint64_t attempt) {
  return change<ControlRecords>(
      Load::kRecords, [&](ControlState* state) { return mark_obsolete_in(state, attempt); });
}

Result<ControlRecords> SqliteControl::abort_transition(std::uint64_t token) {
  return change<ControlRecords>(Load::kRecords,
                                [&](ControlState* state) { return abort_in(state, token); });
}

std::optional<LockHolder> SqliteControl::stuck() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return lock_->stuck();
}

Result<bool> SqliteControl::kill_stuck() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return lock_->kill_stuck();
}

}  // namespace dcr
