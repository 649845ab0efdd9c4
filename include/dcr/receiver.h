// A receiver embedded in a serving rank (paper §6, Appendix A.2): it traces the runtime's own
// loader once and then applies what owners send straight to the parameters, bit for bit as a dense
// load would have it.
//
//   auto memory = dcr::HostTargets::create(scratch_bytes_max);   // and the loader's storages in it
//   auto receiver = dcr::EmbeddedReceiver::create(tensors, loader, *memory, {.owners = boxes});
//   receiver->prewarm();              // classes() says what came of each tensor
//   receiver->audit(base);            // that parameters are what the loader makes of the base
//   receiver->begin_attempt({.run = run, .attempt = 1, .base_version = 0, .target_version = 1});
//   receiver->ingest(payload); …      // each owner's payloads, in any order
//   receiver->end_of_owner(0, 3);     // that owner 0 sent 3
//   receiver->apply();                // whatever has its turn
//   receiver->finish();               // version 1, or what is missing
//
// Thread safety: none; calls use threads of their own and have ended them all when they return. The
// loader is called on the calling thread. Errors: Status with the tensor named where there is one.
// No request may be served from the first apply() until finish() succeeds: parameters may be a
// mixture.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/options.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "dcr/tensor.h"

namespace dcr {

// How a tensor gets to the parameters (paper §6.1, Appendix A.2; docs/TRACING.md "Paths, and what
// is refused").
enum class TensorPath : std::uint8_t {
  kTraced,   // items go straight through the placement
  kScratch,  // the loader is called over placeholders and entries
  kDense,    // the loader is called over the whole tensor
  kSkip,     // nothing of it lies on this rank
  kRefused,  // no path gives the bits of a dense refit
};

// "traced", "scratch", …; "any", "overwrite", …
std::string_view path_name(TensorPath path);
std::string_view need_name(Need need);

struct TensorClass {
  TensorPath path = TensorPath::kRefused;
  Need need = Need::kSkip;  // of what is refused, too
  bool collective = false;  // its loader talks to other ranks
  std::string reason;       // of any other path than kTraced
  bool tied = false;        // kSkip: a tensor that is loaded later has the same bytes
  std::uint64_t bytes = 0;  // of parameters, that its elements reach; 0 if skipped or refused
};

// Where some of a tensor's elements lie on this rank: element (i0, i1, …) of a rectangle is word
// offset + Σ i·stride of the canonical tensor, and of the storage.
struct PlacedBox {
  struct Dimension {
    std::uint64_t size = 1;
    std::uint64_t tensor_stride = 1;
    std::uint64_t storage_stride = 1;
  };
  std::uint64_t storage = 0;     // its id in the TargetMemory
  std::uint64_t word_bytes = 1;  // that offsets and strides count
  std::uint64_t tensor_offset = 0;
  std::uint64_t storage_offset = 0;
  std::vector<Dimension> dimensions;  // outermost first; none: one element
};

// What one rank of an engine has of one tensor, by prewarm: of classes() and placement().
struct RankShare {
  TensorPath path = TensorPath::kSkip;
  bool tied = false;
  std::vector<PlacedBox> boxes;  // of which the tensor's side counts
};

// A tensor that does not lie on an engine's ranks as it should, and how.
struct UnevenTensor {
  std::uint32_t tensor = 0;  // by name order
  std::string reason;        // "element 7 lies on no rank"
  bool missing = false;      // ranks take elements of it, and none takes another
};

// Tensors of which an element lies on no rank of an engine, or on more ranks than another does,
// ascending; ranks[i] are the shares of rank i, by tensor in the order of names. What lies on no
// rank a dense load would leave out too: it may be meant (what a runtime computes itself), or be a
// name or a shard that loaders miss. What lies on more ranks than others may be a part of a tensor
// that is kept whole where the rest is cut (keys and values beside queries in one tensor), or a
// shard that two ranks take. People are to be told. Where a loader takes a tensor by another path
// than traced, or it is tied, its elements are not known, and nothing is said of it; where they are
// in too many pieces to be counted, that is said. Takes time in the number of boxes where they are
// shards and replicas of them, else also in that of their contiguous pieces. Errors: kCorrupt and
// kTooLarge for tensors that make no catalogue; kInvalidArgument for a rank with another number of
// shares; kCorrupt and kTooLarge, naming tensor and rank, for boxes that leave their tensor.
Result<std::vector<UnevenTensor>> uneven_tensors(std::vector<CanonicalTensor> tensors,
                                                 std::span<const std::vector<RankShare>> ranks);

// What became of a payload that came.
enum class Ingested : std::uint8_t {
  kQueued,
  kDuplicate,     // the same identifier and the same bytes as one before
  kOtherAttempt,  // of another run or attempt: dropped
  kFull,          // no slot or no room now; the caller keeps it and tries again after apply()
};

struct ReceiverCounts {
  std::uint64_t payloads = 0;
  std::uint64_t entries = 0;       // canonical elements that came, those for other ranks too
  std::uint64_t destinations = 0;  // words that they reached here ("emitted destinations")
  std::uint64_t different = 0;     // kVerify: of those, the ones whose resident bits differ
  // kVerify: of the tensors that have such words the first one by name.
  std::optional<std::uint32_t> different_tensor = {};
  std::uint64_t checked = 0;  // words that the post-apply checks compared
};

// Parameters in this process's host memory. It, HostStorages and their likes for devices
// (dcr/device.h) are where public headers take weights by address, for bindings whose runtime has
// allocated them. Thread-safe, but for the bytes themselves.
class HostTargets : public TargetMemory {
 public:
  // Scratch of all storages together stays within `scratch_bytes_max` (allocate: kTooLarge).
  static std::unique_ptr<HostTargets> create(std::uint64_t scratch_bytes_max);

