// What the user asked for, from the arguments of the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dcr/delta.h"
#include "dcr/refit.h"
#include "dcr/status.h"

namespace dcr {

enum class Command : std::uint8_t { kText, kDiff, kApply, kVerify, kInspect, kRefit, kKeygen };

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
  bool force = false;
  bool json = false;
  unsigned threads = 0;  // 0: one per processor
  std::uint64_t memory_bytes_max = DeltaOptions().memory_bytes_max;
};

inline constexpr unsigned kThreadsMax = 1024;

// Parses the arguments (argv[0] is the program). Pure: prints nothing. Error: kInvalidArgument
// saying what to change.
Result<CommandLine> parse_command_line(int argc, const char* const* argv);

// Whether the arguments ask for --json, also when they are otherwise wrong, so that an error can be
// reported in the form that was asked for.
bool wants_json(int argc, const char* const* argv);

// "diff", for messages; empty for kText.
std::string_view command_name(Command command);

}  // namespace dcr
