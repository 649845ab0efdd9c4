#include "cli/commands.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <utility>

#include "channel/keys.h"
#include "cli/inspect_text.h"
#include "cli/json.h"
#include "cli/refit_text.h"
#include "cli/text.h"
#include "dcr/delta.h"
#include "dcr/refit.h"
#include "runtime/clock.h"
#include "runtime/file.h"

namespace dcr {
namespace {

std::uint64_t peak_rss_bytes() {
  struct rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts it in KiB
}

// "0.42 s (1.10 GB/s)".
std::string time_text(const Measured& measured) {
  std::string text = seconds_text(measured.seconds);
  const std::string rate = rate_text(measured.bytes, measured.seconds);
  if (!rate.empty()) text += fmt::format(" ({})", rate);
  return text;
}

// What a delta is, the same words for diff and inspect.
template <typename AnyResult>
std::string delta_summary(const std::string& path, const AnyResult& result) {
  std::string text = fmt::format("{}: {}, ", printable(path), bytes_text(result.delta_bytes));
  if (result.changed == 0) {
    text += fmt::format("no change in {} of {}", counted(result.elements, "element"),
                        counted(result.tensors, "tensor"));
  } else {
    text += fmt::format(
        "{} of {} in {} changed, {:.1f} bits per change",
        percent_text(result.changed, result.elements), counted(result.elements, "element"),
        counted(result.tensors, "tensor"),
        8.0 * static_cast<double>(result.delta_bytes) / static_cast<double>(result.changed));
  }
  if (!result.added.empty())
    text += fmt::format(", {} added", counted(result.added.size(), "tensor"));
  if (!result.removed.empty()) {
    text += fmt::format(", {} removed", counted(result.removed.size(), "tensor"));
  }
  if (!result.replaced.empty()) {
    text += fmt::format(", {} replaced", counted(result.replaced.size(), "tensor"));
  }
  return text;
}

Outcome diff_outcome(const CommandLine& line, const DiffResult& result, const Measured& measured) {
  Outcome outcome;
  if (line.json) {
    outcome.text = diff_json(result, measured);
    return outcome;
  }
  outcome.text = fmt::format("{}, {}\n", delta_summary(line.output, result), time_text(measured));
  for (const LeftOut& file : result.left_out) {
    outcome.warnings.push_back(
        fmt::format("left out {}: {}", printable(file.name), printable(file.reason)));
  }
  return outcome;
}

Outcome apply_outcome(const CommandLine& line, const ApplyResult& result,
                      const Measured& measured) {
  Outcome outcome;
  if (line.json) {
    outcome.text = apply_json(line, result, measured);
    return outcome;
  }
  outcome.text = printable(line.in_place ? line.base : line.output) + ": ";
  if (result.already_target && !result.replayed_journal) {
    outcome.text +=
        fmt::format("already the target, {} checked", counted(result.tensors, "tensor"));
  } else {
    if (result.replayed_journal) outcome.text += "interrupted run completed, ";
    outcome.text +=
        fmt::format("{} applied, {} in {} changed, {} written",
                    counted(line.deltas.size(), "delta"), counted(result.changed, "element"),
                    counted(result.tensors, "tensor"), bytes_text(result.bytes_written));
  }
  outcome.text += fmt::format(", {}\n", seconds_text(measured.seconds));
  return outcome;
}

Outcome verify_outcome(const CommandLine& line, const VerifyResult& result,
                       const Measured& measured) {
  Outcome outcome;
  outcome.exit_code = result.differing == 0 ? kExitDone : kExitDiffers;
  if (line.json) {
    outcome.text = verify_json(result, measured);
    return outcome;
  }
  for (const Difference& difference : result.differences) {
    outcome.text += fmt::format("{} {}: {}\n", difference.kind, printable(difference.tensor),
                                printable(difference.detail));
  }
  if (result.differing > result.differences.size()) {
    outcome.text +=
        fmt::format("and {} more\n", count_text(result.differing - result.differences.size()));
  }
  outcome.text += result.differing == 0 ? std::string("equal")
                                        : "different: " + counted(result.differing, "difference");
  outcome.text += fmt::format("; {}, {}, {}{} compared, {}\n", counted(result.tensors, "tensor"),
                              counted(result.elements, "element"), bytes_text(result.bytes),
                              line.compare_files ? ", " + counted(result.files, "file") : "",
                              time_text(measured));
  return outcome;
}

Outcome inspect_outcome(const CommandLine& line, const InspectResult& result,
                        const Measured& measured) {
  Outcome outcome;
  if (line.json) {
    outcome.text = inspect_json(result, measured);
    return outcome;
  }
  outcome.text =
      fmt::format("{}\n{}, checked in {}\n", inspect_text(result),
                  delta_summary(line.deltas.front(), result), seconds_text(measured.seconds));
  return outcome;
}

Result<Outcome> call(const CommandLine& line, const DeltaOptions& options,
                     const std::function<Measured()>& measure) {
  switch (line.command) {
    case Command::kText:
      break;
    case Command::kDiff: {
      DCR_ASSIGN(auto result, diff(line.old_path, line.new_path, line.output, options));
      return diff_outcome(line, result, measure());
    }
    case Command::kApply: {
      DCR_ASSIGN(auto result, line.in_place ? apply_in_place(line.deltas, line.base, options)
                                            : apply(line.deltas, line.base, line.output, options));
      return apply_outcome(line, result, measure());
    }
    case Command::kVerify: {
      VerifyOptions what;
      what.files = line.compare_files;
      DCR_ASSIGN(auto result, verify(line.old_path, line.new_path, what, options));
      return verify_outcome(line, result, measure());
    }
    case Command::kRefit:
    case Command::kLocal:
    case Command::kCoordinator:
    case Command::kOwner:
    case Command::kNode:
    case Command::kReceiver:
    case Command::kRunRefit:
    case Command::kStatus:
    case Command::kAbort:
    case Command::kRestore:
      break;  // see run_commands.h
    case Command::kKeygen:
      break;  // have options of their own
    case Command::kInspect: {
      DCR_ASSIGN(auto result, inspect(line.deltas.front(), options));
      return inspect_outcome(line, result, measure());
    }
  }
  return Status(Code::kInternal, "a command line without a command was run");
}

// The shell's clock, as the library counts.
class CommandClock final : public Clock {
 public:
  explicit CommandClock(const std::function<double()>& seconds) : seconds_(seconds) {}
  std::uint64_t nanoseconds() override { return static_cast<std::uint64_t>(1e9 * seconds_()); }
  std::uint64_t thread_nanoseconds() override { return monotonic_clock().thread_nanoseconds(); }
  std::uint64_t process_nanoseconds() override { return monotonic_clock().process_nanoseconds(); }