  // Adds somebody's storage, which must stay where it is until it is removed, or outlive this.
  // Returns its id; no id is used twice.
  virtual std::uint64_t add(std::span<std::uint8_t> storage) = 0;
  // Forgets a storage that was added. Error: kNotFound.
  virtual Status remove(std::uint64_t storage) = 0;
  // Where a storage lies, scratch too. Error: kNotFound.
  virtual Result<std::span<std::uint8_t>> find(std::uint64_t storage) const = 0;
};

// Storages of which only sizes are known, as on a meta device: for trace_geometry. Reading,
// writing and applying are kUnsupported.
class SizedTargets : public TargetMemory {
 public:
  static std::unique_ptr<SizedTargets> create();
  virtual std::uint64_t add(std::uint64_t bytes) = 0;
};

struct EmbeddedReceiverOptions {
  // What each owner may send: index = owner (EmbeddedOwner::boxes). Needed for attempts only.
  std::vector<std::vector<CanonicalBox>> owners;
  std::vector<std::string> never_loaded;  // parameters and buffers that no canonical tensor reaches
  // Of one payload decoded, of all that wait for their turn, and of the attempt's record of items.
  std::uint64_t decoded_bytes_max = std::uint64_t{4} << 30;
  std::vector<std::uint8_t> key;   // of payloads' digests: empty, or 16 to 64 bytes
  bool post_apply_checks = false;  // compare what was written with what came (paper A.12)
  bool prefer_scratch = false;     // the paper's scratch path for all tensors, to compare with
  unsigned threads = 0;            // 0: one per processor
  // Called when a stage of prewarm begins: "digests", "trace", "classify", "coverage". May be
  // empty.
  std::function<void(std::string_view stage)> prewarm_stage;
  // Asked on the calling thread whether to go on; an error ends the call with it. Asked by prewarm
  // before each storage that is digested and each tensor that is classified, not while it traces;
  // by audit before each tensor; by apply() before each payload and at the end, where an error
  // fails the attempt. May be empty.
  std::function<Status()> interruption;
};

struct ReceiverAttempt {
  std::array<std::uint8_t, 16> run{};
  std::uint64_t attempt = 0;
  std::uint64_t base_version = 0;
  std::uint64_t target_version = 0;
  ApplyMode mode = ApplyMode::kWrite;  // kVerify: a dense refit that compares and writes nothing
  // Parameters may hold part of another attempt: xor and add would not be exact.
  bool overwrite_only = false;
};

// Copies words [first, first + out.size() / width) of canonical tensor `tensor` (by name order).
using ReadCanonical =
    std::function<Status(std::uint32_t tensor, std::uint64_t first, std::span<std::uint8_t> out)>;

class EmbeddedReceiver {
 public:
  // `loader` and `memory` must outlive it. Errors: kCorrupt and kTooLarge for tensors that make no
  // catalogue; kInvalidArgument for boxes of owners that leave their tensor, naming both.
  static Result<std::unique_ptr<EmbeddedReceiver>> create(std::vector<CanonicalTensor> tensors,
                                                          Loader& loader, TargetMemory& memory,
                                                          EmbeddedReceiverOptions options);
  ~EmbeddedReceiver();
  EmbeddedReceiver(const EmbeddedReceiver&) = delete;
  EmbeddedReceiver& operator=(const EmbeddedReceiver&) = delete;

