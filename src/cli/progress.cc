#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/text.h"

namespace dcr {
namespace {

constexpr double kLineSecondsMin = 1.0;
constexpr double kTerminalSecondsMin = 0.1;

void put(std::FILE* out, const std::string& text) {
  // Progress that cannot be shown is no reason to stop the work.
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), out));
  static_cast<void>(std::fflush(out));
}

std::uint64_t tenths(const Progress& progress) {
  if (progress.bytes_total == 0) return 0;
  return static_cast<std::uint64_t>(10.0 * static_cast<double>(progress.bytes_done) /
                                    static_cast<double>(progress.bytes_total));
}

}  // namespace

ProgressReporter::ProgressReporter(std::FILE* out, Style style, std::function<double()> seconds)
    : out_(out), style_(style), seconds_(std::move(seconds)), stage_start_(seconds_()) {}

ProgressReporter::~ProgressReporter() { finish(); }

void ProgressReporter::update(const Progress& progress) {
  bytes_done_ = progress.bytes_done;
  if (style_ == Style::kSilent) return;
  const double now = seconds_();
  if (stage_ != progress.stage) {
    // A first stage began before its first report.
    if (!stage_.empty()) stage_start_ = now;
    stage_ = progress.stage;
    shown_at_ = stage_start_;
    tenths_shown_ = 0;
    stage_ended_ = false;
  }
  if (style_ == Style::kLines) {
    show_line(progress, now);
  } else {
    show_on_terminal(progress, now);
  }
}

void ProgressReporter::show_line(const Progress& progress, double now) {
  const bool ended = progress.bytes_done >= progress.bytes_total;
  const std::uint64_t done = tenths(progress);
  if (stage_ended_) return;
  if (!ended && (done <= tenths_shown_ || now - shown_at_ < kLineSecondsMin)) return;
  stage_ended_ = ended;
  tenths_shown_ = done;
  shown_at_ = now;
  put(out_, describe(progress, now) + "\n");
}

void ProgressReporter::show_on_terminal(const Progress& progress, double now) {
  if (terminal_width_ != 0 && now - shown_at_ < kTerminalSecondsMin) return;
  shown_at_ = now;
  const std::string line = describe(progress, now);
  const std::size_t rest = terminal_width_ - std::min(terminal_width_, line.size());
  put(out_, fmt::format("\r{}{:{}}", line, "", rest));
  terminal_width_ = line.size();
}

void ProgressReporter::finish() {
  if (terminal_width_ == 0) return;
  put(out_, fmt::format("\r{:{}}\r", "", terminal_width_));
  terminal_width_ = 0;
}

std::string ProgressReporter::describe(const Progress& progress, double now) const {
  std::string line =
      fmt::format("{}: {} of {} ({:.0f} %)", progress.stage, bytes_text(progress.bytes_done),
                  bytes_text(progress.bytes_total),
                  progress.bytes_total == 0 ? 100.0
                                            : 100.0 * static_cast<double>(progress.bytes_done) /
                                                  static_cast<double>(progress.bytes_total));
  const std::string rate = rate_text(progress.bytes_done, now - stage_start_);
  if (!rate.empty()) line += ", " + rate;
  return line;
}

}  // namespace dcr
