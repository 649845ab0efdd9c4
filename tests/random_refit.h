// A random refit: random tensors, layouts on both sides, changes, encodings, buckets, and attempts
// that fail half way, each of which ends with every byte equal to a dense load.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/random_words.h"
#include "tests/refit_world.h"

namespace dcr {

// What happened over all cases, so that the test can say that all of it did.
struct Seen {
  std::uint64_t commits = 0, partly = 0, dropped = 0, broken = 0, verified = 0;
  std::map<std::string, std::uint64_t> paths, encodings;
};
inline Seen seen_refits;

class RandomRefit {
 public:
  explicit RandomRefit(std::uint64_t seed) : prng_(seed), model_(prng_), words_(prng_, model_) {}

  // What went wrong, or nothing.
  std::string run(bool threads = false) {
    WorldOptions options;
    options.full_conversion = one_in(6);
    options.threads = threads ? static_cast<unsigned>(2 + prng_.below(2)) : 1;
    constexpr std::uint64_t kBytes[] = {1, 16, 200, 5000, std::uint64_t{1} << 20};
    options.owners.bucket_bytes = kBytes[prng_.below(std::size(kBytes))];
    options.owners.chunk_bytes = kBytes[prng_.below(std::size(kBytes))];
    options.receivers.post_apply_checks = one_in(4);
    options.receivers.prefer_scratch = one_in(4);
    options.receivers.decoded_bytes_max = kMiB;
    auto made = RefitWorld::make(model_.catalogue, model_.owners, model_.receivers, options);
    if (!made.ok()) return made.status().message();
    world_ = std::move(made).value();
    world_->truth.tensors = words_.tensors;
    const Status started = world_->start(version_);
    if (!started.ok()) return "start: " + started.message();
    for (std::size_t rank = 0; rank < world_->receivers(); ++rank) {
      for (const TensorClass& found : world_->receiver(rank).classes()) {
        ++seen_refits.paths[std::string(path_name(found.path))];
      }
    }
    for (std::uint64_t transitions = 1 + prng_.below(3); transitions > 0; --transitions) {
      const Status done = transition();
      if (!done.ok()) return "version " + std::to_string(version_) + ": " + done.message();
    }
    return "";
  }

  std::string layouts() const { return model_.text(); }

 private:
  bool one_in(std::uint64_t count) { return prng_.below(count) == 0; }

  Status load_owners() {
    world_->truth.tensors = words_.tensors;
    return world_->load_owners();
  }

  Attempt next_attempt(AttemptMode mode) {
    Attempt attempt;
    attempt.run = model_.catalogue.schema();
    attempt.attempt = ++attempts_;
    attempt.candidate = candidate_;
    attempt.base_version = version_;
    attempt.target_version = version_ + 1;
    attempt.mode = mode;
    attempt.mixed = static_cast<EncodingChoice>(prng_.below(4));
    return attempt;
  }

  // From a change to the commit, through attempts that fail.
  Status transition() {
    words_.change();
    ++candidate_;
    DCR_TRY(load_owners());
    bool dirty = false;    // receivers hold some of this candidate
    bool mixture = false;  // and some of another
    if (one_in(8)) DCR_TRY(verify());
    for (;;) {
      AttemptMode mode = static_cast<AttemptMode>(prng_.below(3));
      if (dirty) mode = one_in(3) ? AttemptMode::kDense : AttemptMode::kOverwrite;
      if (mixture) mode = AttemptMode::kDense;
      const Attempt attempt = next_attempt(mode);
      DCR_ASSIGN(const RefitWorld::Payloads payloads, world_->prepare(attempt));
      count_items();
      const std::uint64_t fate = prng_.below(10);
      if (fate < 6) {
        DCR_TRY(apply(attempt, payloads));
        break;
      }
      if (fate < 9) {
        DCR_TRY(apply_partly(attempt, payloads, fate == 8));
        dirty = true;
      } else {
        ++seen_refits.dropped;
      }
      world_->group().drop_attempt();
      if (one_in(4)) {  // the trainer goes on: another candidate for the same version
        words_.change();
        ++candidate_;
        DCR_TRY(load_owners());
        mixture = dirty;
      }
    }
    DCR_TRY(world_->compare());
    ++version_;
    ++seen_refits.commits;
    for (std::uint64_t times = 1 + prng_.below(2); times > 0; --times) {
      DCR_TRY(world_->group().commit(version_));
    }
    return one_in(8) ? verify() : Status();
  }

  void count_items() const {
    for (const PrepareResult& made : world_->prepared) {
      for (const Encoding encoding : {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd}) {
        seen_refits.encodings[encoding_name(encoding)] +=
            made.pipeline.items_by_encoding[static_cast<unsigned>(encoding)];
      }
    }
  }

  static AttemptHeader header_of(const Attempt& attempt, ApplyMode mode) {
    return {attempt.run,
            attempt.attempt,
            attempt.base_version,
            attempt.target_version,
            mode,
            attempt.mode != AttemptMode::kMixed};
  }

