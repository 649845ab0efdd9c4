// One serving rank's receiver (docs/ARCHITECTURE.md "One attempt, at a receiver"): prewarm traces
// the native loader, attempts bring payloads, which are validated, queued in declared order and
// applied. No network and no waiting here: a protocol drives it.
//
// Thread safety: not thread-safe; it uses the executor's threads itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/limits.h"
#include "codec/payload.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/applier.h"
#include "receiver/decoded.h"
#include "receiver/ownership.h"
#include "receiver/prewarm.h"
#include "receiver/staging.h"
#include "runtime/threads.h"
#include "tensor/catalogue.h"

namespace dcr {

struct ReceiverOptions {
  std::vector<std::vector<OwnerBox>> owners;  // what each owner may send: index = owner
  std::vector<std::string> never_loaded;      // targets that no canonical tensor reaches
  PayloadLimits payload_limits = {kPayloadStoredBytesMax, kPayloadRawBytesMax};
  // Of one payload decoded, of all that wait for their turn, and of the attempt's record of items.
  std::uint64_t decoded_bytes_max = 4 * kGiB;
  Bytes key;                       // of payloads' digests; see Payload::read
  bool post_apply_checks = false;  // paper A.12
  bool prefer_scratch = false;     // traced tensors take the scratch path too (to compare the two)
  std::function<void(std::string_view stage)> prewarm_stage;  // see PrewarmOptions
  std::function<Status()> interruption;  // see PrewarmOptions; asked between payloads too
};

// Copies words [first, first + out.size() / width) of canonical tensor `tensor` to `out`.
using CanonicalRead =
    std::function<Status(std::uint32_t tensor, std::uint64_t first, MutableByteSpan out)>;

struct AttemptHeader {
  Digest run{};
  std::uint64_t attempt = 0;
  std::uint64_t base_version = 0;
  std::uint64_t target_version = 0;
  ApplyMode mode = ApplyMode::kWrite;  // kVerify: a dense refit that compares and writes nothing
  // Parameters may hold part of another attempt: xor and add would not be exact.
  bool overwrite_only = false;
};

class Receiver {
  struct State;

 public:
  // Everything given must outlive it. Errors: kInvalidArgument for boxes of owners that leave their
  // tensor, naming tensor and owner.
  static Result<std::unique_ptr<Receiver>> create(const Catalogue& catalogue, Loader& loader,
                                                  TargetMemory& memory, Executor& executor,
                                                  ReceiverOptions options);
  explicit Receiver(std::unique_ptr<State> state);  // for create()
  ~Receiver();

  // Traces the loader over all names. Leaves every parameter byte as it was; an error (a byte that
  // nothing explains, a layout that does not hold still) names it. May be called again.
  Status prewarm();

  const Catalogue& catalogue() const;

  // By index in the catalogue, from prewarm: what this rank asks of owners.
  std::span<const TensorClass> classes() const;

  // By index in the catalogue, of what is traced; empty for others.
  std::span<const Place> places(std::uint32_t tensor) const;

  // A name whose loader talks to other ranks takes the scratch path on all ranks of the engine, in
  // declared order (classes()[i].collective on any of them). Ends an attempt. Error kUnsupported
  // where it cannot take that path.
  Status require_scratch(std::uint32_t tensor);

  // Layout and classification, as prepare binds them.
  Digest fingerprint() const;

  // Compares every word that an element of a tensor reaches with what the native loader makes of
  // the base (P = L(W)), but not the constants that loads put beside them; writes nothing that it
  // does not restore. kMismatch names the tensor.
  Status audit(const CanonicalRead& base);
  // Of these tensors. REQUIRES: indices in the catalogue.
  Status audit(std::span<const std::uint32_t> tensors, const CanonicalRead& base);

  // Compares the words of a payload with a sample of a version (OwnerGroup::sample) with those that
  // lie here, where a trace leads to them; other paths, on which the loader has its say, are passed
  // over. At most kSampleBytesMax bytes, decoded too, of whole items. Writes nothing and ends no
  // attempt. The payload must say that it is `owner`'s, and of the run, attempt and versions of
  // `sample`. Counts destinations and those that are different. Errors as ingest.
  Result<ReceiverCounts> compare(ByteSpan stored, std::uint32_t owner, const AttemptHeader& sample);

  // Starts an attempt, which ends any other. Errors: kInvalidArgument before prewarm; kMismatch if
  // the layout is another than at prewarm; kTooLarge without room for scratch.
  Status begin_attempt(const AttemptHeader& header);

  // Takes a payload; one that says it is of another attempt is not looked at further. An error
  // fails the attempt (begin_attempt starts the next one) and has changed no parameter byte.
  Result<Ingested> ingest(ByteSpan stored);
  Result<Ingested> ingest(std::shared_ptr<const DecodedPayload> payload);

  // Owner `owner` sends `payloads` in this attempt.
  Status end_of_owner(std::uint32_t owner, std::uint64_t payloads);

  // Applies every payload whose turn it is, in declared order (number × owners + owner). Returns
  // how many. An error fails the attempt; parameters may then hold any part of it.
  Result<std::uint64_t> apply();

  // Everything that owners announced came and is applied, device included. kMismatch says what is
  // missing; the attempt goes on then.
  Result<ReceiverCounts> finish();

  // What decode_payload needs of this receiver, for a node that decodes once.
  std::span<const TensorSpec> specs() const;

  // Host memory that the receiver itself holds now: plans, queue, decoded payloads. Scratch is the
  // TargetMemory's and is counted there.
  std::uint64_t memory_bytes() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace dcr
