// dcr-bench: how small and how fast, always beside something to compare with, measured in one run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

#include "bench/commands.h"
#include "simd/kernels.h"

namespace dcr {
namespace {

constexpr const char* kAbout =
    "Measures DCR beside what it is compared with. Inputs are made from a seed; everything that "
    "is\n"
    "measured is decoded and compared bit for bit in the same run. Times of one row are taken\n"
    "alternately, round by round; medians and ratios within rounds count. A figure with an aim "
    "says\n"
    "whether it was reached; a missed aim does not fail the run.";

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Request {
  bool json = false;
  std::function<Result<Report>()> run;
};

struct Options {
  CodecOptions codec;
  PayloadOptions payload;
  SpeedOptions construct;
  SpeedOptions coding;
  SpeedOptions apply;
  RefitBenchOptions refit;
  ModesOptions modes;
  ProtocolOptions protocol;
  ToolsOptions tools;
};

CLI::App* add_command(CLI::App& app, Request& request, const char* name, const char* about,
                      std::function<Result<Report>()> run) {
  CLI::App* command = app.add_subcommand(name, about);
  command->add_flag("--json", request.json, "Print one JSON object: rows, machine, figures, notes");
  command->callback([&request, run = std::move(run)] { request.run = run; });
  return command;
}

// `value` is an option's own variable and default.
template <typename T>
CLI::Option* add_value(CLI::App* command, const char* name, T& value, const char* about) {
  return command->add_option(name, value, about)->capture_default_str();
}

void add_size_commands(CLI::App& app, Request& request, Options& options) {
  CLI::App* codec = add_command(
      app, request, "codec",
      "The paper's Table 2: compressed MB of the changed values of BF16 standard normals under "
      "Gaussian noise: overwrites, XOR masks, ours, and the order-0 entropy of new - old",
      [&options] { return run_codec(options.codec); });
  add_value(codec, "--elements", options.codec.elements, "Elements; the aims are for the default");
  add_value(codec, "--seed", options.codec.seed, "Seed of the inputs");

  CLI::App* payload = add_command(
      app, request, "payload",
      "Bits per change of whole payloads, locations included (256 bytes of container a payload "
      "not counted): the paper's layout, ours, and the entropy; Adam-like updates, and unit and "
      "relative ones at each rate",
      [&options] { return run_payload(options.payload); });
  add_value(payload, "--elements", options.payload.elements, "Elements of each row");
  add_value(payload, "--seed", options.payload.seed, "Seed of the inputs");
  add_value(payload, "--rates", options.payload.rates, "Shares of elements that change");
}

void add_speed_options(CLI::App* command, SpeedOptions& speed) {
  add_value(command, "--elements", speed.elements, "BF16 elements of each version");
  add_value(command, "--seed", speed.seed, "Seed of the inputs");
  add_value(command, "--rounds", speed.rounds, "Timed rounds, of which the median counts");
  add_value(command, "--rates", speed.rates, "Shares of elements that change");
  command
      ->add_option_function<std::string>(
          "--workload",
          [&speed](const std::string& name) {
            const Result<Workload> workload = workload_from_name(name);
            if (!workload.ok())
              throw CLI::ValidationError("--workload", workload.status().message());
            speed.workload = workload.value();
          },
          "How elements change: adam, relative or unit")
      ->default_str(workload_name(speed.workload));
}

void add_speed_commands(CLI::App& app, Request& request, Options& options) {
  const auto add = [&](const char* name, const char* about,
                       Result<Report> (*run)(const SpeedOptions&), SpeedOptions& speed) {
    add_speed_options(add_command(app, request, name, about, [&speed, run] { return run(speed); }),
                      speed);
  };
  add("construct",
      "GB of NEW per second on one core: a pass that only reads both inputs, the scan alone, and "
      "the whole construction (scan, encode, compress, payload digest)",
      run_construct, options.construct);
  add("encode",
      "From arrays of changes to a compressed body, ours against the paper's layout with zstd "
      "level 1; our digest is measured beside and taken off",
      run_encode, options.coding);
  add("decode",
      "From a compressed body to arrays of positions and words: ours with all its checks against "
      "the paper's layout; our digest is measured beside and taken off",
      run_decode, options.coding);
  add("apply",
      "From decoded items to parameter bits of one serving rank, whole and one of eight (tensor "
      "parallel): straight through traced places, against a scratch of each tensor that is filled, "
      "scattered into and folded in by one pass",
      run_apply, options.apply);
  add("threads", "Whole construction and the read-only pass: two threads against one", run_threads,
      options.construct);
}

void add_protocol_command(CLI::App& app, Request& request, Options& options) {
  ProtocolOptions& protocol = options.protocol;
  CLI::App* command = add_command(
      app, request, "protocol",
      "Refits of a cluster of processes on this machine, from refit() to open gates: of no change, "
      "beside one transaction of its store and one durable object, and of a change, beside the "
      "work of the same refit in one process",
      [&protocol] { return run_protocol(protocol); });
  add_value(command, "--small-size", protocol.small_size, "Bytes of what does not change");
  add_value(command, "--size", protocol.size, "Bytes of what does");
  add_value(command, "--rate", protocol.rate, "Share of its elements that change");
  const CLI::Range some(std::uint64_t{1}, std::uint64_t{1000});
  add_value(command, "--refits", protocol.refits, "Refits of no change, of which the median counts")
      ->check(some);
  add_value(command, "--changes", protocol.changes, "Refits of a change, likewise")->check(some);
  add_value(command, "--owners", protocol.owners, "Owners");
  add_value(command, "--nodes", protocol.nodes, "Rollout nodes");
  add_value(command, "--receivers-per-node", protocol.receivers_per_node, "Receivers of each");
  add_value(command, "--seed", protocol.seed, "Seed of the inputs");
  add_value(command, "--dir", protocol.directory, "Where to make a temporary directory");
  add_value(command, "--dcr", protocol.dcr, "The dcr program");
}

void add_tools_command(CLI::App& app, Request& request, Options& options) {
  CLI::App* tools = add_command(
      app, request, "tools",
      "`dcr diff` and `dcr apply` as processes beside `zstd -1 --patch-from` and `xdelta3 -1` on "
      "the same files, which are made on disk (four times --size is needed) and removed again. "
      "Wall clock of each process, on inputs in the page cache, until its output is on the disk; "
      "results are compared byte for byte. For a large pair in shards: --size 4000000000 --shards "
      "3; the others then go shard "
      "by shard",
      [&options] { return run_tools(options.tools); });
  add_value(tools, "--size", options.tools.size, "Bytes of each checkpoint");
  tools->add_option("--shards", options.tools.shards, "Files of each checkpoint")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  add_value(tools, "--rate", options.tools.rate,
            "Share of elements that change; 0: the Adam-like workload's own, about 2.3 %");
  add_value(tools, "--seed", options.tools.seed, "Seed of the inputs");
  add_value(tools, "--dir", options.tools.directory, "Where to make a temporary directory");
  add_value(tools, "--dcr", options.tools.dcr, "The dcr program");
  tools->add_flag("--alone", options.tools.alone, "Measure only dcr");
}

void add_refit_commands(CLI::App& app, Request& request, Options& options) {
  CLI::App* refit = add_command(
      app, request, "refit",
      "A whole refit of a transformer, sharded owners to sharded receivers, in one process: wall "
      "time from prepare to commit against what its work takes at least (processor time over "
      "threads, or the slowest stage on one thread); the comparison with a dense load that follows "
      "each is not in it. Also: the bytes that row-parallel shards cost, and the time to plan many "
      "names. Needs twice --size on disk and about five times in memory",
      [&options] { return run_refit(options.refit); });
  add_value(refit, "--size", options.refit.size, "Bytes of each checkpoint");
  add_value(refit, "--rates", options.refit.rates, "Shares of elements that change");
  add_value(refit, "--seed", options.refit.seed, "Seed of the inputs");
  add_value(refit, "--rounds", options.refit.rounds, "Refits, of which the least disturbed counts");
  add_value(refit, "--threads", options.refit.threads, "Threads; 0: one per processor");
  add_value(refit, "--owners", options.refit.owners, "Layout of owners");
  add_value(refit, "--receivers", options.refit.receivers, "Layout of receivers");
  add_value(refit, "--row-parallel-size", options.refit.row_parallel_size,
            "Bytes of the row-parallel tensors, about");
  add_value(refit, "--names", options.refit.planned_names, "Canonical tensors that are planned");
  add_value(refit, "--dir", options.refit.directory, "Where to make a temporary directory");

  CLI::App* modes = add_command(
      app, request, "modes",
      "Construction alone in the paper's modes: X (direct projection, coded as paths allow), P "
      "(the same, new bits only), F (full conversion, new bits only), on relative updates; bytes "
      "also against the paper's layout",
      [&options] { return run_modes(options.modes); });
  add_value(modes, "--size", options.modes.size, "Bytes of each checkpoint");
  add_value(modes, "--rates", options.modes.rates, "Shares of elements that change");
  add_value(modes, "--seed", options.modes.seed, "Seed of the inputs");
  add_value(modes, "--rounds", options.modes.rounds, "Timed rounds, of which the median counts");
  add_value(modes, "--threads", options.modes.threads, "Threads; 0: one per processor");
  add_value(modes, "--owners", options.modes.owners, "Layout of owners");
  add_value(modes, "--dir", options.modes.directory, "Where to make a temporary directory");
}

int run(int argc, char** argv) {
  const Result<const Kernels*> selected = select_kernels();
  if (!selected.ok()) {
    std::fprintf(stderr, "dcr-bench: %s\n", selected.status().message().c_str());
    return kUsage;
  }
  CLI::App app(kAbout, "dcr-bench");
  app.require_subcommand(1);
  Request request;
  Options options;
  options.coding.rates = {0.001, 0.01, 0.023, 0.05};
  options.apply.elements = std::uint64_t{352} << 20;
  options.apply.rates = {0.001, 0.01, 0.03};
  std::error_code unknown;  // then the name alone, looked up in PATH
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  options.tools.dcr = unknown ? "dcr" : self.parent_path() / "dcr";
  options.protocol.dcr = options.tools.dcr;
  add_size_commands(app, request, options);
  add_speed_commands(app, request, options);
  add_refit_commands(app, request, options);
  add_protocol_command(app, request, options);
  add_tools_command(app, request, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  const Result<Report> report = request.run();
  if (!report.ok()) {
    std::fprintf(stderr, "dcr-bench: %s\n", report.status().message().c_str());
    return kFailed;
  }
  const Machine machine = describe_machine();
  const std::string text =
      request.json
          ? report->json()
          : fmt::format("{}, {} cores, {} kernels, {}, zstd {}\n{}", machine.cpu, machine.cores,
                        machine.isa, machine.compiler, machine.zstd, report->table());
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace
}  // namespace dcr

int main(int argc, char** argv) { return dcr::run(argc, argv); }
