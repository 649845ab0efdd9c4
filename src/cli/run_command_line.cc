// The command lines of clusters.
#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/text.h"

namespace dcr {
namespace {

constexpr std::uint64_t kEndpointsOfKindMax = 64;

void add_config(CLI::App& command, CommandLine& line) {
  command.add_option("--config", line.run.config, "The run's file")->required()->type_name("FILE");
}

// The run's file, or a run directory.
void add_run(CLI::App& command, CommandLine& line) {
  CLI::Option_group* run = command.add_option_group("Run", "Which run");
  run->add_option("--config", line.run.config, "The run's file")->type_name("FILE");
  run->add_option("--run", line.run.run_directory, "The run's directory")->type_name("DIRECTORY");
  run->require_option(1);
}

void add_count(CLI::App& command, const char* name, std::uint64_t* count, const char* what) {
  command.add_option(name, *count, what)
      ->type_name("N")
      ->check(CLI::Range(std::uint64_t{1}, kEndpointsOfKindMax).description(""));
}

// `kind` of a cluster's process.
void add_process(CLI::App& app, CommandLine& line, Command kind, const char* name,
                 const char* what) {
  CLI::App* process = app.add_subcommand(name, what);
  if (kind == Command::kCoordinator || kind == Command::kNode) {
    add_run(*process, line);
  } else {
    add_config(*process, line);
  }
  process->add_option("--name", line.run.name, "Which of the run's endpoints this is")
      ->required()
      ->type_name("NAME");
  // For `dcr local`, which shows what becomes of it.
  process
      ->add_option("--kill-at,--pause-at", line.run.kills,
                   "Die or stop at a point of the protocol (see dcr local --kill)")
      ->type_name("POINT");
  process->add_option("--spans", line.run.spans, "Append the times of stages to this file")
      ->type_name("FILE");
  process->callback([&line, kind] { line.command = kind; });
}

// A command that an operator gives a running cluster.
CLI::App* add_operator(CLI::App& app, CommandLine& line, Command kind, const char* name,
                       const char* what) {
  CLI::App* command = app.add_subcommand(name, what);
  add_run(*command, line);
  command->add_option("--name", line.run.name, "The operator that this is (default operator)")
      ->type_name("NAME");
  add_json(*command, line);
  command->callback([&line, kind] { line.command = kind; });
  return command;
}

Result<std::uint64_t> bytes_of(const char* option, const std::string& word) {
  auto bytes = parse_bytes(word);
  if (!bytes.ok()) return bytes.status().with_context(option);
  return bytes;
}

void add_local(CLI::App& app, CommandLine& line, RunWords& words) {
  CLI::App* local = app.add_subcommand(
      "local",
      "Start a whole cluster of processes on this machine, refit it through checkpoints, kill\n"
      "what it is told to, and compare every byte of every receiver with a dense load");
  local->add_option("--from", line.run.from, "The checkpoint that is version 0")
      ->required()
      ->type_name("OLD");
  local->add_option("--to", line.run.versions, "The next version; may be given several times")
      ->required()
      ->type_name("NEW");
  add_count(*local, "--owners", &line.run.owners, "Owners (default 4)");
  add_count(*local, "--nodes", &line.run.nodes, "Rollout nodes, an engine on each (default 3)");
  add_count(*local, "--receivers-per-node", &line.run.receivers_per_node,
            "Ranks of each engine, each with a receiver (default 2)");
  local
      ->add_option(
          "--mode", words.mode,
          "sync (the default): gates are closed while payloads come; async: engines serve\n"
          "until everything is staged")
      ->type_name("MODE")
      ->check(CLI::IsMember({"sync", "async"}).description(""));
  local
      ->add_option("--kill", line.run.kills,
                   "[pause:]ROLE[.INDEX]@OPERATION[.before|.after][:NTH][,SECONDS]: kill that\n"
                   "process there, or stop it for SECONDS; may be given several times")
      ->type_name("POINT")
      ->delimiter('\0');
  local->add_flag("--convert", line.run.convert,
                  "Owners convert every tensor, as exports that compute do, instead of projecting\n"
                  "their shards");
  local
      ->add_option("--memory", words.memory,
                   "Working memory of each owner, node and receiver, as in 512M (default 1GiB)")
      ->type_name("BYTES");
  local
      ->add_option("--staging", words.staging,
                   "What a node stages in asynchronous mode before gates close early (default\n"
                   "1GiB)")
      ->type_name("BYTES");
  local->add_option("--report", line.run.report, "Write everything that was measured to this file")
      ->type_name("FILE");
  local
      ->add_option("--directory", line.run.directory,
                   "Keep the run here, logs of all processes included (default: a temporary one)")
      ->type_name("DIRECTORY");
  add_json(*local, line);
  local->callback([&line] { line.command = Command::kLocal; });
}

}  // namespace

void add_run_commands(CLI::App& app, CommandLine& line, RunWords& words) {
  add_local(app, line, words);
  add_process(app, line, Command::kCoordinator, "coordinator",
              "Run a coordinator of a cluster: it leads, or stands by");
  add_process(app, line, Command::kOwner, "owner",
              "Run an owner: a trainer rank whose weights come from checkpoints");
  add_process(app, line, Command::kNode, "node", "Run a rollout node's agent");
  add_process(app, line, Command::kReceiver, "receiver",
              "Run an engine: its ranks, their receivers and the request gate");
  CLI::App* status =
      add_operator(app, line, Command::kStatus, "status", "Show how a running cluster stands");
  status->add_flag("--watch", line.run.watch, "Show it again and again");
  add_operator(app, line, Command::kAbort, "abort",
               "End a transition that does not come to an end; owners send everything next time");
  add_operator(app, line, Command::kRestore, "restore",
               "Have receivers that do not hold the committed version restore it");
}

Status finish_run(CommandLine& line, const RunWords& words) {
  RunLine& run = line.run;
  DCR_ASSIGN(run.memory_bytes_max, bytes_of("--memory", words.memory));
  DCR_ASSIGN(run.staging_bytes_max, bytes_of("--staging", words.staging));
  if (line.command == Command::kRefit && !run.config.empty()) {
    if (!line.new_path.empty()) {
      return {Code::kInvalidArgument, "refit with --config takes one checkpoint, NEW"};
    }
    run.path = line.old_path;
    line.command = Command::kRunRefit;
  }
  if (run.name.empty()) run.name = "operator";
  if (run.label.empty()) run.label = run.path;
  run.asynchronous = run.asynchronous || words.mode == "async";
  return {};
}

}  // namespace dcr
