#include "control/sqlite_control.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <thread>

#include "base/assert.h"
#include "base/prng.h"
#include "control/records.h"
#include "runtime/file.h"
#include "tests/support/campaign.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

constexpr RunId kRun = {7};

// A process that runs `body` and ends; the test waits for it.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    DCR_ASSERT(pid_ >= 0);
    if (pid_ != 0) return;
    body();
    ::_exit(0);
  }
  ~Child() {
    if (!ended_) wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill(int signal) const { DCR_ASSERT(::kill(pid_, signal) == 0); }
  // The signal that ended it, or 0.
  int wait(int options = 0) {
    int state = 0;
    DCR_ASSERT(::waitpid(pid_, &state, options) == pid_);
    ended_ = !WIFSTOPPED(state);
    if (WIFSTOPPED(state)) return WSTOPSIG(state);
    return WIFSIGNALED(state) ? WTERMSIG(state) : 0;
  }
  ::pid_t pid() const { return pid_; }

 private:
  const ::pid_t pid_;
  bool ended_ = false;
};

// For what the store holds, with a candidate of its own.
PrepareRequest prepare_request(SqliteControl& control) {
  const Membership all = *control.read_members();
  PrepareRequest made;
  made.token = all.records.leader.token;
  made.after = all.records.transition.attempt;
  made.members_revision = all.records.members_revision;
  made.base = all.records.commit.id;
  made.candidates = {{"o", {1, made.after + 1}}};
  if (all.records.transition.dirty()) made.mode = AttemptMode::kOverwrite;
  return made;
}

class SqliteControlTest : public ::testing::Test {
 protected:
  SqliteControl::Options options() const {
    SqliteControl::Options made;
    made.directory = directory_.path();
    return made;
  }
  // Calls `fault` with the number of each statement, from 0.
  SqliteControl::Options faulty(std::function<Status(std::uint64_t, std::string_view)> fault) {
    SqliteControl::Options made = options();
    auto count = std::make_shared<std::uint64_t>(0);
    made.fault = [fault = std::move(fault), count](std::string_view statement) {
      return fault((*count)++, statement);
    };
    return made;
  }
  void create() { ASSERT_TRUE(SqliteControl::create(options(), kRun, "base").ok()); }
  std::unique_ptr<SqliteControl> open() { return open(options()); }
  static std::unique_ptr<SqliteControl> open(const SqliteControl::Options& with) {
    auto opened = SqliteControl::open(with);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return std::move(opened).value();
  }
  Status open_status() { return SqliteControl::open(options()).status(); }

  // An owner, a receiver and a leader with token 1.
  void set_up_run() {
    create();
    const auto control = open();
    for (const auto& [name, role] : {std::pair("o", Role::kOwner), {"r", Role::kReceiver}}) {
      const bool receiver = role == Role::kReceiver;
      const Enrolment given = *control->enrol({name, role, receiver ? "e" : ""});
      ASSERT_TRUE(control
                      ->join({{name, given.incarnation},
                              receiver ? std::optional(VersionId{}) : std::nullopt,
                              {}})
                      .ok());
    }
    const Enrolment given = *control->enrol({"c", Role::kCoordinator, ""});
    ASSERT_TRUE(control->claim({"c", given.incarnation}, {}).ok());
  }
  // Runs SQL on the database as another program would.
  void meddle(const std::string& sql, ByteSpan blob = {}) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    sqlite3_stmt* statement = nullptr;
    ASSERT_EQ(sqlite3_prepare_v2(database, sql.c_str(), -1, &statement, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_bind_blob64(statement, 1, blob.data(), blob.size(), SQLITE_STATIC);
    while (sqlite3_step(statement) == SQLITE_ROW) continue;
    ASSERT_EQ(sqlite3_finalize(statement), SQLITE_OK) << sqlite3_errmsg(database);
    ASSERT_EQ(sqlite3_close(database), SQLITE_OK);
  }
  void expect_open_error(Code code, const std::string& message) {
    const Status status = open_status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.message(), message);
  }

  TempDirectory directory_{TempDirectory::in_memory()};
  const std::string path_ = directory_.at("control.sqlite");
};

