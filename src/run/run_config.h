// The configuration of a run on several processes: one TOML file that all of them read
// (docs/CLI.md "The file of a run"). Unknown keys are errors that suggest the nearest key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.h"
#include "dcr/status.h"
#include "protocol/machine.h"

namespace dcr {

// An endpoint of the control channel.
struct PeerConfig {
  std::string name;
  std::string address;     // where it listens: "tcp://host:port", "ipc:///path"
  std::string public_key;  // as `dcr keygen` prints it
  // Of an owner: where it listens for the other owners, if some tensors are converted.
  std::string collective = {};
};

// An engine: the receivers that serve a request together. One process has them all, and the gate.
struct EngineConfig {
  PeerConfig gate;  // the engine's name is its gate's
  std::string node;
  std::vector<PeerConfig> receivers;  // by rank in the receivers' layout
};

struct RunConfig {
  // Holds the control plane, what owners publish and, unless the next two say otherwise, all else.
  // Relative paths of the file count from where the file lies.
  std::string directory;
  std::string objects;  // where payloads lie; empty: in the directory's "objects"
  // Of one machine: the keys' folder "keys", and sockets between its processes; empty: the
  // directory
  std::string work;
  // All three, or none: then trainers and engines bring the weights, and version 0 has none.
  std::string base;                       // the checkpoint that is version 0
  std::string owners;                     // a layout file, or what to generate one from: "fsdp:4"
  std::string receivers;                  // of one engine's ranks; likewise
  std::uint64_t memory_bytes_max = kGiB;  // of each owner, node and receiver, beside weights
  std::uint64_t staging_bytes_max = kGiB;
  std::uint64_t bucket_bytes = 512 * kMiB;
  unsigned threads = 1;  // of each owner and receiver
  // Engines read all their weights again and again while gates are open, as requests would.
  bool requests = true;
  Waits waits;

  std::vector<PeerConfig> coordinators;
  std::vector<PeerConfig> owner_peers;  // by rank
  std::vector<PeerConfig> nodes;
  std::vector<EngineConfig> engines;
  std::vector<PeerConfig> operators;  // who may command
};

inline constexpr std::uint64_t kThreadsOfEndpointMax = 1024;
inline constexpr std::uint64_t kRunConfigBytesMax = 16 * kMiB;

// `directory`: where the file lies. Errors: kInvalidArgument naming line and key, and for an
// unknown key the nearest one; names that occur twice; an engine on no node.
Result<RunConfig> parse_run_config(std::string_view text, const std::string& directory);
Result<RunConfig> read_run_config(const std::string& path);

// The settings of a run directory: a file with the keys of the above that say how much and how
// long, and no others; what it leaves out has its default.
Result<RunConfig> parse_run_settings(std::string_view text, const std::string& directory);
std::string format_run_settings(const RunConfig& config);

// The file's text: what `dcr local` writes.
std::string format_run_config(const RunConfig& config);

// Error kInvalidArgument, if the run's weights are not those of checkpoints: then what `what` says
// is for others to do.
Status check_has_base(const RunConfig& config, const std::string& what);

// Everybody who may speak to anybody.
std::vector<PeerConfig> all_peers(const RunConfig& config);
// Error kInvalidArgument: no endpoint has the name; names the nearest.
Result<PeerConfig> find_peer(const RunConfig& config, const std::string& name);

// Which of `known` a mistyped word most likely means; empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace dcr
