#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "base/limits.h"
#include "bench/checkpoint_files.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/process.h"
#include "bench/temporary_directory.h"
#include "runtime/file.h"

namespace dcr {
namespace {

// `zstd --patch-from` refuses files from here on.
constexpr std::uint64_t kPatchFromBytesMax = std::uint64_t{1} << 31;
// The default of `dcr --memory`, and what the process may take beside it.
constexpr double kMemoryAimMib = 1024 + 128;

using Command = std::vector<std::string>;

// A program to compare: how it makes a delta and how it applies one.
struct Tool {
  std::string name;
  bool whole_checkpoint = false;  // takes a directory at once; the others go file by file
  std::function<Command(const std::string& before, const std::string& after,
                        const std::string& delta)>
      diff;
  std::function<Command(const std::string& before, const std::string& delta,
                        const std::string& output)>
      apply;
};

Tool dcr_tool(const std::string& program, const Command& options) {
  Tool tool;
  tool.name = "dcr";
  tool.whole_checkpoint = true;
  for (const std::string& option : options) tool.name += " " + option;
  tool.diff = [=](const auto& before, const auto& after, const auto& delta) {
    Command command{program, "diff", before, after, "-o", delta};
    command.insert(command.end(), options.begin(), options.end());
    return command;
  };
  tool.apply = [=](const auto& before, const auto& delta, const auto& output) {
    Command command{program, "apply", delta, before, "-o", output};
    command.insert(command.end(), options.begin(), options.end());
    return command;
  };
  return tool;
}

Tool zstd_tool() {
  return {"zstd -1 --patch-from", false,
          [](const auto& before, const auto& after, const auto& delta) {
            return Command{"zstd", "-1", "-q", "--patch-from=" + before, after, "-o", delta};
          },
          [](const auto& before, const auto& delta, const auto& output) {
            return Command{
                "zstd", "-d", "-q",  "--long=31", "--memory=2048MB", "--patch-from=" + before,
                delta,  "-o", output};
          }};
}

Tool xdelta_tool() {
  return {"xdelta3 -1", false,
          [](const auto& before, const auto& after, const auto& delta) {
            return Command{"xdelta3", "-1", "-q", "-e", "-s", before, after, delta};
          },
          [](const auto& before, const auto& delta, const auto& output) {
            return Command{"xdelta3", "-q", "-d", "-s", before, delta, output};
          }};
}

struct Outcome {
  double diff_seconds = 0, apply_seconds = 0;
  std::uint64_t delta_bytes = 0;
  std::uint64_t diff_peak_bytes = 0, apply_peak_bytes = 0;
};

Result<ProcessRun> run_checked(const Command& command, const std::string& directory) {
  const std::string log = join_path(directory, "stderr");
  // What the program before left to be written must not slow this one down.
  ::sync();
  DCR_ASSIGN(const ProcessRun run, run_process(command, log));
  if (run.exit_code == 0) return run;
  std::string line;
  for (const std::string& word : command) line += word + " ";
  DCR_ASSIGN(const Bytes words, read_file(posix_file_system(), log, kMiB));
  return Status(Code::kIo, fmt::format("exit code {} of: {}\n{}", run.exit_code, line,
                                       std::string(words.begin(), words.end())));
}

// `dcr` ends when its output would survive a power loss; the others are given the same: what it
// takes to bring their output to the disk counts.
Result<double> seconds_until_durable(const std::vector<std::string>& outputs) {
  Status status;
  const double seconds = seconds_of(ClockKind::kWall, [&] {
    for (const std::string& output : outputs) {
      const Result<std::unique_ptr<File>> file = posix_file_system().open_write(output);
      const Status synced = file.ok() ? file.value()->sync() : file.status();
      if (status.ok()) status = synced;
    }
  });
  DCR_TRY(status);
  return seconds;
}

// One delta made and applied, the result compared byte for byte and removed again.
Status measure_one(const Tool& tool, const std::string& before, const std::string& after,
                   const std::vector<std::string>& shards, const std::string& directory,
                   Outcome* outcome) {
  const std::string delta = join_path(directory, "delta");
  const std::string output = join_path(directory, shards.empty() ? "out.safetensors" : "out");
  std::vector<std::pair<std::string, std::string>> results;  // expected and actual
  if (shards.empty()) results.emplace_back(after, output);
  for (const std::string& shard : shards) {
    results.emplace_back(join_path(after, shard), join_path(output, shard));
  }
  std::vector<std::string> outputs;
  outputs.reserve(results.size());
  for (const auto& [expected, actual] : results) outputs.push_back(actual);

  DCR_ASSIGN(const ProcessRun made, run_checked(tool.diff(before, after, delta), directory));
  DCR_ASSIGN(const double delta_sync, seconds_until_durable({delta}));
  DCR_ASSIGN(const ProcessRun applied, run_checked(tool.apply(before, delta, output), directory));
  DCR_ASSIGN(const double output_sync, seconds_until_durable(outputs));
  outcome->diff_seconds += made.seconds + delta_sync;
  outcome->apply_seconds += applied.seconds + output_sync;
  outcome->diff_peak_bytes = std::max(outcome->diff_peak_bytes, made.peak_rss_bytes);
  outcome->apply_peak_bytes = std::max(outcome->apply_peak_bytes, applied.peak_rss_bytes);
  outcome->delta_bytes += std::filesystem::file_size(delta);
  for (const auto& [expected, actual] : results) DCR_TRY(compare_files(expected, actual));
  std::filesystem::remove(delta);
  std::filesystem::remove_all(output);
  return {};
}

Result<Outcome> measure_tool(const Tool& tool, const CheckpointPair& pair,
                             const std::string& directory) {
  Outcome outcome;
  if (tool.whole_checkpoint || pair.shards.empty()) {
    DCR_TRY(measure_one(tool, pair.before, pair.after, pair.shards, directory, &outcome));
    return outcome;
  }
  for (const std::string& shard : pair.shards) {
    DCR_TRY(measure_one(tool, join_path(pair.before, shard), join_path(pair.after, shard), {},
                        directory, &outcome));
  }
  return outcome;
}

std::uint64_t largest_file(const CheckpointPair& pair) {
  if (pair.shards.empty()) return std::filesystem::file_size(pair.after);
  std::uint64_t largest = 0;
  for (const std::string& shard : pair.shards) {
    largest =
        std::max<std::uint64_t>(largest, std::filesystem::file_size(join_path(pair.after, shard)));
  }
  return largest;
}

void add_comparison(const Tool& tool, const Outcome& other, const Outcome& ours, Report* report) {
  const std::string of = " of dcr / " + tool.name;
  report->add_figure("diff time" + of, ours.diff_seconds / other.diff_seconds, Report::Aim::kAtMost,
                     1);
  report->add_figure("apply time" + of, ours.apply_seconds / other.apply_seconds,
                     Report::Aim::kAtMost, 1);
  report->add_figure("delta bytes" + of,
                     static_cast<double>(ours.delta_bytes) / static_cast<double>(other.delta_bytes),
                     Report::Aim::kAtMost, 1);
}

double mebibytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}

}  // namespace