TEST_F(SqliteControlTest, IsMadeOnce) {
  expect_open_error(Code::kNotFound, "cannot examine " + path_ + ": No such file or directory");
  create();
  EXPECT_EQ(open()->read()->run, kRun);
  const Status again = SqliteControl::create(options(), kRun, "base").status();
  EXPECT_EQ(again.code(), Code::kExists);
  EXPECT_EQ(again.message(), path_ + " exists: open it, or choose another directory");
  EXPECT_EQ(SqliteControl::create(options(), kRun, "\x01").status().code(), Code::kInvalidArgument);
}

TEST_F(SqliteControlTest, ANetworkFileSystemIsRefused) {
  SqliteControl::Options on_nfs = options();
  on_nfs.network_of = [](const std::string&) { return Result<std::string>("nfs"); };
  const Status status = SqliteControl::create(on_nfs, kRun, "base").status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(), directory_.path() +
                                  " is on a network file system (nfs), where locks cannot be "
                                  "trusted: put the run directory on a local disk");
  EXPECT_EQ(SqliteControl::open(on_nfs).status().message(), status.message());
}

TEST_F(SqliteControlTest, ACreationThatWasCutShortCanBeRepeated) {
  std::uint64_t statements = 0;
  for (std::uint64_t cut = 0;; ++cut) {
    const TempDirectory place(TempDirectory::in_memory());
    SqliteControl::Options with = faulty([&](std::uint64_t number, std::string_view) {
      if (number == cut) ::raise(SIGKILL);
      return Status();
    });
    with.directory = place.path();
    Child child([&] { static_cast<void>(SqliteControl::create(with, kRun, "base")); });
    const bool killed = child.wait() == SIGKILL;
    SqliteControl::Options plain = options();
    plain.directory = place.path();
    const Status opened = SqliteControl::open(plain).status();
    EXPECT_TRUE(opened.ok() || opened.code() == Code::kNotFound) << cut << opened.message();
    const Status created = SqliteControl::create(plain, kRun, "base").status();
    EXPECT_EQ(created.code(), opened.ok() ? Code::kExists : Code::kOk) << cut;
    EXPECT_TRUE(SqliteControl::open(plain).ok());
    if (!killed) break;
    ++statements;
  }
  EXPECT_GT(statements, 10U);
}

TEST_F(SqliteControlTest, OtherDatabasesAreRefusedByName) {
  directory_.put("control.sqlite", "");
  expect_open_error(Code::kNotFound, path_ +
                                         " holds no control plane: its creation was cut short; "
                                         "repeat it");
  directory_.put("control.sqlite", std::string(5000, 'x'));
  expect_open_error(Code::kCorrupt, path_ + ": file is not a database");
  directory_.put("control.sqlite", "");
  meddle("PRAGMA application_id=77");
  expect_open_error(Code::kMismatch, path_ + " is the database of another program");
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  expect_open_error(Code::kCorrupt, path_ + " is not a regular file");
}

TEST_F(SqliteControlTest, LaterVersionsAreRefused) {
  create();
  meddle("PRAGMA user_version=2");
  expect_open_error(Code::kUnsupported,
                    path_ + " has schema version 2; this build knows version 1");
}

TEST_F(SqliteControlTest, WhatTheFileSaysIsNotRun) {
  create();
  meddle("CREATE TRIGGER t AFTER UPDATE ON records BEGIN DELETE FROM members; END");
  expect_open_error(Code::kCorrupt, path_ + " has other tables than a control plane's");
}

TEST_F(SqliteControlTest, ForgedRecordsAreRefused) {
  set_up_run();
  ASSERT_TRUE(open()->prepare(prepare_request(*open())).ok());
  const ControlRecords good = *open()->read();
  const Member owner = **open()->read_member("o");
  const auto refused = [&](const std::string& table, const std::string& name, const Bytes& blob,
                           const std::string& message) {
    const std::string key = "'" + name + "'";
    meddle("INSERT INTO " + table + " VALUES(" + key + ", ?1) ON CONFLICT DO UPDATE SET value=?1",
           blob);
    expect_open_error(Code::kCorrupt, message);
  };
  const auto restore = [&] {
    meddle("DELETE FROM records WHERE name='other'");
    meddle("DELETE FROM members WHERE name='p'");
  };
  refused("records", "other", {1}, path_ + " has an unknown record");
  restore();
  refused("members", "p", encode_member(owner), "the record of o lies under another name");
  restore();
  Member late = owner;
  late.endpoint.incarnation = 4;
  refused("members", "o", encode_member(late), "o has an incarnation that was never given");
  refused("members", "o", {1}, "a member's record is cut short");
  TransitionRecord later = good.transition;
  later.leader = 2;
  refused("records", "transition", encode_transition(later),
          "the last attempt's leader token was never claimed");
  later = good.transition;
  later.state = AttemptState::kCommitted;
  refused("records", "transition", encode_transition(later),
          "committed is version 0 of attempt 0, which is not what became of the last attempt");
  meddle("DELETE FROM records WHERE name='transition'");
  expect_open_error(Code::kCorrupt, path_ + " lacks a record");
}

