#include <algorithm>
#include <utility>

#include "protocol/test_engine_world.h"
#include "tests/support/campaign.h"

namespace dcr {

void EngineWorld::check() {
  if (!admits_) return;
  for (std::size_t i = 0; i < kReceivers; ++i) {
    Engine& engine = receivers_[i];
    if (engine.changed == Words{}) engine.found = false;
    if (engine.found) ADD_FAILURE() << name_of(i) << " serves what a sample has shown to differ";
    if (engine.words == held(engine, version(*admits_)) && !engine.applying) continue;
    ADD_FAILURE() << "requests of version " << admits_->version << " see other bits of "
                  << name_of(i) << (receivers_[i].applying ? ", which writes" : "");
  }
  const bool old = *admits_ != control_.read()->commit.id && gate_->status().gate_open;
  if (old && now_ > committed_at_ + waits_.membership_ms + 4) {
    ADD_FAILURE() << "version " << admits_->version << " is served too long";
  }
}

// ---- shells

Status EngineWorld::ingest(Engine* engine, const IngestPayload& payload, ReceiverWorkDone* done) {
  done->owner = payload.owner;
  done->number = payload.number;
  const std::optional<Payloads> all = payloads_of(payload.stream);
  if (!all) return {Code::kIo, "the payload is gone"};
  if (chance(8)) {  // it was let go of
    done->here = false;
    return {};
  }
  const std::uint64_t order = payload.number * 2 + payload.owner;
  const Word& word = (*all)[payload.owner].at(payload.number);
  if (word.difference && engine->overwrite) return {Code::kMismatch, "a difference"};
  if (order < engine->next || engine->queue.contains(order)) {
    done->ingested = Ingested::kDuplicate;
  } else if (order != engine->next && chance(6)) {
    done->ingested = Ingested::kFull;
  } else {
    engine->queue[order] = word;
  }
  return {};
}

void EngineWorld::compare(Engine* engine, const CompareSample& sample, ReceiverWorkDone* done) {
  EXPECT_FALSE(admits_ || engine->applying);
  ASSERT_EQ(sample.payload, Bytes{static_cast<std::uint8_t>(sample.owner)});
  for (std::size_t word = 2 * sample.owner; word < 2 * sample.owner + 2; ++word) {
    ++done->counts.destinations;
    if (engine->words[word] != version(sample.version)[word]) ++done->counts.different;
  }
  if (done->counts.different == 0) return;
  done->status = Status(Code::kMismatch, "a word differs");
  engine->found = true;
  ++found_;
}

// Whether there is nothing more to apply.
bool EngineWorld::apply_word(Engine* engine) {
  while (engine->ends[0] && engine->ends[1] &&
         engine->next < 2 * std::max(*engine->ends[0], *engine->ends[1]) &&
         engine->next / 2 >= *engine->ends[engine->next % 2]) {
    ++engine->next;
  }
  const std::optional<std::uint64_t>& end = engine->ends[engine->next % 2];
  if (end && engine->next / 2 >= *end && !engine->queue.empty()) {
    ++engine->next;
    return false;
  }
  const auto found = engine->queue.find(engine->next);
  if (found == engine->queue.end()) return true;
  std::uint64_t& at = engine->words[found->second.at];
  if (engine->audits) {
    EXPECT_EQ(at, found->second.value);
  } else {
    at = found->second.difference ? at + found->second.value : found->second.value;
    if (!found->second.difference) engine->changed[found->second.at] = 0;
  }
  engine->queue.erase(found);
  ++engine->next;
  ++engine->applied;
  return false;
}

void EngineWorld::work(std::size_t i) {
  Engine& engine = receivers_[i];
  if (engine.works.empty()) return;
  const ReceiverEffect& front = engine.works.front();
  ReceiverWorkDone done;
  if (std::holds_alternative<CheckBase>(front)) {
    if (engine.words != version({})) done.status = {Code::kMismatch, "another base"};
  } else if (const auto* begin = std::get_if<BeginStream>(&front)) {
    done.kind = ReceiverWorkDone::Kind::kBeginStream;
    engine.stream = done.stream = begin->stream;
    engine.queue.clear();
    engine.ends = {};
    engine.next = engine.applied = 0;
    engine.overwrite = begin->header.overwrite_only;
    engine.audits = begin->header.mode == ApplyMode::kVerify;
  } else if (const auto* payload = std::get_if<IngestPayload>(&front)) {
    done.kind = ReceiverWorkDone::Kind::kIngestPayload;
    done.stream = payload->stream;
    done.status = ingest(&engine, *payload, &done);
  } else if (const auto* end = std::get_if<EndOfOwner>(&front)) {
    done.kind = ReceiverWorkDone::Kind::kEndOfOwner;
    done.stream = end->stream;
    done.owner = end->owner;
    engine.ends.at(end->owner) = end->payloads;
  } else if (const auto* sample = std::get_if<CompareSample>(&front)) {
    done.kind = ReceiverWorkDone::Kind::kCompareSample;
    compare(&engine, *sample, &done);
  } else if (const auto* apply = std::get_if<ApplyQueued>(&front)) {
    done.kind = ReceiverWorkDone::Kind::kApplyQueued;
    done.stream = apply->stream;
    if (!std::exchange(engine.applying, true)) engine.applied = 0;
    const bool stopped = engine.stop;
    if (!stopped && !apply_word(&engine)) return;
    engine.applying = false;
    done.applied = engine.applied;
    if (stopped) done.status = {Code::kCancelled, "stopped"};
  } else if (const auto* finish = std::get_if<FinishStream>(&front)) {
    done.kind = ReceiverWorkDone::Kind::kFinishStream;
    done.stream = finish->stream;
    EXPECT_TRUE(engine.queue.empty() && engine.ends[0] && engine.ends[1]);
  } else {
    done.kind = ReceiverWorkDone::Kind::kStopApplying;
    done.stream = std::get<StopApplying>(front).stream;
    engine.stop = false;
  }
  engine.works.pop_front();
  step_receiver(i, done);
}

void EngineWorld::work_gate() {
  if (gate_works_.empty()) return;
  if (const auto* open = std::get_if<OpenFor>(&gate_works_.front())) {
    const CommitRecord committed = open->committed;
    gate_works_.pop_front();
    if (chance(8)) return step_gate(GateWorkDone{true, {Code::kInternal, "caches"}});
    admits_ = committed.id;
    ++openings_;
    return step_gate(GateWorkDone{true, {}});
  }
  const bool failing =
      std::any_of(gate_works_.begin(), gate_works_.end(), [](const GateEffect& each) {
        const auto* const close = std::get_if<CloseAndDrain>(&each);
        return close != nullptr && close->fail_requests;
      });
  if (!failing && !chance(6)) return;  // requests run
  gate_works_.pop_front();
  if (chance(8)) return step_gate(GateWorkDone{false, {Code::kIo, "no answer"}});
  admits_.reset();
  step_gate(GateWorkDone{false, {}});
}

// ---- script

std::optional<EngineWorld::Payloads> EngineWorld::payloads_of(const StreamId& stream) const {
  if (!stream.restore) {
    const auto found = sent_.find(stream.number);
    return found == sent_.end() ? std::nullopt : std::optional(found->second);
  }
  const VersionId committed = control_record().commit.id;
  if (committed.version + 1 != stream.number) return std::nullopt;
  Payloads all;
  for (std::size_t word = 0; word < kWords; ++word) {
    all[word / 2].push_back({word, version(committed)[word], false});
  }
  return all;
}

void EngineWorld::script(const Flight& flight, const Message& message) {
  const auto reply = [&](const Endpoint& me, Message answer) {
    flights_.push_back({me, flight.from.name, flight.from.incarnation, std::move(answer)});
  };
  if (flight.to == "leader" && flight.incarnation == leader_.incarnation) {
    hear_receiver(flight.from, message);
  } else if (flight.to == "node-0") {
    if (const auto* credit = std::get_if<Credit>(&message)) give(flight.from, *credit);
  }
  for (const Endpoint& owner : owners_) {
    if (flight.to != owner.name) continue;
    if (const auto* restore = std::get_if<RestoreRequest>(&message)) {
      const bool current = restore->version == control_record().commit.id;
      reply(owner, current ? RestoreSent{restore->version, 2, {}}
                           : RestoreSent{restore->version, 0,
                                         Failure{Code::kMismatch, "", "another version"}});
    } else if (std::holds_alternative<BaseDigestsRequest>(message)) {
      reply(owner, BaseDigests{});
    } else if (const auto* sample = std::get_if<SampleRequest>(&message)) {
      const bool current = sample->version == control_record().commit.id;
      const auto rank = static_cast<std::uint8_t>(owner.name.back() - '0');
      if (current && !chance(8)) reply(owner, Sample{sample->version, {rank}});
    }
  }
}

void EngineWorld::give(const Endpoint& receiver, const Credit& credit) {
  const std::optional<Payloads> all = payloads_of(credit.stream);
  if (!all) return;
  for (std::uint32_t owner = 0; owner < 2; ++owner) {
    const std::uint64_t count = (*all)[owner].size();
    flights_.push_back({node_, receiver.name, receiver.incarnation,
                        Message(OwnerEnd{credit.stream, owner, count})});
    for (std::uint64_t number = 0; number < count; ++number) {
      const std::uint64_t order = number * 2 + owner;
      if (order < credit.next || order > credit.next + credit.payloads) continue;
      flights_.push_back({node_, receiver.name, receiver.incarnation,
                          PayloadHandedOver{credit.stream, owner, number, 10}});
    }
  }
}

void EngineWorld::hear_receiver(const Endpoint& from, const Message& message) {
  const auto bound = std::find(attempt_.receivers.begin(), attempt_.receivers.end(), from);
  if (bound == attempt_.receivers.end()) return;
  if (const auto* prepared = std::get_if<Prepared>(&message)) {
    if (prepared->attempt == attempt_.attempt) prepared_.insert(from.name);
  } else if (const auto* closed = std::get_if<GateClosed>(&message)) {
    if (closed->attempt == attempt_.attempt) closed_.insert(from.name);
  } else if (const auto* completed = std::get_if<Completed>(&message)) {
    if (completed->attempt == attempt_.attempt) completed_.insert(from.name);
  } else if (const auto* stopped = std::get_if<Stopped>(&message)) {
    if (stopped->attempt == attempt_.attempt) stopped_.insert(from.name);
  } else if (const auto* failed = std::get_if<AttemptFailed>(&message)) {
    const bool current = failed->attempt == attempt_.attempt;
    if (current && phase_ != "stop" && phase_ != "idle") abort_attempt();
  }
}

// What each owner sends: of its two words those that changed, or both.
void EngineWorld::note_payloads() {
  Payloads all;
  const Words& base = version(attempt_.base);
  for (std::size_t owner = 0; owner < 2; ++owner) {
    const OwnerBinding& binding = attempt_.owners[owner];
    const bool dense = binding.dense || attempt_.mode == AttemptMode::kDense;
    const auto& weights = weights_.at({owner, binding.candidate.counter});
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t word = owner * 2 + i;
      if (dense || attempt_.mode == AttemptMode::kOverwrite) {
        if (dense || weights[i] != base[word]) all[owner].push_back({word, weights[i], false});
      } else if (weights[i] != base[word]) {
        all[owner].push_back({word, weights[i] - base[word], true});
      }
    }
  }
  sent_[attempt_.attempt] = std::move(all);
  while (sent_.size() > 3) sent_.erase(sent_.begin());
}

