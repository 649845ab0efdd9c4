// Points before and after the protocol's operations (paper Table B.1) at which a process can be
// made to die or to stop, so that `dcr local` can show that nothing comes of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/status.h"

namespace dcr {

// "ROLE[.INDEX]@OPERATION[.before|.after][:NTH]", or "pause:" before it and ",SECONDS" behind.
struct OperationPoint {
  std::string role;  // "coordinator", "owner", "node", "receiver"
  std::uint64_t index = 0;
  std::string operation;
  bool after = false;
  std::uint64_t nth = 1;  // counted in that process
  bool pause = false;     // stop it for a while instead of killing it
  std::uint64_t seconds = kPauseSeconds;

  static constexpr std::uint64_t kPauseSeconds = 5;
  bool operator==(const OperationPoint&) const = default;
};

// Error kInvalidArgument: what is wrong, and which operations the role has.
Result<OperationPoint> parse_operation_point(std::string_view text);
std::string format_operation_point(const OperationPoint& point);

// Those at which an endpoint of the role can be stopped.
std::vector<std::string> operations_of(std::string_view role);

// Of one process. Thread-safe.
class OperationPoints {
 public:
  // `reached` is told of each point just before this process is killed or stopped there.
  OperationPoints(std::vector<OperationPoint> points,
                  std::function<void(const OperationPoint&)> reached)
      : points_(std::move(points)), reached_(std::move(reached)) {}

  // Kills or stops this process if it is time. `operation` may be empty: no point.
  void before(std::string_view operation) { reach(operation, false); }
  void after(std::string_view operation) { reach(operation, true); }

 private:
  void reach(std::string_view operation, bool after);

  const std::vector<OperationPoint> points_;
  const std::function<void(const OperationPoint&)> reached_;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> counts_;  // guarded by mutex_; by operation and side
};

}  // namespace dcr