  // The canonical tensors, ascending by name: what indices mean.
  const std::vector<CanonicalTensor>& tensors() const;

  // Traces the loader over all names while no write happens, and proves what is no plain copy on
  // the parameters, which get their bits back. Ends an attempt; may be called again. Errors:
  // kMismatch for a parameter's byte that no load explains, or a layout that does not hold still,
  // by name.
  Status prewarm();

  // By tensor, from prewarm. One that is refused must not be refitted: look at these first.
  std::span<const TensorClass> classes() const;

  // Where a traced tensor's elements go, by prewarm; nothing for others. REQUIRES: an index of
  // tensors().
  std::vector<PlacedBox> placement(std::uint32_t tensor) const;

  // A tensor whose loader talks to other ranks (`collective` on any rank of the engine) takes the
  // scratch path on all of them. Error: kUnsupported where it cannot.
  Status require_scratch(std::uint32_t tensor);

  // Binds catalogue, layout and classes: equal for equal receivers, for an attempt's record.
  std::array<std::uint8_t, 16> fingerprint() const;

  // Compares every word that a tensor reaches with what the loader makes of the base, and writes
  // nothing that it does not restore: what an in-place refit of a running engine relies on. Or of
  // some tensors alone, as a sample of what an attempt has brought is compared with the trainer's;
  // REQUIRES: indices of tensors(). Errors: kMismatch naming the first tensor that differs;
  // kInvalidArgument before prewarm; those of `base`.
  Status audit(const ReadCanonical& base);
  Status audit(std::span<const std::uint32_t> tensors, const ReadCanonical& base);

  // Starts an attempt, which ends any other. Errors: kInvalidArgument before prewarm; kMismatch if
  // parameters lie elsewhere than then; kTooLarge without room for scratch.
  Status begin_attempt(const ReceiverAttempt& attempt);

  // Validates a payload whole and queues it. An error (kCorrupt, kTooLarge, kMismatch,
  // kUnsupported) fails the attempt and has changed no parameter.
  Result<Ingested> ingest(std::span<const std::uint8_t> payload);

  // Owner `owner` sends so many payloads in this attempt.
  Status end_of_owner(std::uint32_t owner, std::uint64_t payloads);

  // Applies every payload whose turn it is and returns how many. An error fails the attempt;
  // parameters may then hold any part of it, and the next must be overwrite_only.
  Result<std::uint64_t> apply();

  // That all which owners announced came and is applied, device included. kMismatch says what is
  // missing; the attempt goes on then.
  Result<ReceiverCounts> finish();

  // Host memory that it holds now: plans, queue and decoded payloads.
  std::uint64_t memory_bytes() const;

  // Of create().
  struct State;
  explicit EmbeddedReceiver(std::unique_ptr<State> state);
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// What prewarm finds by geometry alone, for parameters that are not there or have not been loaded:
// every name is loaded twice, destinations must be disjoint and cover all parameters. What only
// values can decide is refused for that reason, fills are taken for constants, and casts are not
// tried: enough to see what a runtime's loader will do at a model's real size, never to apply by.
// By tensor, ascending by name. Of the options, never_loaded, prewarm_stage and interruption
// count. Errors as create and prewarm.
Result<std::vector<TensorClass>> trace_geometry(std::vector<CanonicalTensor> tensors,
                                                Loader& loader, TargetMemory& memory,
                                                const EmbeddedReceiverOptions& options);

}  // namespace dcr
