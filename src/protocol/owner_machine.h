// The state of an OwnerEndpoint, and its parts: attempts (owner_attempt.cc), the trainer's refit
// and the baseline (owner_refit.cc), work and what receivers ask for (owner_work.cc).
//
// Handlers note what came; `advance` then looks at the whole state and does what is due, so that no
// order of events is special.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol/owner.h"

namespace dcr {

class OwnerEndpoint::Machine {
 public:
  Machine(OwnerEndpointOptions options, std::optional<VersionId> baseline);

  void step(const OwnerEvent& event, Milliseconds now, std::vector<OwnerEffect>* effects);
  Milliseconds wake_at() const;
  std::uint64_t incarnation() const { return session_.incarnation(); }
  StatusReply status() const;

 private:
  using Kind = OwnerWorkDone::Kind;

  // The attempt of `current` (docs/PROTOCOL.md rule 3), with what became of it here.
  struct Current {
    Prepare prepare;
    OwnerBinding binding;    // this owner's
    Endpoint coordinator;    // who prepared it
    std::uint64_t call = 0;  // of the control plane, the last before it came
    bool begun = false;      // ConstructAndSend is under way, or was
    bool swept = false;      // what earlier attempts left was removed, as far as that was possible
    std::uint64_t payloads = 0;  // sent, as far as is known
    bool progressed = false;     // since the last repeat
    std::optional<AttemptFailed> failed;
    std::optional<Sent> sent;
  };
  // The refit that the trainer waits for.
  struct Refit {
    RefitCalled call;
    std::uint64_t number = 0;            // of the incarnation's refits
    std::optional<Candidate> candidate;  // once it is enrolled
    std::uint64_t attempts = 0;          // that were prepared here
    std::optional<VersionId> sent_base;  // of the last of them
    std::optional<RefitEnded> ended;     // what a coordinator says of its end
    std::uint64_t ended_call = 0;        // of the control plane, the last before that came
    std::optional<CommitRecord> committed;
    Milliseconds committed_at = 0;
    bool failing = false;  // it has failed for good; what was constructed for it is being stopped
  };
  struct Running {
    Kind kind = Kind::kConstructAndSend;
    std::uint64_t number = 0;
  };
  // A receiver that asks for a sample.
  struct Sampler {
    Endpoint who;
    SampleRequest request;
  };
  struct Stopping {
    Endpoint who;
    std::uint64_t attempt = 0;
  };

  // ---- owner.cc
  void on(const Started& event);
  void on(const TimePassed& event);
  void on(const MessageArrived& event);
  void on(const ControlAnswered& event);
  void on(const OwnerProgress& event);
  void on(const OwnerWorkDone& event);
  void on(const RefitCalled& event);
  void advance();
  void repeat();
  void repeat_attempt();
  void call_control();
  void end_barred();
  void end(Status status);
  bool outcome_unknown() const;
  void emit(OwnerEffect effect) { effects_->push_back(std::move(effect)); }
  void send(const Endpoint& to, Message message);
  void send_leader(Message message);
  void note(std::string text) { emit(Note{std::move(text)}); }
  const ControlRecords& records() const { return final_ ? *final_ : *session_.records(); }
  VersionId committed() const { return records().commit.id; }
  bool constructing() const { return running_ && running_->kind == Kind::kConstructAndSend; }
  bool standing() const;
  Endpoint self() const { return {options_.name, session_.incarnation()}; }
  std::string state() const;

  // ---- owner_attempt.cc
  void on_message(const Endpoint& from, const Prepare& message);
  void on_message(const Endpoint& from, const StopAndWait& message);
  void on_message(const Endpoint& from, const Cleanup& message);
  std::optional<AttemptFailed> rejection(const Prepare& prepare) const;
  void answer_prepare();
  void drop_current(bool keep_prepared);
  bool draining(std::uint64_t attempt) const;
  void answer_stops();
  void begin_construction();
  void construction_done(const OwnerWorkDone& done);
  void send_hints(bool ended);

