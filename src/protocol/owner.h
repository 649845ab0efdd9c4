// The protocol's side of an owner (paper Table B.1, B.2; docs/PROTOCOL.md "Owner"): takes the
// trainer's refits, constructs and sends an attempt's payloads, updates the baseline when the
// commit record says so, and sends the baseline to receivers that restore.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "protocol/machine.h"
#include "protocol/member.h"
#include "source/attempt.h"

namespace dcr {

struct OwnerEndpointOptions {
  std::string name;
  OwnerDetails details;
  std::uint64_t elements = 0;  // that it owns, once each
  Waits waits;
};

// ---- work: one at a time, but StopSending, which may be asked for while other work runs. Each is
// answered by OwnerWorkDone of the same kind.

// Constructs and sends the payloads of an attempt, its end last, through begin() of the transport.
struct ConstructAndSend {
  Attempt attempt;
};
// Makes ConstructAndSend of attempts up to this one give up early, waits until nothing of them goes
// out any more (OwnerTransport::stop_and_wait), and drops what was prepared. It need not wait for
// other work, nor end it.
struct StopSending {
  std::uint64_t attempt = 0;
};
// OwnerTransport::cleanup, of attempts up to this one.
struct RemovePayloads {
  std::uint64_t attempt = 0;
};
// OwnerGroup::commit.
struct UpdateBaseline {
  std::uint64_t version = 0;
};
// Sends the baseline of this version, whole, under the restore stream.
struct SendBaseline {
  VersionId version;
};
// Removes restore streams of versions below this one.
struct RemoveRestores {
  std::uint64_t version = 0;
};
struct DigestBase {};
// OwnerGroup::sample, as of a restore stream of the version (by sample_run).
struct SampleBaseline {
  VersionId version;
  std::uint64_t seed = 0;
};

// How far the running work is. May come at any time, and often: nodes are told that they may fetch,
// and the coordinator that something goes on.
struct OwnerProgress {
  std::uint64_t payloads_sent = 0;
  std::uint64_t bytes = 0;  // of anything that moved
};

struct OwnerWorkDone {
  enum class Kind : std::uint8_t {
    kConstructAndSend,
    kStopSending,
    kRemovePayloads,
    kUpdateBaseline,
    kSendBaseline,
    kRemoveRestores,
    kDigestBase,
    kSampleBaseline
  };
  Kind kind = Kind::kConstructAndSend;
  std::uint64_t number = 0;  // the effect's attempt or version
  Status status;
  PrepareResult result;         // kConstructAndSend
  std::uint64_t payloads = 0;   // kSendBaseline
  std::vector<Digest> digests;  // kDigestBase
  Bytes sample;                 // kSampleBaseline
};

// ---- the trainer

struct RefitCalled {  // REQUIRES: none is open. The weights stay as they are until RefitFinished
  std::string label;
  bool asynchronous = false;
  bool same_candidate = false;  // the weights are those of the last call, bit for bit
};
// Effect. Without an error: `committed` is this refit's. Errors: those that attempts failed with;
// kConflict, this incarnation was barred and nothing of the refit can be committed any more;
// kUnknownOutcome, the endpoint ended before the outcome was known.
struct RefitFinished {
  Status status;
  // This incarnation was barred, and that is all that is wrong: a later one may call again.
  bool barred = false;
  CommitRecord committed;
  std::uint64_t attempts = 0;
  std::vector<std::string> without_baseline;
  std::optional<EarlyClose> gate_closed_early;
};

using OwnerEvent = std::variant<Started, TimePassed, MessageArrived, ControlAnswered, OwnerProgress,
                                OwnerWorkDone, RefitCalled>;
using OwnerEffect = std::variant<SendMessage, CallControl, Note, Ended, ConstructAndSend,
                                 StopSending, RemovePayloads, UpdateBaseline, SendBaseline,
                                 RemoveRestores, DigestBase, SampleBaseline, RefitFinished>;

class OwnerEndpoint {
  class Machine;

 public:
  // `baseline`: the version whose bits the baseline has at the start, if any ({0, 0}: the base).
  OwnerEndpoint(OwnerEndpointOptions options, std::optional<VersionId> baseline);
  ~OwnerEndpoint();
  OwnerEndpoint(OwnerEndpoint&&) noexcept;
  OwnerEndpoint& operator=(OwnerEndpoint&&) noexcept;

  // After Ended nothing more happens. A machine that is started anew over the same baseline needs
  // all work of this one to have ended.
  void step(const OwnerEvent& event, Milliseconds now, std::vector<OwnerEffect>* effects);
  Milliseconds wake_at() const;

  // 0 before it is enrolled. What other messages are addressed to is not for it.
  std::uint64_t incarnation() const;
  StatusReply status() const;

 private:
  std::unique_ptr<Machine> machine_;
};

}  // namespace dcr
