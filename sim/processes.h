// The processes of a simulated world, by role: each carries out its machine's work with the real
// owners, codec and receivers, at once when its turn comes, and answers some virtual time later.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "receiver/decoded.h"
#include "sim/meetings.h"
#include "sim/model.h"
#include "sim/process.h"
#include "transport/object_transport.h"

namespace dcr {

class CoordinatorProcess final
    : public MachineProcess<Coordinator, CoordinatorEvent, CoordinatorEffect> {
 public:
  CoordinatorProcess(World& world, std::string name, bool abort)
      : MachineProcess(world, Role::kCoordinator, std::move(name)), abort_(abort) {}

 private:
  void begin() override;
  void lose() override { drop_machine(); }
  void carry_out(CoordinatorEffect& effect) override;

  const bool abort_;  // ends a transition, and itself
};

class OwnerProcess final : public MachineProcess<OwnerEndpoint, OwnerEvent, OwnerEffect> {
 public:
  // `spare`: its weights and baseline lie where those of a zombie of its name do not.
  OwnerProcess(World& world, std::uint32_t rank, bool spare = false);

  std::uint32_t rank() const { return rank_; }
  bool spare() const { return spare_; }
  std::uint32_t weights() const { return weights_; }
  void become_zombie() override;
  // Its next life begins with the base, as weights and as a baseline, which the model has.
  void begin_initialized() {
    weights_ = 0;
    kept_ = VersionId{};
  }
  // How its next lives begin: with these weights, and without a baseline.
  void begin_with(std::uint32_t weights) {
    weights_ = weights;
    kept_.reset();
  }
  // Its next machine begins in the same process, with what there is of a baseline.
  void keep() { kept_ = status().held; }
  // The trainer's weights are others now.
  void load(std::uint32_t weights);
  void refit(RefitCalled call);

  // ---- from the meeting that it waits in

  // Its part of the work; on any thread.
  Status do_phase() { return phase_(); }
  // What became of that; it goes on with it some time later.
  void met(Status status, Microseconds delay);
  SimOwner& model();

 private:
  void begin() override;
  void lose() override;
  void carry_out(OwnerEffect& effect) override;
  void answered(const OwnerEvent& event) override;

  void begin_next();
  void begin_work(const ConstructAndSend& work);
  void begin_work(const SendBaseline& work);
  void begin_work(const UpdateBaseline& work);
  // `phase`, at once or with the other owners; then `then`, unless it gives up or dies before.
  void together(const Meeting& meeting, Milliseconds wait, std::function<Status()> phase,
                std::function<void(const Status&)> then);
  void finish_with(OwnerWorkDone done, Microseconds delay);
  OwnerWorkDone carry_out_short(const OwnerEffect& work);
  void send_next();
  Status send_one();
  void finish_sending(Status status);
  void give_up();

  struct Sending {
    ObjectOwnerTransport* transport = nullptr;
    OwnerWorkDone done;
    std::uint64_t attempt = 0;  // or restore
    std::vector<Bytes> payloads;
    std::size_t next = 0;
    std::uint64_t bytes = 0;
  };

  const std::uint32_t rank_;
  const bool spare_;
  std::uint32_t weights_ = 0;
  std::optional<VersionId> kept_;
  std::unique_ptr<ObjectOwnerTransport> payloads_, restores_;
  std::deque<OwnerEffect> work_;
  bool working_ = false;
  std::uint64_t turn_ = 0;  // of the work that runs: what was given up does not go on
  std::optional<Sending> sending_;
  std::uint64_t prepared_attempt_ = 0;  // the last that was
  // While it is at a meeting.
  std::function<Status()> phase_;
  std::function<void(const Status&)> then_;
};

class NodeProcess final : public MachineProcess<NodeEndpoint, NodeEvent, NodeEffect> {
 public:
  NodeProcess(World& world, std::uint32_t number);

  std::uint32_t number() const { return number_; }

 private:
  using Key = std::tuple<StreamId, std::uint32_t, std::uint64_t>;  // stream, owner, number
  struct Held {
    std::uint64_t stored_bytes = 0;
    std::shared_ptr<const DecodedPayload> payload;
    bool decoded = false;
  };