void EngineWorld::prepare() {
  const Membership members = *control_.read_members();
  const TransitionRecord& last = members.records.transition;
  const Words& base = version(members.records.commit.id);
  PrepareRequest request;
  request.token = token_;
  request.after = last.attempt;
  request.members_revision = members.records.members_revision;
  request.base = members.records.commit.id;
  request.mode = static_cast<AttemptMode>(chance(4) ? 1 + prng_.below(2) : last.dirty() ? 1 : 0);
  for (std::size_t owner = 0; owner < 2; ++owner) {
    if (last.state != AttemptState::kObsolete || chance(4)) {
      const std::uint64_t made = ++candidates_[owner];
      for (std::size_t i = 0; i < 2; ++i) {
        weights_[{owner, made}][i] = chance(2) ? base[owner * 2 + i] : prng_.next();
      }
    }
    request.candidates.push_back(
        {owners_[owner].name, {owners_[owner].incarnation, candidates_[owner]}});
  }
  const Result<TransitionRecord> made = control_.prepare(request);
  if (!made.ok()) return;
  attempt_ = *made;
  asynchronous_ = chance(2);
  note_payloads();
  prepared_.clear();
  closed_.clear();
  completed_.clear();
  stopped_.clear();
  enter("prepare");
}

void EngineWorld::coordinate(bool faults) {
  if (phase_ == "idle") {
    if (faults && chance(10)) prepare();
    return;
  }
  const bool gone = std::any_of(attempt_.receivers.begin(), attempt_.receivers.end(),
                                [this](const Endpoint& bound) {
                                  const auto row = *control_.read_member(bound.name);
                                  return !row || row->endpoint.incarnation != bound.incarnation;
                                });
  if (phase_ != "stop" && (gone || now_ > phase_at_ + 1000 || (faults && chance(300)))) {
    return abort_attempt();
  }
  if (now_ < drive_at_) return;
  drive_at_ = now_ + waits_.repeat_ms;
  drive();
}

