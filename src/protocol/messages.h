// Control messages between the parts of a run (paper Table B.1; docs/PROTOCOL.md "Messages"). They
// may be lost, repeated, delayed and reordered at will: every machine repeats what it waits for,
// and takes what it did already as done. An envelope around each says run, sender and addressee,
// both with their incarnations; a message of another run or incarnation never gets here.
//
// Bytes are hostile until decode_message has taken them whole. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/control.h"
#include "dcr/options.h"
#include "dcr/status.h"
#include "dcr/transport.h"
#include "source/geometry.h"

namespace dcr {

// Limits of what messages hold, beside those of dcr/control.h.
inline constexpr std::uint64_t kMessageBytesMax = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kMessageTextBytesMax = 4096;  // of a reason; longer ones are cut
inline constexpr std::uint64_t kMessageTensorsMax = std::uint64_t{1} << 21;
inline constexpr std::uint64_t kMessageDigestsMax = std::uint64_t{1} << 19;

// Payload streams (docs/PROTOCOL.md "Node"): those of attempts, and those that bring the committed
// baseline to a receiver which restores. Each kind has keys of its own.
struct StreamId {
  bool restore = false;
  std::uint64_t number = 0;  // τ; of a restore of version v: v + 1, for numbers begin at 1
  bool operator==(const StreamId&) const = default;
  auto operator<=>(const StreamId&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Why something failed, as it goes over the wire.
struct Failure {
  Code code = Code::kInternal;
  std::string tensor;   // or empty
  std::string message;  // names what failed and what to do
  bool operator==(const Failure&) const = default;
};
Failure failure_of(const Status& status);
Status status_of(const Failure& failure);

// ---- owners → coordinator

// The trainer calls refit: the owner's weights are a candidate that stays as it is until
// RefitEnded. Repeated until then. The coordinator begins when every owner has said so, under one
// label.
struct RefitRequest {
  Candidate candidate;
  std::string label;
  std::optional<VersionId> baseline;  // that the owner has; without K's it goes dense
  bool asynchronous = false;          // all owners say the same
  std::uint64_t call = 1;             // counts the incarnation's refits: candidates may come again
  bool operator==(const RefitRequest&) const = default;
};

// Everything of the attempt is sent, its end included.
struct Sent {
  std::uint64_t attempt = 0;
  AttemptMode mode = AttemptMode::kMixed;  // kDense also where the owner had no baseline
  std::uint64_t payloads = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t elements = 0;          // that the owner owns
  std::uint64_t changed_elements = 0;  // of them, once each (element change rate)
  bool operator==(const Sent&) const = default;
};

struct BaselineUpdated {
  VersionId committed;
  std::optional<Failure> failure;  // then this owner is dense next time
  bool operator==(const BaselineUpdated&) const = default;
};

// What a finished attempt left in the transport is removed.
struct CleanedUp {
  std::uint64_t attempt = 0;
  bool operator==(const CleanedUp&) const = default;
};

// ---- coordinator → everybody bound

// The bindings of the attempt (paper: prepare). A receiver's index is its place in `receivers`.
struct Prepare {
  struct Receiver {
    Endpoint endpoint;
    std::string engine;
    std::string node;  // that feeds it
    bool operator==(const Receiver&) const = default;
  };
  std::uint64_t attempt = 0;  // τ
  VersionId base;
  std::string label;
  AttemptMode mode = AttemptMode::kMixed;
  bool asynchronous = false;
  Digest digest{};                   // as in the transition record
  std::vector<OwnerBinding> owners;  // by rank: an owner's number in payload keys
  std::vector<Endpoint> nodes;       // ascending by name
  std::vector<Receiver> receivers;   // ascending by name
  std::vector<Need> needs;           // by canonical tensor, all receivers together
  bool operator==(const Prepare&) const = default;
};

struct CloseGate {  // to receivers (paper: wait_for_requests)
  std::uint64_t attempt = 0;
  bool operator==(const CloseGate&) const = default;
};
struct OpenApply {  // to receivers and nodes
  std::uint64_t attempt = 0;
  bool operator==(const OpenApply&) const = default;
};
struct Flush {  // to receivers
  std::uint64_t attempt = 0;
  bool operator==(const Flush&) const = default;
};
struct StopAndWait {
  std::uint64_t attempt = 0;
  bool operator==(const StopAndWait&) const = default;
};
struct Cleanup {  // to owners; attempts up to this one
  std::uint64_t attempt = 0;
  bool operator==(const Cleanup&) const = default;
};
// K or the membership may have changed: look. Believed by nobody.
struct Look {
  bool operator==(const Look&) const = default;
};

// An asynchronous attempt had to close gates before everything was staged, and went on as a
// synchronous one (docs/PROTOCOL.md "Coordinator": `gate_closed_early`).
struct EarlyClose {
  std::string reason;          // names the node
  std::uint64_t after_ms = 0;  // since the attempt was prepared
  bool operator==(const EarlyClose&) const = default;
};

// To owners: how their refit ended, for good. `committed` is K then.
struct RefitEnded {
  Candidate candidate;  // of the addressee's request
  CommitRecord committed;
  std::optional<Failure> failure;  // nothing: `committed` is this refit's
  std::uint64_t attempts = 0;
  std::vector<std::string> without_baseline;  // owners that are dense next time
  // Of the addressee's request; 0: whichever asks for that candidate, which is committed.
  std::uint64_t call = 1;
  std::optional<EarlyClose> gate_closed_early;  // of its last attempt for which that happened
  bool operator==(const RefitEnded&) const = default;
};

// ---- everybody bound → coordinator

struct Prepared {
  std::uint64_t attempt = 0;
  bool operator==(const Prepared&) const = default;
};
// The attempt must fail. `rejected`: in answer to Prepare, and the same again would be.
struct AttemptFailed {
  std::uint64_t attempt = 0;
  bool rejected = false;
  Failure failure;
  bool operator==(const AttemptFailed&) const = default;
};
struct Stopped {  // nothing of attempts up to this one has an effect any more
  std::uint64_t attempt = 0;
  bool operator==(const Stopped&) const = default;
};

// ---- nodes → coordinator, in asynchronous mode

// Every owner's end and every payload it counts is validated and staged here.
struct Staged {
  std::uint64_t attempt = 0;
  bool operator==(const Staged&) const = default;
};
// No room for the rest before receivers apply.
struct StagingFull {
  std::uint64_t attempt = 0;
  bool operator==(const StagingFull&) const = default;
};

// ---- receivers → coordinator

struct GateClosed {  // its engine's gate is closed and drained
  std::uint64_t attempt = 0;
  bool operator==(const GateClosed&) const = default;
};
// The completion acknowledgment: all is applied, the device is synchronised, checks are done.
struct Completed {
  std::uint64_t attempt = 0;
  std::uint64_t payloads = 0;
  std::uint64_t destinations = 0;  // words written
  std::uint64_t checked = 0;       // words that post-apply checks compared
  bool operator==(const Completed&) const = default;
};

// Of a receiver that is flushed again before it has completed: how far it is, so that one which
// goes on is not taken for one that stands still.
struct Applying {
  std::uint64_t attempt = 0;
  std::uint64_t payloads = 0;  // applied; in an audit those that it has compared beside them
  std::string state;           // what it is at, and what it waits for
  bool operator==(const Applying&) const = default;
};

// ---- data path: hints from owners to nodes; nodes and their receivers

// Payloads below `payloads` of the sender's are sent, and its end if `ended`. Only a hint.
struct PayloadsSent {
  StreamId stream;
  std::uint64_t payloads = 0;
  bool ended = false;
  bool operator==(const PayloadsSent&) const = default;
};

// From a receiver to its node: it has taken every payload whose order number is below `next`
// (number × owners + owner), and has room for `payloads` more of `bytes` decoded bytes, the next
// one always. Repeated while it waits; it begins a stream. `again`: it has had all of the stream
// and takes it a second time, to compare what it holds.
struct Credit {
  StreamId stream;
  std::uint64_t next = 0;
  std::uint64_t payloads = 0;
  std::uint64_t bytes = 0;
  bool again = false;
  bool operator==(const Credit&) const = default;
};
// From a node to its receivers: how many payloads owner `owner` sends in the stream.
struct OwnerEnd {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t payloads = 0;
  bool operator==(const OwnerEnd&) const = default;
};
// Announces a decoded payload, which the node hands over beside it (a sealed descriptor).
struct PayloadReady {
  StreamId stream;
  std::uint32_t owner = 0;
  std::uint64_t number = 0;
  bool operator==(const PayloadReady&) const = default;
};
// From a node: the stream cannot be had. A restore begins anew; an attempt fails.
struct StreamFailed {
  StreamId stream;
  Failure failure;
  bool operator==(const StreamFailed&) const = default;
};

// ---- restores and base proofs: receivers → owners and back (docs/PROTOCOL.md "Receiver")

// Send the committed baseline `version`, whole, under the restore stream version + 1. Repeated.
struct RestoreRequest {
  VersionId version;
  bool operator==(const RestoreRequest&) const = default;
};
// The stream is sent, or cannot be (another version is committed, no baseline).
struct RestoreSent {
  VersionId version;
  std::uint64_t payloads = 0;
  std::optional<Failure> failure;
  bool operator==(const RestoreSent&) const = default;
};
// Digests of the base, {0, 0}, of everything that the owner owns.
struct BaseDigestsRequest {
  bool operator==(const BaseDigestsRequest&) const = default;
};
struct BaseDigests {
  std::vector<Digest> digests;  // in the order of the owner's boxes, which both sides know
  std::optional<Failure> failure;
  bool operator==(const BaseDigests&) const = default;
};

// ---- samples: receivers → owners and back (docs/PROTOCOL.md "Receiver")

// A sample of the committed baseline `version`, drawn by `seed`.
struct SampleRequest {
  VersionId version;
  std::uint64_t seed = 0;
  bool operator==(const SampleRequest&) const = default;
};
struct Sample {
  VersionId version;
  Bytes payload;  // docs/FORMAT.md; empty: the owner owns nothing
  bool operator==(const Sample&) const = default;
};

// ---- a receiver and its engine's gate (docs/PROTOCOL.md "Gate")

// `engine_instance`: drawn by an engine when it starts, so that a gate and the receivers of another
// engine of the same name, which was taken for dead and is not, do not believe each other.

// Close and drain: the sender is about to write. Voids what it proved under lower sequences, which
// grow with every GateClose and GateProof of an incarnation. Repeated.
struct GateClose {
  std::uint64_t sequence = 0;
  std::string why;  // it holds no version, if something went wrong
  std::uint64_t engine_instance = 0;
  bool operator==(const GateClose&) const = default;
};
struct GateIsClosed {
  std::uint64_t sequence = 0;  // of the GateClose
  bool operator==(const GateIsClosed&) const = default;
};
// The sender's storage is this version, whole, and nobody writes to it before its next GateClose
// was answered; or (nothing) it is no version. Sent to one incarnation of the gate only, which the
// sender knows from GateState: a gate that started anew must not believe what was true before.
struct GateProof {
  std::uint64_t sequence = 0;
  std::optional<VersionId> resident;
  std::uint64_t engine_instance = 0;
  bool operator==(const GateProof&) const = default;
};
// From a gate to its receivers, at its start and whenever it changes or is asked by a proof; to one
// that has proven nothing again and again, in whichever incarnation it lives.
struct GateState {
  bool open = false;
  VersionId serving;           // while open
  std::string reason;          // while closed: why
  std::uint64_t sequence = 0;  // the last of the addressee's that it has; 0: none
  std::uint64_t engine_instance = 0;
  bool operator==(const GateState&) const = default;
};

// ---- operators

struct StatusRequest {
  bool operator==(const StatusRequest&) const = default;
};
// How an endpoint stands: what `dcr status` prints beside the control plane's records.
struct StatusReply {
  std::string state;  // a word: "restoring", "prepared", …
  std::string detail;
  std::uint64_t attempt = 0;
  std::optional<VersionId> held;  // of a receiver: resident; of an owner: baseline
  bool gate_open = false;         // of a gate or a receiver
  std::string gate_reason;
  std::uint64_t gate_for_ms = 0;  // of a gate: that it has been open, or not open
  bool operator==(const StatusReply&) const = default;
};

// From an operator, repeated until it is answered for good.
struct OperatorCommand {
  enum class Kind : std::uint8_t {
    kRefit = 0,   // to owners: load the checkpoint at `path` and refit it under `label`
    kVerify = 1,  // to gates: compare all weights of the engine with a dense load of `path`
    kCount = 2,   // to gates and owners: what they have counted since their process began
  };
  std::uint64_t id = 0;  // of the operator's commands
  Kind kind = Kind::kRefit;
  std::string path;
  std::string label;
  bool asynchronous = false;
  VersionId base;  // K when the command was given: another K is what became of it
  bool operator==(const OperatorCommand&) const = default;
};
struct OperatorReply {
  std::uint64_t id = 0;
  std::optional<Failure> failure;
  // kRefit
  CommitRecord committed;
  std::uint64_t attempts = 0;
  // Of the sender's, in the attempt that was committed; of kCount, in all those.
  std::uint64_t payload_bytes = 0;
  std::vector<std::string> without_baseline;  // owners that are dense next time
  // kVerify: of this one; kCount: of all
  std::uint64_t bytes_compared = 0;
  std::uint64_t bytes_differing = 0;
  std::uint64_t reads = 0;            // of all weights while the gate was open, since the start
  std::uint64_t reads_different = 0;  // of those, the ones that were not their label's version
  std::uint64_t gate_closed_ms = 0;   // since it first opened
  std::optional<EarlyClose> gate_closed_early;  // kRefit
  std::uint64_t refit_ms = 0;                   // kCount: of all refits, until they returned
  bool operator==(const OperatorReply&) const = default;
};

// From a receiver that takes no part, to its gate and to whoever leads: why. Holds for as long as
// its incarnation lives and says so again.
struct Refused {
  Failure failure;
  std::uint64_t engine_instance = 0;
  bool operator==(const Refused&) const = default;
};

using Message =
    std::variant<RefitRequest, Sent, BaselineUpdated, CleanedUp, Prepare, CloseGate, OpenApply,
                 Flush, StopAndWait, Cleanup, Look, RefitEnded, Prepared, AttemptFailed, Stopped,
                 Staged, StagingFull, GateClosed, Completed, PayloadsSent, Credit, OwnerEnd,
                 PayloadReady, StreamFailed, RestoreRequest, RestoreSent, BaseDigestsRequest,
                 BaseDigests, GateClose, GateIsClosed, GateProof, GateState, StatusRequest,
                 StatusReply, OperatorCommand, OperatorReply, Refused, Applying, SampleRequest,
                 Sample>;

// "prepare", "open_apply", …: for messages, logs and `--kill`.
const char* message_name(const Message& message);

// Format: docs/PROTOCOL.md "Messages".
Bytes encode_message(const Message& message);
// Errors: kCorrupt, kUnsupported (another message version), kTooLarge; each names message and
// field.
Result<Message> decode_message(ByteSpan bytes);

// What the join of each role says of itself (Member::needs).
struct OwnerDetails {
  std::uint32_t rank = 0;
  std::uint32_t owners = 1;  // of the run
  Digest catalogue{};        // of tensors, boxes and converters
  bool operator==(const OwnerDetails&) const = default;
};
struct ReceiverDetails {
  std::string node;
  Digest catalogue{};
  Digest fingerprint{};     // of classification and layout
  std::vector<Need> needs;  // by canonical tensor
  bool operator==(const ReceiverDetails&) const = default;
};
Bytes encode_owner_details(const OwnerDetails& details);
Bytes encode_receiver_details(const ReceiverDetails& details);  // needs as runs
Result<OwnerDetails> decode_owner_details(ByteSpan bytes);
Result<ReceiverDetails> decode_receiver_details(ByteSpan bytes);

}  // namespace dcr
