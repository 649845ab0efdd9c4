#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/text.h"

namespace dcr {
namespace {

constexpr const char* kExitCodesText =
    "Exit codes: 0 done, 1 differs (verify, refit), 2 usage, 3 bad or mismatched input,\n"
    "4 I/O error or signal (nothing unfinished is left behind), 5 an operator is needed.";

// The words of options that need more than CLI11 checks.
struct Words {
  std::string memory = fmt::format("{}", DeltaOptions().memory_bytes_max);
  std::vector<std::string> paths;  // of apply: deltas, then the base
  std::string mode = "write";      // of refit
  RunWords run;
};

void add_common_options(CLI::App& command, CommandLine& line, Words& words) {
  add_json(command, line);
  command
      .add_option("--threads", line.threads, "Threads to use; 0: one per processor (the default)")
      ->type_name("N")
      ->check(CLI::Range(0U, kThreadsMax).description(""));
  command
      .add_option("--memory", words.memory,
                  fmt::format("Working memory, as in 512M or 1GiB; at least {}M (default 1GiB)",
                              kMemoryBytesMin >> 20))
      ->type_name("SIZE");
}

void add_force(CLI::App& command, CommandLine& line) {
  command.add_flag("--force", line.force, "Replace an existing output");
}

void add_diff(CLI::App& app, CommandLine& line, Words& words) {
  CLI::App* diff =
      app.add_subcommand("diff", "Write the exact difference of two checkpoints as a delta file");
  diff->add_option("OLD", line.old_path, "A .safetensors file or a checkpoint directory")
      ->required()
      ->type_name("");
  diff->add_option("NEW", line.new_path, "The same after training")->required()->type_name("");
  diff->add_option("-o,--output", line.output, "The delta file to write")
      ->required()
      ->type_name("FILE");
  add_force(*diff, line);
  add_common_options(*diff, line, words);
  diff->callback([&line] { line.command = Command::kDiff; });
}

// Says what the one list of paths of apply consists of.
class ApplyFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    static_cast<void>(app);
    return fmt::format("Usage: {} [OPTIONS] DELTA... OLD\n", name);
  }
};

void add_apply(CLI::App& app, CommandLine& line, Words& words) {
  CLI::App* apply = app.add_subcommand(
      "apply",
      "Apply one delta, or a chain of them in order, to the checkpoint that it starts from");
  apply->formatter(std::make_shared<ApplyFormatter>());
  apply
      ->add_option("DELTAS_AND_OLD", words.paths,
                   "Delta files in their order, then the checkpoint to apply them to")
      ->type_name("");
  CLI::Option* output =
      apply->add_option("-o,--output", line.output, "Where to write the result")->type_name("PATH");
  apply
      ->add_flag("--in-place", line.in_place,
                 "Change OLD itself; an interrupted run is completed by running it again")
      ->excludes(output);
  add_force(*apply, line);
  add_common_options(*apply, line, words);
  apply->callback([&line] { line.command = Command::kApply; });
}

void add_verify(CLI::App& app, CommandLine& line, Words& words) {
  CLI::App* verify = app.add_subcommand(
      "verify", "Compare two checkpoints: every tensor's bits, names, dtypes, shapes, metadata");
  verify->add_option("A", line.old_path, "A .safetensors file or a checkpoint directory")
      ->required()
      ->type_name("");
  verify->add_option("B", line.new_path, "The one to compare it with")->required()->type_name("");
  verify->add_flag("--files", line.compare_files,
                   "Compare the other files too, and the safetensors headers byte for byte");
  add_common_options(*verify, line, words);
  verify->callback([&line] { line.command = Command::kVerify; });
}

void add_inspect(CLI::App& app, CommandLine& line, Words& words) {
  CLI::App* inspect =
      app.add_subcommand("inspect", "Check a delta file whole and show what is in it");
  inspect->add_option("DELTA", line.base, "A delta file")->required()->type_name("");
  add_common_options(*inspect, line, words);
  inspect->callback([&line] { line.command = Command::kInspect; });
}

void add_refit(CLI::App& app, CommandLine& line, Words& words) {
  CLI::App* refit = app.add_subcommand(
      "refit",
      "Refit sharded receivers that hold OLD from sharded owners that hold NEW, all in this\n"
      "process, and compare every byte with a dense load of NEW");
  refit->add_option("OLD", line.old_path, "A .safetensors file or a checkpoint directory")
      ->required()
      ->type_name("");
  refit->add_option("NEW", line.new_path, "The same after training (not with --config)")
      ->type_name("");
  refit
      ->add_option("--config", line.run.config,
                   "Refit the running cluster of this file instead; the only checkpoint is NEW")
      ->type_name("FILE");
  refit->add_option("--name", line.run.name, "The operator that this is (default operator)")
      ->type_name("NAME");
  refit->add_option("--label", line.run.label, "What to call NEW there (default: its path)")
      ->type_name("TEXT");
  refit->add_flag("--async", line.run.asynchronous,
                  "There, receivers serve on until everything is staged");
  CLI::Option* layout =
      refit->add_option("--layout", line.owners.file, "What each owner holds: a layout file");
  layout->type_name("FILE");
  refit
      ->add_option("--owners", line.owners.generate,
                   "Or what to generate it from: fsdp:N, tp:N, tp:N,dp:M, ep:N (default fsdp:8)")
      ->type_name("SPEC")
      ->excludes(layout);
  CLI::Option* loader = refit->add_option("--loader", line.receivers.file,
                                          "How each receiver's loader places: a layout file");
  loader->type_name("FILE");
  refit
      ->add_option("--receivers", line.receivers.generate,
                   "Or what to generate it from: fused-tp:N (default fused-tp:8)")
      ->type_name("SPEC")
      ->excludes(loader);
  refit
      ->add_option("--mode", words.mode,
                   "write (the default), or verify: receivers compare NEW and write nothing")
      ->type_name("MODE")
      ->check(CLI::IsMember({"write", "verify"}).description(""));
  refit->add_flag("--post-apply-checks", line.post_apply_checks,
                  "Receivers compare what they wrote with what came");
  refit
      ->add_option("--arena", line.arena_directory,
                   "Keep weights and baselines in mapped files here instead of in memory")
      ->type_name("DIRECTORY");
  add_common_options(*refit, line, words);
  refit->callback([&line] { line.command = Command::kRefit; });
}