void EngineWorld::drive() {
  const std::uint64_t number = attempt_.attempt;
  Prepare message{number,
                  attempt_.base,
                  attempt_.label,
                  attempt_.mode,
                  asynchronous_,
                  {},
                  attempt_.owners,
                  attempt_.nodes,
                  {},
                  {}};
  for (const Endpoint& each : attempt_.receivers) {
    message.receivers.push_back({each, "engine", "node-0"});
  }
  for (const Endpoint& each : attempt_.receivers) {
    const std::string& name = each.name;
    if (phase_ == "prepare" && !prepared_.contains(name)) say(name, each.incarnation, message);
    const bool closing = phase_ == "close" || (phase_ == "prepare" && !asynchronous_);
    if (closing && !closed_.contains(name)) say(name, each.incarnation, CloseGate{number});
    if (phase_ == "apply" && !completed_.contains(name)) {
      say(name, each.incarnation, OpenApply{number});
      say(name, each.incarnation, Flush{number});
    }
    if (phase_ != "stop" || stopped_.contains(name)) continue;
    const auto row = *control_.read_member(name);
    const bool alive = row && row->endpoint.incarnation == each.incarnation;
    if (alive && now_ > phase_at_ + waits_.stop_ms) {
      EXPECT_TRUE(control_.bar(token_, {each}).ok());
    }
    if (!alive) stopped_.insert(name);
    say(name, each.incarnation, StopAndWait{number});
  }
  if (phase_ == "prepare" && all(prepared_)) enter("close");
  if (phase_ == "close" && all(closed_)) {
    EXPECT_TRUE(control_.open(number).ok());
    enter("apply");
  }
  if (phase_ == "apply" && all(completed_)) commit();
  if (phase_ == "stop" && all(stopped_)) enter("idle");
}

