#include "dcr/status.h"

#include <gtest/gtest.h>

#include <set>

namespace dcr {
namespace {

constexpr Code kAll[] = {Code::kOk,
                         Code::kInvalidArgument,
                         Code::kCorrupt,
                         Code::kTooLarge,
                         Code::kUnsupported,
                         Code::kMismatch,
                         Code::kExists,
                         Code::kNotFound,
                         Code::kIo,
                         Code::kCancelled,
                         Code::kConflict,
                         Code::kLostLeadership,
                         Code::kUnknownOutcome,
                         Code::kUnavailable,
                         Code::kInternal};

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (const Code code : kAll) names.insert(code_name(code));
  EXPECT_EQ(names.size(), std::size(kAll));
  EXPECT_EQ(code_name(Code::kTooLarge), "too_large");
}

TEST(Status, EveryFailureSaysWhatToDo) {
  for (const Code code : kAll) {
    EXPECT_EQ(action_for(code) == Action::kNone, code == Code::kOk) << code_name(code);
  }
  EXPECT_EQ(action_for(Code::kCorrupt), Action::kReject);
  EXPECT_EQ(action_for(Code::kConflict), Action::kFail);
  EXPECT_EQ(action_for(Code::kUnknownOutcome), Action::kRetry);
  EXPECT_EQ(action_for(Code::kInternal), Action::kCallOperator);
}

TEST(Status, ContextKeepsCodeAndTensor) {
  const Status status(Code::kCorrupt, "offset out of range", "layers.0.weight");
  const Status longer = status.with_context("model.safetensors");
  EXPECT_EQ(longer.code(), Code::kCorrupt);
  EXPECT_EQ(longer.message(), "model.safetensors: offset out of range");
  EXPECT_EQ(longer.tensor(), "layers.0.weight");
  EXPECT_TRUE(Status().with_context("anything").ok());
}

Result<int> half(int value) {
  if (value % 2 != 0) return Status(Code::kInvalidArgument, "odd");
  return value / 2;
}

Result<int> quarter(int value) {
  DCR_ASSIGN(const int once, half(value));
  DCR_ASSIGN(const int twice, half(once));
  return twice;
}

Status check(int value) {
  DCR_TRY(half(value).status());
  return {};
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_TRUE(check(2).ok());
  EXPECT_EQ(check(3).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace dcr