Result<Report> run_tools(const ToolsOptions& options) {
  DCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make(options.directory));
  WorkloadSpec spec;
  spec.seed = options.seed;
  if (options.rate > 0) spec = workload_at_rate(Workload::kAdam, options.rate, options.seed);
  DCR_ASSIGN(const CheckpointPair pair, write_checkpoints(spec, plain_tensors(options.size),
                                                          options.shards, directory.path()));
  std::vector<Tool> tools{dcr_tool(options.dcr, {}), dcr_tool(options.dcr, {"--threads", "1"})};
  Report report({"tool", "diff_seconds", "apply_seconds", "delta_bytes"});
  if (!options.alone) {
    if (largest_file(pair) < kPatchFromBytesMax) {
      tools.push_back(zstd_tool());
    } else {
      report.add_note("zstd --patch-from refuses files of 2 GiB and more: left out");
    }
    tools.push_back(xdelta_tool());
  }
  Outcome ours;
  for (const Tool& tool : tools) {
    Result<Outcome> measured = measure_tool(tool, pair, directory.path());
    if (measured.status().code() == Code::kNotFound && !tool.whole_checkpoint) {
      report.add_note(measured.status().message() + ": left out");
      continue;
    }
    DCR_ASSIGN(const Outcome outcome, std::move(measured));
    report.add_row({Cell::text(tool.name), Cell::number(outcome.diff_seconds),
                    Cell::number(outcome.apply_seconds), Cell::whole(outcome.delta_bytes)});
    if (&tool == &tools.front()) ours = outcome;
    if (!tool.whole_checkpoint) add_comparison(tool, outcome, ours, &report);
    report.add_figure("peak MiB of diff, " + tool.name, mebibytes(outcome.diff_peak_bytes));
    report.add_figure("peak MiB of apply, " + tool.name, mebibytes(outcome.apply_peak_bytes));
  }
  report.add_figure("peak MiB of dcr",
                    mebibytes(std::max(ours.diff_peak_bytes, ours.apply_peak_bytes)),
                    Report::Aim::kAtMost, kMemoryAimMib);
  return report;
}

}  // namespace dcr