void EngineWorld::abort_attempt() {
  const ControlRecords records = *control_.mark_obsolete(attempt_.attempt);
  enter(records.transition.state == AttemptState::kCommitted ? "idle" : "stop");
}

void EngineWorld::commit() {
  Words made{};
  for (std::size_t word = 0; word < kWords; ++word) {
    made[word] = weights_.at({word / 2, attempt_.owners[word / 2].candidate.counter})[word % 2];
  }
  for (std::size_t i = 0; i < kReceivers; ++i) {
    for (const Endpoint& bound : attempt_.receivers) {
      const bool same = bound == Endpoint{name_of(i), receivers_[i].machine->incarnation()};
      if (same && receivers_[i].words != held(receivers_[i], made)) {
        ADD_FAILURE() << "attempt " << attempt_.attempt << " (" << attempt_mode_name(attempt_.mode)
                      << ") is acknowledged by " << name_of(i) << ", whose bits are others";
      }
    }
  }
  ASSERT_TRUE(control_.commit(attempt_.attempt).ok());
  truth_[{attempt_.base.version + 1, attempt_.attempt}] = made;
  committed_at_ = now_;
  ++commits_;
  if (attempt_.mode != AttemptMode::kMixed) ++repairs_;
  for (const Endpoint& each : attempt_.receivers) say(each.name, each.incarnation, Look{});
  enter("idle");
}

namespace {

TEST(EngineProperty, TheGateIsNeverOpenOverOtherBitsThanItsLabels) {
  std::uint64_t commits = 0, repairs = 0, openings = 0, found = 0;
  const std::uint64_t worlds = campaign_cases(500);
  for (std::uint64_t seed = 0; seed < worlds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EngineWorld world(seed);
    world.run(10'000);
    if (HasFailure()) return;
    commits += world.commits();
    repairs += world.repairs();
    openings += world.openings();
    found += world.found();
  }
  EXPECT_GT(commits, worlds);
  EXPECT_GT(repairs, worlds / 10);
  EXPECT_GT(openings, worlds);
  EXPECT_GT(found, worlds / 20);
}

}  // namespace
}  // namespace dcr