  // Payloads in any order of arrival, some of them twice.
  std::vector<const Bytes*> arrivals(const RefitWorld::Payloads& payloads) {
    std::vector<const Bytes*> made;
    for (const auto& of : payloads) {
      for (const Bytes& payload : of) made.insert(made.end(), one_in(8) ? 2 : 1, &payload);
    }
    if (one_in(2)) std::shuffle(made.begin(), made.end(), prng_);
    return made;
  }

  Status apply(const Attempt& attempt, const RefitWorld::Payloads& payloads) {
    for (std::size_t rank = 0; rank < world_->receivers(); ++rank) {
      DCR_TRY(apply_on(rank, header_of(attempt, ApplyMode::kWrite), payloads).status());
    }
    return {};
  }

  Result<ReceiverCounts> apply_on(std::size_t rank, const AttemptHeader& header,
                                  const RefitWorld::Payloads& payloads) {
    Receiver& receiver = world_->receiver(rank);
    DCR_TRY(receiver.begin_attempt(header));
    std::uint64_t count = 0;
    const bool early = one_in(2);
    const auto end = [&]() -> Status {
      for (std::uint32_t owner = 0; owner < payloads.size(); ++owner) {
        count += payloads[owner].size();
        DCR_TRY(receiver.end_of_owner(owner, payloads[owner].size()));
      }
      return {};
    };
    if (early) DCR_TRY(end());
    std::vector<const Bytes*> waiting = arrivals(payloads);
    while (!waiting.empty()) {
      std::vector<const Bytes*> full;
      for (const Bytes* payload : waiting) {
        DCR_ASSIGN(const Ingested ingested, receiver.ingest(*payload));
        if (ingested == Ingested::kFull) full.push_back(payload);
        if (ingested == Ingested::kOtherAttempt) return Status(Code::kInternal, "dropped");
        if (one_in(3)) DCR_TRY(receiver.apply().status());
      }
      DCR_TRY(receiver.apply().status());
      if (full.size() == waiting.size()) return Status(Code::kInternal, "no room for any payload");
      waiting = std::move(full);
    }
    if (!early) DCR_TRY(end());
    DCR_TRY(receiver.apply().status());
    DCR_ASSIGN(const ReceiverCounts counts, receiver.finish());
    if (counts.payloads != count) return Status(Code::kInternal, "another number of payloads");
    return counts;
  }

  // Every receiver gets some of the payloads and applies what it can; one of them may be broken.
  Status apply_partly(const Attempt& attempt, const RefitWorld::Payloads& payloads, bool broken) {
    ++seen_refits.partly;
    for (std::size_t rank = 0; rank < world_->receivers(); ++rank) {
      Receiver& receiver = world_->receiver(rank);
      DCR_TRY(receiver.begin_attempt(header_of(attempt, ApplyMode::kWrite)));
      const std::vector<const Bytes*> arriving = arrivals(payloads);
      const std::uint64_t rate = 1 + prng_.below(4);
      for (const Bytes* payload : arriving) {
        if (rate > 1 && one_in(rate)) continue;
        if (broken && one_in(3)) {
          DCR_TRY(break_one(rank, *payload));
          break;
        }
        DCR_TRY(receiver.ingest(*payload).status());
        DCR_TRY(receiver.apply().status());
      }
    }
    return {};
  }

  // A broken payload fails the attempt and changes nothing. Where it says that it is of another
  // attempt, it is as good as lost.
  Status break_one(std::size_t rank, Bytes payload) {
    payload[prng_.below(payload.size())] ^= static_cast<std::uint8_t>(1U << prng_.below(8));
    const std::vector<Bytes> before = world_->resident();
    const Result<Ingested> ingested = world_->receiver(rank).ingest(payload);
    if (ingested.ok() && *ingested != Ingested::kOtherAttempt) {
      return Status(Code::kInternal, "a broken payload was taken");
    }
    if (!ingested.ok() && world_->receiver(rank).apply().ok()) {
      return Status(Code::kInternal, "it went on");
    }
    ++seen_refits.broken;
    return world_->resident() == before ? Status() : Status(Code::kInternal, "it wrote");
  }

  // A dense refit that compares: it sees a difference where there is one, and writes nothing.
  Status verify() {
    const Attempt attempt = next_attempt(AttemptMode::kDense);
    DCR_ASSIGN(const RefitWorld::Payloads payloads, world_->prepare(attempt));
    const std::vector<Bytes> before = world_->resident();
    DCR_ASSIGN(const std::vector<Bytes> dense, world_->dense());
    std::uint64_t different = 0;
    for (std::size_t rank = 0; rank < world_->receivers(); ++rank) {
      DCR_ASSIGN(const ReceiverCounts counts,
                 apply_on(rank, header_of(attempt, ApplyMode::kVerify), payloads));
      different += counts.different;
    }
    world_->group().drop_attempt();
    ++seen_refits.verified;
    if (world_->resident() != before) return Status(Code::kInternal, "verifying wrote");
    if ((different == 0) == (before == dense)) return {};
    return Status(Code::kInternal, "a wrong verdict");
  }

  Prng prng_;
  RandomModel model_;
  RandomWords words_;
  std::unique_ptr<RefitWorld> world_;
  std::uint64_t version_ = 1;
  std::uint64_t attempts_ = 0;
  std::uint64_t candidate_ = 1;
};

}  // namespace dcr
