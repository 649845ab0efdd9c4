// A JSON document as a tree, for files that people write: bounded, and asked by key with messages
// that say where.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/status.h"

namespace dcr {

struct DocumentValue {
  enum class Kind : std::uint8_t { kObject, kArray, kString, kUnsigned, kOther };
  Kind kind = Kind::kOther;
  std::uint64_t number = 0;             // kUnsigned
  std::string text;                     // kString
  std::vector<std::string> keys;        // kObject: of each element, in the file's order
  std::vector<DocumentValue> elements;  // kObject, kArray
};

// Parses `text`. Errors: kCorrupt (not JSON, not UTF-8, a key twice in an object); kTooLarge
// (more than `bytes_max` bytes or `values_max` values, or nested too deep).
Result<DocumentValue> parse_document(std::string_view text, std::uint64_t bytes_max,
                                     std::uint64_t values_max);

// The fields of one object, each asked for once by name. The first error stays and all later calls
// do nothing, so that a caller may ask for everything and test `finish()` once.
class DocumentFields {
 public:
  // `where` begins every message ("rule 3").
  DocumentFields(const DocumentValue& value, std::string where);

  // The field, or null when it is absent. It counts as known.
  const DocumentValue* find(std::string_view key);
  // As find; absence is an error.
  const DocumentValue* require(std::string_view key);

  // Each reads a field of that type into `out` if it is there.
  void number(std::string_view key, std::uint64_t least, std::uint64_t most, std::uint64_t* out);
  void text(std::string_view key, std::string* out);
  void numbers(std::string_view key, std::uint64_t most, std::size_t count_max,
               std::vector<std::uint64_t>* out);
  // The elements of an array, in order.
  void each(std::string_view key, std::size_t count_max,
            const std::function<Status(const DocumentValue&, std::size_t)>& visit);

  void fail(Code code, const std::string& what);
  bool ok() const { return status_.ok(); }
  const std::string& where() const { return where_; }

  // Error kCorrupt for fields that nobody asked for, with the nearest that was.
  Status finish();

 private:
  const DocumentValue& value_;
  std::string where_;
  std::vector<std::string> known_;
  Status status_;
};

// The word of `words` nearest to `word`, as " (did you mean \"shards\"?)", or nothing when none is
// near.
std::string suggestion(std::string_view word, const std::vector<std::string>& words);

}  // namespace dcr