TEST_F(SqliteControlTest, DamageIsAnErrorOrHarmless) {
  set_up_run();
  meddle("PRAGMA journal_mode=DELETE");  // all in one file
  const Bytes whole = *read_file(posix_file_system(), path_, 1 << 20);
  const ControlRecords good = *open()->read();
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 0; seed < campaign_cases(400); ++seed) {
    Prng prng(seed);
    Bytes damaged = whole;
    if (prng.below(4) == 0) damaged.resize(prng.below(damaged.size()));
    for (std::uint64_t i = 0; i <= prng.below(8) && !damaged.empty(); ++i) {
      damaged[prng.below(prng.below(2) == 0 ? std::min<std::size_t>(damaged.size(), 200)
                                            : damaged.size())] ^=
          static_cast<std::uint8_t>(1 + prng.below(255));
    }
    for (const char* suffix : {"-wal", "-shm"}) ::unlink((path_ + suffix).c_str());
    directory_.put("control.sqlite", damaged);
    auto opened = SqliteControl::open(options());
    if (!opened.ok()) {
      ++refused;
      continue;
    }
    const Result<ControlRecords> read = (*opened)->read();
    if (read.ok()) {
      EXPECT_EQ(*read, good) << seed;
    }
    static_cast<void>((*opened)->beat(1));
    static_cast<void>((*opened)->read_members());
  }
  EXPECT_GT(refused, campaign_cases(400) / 4);
}

using Operation = std::function<Status(SqliteControl&)>;

// What coordinators and endpoints do, one after another, with what `control` holds now.
Operation operation(std::uint64_t number, SqliteControl& control) {
  const std::uint64_t attempt = control.read()->transition.attempt;
  const PrepareRequest request = prepare_request(control);
  switch (number) {
    case 0:
      return [request](SqliteControl& on) { return on.prepare(request).status(); };
    case 1:
      return [attempt](SqliteControl& on) { return on.open(attempt).status(); };
    case 2:
      return [attempt](SqliteControl& on) { return on.commit(attempt).status(); };
    case 3:
      return [](SqliteControl& on) { return on.enrol({"n", Role::kNode, ""}).status(); };
    default:
      return [](SqliteControl& on) { return on.beat(1).status(); };
  }
}
constexpr std::uint64_t kOperations = 5;

TEST_F(SqliteControlTest, AFailureAtAnyStatementChangesNothing) {
  set_up_run();
  for (std::uint64_t number = 0; number < kOperations; ++number) {
    bool armed = false;
    std::uint64_t countdown = 0, unknown = 0;
    const auto control = open(faulty([&](std::uint64_t, std::string_view statement) {
      if (!armed || statement == "ROLLBACK" || countdown-- != 0) return Status();
      return Status(Code::kUnavailable, "planned");
    }));
    const auto other = open();
    const Membership before = *other->read_members();
    const Operation tried = operation(number, *other);
    for (std::uint64_t at = 0;; ++at) {
      countdown = at;
      armed = true;
      const Status status = tried(*control);
      armed = false;
      ASSERT_FALSE(status.ok());
      const Membership after = *other->read_members();
      if (status.code() == Code::kUnknownOutcome) {
        EXPECT_EQ(status.message(), "the commit's outcome is unknown: planned");
        ++unknown;
        if (after == before) continue;
        EXPECT_TRUE(tried(*control).ok());  // repeated, it says that it was done
        break;
      }
      EXPECT_EQ(status.message(), "planned");
      EXPECT_EQ(after, before) << number << " at " << at;
    }
    EXPECT_EQ(unknown, 2U);
  }
}

