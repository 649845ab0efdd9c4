// The subcommands of dcr-bench. Each makes its inputs from a seed, measures, verifies what it
// measured bit for bit, and returns a report. Errors: those of the library, and kMismatch when a
// result is wrong: a benchmark of wrong results is worth nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/workloads.h"
#include "dcr/status.h"

namespace dcr {

// The paper's Table 2: sizes of the changed values alone.
struct CodecOptions {
  std::uint64_t elements = 20'000'000;
  std::uint64_t seed = 42;
};
Result<Report> run_codec(const CodecOptions& options);

// Bits per change of whole payloads: the paper's layout, ours, and the entropy.
struct PayloadOptions {
  std::uint64_t elements = std::uint64_t{64} << 20;
  std::uint64_t seed = 1;
  std::vector<double> rates = {0.0001, 0.001, 0.01, 0.03, 0.1, 0.5, 0.9};  // unit and relative
};
Result<Report> run_payload(const PayloadOptions& options);

// What the benchmarks of speed have in common.
struct SpeedOptions {
  std::uint64_t elements = std::uint64_t{64} << 20;
  std::uint64_t seed = 1;
  unsigned rounds = 7;
  Workload workload = Workload::kAdam;
  std::vector<double> rates = {0.001, 0.01, 0.03, 0.05};
  std::string directory = "/tmp";  // of run_apply: where a temporary directory is made
};

// GB of NEW per second and core: a pass that only reads, the scan alone, the whole construction.
Result<Report> run_construct(const SpeedOptions& options);
// From arrays of changes to a compressed body; digests excluded.
Result<Report> run_encode(const SpeedOptions& options);
// From a compressed body, with all checks, to arrays of positions and words; digests excluded.
Result<Report> run_decode(const SpeedOptions& options);
// Decoded items applied straight through their places on a serving rank, whole and one of eight,
// against a scratch of each tensor that is filled, scattered into and folded in.
Result<Report> run_apply(const SpeedOptions& options);
// Two threads against one, for the read-only pass and for the whole construction.
Result<Report> run_threads(const SpeedOptions& options);

// A whole refit of a transformer on disk: its wall time against what its work takes.
struct RefitBenchOptions {
  std::uint64_t size = 2'100'000'000;  // bytes of each checkpoint
  std::vector<double> rates = {0.01, 0.03};
  std::uint64_t seed = 1;
  unsigned rounds = 3;
  unsigned threads = 0;  // 0: one per processor
  std::string owners = "fsdp:8", receivers = "fused-tp:8";
  std::string directory = "/tmp";                 // where a temporary directory is made
  std::uint64_t row_parallel_size = 400'000'000;  // bytes of the row-parallel tensors
  std::uint64_t planned_names = 100'000;          // canonical tensors that are planned
};
Result<Report> run_refit(const RefitBenchOptions& options);

// Construction alone in the paper's three modes (§8.3): X direct projection, coded as paths allow;
// P the same, new bits only; F full conversion, new bits only.
struct ModesOptions {
  std::uint64_t size = 1'000'000'000;
  std::vector<double> rates = {0.03, 0.05};
  std::uint64_t seed = 1;
  unsigned rounds = 3;
  unsigned threads = 0;
  std::string owners = "fsdp:8";
  std::string directory = "/tmp";
};
Result<Report> run_modes(const ModesOptions& options);

// Refits of a cluster of processes by `dcr local`: what the protocol costs beside its work.
struct ProtocolOptions {
  std::uint64_t small_size = 4'000'000;  // bytes of the checkpoint that does not change
  std::uint64_t size = 400'000'000;      // and of the one that does
  double rate = 0.01;
  std::uint64_t refits = 50;   // of no change
  std::uint64_t changes = 10;  // refits of a change, there and back
  std::uint64_t owners = 4, nodes = 3, receivers_per_node = 2;
  std::uint64_t seed = 1;
  std::string directory = "/tmp";  // where a temporary directory is made
  std::string dcr;                 // the program
};
Result<Report> run_protocol(const ProtocolOptions& options);

// `dcr diff` and `dcr apply` beside other programs, on the same files.
struct ToolsOptions {
  std::uint64_t size = 1'900'000'000;  // bytes of each checkpoint
  unsigned shards = 1;
  double rate = 0;  // 0: the Adam-like workload's own
  std::uint64_t seed = 1;
  std::string directory = "/tmp";  // where a temporary directory is made
  std::string dcr;                 // the program
  bool alone = false;              // measure only dcr
};
Result<Report> run_tools(const ToolsOptions& options);

}  // namespace dcr
