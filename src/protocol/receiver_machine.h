// The inside of ReceiverEndpoint. An incarnation's life: it enrols, closes its gate, proves the
// base or restores K, joins, and then takes part in attempts. Events change the state; `advance`
// does whatever the state calls for, so that nothing depends on the order in which events come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/arrivals.h"
#include "protocol/gate_link.h"
#include "protocol/receiver.h"
#include "protocol/receiver_works.h"
#include "protocol/resident.h"

namespace dcr {

class ReceiverEndpoint::Machine {
 public:
  explicit Machine(ReceiverEndpointOptions options);

  void step(const ReceiverEvent& event, Milliseconds now, std::vector<ReceiverEffect>* effects);
  Milliseconds wake_at() const;
  std::uint64_t incarnation() const { return incarnation_; }
  StatusReply status() const;

 private:
  enum class Life : std::uint8_t { kEnrolling, kProving, kRestoring, kReady };
  // What a stream's items may be, and what is done with them.
  enum class Pass : std::uint8_t { kAny, kOverwrites, kAudits };

  struct Attempt {
    enum class State : std::uint8_t { kBeginning, kPrepared, kFinished, kFailed };
    std::uint64_t number = 0;
    VersionId base;
    AttemptMode mode = AttemptMode::kMixed;
    bool asynchronous = false;
    std::vector<OwnerBinding> owners;
    Endpoint node;
    Endpoint coordinator;  // who spoke of it last
    State state = State::kBeginning;
    bool close = false;      // its gate is to be closed
    bool gate_told = false;  // that it is
    bool open = false;       // payloads may be applied
    bool flush = false;
    std::uint64_t applied = 0;        // payloads, of both passes
    Completed completed;              // of kFinished
    AttemptFailed failed;             // of kFailed
    Milliseconds failed_at = kNever;  // said again
  };
  // Of an attempt or of a restore.
  struct Stream {
    StreamId id;
    Arrivals arrivals;
    bool audits = false;  // it comes a second time, and is compared with what it wrote
    bool begun = false;
    Milliseconds credit_at = kNever;
    Credit told;  // the last one
  };
  struct Restore {
    VersionId version;
    std::vector<bool> sent;  // by rank
    std::string trouble;     // what an owner said that cannot send
    Milliseconds ask_at = 0;
    Milliseconds progress_at = 0;
  };

  // receiver.cc: events, lives and what is sent again
  void on(const Started&) { session_.start(now_); }
  void on(const TimePassed&) {}
  void on(const MessageArrived& event);
  void on(const ControlAnswered& event);
  void on(const ReceiverWorkDone& event);
  void on(const PayloadHandedOver& event);
  void on_owner_end(const Endpoint& from, const OwnerEnd& message);
  void on_stream_failed(const Endpoint& from, const StreamFailed& message);
  void advance();
  void follow_session();
  void follow_records();
  bool broken() const;
  void follow_brokenness();
  void start_life();
  void begin_life(std::string why, Milliseconds after);
  void made_whole(VersionId version);
  void prove_to_gate();
  void repeat();

  // receiver_stream.cc: payloads
  void begin_stream(StreamId id, VersionId base, std::uint64_t target, Pass pass);
  void begin_audit();
  void stream_finished(const ReceiverCounts& counts);
  void stop_stream();
  bool may_apply() const;
  bool may_finish() const;
  void drive_stream();
  Credit credit() const;
  void give_credit();
  void stream_work_done(const ReceiverWorkDone& done);
  void stream_failed(const Status& status);
  bool from_node(const Endpoint& from) const;
  std::string stream_state() const;

  // receiver_sample.cc
  void expect_sample();
  Milliseconds sample_due() const;
  void ask_for_sample();
  void on_sample(const Endpoint& from, const Sample& message);
  bool compare_sample();
  void sample_compared(const ReceiverWorkDone& done);

  // receiver_attempt.cc
  void on_prepare(const Endpoint& from, const Prepare& prepare);
  Status check_prepare(const Prepare& prepare, Attempt* attempt) const;
  Attempt* current(std::uint64_t attempt, const Endpoint& from);
  void on_close_gate(const Endpoint& from, const CloseGate& message);
  void on_open_apply(const Endpoint& from, std::uint64_t attempt);
  void on_flush(const Endpoint& from, const Flush& message);
  void on_stop(const Endpoint& from, const StopAndWait& message);
  void drive_attempt();
  void fail_attempt(const Status& status, bool rejected);
  void end_attempt();

  // receiver_restore.cc
  void begin_proof_or_restore();
  void begin_restore();
  void on_base_digests(const Endpoint& from, const BaseDigests& message);
  void on_restore_sent(const Endpoint& from, const RestoreSent& message);
  void base_checked(const Status& status);
  void refused();
  void join_without_version();
  void restored();
  void drive_restore();
  void ask_owners();
  std::int64_t rank_of(const Endpoint& owner) const;

  void send(const Endpoint& to, Message message);
  void note(std::string text);
  const ControlRecords& records() const { return *session_.records(); }
  bool is_restore() const { return stream_ && stream_->id.restore; }

  ReceiverEndpointOptions options_;
  Bytes needs_;  // what it joins with
  Milliseconds now_ = 0;
  std::vector<ReceiverEffect>* effects_ = nullptr;
  bool ended_ = false;

  Life life_ = Life::kEnrolling;
  MemberSession session_;
  std::uint64_t calls_ = 0;         // made so far
  std::uint64_t calls_before_ = 0;  // by sessions of earlier incarnations
  std::uint64_t incarnation_ = 0;
  std::uint64_t fence_ = 0;
  std::string trouble_;  // of this life: why it proves or restores
  std::string failed_;   // the last attempt that did here, until the bits are whole again

  // The storage outlives incarnations.
  Resident resident_;
  bool base_loaded_;
  bool audit_;                         // it is yet to be
  std::optional<VersionId> finished_;  // what the storage is if that attempt is committed
  GateLink gate_;
  bool entitled_ = false;                // a member whose version was K's: its gate may open
  Milliseconds hold_until_ = 0;          // a gate that was closed stays closed for a retry
  Milliseconds broken_until_ = 0;        // in no attempt, and no version: so long it waits for one
  Milliseconds refused_since_ = kNever;  // by owners, of whom none has helped since
  std::optional<VersionId> unbound_;     // K when it joined without a version, until it is bound

  ReceiverWorks works_;
  std::optional<Attempt> attempt_;
  std::optional<Stream> stream_;
  std::optional<Restore> restore_;
  std::vector<std::optional<std::vector<Digest>>> base_digests_;  // by rank
  Milliseconds ask_at_ = kNever;                                  // owners for them
  Milliseconds sample_at_ = kNever;      // an owner is asked for a sample of what is resident
  std::uint64_t samples_asked_ = 0;      // of this version
  std::optional<CompareSample> sample_;  // to be compared, or being so, before an attempt writes
  std::optional<std::pair<Endpoint, Prepare>> offered_;    // waits for a look at K
  std::vector<std::pair<Endpoint, std::uint64_t>> stops_;  // to answer when all is drained
};

}  // namespace dcr
