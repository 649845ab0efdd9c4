// The protocol's side of a receiver (paper B.1, B.2; docs/PROTOCOL.md "Receiver"): proves or
// restores the committed version, joins, applies attempts while its gate is closed, and says what
// it holds.
//
// It closes its gate whenever it gets an incarnation, and writes to parameters only while it knows
// the gate to be closed. An incarnation that finds itself barred, or whose restore was overtaken,
// ends by itself and another begins: `incarnation` changes, Ended comes for the operator only.
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
#include "receiver/receiver.h"

namespace dcr {

struct ReceiverEndpointOptions {
  std::string name;
  std::string engine;                 // also the name of its gate
  std::uint64_t engine_instance = 0;  // see GateOptions
  ReceiverDetails details;            // its node among them
  std::vector<std::string> owners;    // their names, by rank
  // The base checkpoint was loaded and audited: the storage is {0, 0} if owners' digests agree.
  bool base_loaded = false;
  // {0, 0} has weights that can be had. Else a receiver waits for the first commit, which brings
  // everything.
  bool base_exists = true;
  // What first makes the storage whole is audited: every word that came is compared with what lies
  // there afterwards, before the receiver says that it has the version.
  bool audit = false;
  std::uint64_t credit_payloads = 264;
  std::uint64_t credit_bytes = 0;
  Waits waits;
};

// ---- work: one at a time, in the order of the effects; each answered once by ReceiverWorkDone

// Compares the loaded base with what owners say of theirs (by rank). kMismatch names the tensor.
struct CheckBase {
  std::vector<std::vector<Digest>> digests;
};
// Receiver::begin_attempt. Writes nothing to parameters. A restore's header has the stream's number
// as its attempt and the version as base and target; its run is the shell's business. A stream that
// is audited begins a second time, with ApplyMode::kVerify.
struct BeginStream {
  StreamId stream;
  AttemptHeader header;
};
// Receiver::ingest of a payload that the node handed over.
struct IngestPayload {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
};
// Receiver::end_of_owner.
struct EndOfOwner {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t payloads = 0;
};
// Receiver::compare with an owner's sample of `version`, which the storage is taken to be. Words
// that differ are counted, and an error names the tensor; another error: the sample is no good.
struct CompareSample {
  VersionId version;
  std::uint32_t owner = 0;  // whose it is
  Bytes payload;
};
// Receiver::apply. The only work that writes to parameters. Gives up early after StopApplying.
struct ApplyQueued {
  StreamId stream;
};
// Receiver::finish: kMismatch, something is missing still, or an audit found a word that differs,
// with the tensor named.
struct FinishStream {
  StreamId stream;
};
// Makes ApplyQueued give up, synchronises the device: nothing of the stream is written afterwards.
struct StopApplying {
  StreamId stream;
};

struct ReceiverWorkDone {
  enum class Kind : std::uint8_t {
    kCheckBase,
    kBeginStream,
    kIngestPayload,
    kEndOfOwner,
    kCompareSample,
    kApplyQueued,
    kFinishStream,
    kStopApplying
  };
  Kind kind = Kind::kCheckBase;
  StreamId stream;
  std::uint32_t owner = 0;   // kIngestPayload, kEndOfOwner
  std::uint64_t number = 0;  // kIngestPayload
  Status status;
  bool here = true;  // kIngestPayload: else it was let go of, and the node hands it over again
  Ingested ingested = Ingested::kQueued;
  std::uint64_t applied = 0;  // kApplyQueued: payloads
  ReceiverCounts counts;      // kFinishStream, kCompareSample
};

// The node handed a payload over.
struct PayloadHandedOver {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;  // decoded
};

using ReceiverEvent = std::variant<Started, TimePassed, MessageArrived, ControlAnswered,
                                   ReceiverWorkDone, PayloadHandedOver>;
using ReceiverEffect =
    std::variant<SendMessage, CallControl, Note, Ended, CheckBase, BeginStream, IngestPayload,
                 EndOfOwner, CompareSample, ApplyQueued, FinishStream, StopApplying>;

class ReceiverEndpoint {
  class Machine;

 public:
  // REQUIRES: at least one owner.
  explicit ReceiverEndpoint(ReceiverEndpointOptions options);
  ~ReceiverEndpoint();
  ReceiverEndpoint(ReceiverEndpoint&&) noexcept;
  ReceiverEndpoint& operator=(ReceiverEndpoint&&) noexcept;

  void step(const ReceiverEvent& event, Milliseconds now, std::vector<ReceiverEffect>* effects);
  Milliseconds wake_at() const;

  std::uint64_t incarnation() const;
  StatusReply status() const;

 private:
  std::unique_ptr<Machine> machine_;
};

}  // namespace dcr
