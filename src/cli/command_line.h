// What the user asked for, from the arguments of the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/delta.h"
#include "dcr/refit.h"
#include "dcr/status.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace dcr {

enum class Command : std::uint8_t {
  kText,
  kDiff,
  kApply,
  kVerify,
  kInspect,
  kRefit,
  kKeygen,
  // Of clusters (cli/run_commands.h).
  kLocal,
  kCoordinator,
  kOwner,
  kNode,
  kReceiver,
  kRunRefit,
  kStatus,
  kAbort,
  kRestore,
};

// What the commands of clusters ask for.
struct RunLine {
  std::string config;                 // all but kLocal: the run's file
  std::string run_directory;          // in its place
  std::string name;                   // the endpoint that this process is
  std::string path, label;            // kRunRefit: the checkpoint, and what it is called
  bool asynchronous = false;          // kRunRefit, kLocal
  bool watch = false;                 // kStatus
  bool convert = false;               // kLocal
  std::vector<std::string> versions;  // kLocal: where to refit to, in order
  std::string from;                   // kLocal
  std::uint64_t owners = 4, nodes = 3, receivers_per_node = 2;  // kLocal
  std::vector<std::string> kills;                               // kLocal, and of one process
  std::string report;                                           // kLocal: a file for all of it
  std::string directory;                                        // kLocal: where to keep it
  std::string spans;                                            // of one process
  std::uint64_t memory_bytes_max = std::uint64_t{1} << 30;      // kLocal: of each process
  std::uint64_t staging_bytes_max = std::uint64_t{1} << 30;     // kLocal: of each node
};

struct CommandLine {
  Command command = Command::kText;
  std::string text;  // kText: the help or version to print, nothing else to do

  std::string old_path, new_path;              // kDiff, kRefit; kVerify compares these two
  std::vector<std::string> deltas;             // kApply: the chain in its order; kInspect: one
  std::string base;                            // kApply
  std::string endpoint;                        // kKeygen: whose key
  std::string output;                          // kDiff; kApply unless in place; kKeygen
  bool in_place = false;                       // kApply
  bool compare_files = false;                  // kVerify
  RefitLayout owners = RefitOptions().owners;  // kRefit
  RefitLayout receivers = RefitOptions().receivers;  // kRefit
  bool post_apply_checks = false;                    // kRefit
  bool refit_verify = false;                         // kRefit: compare, write nothing
  std::string arena_directory;                       // kRefit
  RunLine run;
  bool force = false;
  bool json = false;
  unsigned threads = 0;  // 0: one per processor
  std::uint64_t memory_bytes_max = DeltaOptions().memory_bytes_max;
};

inline constexpr unsigned kThreadsMax = 1024;

// Parses the arguments (argv[0] is the program). Pure: prints nothing. Error: kInvalidArgument
// saying what to change.
Result<CommandLine> parse_command_line(int argc, const char* const* argv);

// Adds the commands of clusters (run_command_line.cc), and checks what CLI11 does not.
struct RunWords {
  std::string mode = "sync";
  std::string memory = "1GiB";
  std::string staging = "1GiB";
};
void add_json(CLI::App& command, CommandLine& line);  // the option --json
void add_run_commands(CLI::App& app, CommandLine& line, RunWords& words);
Status finish_run(CommandLine& line, const RunWords& words);

// Whether the arguments ask for --json, also when they are otherwise wrong, so that an error can be
// reported in the form that was asked for.
bool wants_json(int argc, const char* const* argv);

// "diff", for messages; empty for kText.
std::string_view command_name(Command command);

}  // namespace dcr
