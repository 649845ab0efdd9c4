// Timing by ratios: what is compared runs alternately in one process, round by round, so that a
// disturbance of the machine meets all of it, and the median of the rounds counts.
//
// What runs on one thread is timed by that thread's processor time: on an idle machine the same as
// wall-clock time, and on a shared one still the speed of one core.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace dcr {

enum class ClockKind : std::uint8_t { kThread, kWall };

// Seconds of each round; rounds[r][i] is the i-th work of round r.
class Measurement {
 public:
  // One untimed round, then `rounds` timed ones. REQUIRES: rounds > 0.
  Measurement(ClockKind clock, unsigned rounds, const std::vector<std::function<void()>>& works);

  double seconds(std::size_t work) const;
  // Median over the rounds of any function of a round's seconds.
  double median(const std::function<double(const std::vector<double>&)>& of_round) const;
  // Median over the rounds of the time of `slow` divided by that of `fast`.
  double ratio(std::size_t slow, std::size_t fast) const;

 private:
  std::vector<std::vector<double>> rounds_;
};

// Seconds of one call.
double seconds_of(ClockKind clock, const std::function<void()>& work);

// Zero of none.
double median(std::vector<double> values);

// Processor time since the machine started, in seconds.
struct ProcessorUse {
  double all = 0;   // of all processors, what they rested included
  double busy = 0;  // of these
  double own = 0;   // by this process and those that it has waited for

  static ProcessorUse now();
  // What other programs took of the processors' time from `begin` to `end`, from 0 to 1; nothing
  // where the system does not say what it is.
  static std::optional<double> share_of_others(const ProcessorUse& begin, const ProcessorUse& end);
};

// Keeps the compiler from dropping the computation of `value`.
void keep(std::uint64_t value);

}  // namespace dcr
