// Tells each problem once. What peers can make happen again and again must not fill a log.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "dcr/status.h"

namespace dcr {

// Different problems that are told of, and remembered.
inline constexpr std::size_t kProblemsReportedMax = 4096;

// Thread-safe.
class Reporter {
 public:
  explicit Reporter(std::function<void(const Status&)> tell) : tell_(std::move(tell)) {}

  // Tells of `problem` unless another of this `kind` was told of before. At the limit it says so,
  // once, and falls silent.
  void once(const std::string& kind, const Status& problem) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!tell_ || told_.size() > kProblemsReportedMax || !told_.insert(kind).second) return;
    tell_(told_.size() <= kProblemsReportedMax
              ? problem
              : Status(Code::kTooLarge,
                       "so many different problems with peers came up that "
                       "further ones are not reported"));
  }

 private:
  std::mutex mutex_;
  const std::function<void(const Status&)> tell_;  // called under mutex_
  std::set<std::string> told_;                     // guarded by mutex_
};

}  // namespace dcr
