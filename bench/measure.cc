#include "bench/measure.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <utility>

#include "base/assert.h"

namespace dcr {

double seconds_of(ClockKind clock, const std::function<void()>& work) {
  const clockid_t id = clock == ClockKind::kThread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  timespec start{};
  timespec end{};
  DCR_ASSERT(clock_gettime(id, &start) == 0);
  work();
  DCR_ASSERT(clock_gettime(id, &end) == 0);
  return static_cast<double>(end.tv_sec - start.tv_sec) +
         1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ProcessorUse ProcessorUse::now() {
  ProcessorUse use;
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  constexpr int kColumns = 8, kIdle = 3, kWaitingForDisks = 4;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  for (int column = 0; column < kColumns; ++column) {
    double value = 0;
    file >> value;
    use.all += value / ticks;
    if (column != kIdle && column != kWaitingForDisks) use.busy += value / ticks;
  }
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage taken{};
    DCR_ASSERT(::getrusage(who, &taken) == 0);
    for (const timeval& time : {taken.ru_utime, taken.ru_stime}) {
      use.own += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  return use;
}

std::optional<double> ProcessorUse::share_of_others(const ProcessorUse& begin,
                                                    const ProcessorUse& end) {
  const double all = end.all - begin.all;
  if (begin.all <= 0 || all <= 0) return std::nullopt;
  return std::max(0.0, (end.busy - begin.busy - (end.own - begin.own)) / all);
}

void keep(std::uint64_t value) {
  static std::atomic<std::uint64_t> sink{0};
  sink.fetch_xor(value, std::memory_order_relaxed);
}

Measurement::Measurement(ClockKind clock, unsigned rounds,
                         const std::vector<std::function<void()>>& works) {
  DCR_ASSERT(rounds > 0);
  for (const auto& work : works) work();
  for (unsigned round = 0; round < rounds; ++round) {
    std::vector<double>& seconds = rounds_.emplace_back();
    for (const auto& work : works) seconds.push_back(seconds_of(clock, work));
  }
}

double Measurement::median(
    const std::function<double(const std::vector<double>&)>& of_round) const {
  std::vector<double> values;
  for (const std::vector<double>& round : rounds_) values.push_back(of_round(round));
  return dcr::median(std::move(values));
}

double Measurement::seconds(std::size_t work) const {
  return median([=](const std::vector<double>& round) { return round[work]; });
}

double Measurement::ratio(std::size_t slow, std::size_t fast) const {
  return median([=](const std::vector<double>& round) { return round[slow] / round[fast]; });
}

}  // namespace dcr
