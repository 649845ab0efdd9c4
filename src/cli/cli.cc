#include "cli/cli.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/json.h"
#include "cli/progress.h"
#include "cli/run_commands.h"
#include "cli/signals.h"
#include "cli/text.h"
#include "simd/kernels.h"

namespace dcr {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Error kIo if it cannot be written, as when `out` is on a full disk or a closed pipe.
Status put(std::FILE* out, std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0) {
    return {};
  }
  return {Code::kIo, fmt::format("cannot write the result to standard output: {}",
                                 std::strerror(errno))};  // NOLINT(concurrency-mt-unsafe)
}

// Reports an error in the form that was asked for. If that cannot be written either, the exit code
// still says what happened.
int fail(const CliStreams& streams, bool json, Command command, const Status& error) {
  if (json) {
    static_cast<void>(put(streams.out, error_json(error)));
    return exit_code_for(error.code());
  }
  const std::string_view name = command_name(command);
  std::string text =
      fmt::format("dcr{}{}: {}", name.empty() ? "" : " ", name, printable(error.message()));
  if (error.message().find(error.tensor()) == std::string::npos) {
    text += fmt::format(" (tensor {})", printable(error.tensor()));
  }
  text += "\n";
  if (name.empty()) text += "Run dcr --help, or dcr COMMAND --help, for how to use it.\n";
  static_cast<void>(put(streams.err, text));
  return exit_code_for(error.code());
}

// The environment is part of what the user asked for: a bad DCR_FORCE_ISA is a usage error.
Status check_kernels() {
  auto chosen = select_kernels();
  if (chosen.ok()) return {};
  return {Code::kInvalidArgument, chosen.status().message()};
}

ProgressReporter::Style style_for(const CliStreams& streams, bool json) {
  if (streams.err_is_terminal) return ProgressReporter::Style::kTerminal;
  return json ? ProgressReporter::Style::kSilent : ProgressReporter::Style::kLines;
}

// A line of what happens, for people: on standard error.
Say say_to(const CliStreams& streams, const CommandLine& line) {
  if (line.json) return {};
  return [err = streams.err](const std::string& text) {
    static_cast<void>(put(err, printable(text) + "\n"));
  };
}

// The command's end as a value: what the standard library throws (no memory, no threads) included.
Result<Outcome> run_guarded(const CommandLine& line, const CliStreams& streams,
                            const CancelToken& cancel) {
  try {
    DCR_TRY(check_kernels());
    if (is_run_command(line.command)) {
      return run_cluster_command(
          line, cancel, say_to(streams, line),
          [&streams](const std::string& text) { return put(streams.out, text); });
    }
    ProgressReporter progress(streams.err, style_for(streams, line.json), steady_seconds);
    auto outcome = run_command(line, &cancel, steady_seconds, progress);
    if (outcome.ok() || outcome.status().code() != Code::kCancelled) return outcome;
    const std::string_view signal = received_signal();
    if (signal.empty()) return outcome;
    return outcome.status().with_context(fmt::format("stopped by {}", signal));
  } catch (const std::bad_alloc&) {
    return Status(Code::kIo, "out of memory; give it less with --memory or --threads");
  } catch (const std::exception& error) {
    return Status(Code::kInternal, error.what());
  }
}

}  // namespace

int run_cli(int argc, const char* const* argv, const CliStreams& streams,
            const CancelToken& cancel) {
  auto line = parse_command_line(argc, argv);
  if (!line.ok()) return fail(streams, wants_json(argc, argv), Command::kText, line.status());
  if (line->command == Command::kText) {
    const Status written = put(streams.out, line->text);
    return written.ok() ? kExitDone : fail(streams, false, Command::kText, written);
  }
  auto outcome = run_guarded(*line, streams, cancel);
  if (!outcome.ok()) return fail(streams, line->json, line->command, outcome.status());
  for (const std::string& warning : outcome->warnings) {
    static_cast<void>(put(
        streams.err, fmt::format("dcr {}: warning: {}\n", command_name(line->command), warning)));
  }
  const Status written = put(streams.out, outcome->text);
  if (!written.ok()) return fail(streams, false, line->command, written);
  return outcome->exit_code;
}

}  // namespace dcr
