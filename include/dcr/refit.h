// A whole refit in one process: sharded owners, sharded receivers, and the proof that every byte of
// every receiver is what a dense load of the new weights makes it (paper §§4–6).
//
//   dcr::RefitOptions options;
//   options.owners.generate = "fsdp:8";
//   options.receivers.generate = "fused-tp:8";
//   auto result = dcr::refit("step0", "step1", options);   // result->differing_bytes == 0
//
// Layout files are docs/LAYOUT.md. Thread safety and errors: as dcr/delta.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dcr/cancel.h"
#include "dcr/options.h"
#include "dcr/status.h"

namespace dcr {

class Clock;
class FileSystem;

// Which rank holds what: a layout file, or what to generate one from.
struct RefitLayout {
  std::string file;      // its path; empty: generate one
  std::string generate;  // "fsdp:8", "tp:4,dp:2"; "fused-tp:8"
};

// How owners make what they send (paper §8.3).
enum class RefitConstruction : std::uint8_t {
  kMixed,           // X: direct projection; each item coded as its path allows
  kOverwrite,       // P: direct projection; new bits only
  kFullConversion,  // F: whole tensors are assembled and compared; new bits only
};

struct RefitOptions {
  RefitLayout owners{"", "fsdp:8"};
  RefitLayout receivers{"", "fused-tp:8"};
  // Nothing is written: owners send everything and receivers, which hold OLD, compare.
  bool verify = false;
  RefitConstruction construction = RefitConstruction::kMixed;
  // Every tensor takes the scratch path of the paper (§6.1), to compare it with the traced one.
  bool prefer_scratch = false;
  // Receivers compare what they wrote with what came, once it is written (paper A.12).
  bool post_apply_checks = false;
  // Working memory of each owner, beside weights and baseline, and of each receiver's payloads; at
  // least kMemoryBytesMin.
  std::uint64_t memory_bytes_max = std::uint64_t{1} << 30;
  std::uint64_t chunk_bytes = std::uint64_t{64} << 20;
  std::uint64_t bucket_bytes = std::uint64_t{512} << 20;
  unsigned threads = 0;  // 0: one per processor
  // Where weights and baselines are kept in mapped files instead of memory; empty: in memory.
  std::string arena_directory;
  std::function<void(const Progress&)> progress;  // as DeltaOptions::progress
  const CancelToken* cancel = nullptr;            // not owned
  FileSystem* files = nullptr;                    // not owned; null: the operating system's
  Clock* clock = nullptr;                         // not owned; null: no times
};

// Time of one stage over all endpoints, in seconds.
struct RefitStage {
  std::string name;
  double wall = 0;  // from its first begin to its last end
  double busy = 0;  // processor time of the threads in its spans, summed
};

// A tensor that is not applied straight through its trace on some rank.
struct RefitPath {
  std::string tensor;
  std::uint32_t rank = 0;
  std::string path;  // "scratch", "dense", "skip", "refused"
  std::string reason;
};

struct RefitUneven {
  std::string tensor;
  std::string reason;
};

struct RefitResult {
  std::uint32_t owners = 0, receivers = 0;
  std::uint64_t tensors = 0;   // canonical
  std::uint64_t elements = 0;  // of source tensors, replicas once
  std::uint64_t changed = 0;   // of these; change_rate is changed ÷ elements
  std::uint64_t canonical_elements = 0;
  std::uint64_t canonical_changed = 0;
  std::uint64_t model_bytes = 0;  // of the canonical tensors
  std::uint64_t payloads = 0, payload_bytes = 0;
  std::map<std::string, std::uint64_t> encodings;  // items by encoding name
  std::uint64_t destinations = 0;                  // words that changes reached, over all receivers
  std::uint64_t checked = 0;                       // words that post-apply checks compared
  std::uint64_t owned_bytes_max = 0;               // of one owner
  double owned_bytes_mean = 0;
  // Tensors times receivers by path: "traced", "scratch", "dense", "skip".
  std::map<std::string, std::uint64_t> paths;
  std::vector<RefitPath> not_traced;  // the first 100, skips apart
  // Tensors that do not lie evenly on the receivers (uneven_tensors), the first 100: what no loader
  // takes of them is not served, whatever was sent.
  std::vector<RefitUneven> uneven;
  std::vector<RefitStage> stages;  // start-up ("load", "initialize", "prewarm", "audit"), then
                                   // the refit, in the order of their first begins
  double startup_seconds = 0;
  double refit_seconds = 0;                 // from prepare to commit; the comparison is not in it
  double refit_busy_seconds = 0;            // processor time of the whole process meanwhile
  std::uint64_t owner_memory_bytes = 0;     // measured peak of all owners' working memory
  std::uint64_t receiver_memory_bytes = 0;  // peak of plans, staged and decoded payloads, scratch
  std::uint64_t resident_different = 0;     // verify: words of receivers that are not NEW's
  std::uint64_t compared_bytes = 0;         // of receivers against the dense load
  std::uint64_t differing_bytes = 0;        // 0, or something is wrong
  std::vector<std::string> differing;       // targets with such bytes, the first 100
};

// Shards OLD and NEW over owners, refits receivers that hold OLD, and compares every byte of every
// receiver with a dense load of NEW (with `verify`, of OLD: nothing may have changed). The two
// checkpoints must have the same tensors. Errors: kMismatch (naming the first tensor that one of
// them lacks, or that differs in dtype or shape), kUnsupported naming a tensor that receivers
// refuse, with the reason; those of layout files and of dcr/delta.h.
Result<RefitResult> refit(const std::string& old_path, const std::string& new_path,
                          const RefitOptions& options);

}  // namespace dcr
