#include "control/sqlite_database.h"

#include <sqlite3.h>

#include <limits>
#include <optional>
#include <utility>

#include "base/checked.h"

namespace dcr {
namespace {

constexpr int kStatementBytesMax = 4096;

// Finalises a statement at the end of its use.
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const {
    static_cast<void>(sqlite3_finalize(statement));  // repeats the error of the last step
  }
};
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

int clamp_to_int(std::uint64_t value) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<int>::max());
  return static_cast<int>(value < kMax ? value : kMax);
}

Code code_of(int code) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_TOOBIG:
      return Code::kCorrupt;
    case SQLITE_ERROR:
    case SQLITE_INTERNAL:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_MISUSE:
    case SQLITE_RANGE:
    case SQLITE_SCHEMA:
      return Code::kInternal;
    default:  // busy, locked, full, no permission, no memory, an error of the disk
      return Code::kUnavailable;
  }
}

}  // namespace

std::int64_t SqliteRow::number(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string_view SqliteRow::text(int column) const {
  // The text is made before its length is asked for, as SQLite wants it.
  const unsigned char* const text = sqlite3_column_text(statement_, column);
  if (text == nullptr) return {};
  const int size = sqlite3_column_bytes(statement_, column);
  return {reinterpret_cast<const char*>(text), static_cast<std::size_t>(size)};
}

ByteSpan SqliteRow::blob(int column) const {
  const void* const blob = sqlite3_column_blob(statement_, column);
  if (blob == nullptr) return {};
  const int size = sqlite3_column_bytes(statement_, column);
  return {static_cast<const std::uint8_t*>(blob), static_cast<std::size_t>(size)};
}

SqliteDatabase::SqliteDatabase(std::string path, sqlite3* database, Options options)
    : path_(std::move(path)), database_(database), options_(std::move(options)) {}

SqliteDatabase::~SqliteDatabase() { static_cast<void>(sqlite3_close_v2(database_)); }

Result<std::unique_ptr<SqliteDatabase>> SqliteDatabase::open(const std::string& path,
                                                             Options options) {
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
                    (options.create ? SQLITE_OPEN_CREATE : 0);
  const int code = sqlite3_open_v2(path.c_str(), &database, flags, nullptr);
  struct Made : SqliteDatabase {
    Made(std::string name, sqlite3* handle, Options with)
        : SqliteDatabase(std::move(name), handle, std::move(with)) {}
  };
  auto made = std::make_unique<Made>(path, database, std::move(options));
  if (code != SQLITE_OK) return made->error(code);
  DCR_TRY(made->configure());
  return std::unique_ptr<SqliteDatabase>(std::move(made));
}

Status SqliteDatabase::configure() {
  int code = sqlite3_busy_timeout(database_, clamp_to_int(options_.busy_ms));
  if (code != SQLITE_OK) return error(code);
  code = sqlite3_db_config(database_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  if (code != SQLITE_OK) return error(code);
  sqlite3_limit(database_, SQLITE_LIMIT_LENGTH, clamp_to_int(options_.value_bytes_max));
  sqlite3_limit(database_, SQLITE_LIMIT_SQL_LENGTH, kStatementBytesMax);
  sqlite3_limit(database_, SQLITE_LIMIT_ATTACHED, 0);
  // Nothing that the file says is run, and no page of it is mapped.
  for (const char* pragma : {"PRAGMA trusted_schema=OFF", "PRAGMA cell_size_check=ON",
                             "PRAGMA mmap_size=0", "PRAGMA synchronous=FULL"}) {
    DCR_TRY(run(pragma));
  }
  return {};
}

Status SqliteDatabase::error(int code) const {
  const char* const text = database_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(database_);
  return {code_of(code), path_ + ": " + text};
}

bool SqliteDatabase::in_transaction() const { return sqlite3_get_autocommit(database_) == 0; }

Status SqliteDatabase::run(std::string_view statement, const OnRow& on_row) {
  return run(statement, {}, {}, on_row);
}

Status SqliteDatabase::run(std::string_view statement, std::string_view text, ByteSpan blob,
                           const OnRow& on_row) {
  if (options_.before_statement) DCR_TRY(options_.before_statement(statement));
  sqlite3_stmt* made = nullptr;
  int code = sqlite3_prepare_v2(database_, statement.data(), clamp_to_int(statement.size()), &made,
                                nullptr);
  const Statement prepared(made);
  if (code != SQLITE_OK) return error(code);
  if (sqlite3_bind_parameter_count(made) >= 1) {
    code = sqlite3_bind_text(made, 1, text.data(), clamp_to_int(text.size()), SQLITE_STATIC);
    if (code != SQLITE_OK) return error(code);
  }
  if (sqlite3_bind_parameter_count(made) >= 2) {
    code = sqlite3_bind_blob64(made, 2, blob.data(), blob.size(), SQLITE_STATIC);
    if (code != SQLITE_OK) return error(code);
  }
  return step(made, on_row);
}

Status SqliteDatabase::step(sqlite3_stmt* statement, const OnRow& on_row) {
  for (;;) {
    const int code = sqlite3_step(statement);
    if (code == SQLITE_DONE) return {};
    if (code != SQLITE_ROW) return error(code);
    if (on_row) DCR_TRY(on_row(SqliteRow(statement)));
  }
}

Result<std::int64_t> SqliteDatabase::number(std::string_view statement) {
  std::optional<std::int64_t> value;
  DCR_TRY(run(statement, [&value](const SqliteRow& row) {
    value = row.number(0);
    return Status();
  }));
  if (!value)
    return Status(Code::kCorrupt, path_ + " answers nothing to " + std::string(statement));
  return *value;
}

Result<std::string> SqliteDatabase::text(std::string_view statement) {
  std::optional<std::string> value;
  DCR_TRY(run(statement, [&value](const SqliteRow& row) {
    value = std::string(row.text(0));
    return Status();
  }));
  if (!value)
    return Status(Code::kCorrupt, path_ + " answers nothing to " + std::string(statement));
  return *std::move(value);
}

}  // namespace dcr