  void begin() override;
  void lose() override;
  void carry_out(NodeEffect& effect) override;

  ObjectNodeTransport transport(const StreamId& stream) const;
  EndFetched fetch_end(const FetchEnd& work);
  PayloadFetched fetch(const FetchPayload& work);
  PayloadDecoded decode(const DecodePayload& work);
  void hand_over(const HandOver& work);
  void drop(const DropPayloads& work);

  const std::uint32_t number_;
  std::map<Key, Held> held_;
};

class GateProcess;

class ReceiverProcess final
    : public MachineProcess<ReceiverEndpoint, ReceiverEvent, ReceiverEffect>,
      private WriteGuard {
 public:
  // `spare`: its memory is not that of a zombie of its name.
  ReceiverProcess(World& world, std::uint32_t index, bool spare = false);

  std::uint32_t engine() const { return engine_; }
  bool spare() const { return spare_; }
  SimReceiver& model() const;
  // Of its engine, set when that is made; a zombie's is a zombie.
  void set_gate(const GateProcess* gate) { gate_ = gate; }
  const GateProcess& gate() const { return *gate_; }
  std::uint32_t rank() const { return rank_; }
  // Something of its storage may be on its way.
  bool writing() const { return before_.has_value(); }
  // How its next life begins: the engine has loaded these weights as the base; none: no base.
  void begin_with_base(std::optional<std::uint32_t> weights) { base_ = weights; }

  void hand_over(const HandOver& work, std::shared_ptr<const DecodedPayload> payload);

 private:
  using Key = std::tuple<StreamId, std::uint32_t, std::uint64_t>;

  void begin() override;
  void lose() override;
  void carry_out(ReceiverEffect& effect) override;
  void answered(const ReceiverEvent& event) override;
  void on_write() override;

  void begin_next();
  void begin_applying(const ApplyQueued& work);
  void land(ReceiverWorkDone done, Image whole, std::uint64_t slices);
  void finish_with(ReceiverWorkDone done);
  ReceiverWorkDone carry_out_now(const ReceiverEffect& work);
  Status ingest(const IngestPayload& work, ReceiverWorkDone* done);
  void compare(const CompareSample& work, ReceiverWorkDone* done);
  void begin_stream(const BeginStream& work, ReceiverWorkDone* done);
  void tear();

  const std::uint32_t index_;
  const std::uint32_t engine_;
  const std::uint32_t rank_;
  const bool spare_;
  const GateProcess* gate_ = nullptr;
  std::optional<std::uint32_t> base_;  // of the next life
  std::uint32_t base_weights_ = 0;     // of this one, if it began with some
  std::map<Key, std::shared_ptr<const DecodedPayload>> handed_over_;
  std::deque<ReceiverEffect> work_;
  bool working_ = false;
  std::uint64_t turn_ = 0;
  std::optional<Image> before_;       // of the slice that is being applied
  std::optional<StreamId> applying_;  // while writes are made
};

class GateProcess final : public MachineProcess<Gate, GateEvent, GateEffect> {
 public:
  GateProcess(World& world, std::uint32_t engine);

  // Of its engine when that starts, and its receivers' too.
  void set_engine_instance(std::uint64_t instance) { engine_instance_ = instance; }
  std::uint64_t engine_instance() const { return engine_instance_; }
  // Of its engine, by rank; set when that is made.
  void set_receivers(std::vector<ReceiverProcess*> receivers) { receivers_ = std::move(receivers); }
  const std::vector<ReceiverProcess*>& receivers() const { return receivers_; }
  // Requests may run, under this version.
  const std::optional<VersionId>& serving() const { return serving_; }

 private:
  void begin() override;
  void lose() override;
  void carry_out(GateEffect& effect) override;
  void answered(const GateEvent& event) override;

  const std::uint32_t engine_;
  std::uint64_t engine_instance_ = 1;
  std::vector<ReceiverProcess*> receivers_;
  std::optional<VersionId> serving_;
  std::uint64_t draining_ = 0;  // closes that are not answered
  std::uint64_t turn_ = 0;      // of those: requests that were failed drain no longer
};

}  // namespace dcr