void add_keygen(CLI::App& app, CommandLine& line) {
  CLI::App* keygen = app.add_subcommand(
      "keygen", "Make the key pair of one endpoint: its secret, and its line of allow-lists");
  keygen->add_option("NAME", line.endpoint, "The endpoint: letters, digits, '.', '_' and '-'")
      ->required()
      ->type_name("");
  keygen
      ->add_option("-o,--output", line.output,
                   "The directory for NAME.key, the secret, and NAME.pub, the line")
      ->required()
      ->type_name("DIRECTORY");
  add_force(*keygen, line);
  add_json(*keygen, line);
  keygen->callback([&line] { line.command = Command::kKeygen; });
}

Status usage(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

// Splits the paths of apply and checks that it has one place to write to.
Status finish_apply(CommandLine& line, Words& words) {
  if (words.paths.size() < 2) {
    return usage("apply takes at least one delta file and then the checkpoint to apply it to");
  }
  if (!line.in_place && line.output.empty()) {
    return usage("apply needs -o PATH for the result, or --in-place to change the checkpoint");
  }
  line.base = std::move(words.paths.back());
  words.paths.pop_back();
  line.deltas = std::move(words.paths);
  return {};
}

// The checks that CLI11 does not make.
Status finish(CommandLine& line, Words& words) {
  auto bytes = parse_bytes(words.memory);
  if (!bytes.ok()) return bytes.status().with_context("--memory");
  line.memory_bytes_max = *bytes;
  if (line.memory_bytes_max < kMemoryBytesMin) {
    return usage(fmt::format("--memory: {} is too little; give it at least {}M",
                             printable(words.memory), kMemoryBytesMin >> 20));
  }
  if (line.command == Command::kDiff && line.output.empty()) {
    return usage("diff needs -o FILE for the delta file to write");
  }
  if (line.command == Command::kApply) return finish_apply(line, words);
  line.refit_verify = words.mode == "verify";
  if (line.command == Command::kRefit && line.run.config.empty() && line.new_path.empty()) {
    return usage("refit takes OLD and NEW, or --config FILE and NEW");
  }
  DCR_TRY(finish_run(line, words.run));
  if (line.command == Command::kInspect) line.deltas = {std::exchange(line.base, {})};
  return {};
}

// The arguments without the program, last first, as CLI11 takes them. It would split "[a,b]" into
// two values where several are allowed; as "./[a,b]" the same path passes through.
std::vector<std::string> reversed_arguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    std::string argument = argv[i];
    if (argument.size() > 1 && argument.front() == '[' && argument.back() == ']') {
      argument.insert(0, "./");
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

}  // namespace

void add_json(CLI::App& command, CommandLine& line) {
  command.add_flag("--json", line.json, "Print one JSON object on standard output, errors too");
}

Result<CommandLine> parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  Words words;
  CLI::App app(
      "Exact differences of model checkpoints: made, applied, verified, inspected, and refitted.",
      "dcr");
  app.set_version_flag("--version",
                       fmt::format("dcr {} (delta format version {})", DCR_VERSION, kFormatVersion),
                       "Print the version of the program and of the delta format");
  app.require_subcommand(1);
  app.footer(kExitCodesText);
  add_diff(app, line, words);
  add_apply(app, line, words);
  add_verify(app, line, words);
  add_inspect(app, line, words);
  add_refit(app, line, words);
  add_keygen(app, line);
  add_run_commands(app, line, words.run);
  try {
    app.parse(reversed_arguments(argc, argv));
  } catch (const CLI::Success& success) {
    std::ostringstream out;
    app.exit(success, out, out);
    line.command = Command::kText;
    line.text = out.str();
    return line;
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && app.remaining_size() > 0) {
      return usage(fmt::format("there is no command or option \"{}\"", app.remaining().front()));
    }
    return usage(error.what());
  }
  DCR_TRY(finish(line, words));
  return line;
}

bool wants_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") return false;
    if (argument == "--json") return true;
  }
  return false;
}

std::string_view command_name(Command command) {
  switch (command) {
    case Command::kText:
      return "";
    case Command::kDiff:
      return "diff";
    case Command::kApply:
      return "apply";
    case Command::kVerify:
      return "verify";
    case Command::kInspect:
      return "inspect";
    case Command::kRefit:
      return "refit";
    case Command::kKeygen:
      return "keygen";
    case Command::kLocal:
      return "local";
    case Command::kCoordinator:
      return "coordinator";
    case Command::kOwner:
      return "owner";
    case Command::kNode:
      return "node";
    case Command::kReceiver:
      return "receiver";
    case Command::kRunRefit:
      return "refit";
    case Command::kStatus:
      return "status";
    case Command::kAbort:
      return "abort";
    case Command::kRestore:
      return "restore";
  }
  return "";
}

}  // namespace dcr
