// An SQLite database as DCR needs it: statements with bound values, rows, and errors as values. All
// that is known of SQLite's interface is in the .cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "dcr/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace dcr {

// One row of a result. Valid while its function runs.
class SqliteRow {
 public:
  explicit SqliteRow(sqlite3_stmt* statement) : statement_(statement) {}

  std::int64_t number(int column) const;
  std::string_view text(int column) const;  // "" for NULL
  ByteSpan blob(int column) const;

 private:
  sqlite3_stmt* const statement_;
};

// One connection. Not thread-safe; must not be carried over a fork.
//
// Error codes: kUnavailable, locked or unreadable or full: nothing of the statement was done;
// kCorrupt, damaged or no database; kInternal, the statement is wrong.
class SqliteDatabase {
 public:
  struct Options {
    bool create = false;  // if there is no file
    std::uint64_t busy_ms = 0;
    std::uint64_t value_bytes_max = 0;  // of one text or blob
    // Called with every statement before it; its error takes the statement's place.
    std::function<Status(std::string_view)> before_statement;
  };

  static Result<std::unique_ptr<SqliteDatabase>> open(const std::string& path, Options options);
  ~SqliteDatabase();
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  using OnRow = std::function<Status(const SqliteRow&)>;

  // Runs one statement, its rows going to `on_row`, whose error ends it.
  Status run(std::string_view statement, const OnRow& on_row = nullptr);
  // The same for one with the parameters ?1, a text, and ?2, a blob.
  Status run(std::string_view statement, std::string_view text, ByteSpan blob,
             const OnRow& on_row = nullptr);

  // The single value of the single row that a statement gives.
  Result<std::int64_t> number(std::string_view statement);
  Result<std::string> text(std::string_view statement);

  bool in_transaction() const;

 private:
  SqliteDatabase(std::string path, sqlite3* database, Options options);

  Status configure();
  Status step(sqlite3_stmt* statement, const OnRow& on_row);
  Status error(int code) const;

  const std::string path_;
  sqlite3* const database_;
  const Options options_;
};

}  // namespace dcr
