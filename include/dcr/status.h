// Errors as values.
//
// Every fallible function of DCR returns `Status` or `Result<T>`; both are [[nodiscard]] and no
// exception crosses a module line. A code says what the caller can do about it (see `action_for`),
// the message names the thing that failed (tensor, file, payload, field) and what to do.
//
// Thread safety: values, like std::string. Sharing one object for writing needs a lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dcr {

enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument,  // the caller's words are wrong: a usage error
  kCorrupt,          // bytes from outside break the format
  kTooLarge,         // bytes from outside exceed a configured limit
  kUnsupported,      // a version, coding, dtype or encoding that this build does not know
  kMismatch,  // two valid things that do not belong together: a wrong base, another delta's journal
  kExists,    // an output that exists and may not be replaced
  kNotFound,  // an input that does not exist
  kIo,        // the operating system refused: full disk, short read, permission
  kCancelled,  // the caller asked to stop
  kConflict,   // a shared record or object is not, or no longer, as the caller expects: read it
               // again
  kLostLeadership,  // another coordinator leads now: stop, and leave gates and records to it
  kUnknownOutcome,  // it may have been done or not: repeat it, or read what became of it
  kUnavailable,     // a shared store does not answer; nothing was changed: wait and repeat
  kInternal,        // a check of our own failed; a bug worth reporting
};

// What a caller does with a failure of this code.
enum class Action : std::uint8_t { kNone, kRetry, kFail, kReject, kCallOperator };

// Never fails; every code has exactly one action.
Action action_for(Code code);

// The stable lower-case word of a code ("corrupt", "too_large"), as printed by `--json`.
std::string_view code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(Code code, std::string message, std::string tensor = {})
      : code_(code), message_(std::move(message)), tensor_(std::move(tensor)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // The tensor that the error is about; empty if it is about none.
  const std::string& tensor() const { return tensor_; }

  // The same error with `context` and ": " before its message; success stays success.
  Status with_context(std::string_view context) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
  std::string tensor_;
};

// A value or the error that kept it from being made. REQUIRES for value(): ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

#define DCR_CONCAT_INNER(a, b) a##b
#define DCR_CONCAT(a, b) DCR_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expression` (a Status) is an error.
#define DCR_TRY(expression)                    \
  do {                                         \
    ::dcr::Status dcr_status_ = (expression);  \
    if (!dcr_status_.ok()) return dcr_status_; \
  } while (false)

// `DCR_ASSIGN(auto x, f())`: x gets the value of a Result, or the enclosing function returns its
// error.
#define DCR_ASSIGN(declaration, expression) \
  DCR_ASSIGN_INNER(DCR_CONCAT(dcr_result_, __LINE__), declaration, expression)
#define DCR_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                             \
  if (!result.ok()) return result.status();               \
  declaration = std::move(result).value()

}  // namespace dcr