TEST_F(SqliteControlTest, AKillBetweenStatementsLeavesAllOrNothing) {
  set_up_run();
  for (std::uint64_t number = 0; number < kOperations; ++number) {
    const Membership before = *open()->read_members();
    const Operation tried = operation(number, *open());
    for (std::uint64_t at = 0;; ++at) {
      Child child([&] {
        bool armed = false;
        std::uint64_t countdown = at;
        const auto control = open(faulty([&](std::uint64_t, std::string_view) {
          if (armed && countdown-- == 0) ::raise(SIGKILL);
          return Status();
        }));
        armed = true;
        static_cast<void>(tried(*control));
      });
      EXPECT_EQ(child.wait(), SIGKILL) << number << " at " << at;
      if (*open()->read_members() == before) continue;
      EXPECT_TRUE(tried(*open()).ok());
      break;
    }
  }
}

// Processes that all do everything, killed at any moment: each result is one of a sequence.
TEST_F(SqliteControlTest, RandomKillsNeverBreakTheRecords) {
  set_up_run();
  const auto work = [this] {
    const auto control = open();
    for (;;) {
      for (std::uint64_t number = 0; number < kOperations; ++number) {
        static_cast<void>(operation(number, *control)(*control));
      }
    }
  };
  Prng prng(1);
  CommitRecord last;
  for (std::uint64_t round = 0; round < campaign_cases(40); ++round) {
    Child first(work), second(work);
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + prng.below(20)));
    first.kill(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(prng.below(10)));
    second.kill(SIGKILL);
    first.wait();
    second.wait();
    const ControlRecords records = *open()->read();  // examines all of it
    EXPECT_GE(records.commit.id.version, last.id.version);
    last = records.commit;
  }
  EXPECT_GT(last.id.version, 0U);
}

TEST_F(SqliteControlTest, ProcessesTakeTurns) {
  create();
  constexpr unsigned kProcesses = 4, kEach = 25;
  {
    std::vector<std::unique_ptr<Child>> children;
    for (unsigned i = 0; i < kProcesses; ++i) {
      children.push_back(std::make_unique<Child>([this, i] {
        const auto control = open();
        for (unsigned n = 0; n < kEach; ++n) {
          const std::string name = "n." + std::to_string(i) + "." + std::to_string(n);
          DCR_ASSERT(control->enrol({name, Role::kNode, ""}).ok());
        }
      }));
    }
    for (const auto& child : children) EXPECT_EQ(child->wait(), 0);
  }
  const Membership all = *open()->read_members();
  std::set<std::uint64_t> incarnations;
  for (const Member& member : all.members) incarnations.insert(member.endpoint.incarnation);
  EXPECT_EQ(incarnations.size(), kProcesses * kEach);
  EXPECT_EQ(*incarnations.rbegin(), kProcesses * kEach);
}

TEST_F(SqliteControlTest, AProcessStoppedInATransactionIsNamedAndKilled) {
  set_up_run();
  Child child([this] {
    const auto control = open(faulty([](std::uint64_t, std::string_view statement) {
      if (statement.starts_with("INSERT")) ::raise(SIGSTOP);
      return Status();
    }));
    static_cast<void>(control->beat(1));
  });
  ASSERT_EQ(child.wait(WUNTRACED), SIGSTOP);
  SqliteControl::Options impatient = options();
  impatient.lock_deadline_ms = 10;
  const auto control = open(impatient);
  const Status status = control->beat(1).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), directory_.at("control.lock") + " was locked by process " +
                                  std::to_string(child.pid()) + " for longer than 10 ms");
  EXPECT_EQ(control->read()->leader.beat, 0U);  // readers go on
  ASSERT_TRUE(control->stuck().has_value());
  EXPECT_EQ(control->stuck()->pid, child.pid());
  EXPECT_TRUE(*control->kill_stuck());
  EXPECT_EQ(child.wait(), SIGKILL);
  EXPECT_EQ(control->beat(1)->beat, 1U);
  EXPECT_FALSE(*control->kill_stuck());
}

TEST_F(SqliteControlTest, AnotherProgramsLockIsAnError) {
  set_up_run();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  SqliteControl::Options impatient = options();
  impatient.lock_deadline_ms = 10;
  const auto control = open(impatient);
  const Status status = control->beat(1).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), path_ + ": database is locked");
  EXPECT_FALSE(control->stuck().has_value());
  ASSERT_EQ(sqlite3_close(database), SQLITE_OK);
  EXPECT_EQ(control->beat(1)->beat, 1U);
}

}  // namespace
}  // namespace dcr
