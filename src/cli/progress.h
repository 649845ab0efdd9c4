// What a command says while it works.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "dcr/delta.h"

namespace dcr {

// Shows the progress of one command. Not thread-safe: the library reports on the calling thread.
class ProgressReporter {
 public:
  enum class Style : std::uint8_t {
    kSilent,
    kLines,     // for logs: a line at most per tenth and second, and one at the end of each stage
    kTerminal,  // one line, rewritten at most ten times a second
  };

  // `out` is not owned. `seconds` is a clock that never goes back.
  ProgressReporter(std::FILE* out, Style style, std::function<double()> seconds);
  ProgressReporter(const ProgressReporter&) = delete;
  ProgressReporter& operator=(const ProgressReporter&) = delete;
  ~ProgressReporter();

  void update(const Progress& progress);

  // Clears the terminal's line. Called again, or with nothing to clear, it does nothing.
  void finish();

  // Bytes done of the stage that was reported last, in every style.
  std::uint64_t bytes_done() const { return bytes_done_; }

 private:
  void show_line(const Progress& progress, double now);
  void show_on_terminal(const Progress& progress, double now);
  std::string describe(const Progress& progress, double now) const;

  std::FILE* out_;
  Style style_;
  std::function<double()> seconds_;
  std::string stage_;
  double stage_start_ = 0;
  double shown_at_ = 0;
  std::uint64_t tenths_shown_ = 0;
  bool stage_ended_ = false;
  std::size_t terminal_width_ = 0;  // characters on the terminal's line
  std::uint64_t bytes_done_ = 0;
};

}  // namespace dcr
