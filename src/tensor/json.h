// JSON from outside, event by event and within a memory bound: the one place of this folder that
// includes the JSON library (its SAX interface; no document is ever built).
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "dcr/status.h"

namespace dcr {

enum class JsonKind : std::uint8_t { kNull, kBoolean, kString, kUnsigned, kNumber };

// A scalar. kUnsigned is an integer in [0, 2^64) written without sign, fraction and exponent; every
// other number is kNumber.
struct JsonScalar {
  JsonKind kind = JsonKind::kNull;
  std::uint64_t number = 0;       // kUnsigned
  std::string* string = nullptr;  // kString; the visitor may move from it
};

// A format's parser: one call per event. A call that returns false ends the parse; the visitor
// keeps the reason for `error()`.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;

  // An object or array begins, as the root, as the value of the last key, or as an element.
  virtual bool open(bool is_object) = 0;
  virtual bool close() = 0;
  virtual bool key(std::string& key) = 0;
  virtual bool scalar(const JsonScalar& value) = 0;

  const Status& error() const { return error_; }

 protected:
  // For `return fail(…);`.
  bool fail(Code code, std::string message, std::string tensor = {}) {
    error_ = Status(code, std::move(message), std::move(tensor));
    return false;
  }

 private:
  Status error_;
};

// Parses `text` whole; trailing white space is allowed. Memory beyond what the visitor keeps is
// O(kJsonStringBytesMax). Errors: the visitor's; kCorrupt "not JSON" or "not UTF-8" with the byte
// position; kTooLarge when nested deeper than kJsonDepthMax or a string is above
// kJsonStringBytesMax.
Status parse_json(ByteSpan text, JsonVisitor& visitor);

// `text` as a JSON string with its quotes. REQUIRES: valid UTF-8.
std::string json_string(std::string_view text);

}  // namespace dcr