 private:
  const std::function<double()>& seconds_;
};

Result<Outcome> call_refit(const CommandLine& line, const CancelToken* cancel,
                           const std::function<double()>& seconds, ProgressReporter& progress) {
  CommandClock clock(seconds);
  RefitOptions options;
  options.owners = line.owners;
  options.receivers = line.receivers;
  options.verify = line.refit_verify;
  options.post_apply_checks = line.post_apply_checks;
  options.memory_bytes_max = line.memory_bytes_max;
  options.threads = line.threads;
  options.arena_directory = line.arena_directory;
  options.cancel = cancel;
  options.clock = &clock;
  options.progress = [&](const Progress& now) { progress.update(now); };
  const double start = seconds();
  DCR_ASSIGN(const RefitResult result, refit(line.old_path, line.new_path, options));
  const Measured measured{seconds() - start, progress.bytes_done(), peak_rss_bytes()};
  Outcome outcome;
  const bool equal = result.differing_bytes == 0 && result.resident_different == 0;
  outcome.exit_code = equal ? kExitDone : kExitDiffers;
  outcome.text = line.json ? refit_json(result, measured)
                           : refit_text(line.refit_verify, result, measured.seconds);
  return outcome;
}

Result<Outcome> call_keygen(const CommandLine& line, const std::function<double()>& seconds) {
  const double start = seconds();
  DCR_ASSIGN(const MadeKeys made,
             make_key_files(posix_file_system(), line.output, line.endpoint, line.force));
  const Measured measured{seconds() - start, 0, peak_rss_bytes()};
  Outcome outcome;
  outcome.text = line.json ? keygen_json(line.endpoint, made, measured)
                           : allow_list_line(line.endpoint, made.public_key);
  return outcome;
}

}  // namespace

Result<Outcome> run_command(const CommandLine& line, const CancelToken* cancel,
                            const std::function<double()>& seconds, ProgressReporter& progress) {
  if (line.command == Command::kRefit) return call_refit(line, cancel, seconds, progress);
  if (line.command == Command::kKeygen) return call_keygen(line, seconds);
  DeltaOptions options;
  options.memory_bytes_max = line.memory_bytes_max;
  options.threads = line.threads;
  options.force = line.force;
  options.cancel = cancel;
  options.progress = [&](const Progress& now) { progress.update(now); };
  const double start = seconds();
  return call(line, options, [&] {
    return Measured{seconds() - start, progress.bytes_done(), peak_rss_bytes()};
  });
}

}  // namespace dcr