  // ---- owner_refit.cc
  void on_message(const Endpoint& from, const RefitEnded& message);
  void on_message(const Endpoint& from, const Look& message);
  void form_candidate();
  bool binds_candidate(const TransitionRecord& transition) const;
  void look_at_commit();
  void advance_refit();
  CommitRecord known_commit() const;
  void finish_refit(Status status, bool barred = false);
  void without_baseline(Failure failure);
  bool update_due() const;
  void update_done(const OwnerWorkDone& done);
  RefitRequest refit_request() const;

  // ---- owner_work.cc
  void on_message(const Endpoint& from, const RestoreRequest& message);
  void on_message(const Endpoint& from, const BaseDigestsRequest& message);
  void on_message(const Endpoint& from, const SampleRequest& message);
  void begin_stop();  // if one is due, whatever else there is to do
  void begin_work();
  std::uint64_t last_over() const;
  bool begin_removal();
  bool restores_left() const;
  void begin_service();
  void begin_sample();
  void run(Kind kind, std::uint64_t number, OwnerEffect effect);
  void stop_sending(std::uint64_t attempt);
  void stop_done(const OwnerWorkDone& done);
  void restore_done(const OwnerWorkDone& done);
  void digests_done(const OwnerWorkDone& done);
  void sample_done(const OwnerWorkDone& done);
  void removal_done(const OwnerWorkDone& done);
  void restores_removed(const OwnerWorkDone& done);
  void answer_restores(const RestoreSent& answer);
  void answer_digests(const BaseDigests& answer);

  template <typename T>
  void on_message(const Endpoint& /*from*/, const T& /*message*/) {}  // for others

  const OwnerEndpointOptions options_;
  MemberSession session_;
  bool join_asked_ = false;
  std::vector<OwnerEffect>* effects_ = nullptr;  // of the running step
  Milliseconds now_ = 0;
  bool ended_ = false;
  Milliseconds repeat_at_ = kNever;

  // Calls of the control plane are numbered by the session; these say which reads are newer than
  // something that came in between.
  std::uint64_t called_ = 0;     // the last that was made
  std::uint64_t read_call_ = 0;  // the last that brought records

  std::uint64_t fence_ = 0;
  std::optional<Current> current_;
  // The attempt that the owners' group holds prepared; 0: none.
  std::uint64_t prepared_ = 0;
  Candidate prepared_candidate_;

  std::optional<VersionId> baseline_;
  VersionId updating_;                      // of UpdateBaseline that runs
  std::optional<BaselineUpdated> updated_;  // of the last commit that bound this owner

  std::uint64_t refits_ = 0;   // that were called
  std::uint64_t counter_ = 0;  // of candidates
  std::optional<Candidate> last_candidate_;
  std::optional<Refit> refit_;

  std::optional<Running> running_;
  std::uint64_t stopping_ = 0;   // StopSending of this attempt is under way; 0: none
  std::uint64_t stop_next_ = 0;  // and this one is wanted next
  Milliseconds stop_at_ = 0;     // not before
  std::vector<Stopping> stops_;  // who waits for Stopped

  std::uint64_t removed_ = 0;         // attempts up to this one left nothing behind
  std::uint64_t removal_wanted_ = 0;  // by the coordinator
  Endpoint removal_for_;
  Milliseconds removal_at_ = 0;                      // not before, after one that failed
  std::optional<std::uint64_t> restores_kept_from_;  // versions below have no restore stream
  std::optional<VersionId> restore_wanted_;
  VersionId restoring_;  // of SendBaseline that runs
  std::vector<Endpoint> restorers_;
  std::optional<RestoreSent> restore_sent_;
  bool restores_sent_ = false;  // since streams were removed last
  std::vector<Endpoint> digesters_;
  std::optional<std::vector<Digest>> digests_;  // of the base
  std::vector<Sampler> samplers_;               // the first one's is drawn first
  Sampler sampled_for_;                         // by SampleBaseline that runs

  // Once it is barred: the read that decides what became of the refit.
  bool final_called_ = false;
  Milliseconds final_at_ = 0;  // not before
  std::optional<ControlRecords> final_;
};

}  // namespace dcr
