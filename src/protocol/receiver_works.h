// The work of a receiver: one at a time, in order, but for StopApplying, which overtakes what
// waits. Answers to work of a stream that was stopped meanwhile are told apart from those that
// count.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "protocol/receiver.h"

namespace dcr {

using ReceiverWork = std::variant<CheckBase, BeginStream, IngestPayload, EndOfOwner, CompareSample,
                                  ApplyQueued, FinishStream>;

class ReceiverWorks {
 public:
  void add(ReceiverWork work) { waiting_.push_back(std::move(work)); }

  // Stops the stream: nothing that waits is begun any more, and what was begun is made to end.
  void stop(StreamId stream, std::vector<ReceiverEffect>* effects);
  // What waits and what runs is no longer of interest.
  void forget();

  // Whether it answers work that still counts.
  bool answered(const ReceiverWorkDone& done);

  // Begins what is due, if anything.
  void run(std::vector<ReceiverEffect>* effects);

  // Whether work of this kind waits or runs.
  bool has(ReceiverWorkDone::Kind kind) const;
  // Something of a stream that was stopped may still run.
  bool stopping() const { return stopping_ || stale_; }

 private:
  struct Key {
    ReceiverWorkDone::Kind kind = ReceiverWorkDone::Kind::kCheckBase;
    StreamId stream;
    std::uint32_t owner = 0;
    std::uint64_t number = 0;
    bool operator==(const Key&) const = default;
  };
  static Key key_of(const ReceiverWork& work);

  std::deque<ReceiverWork> waiting_;
  std::optional<Key> running_;
  bool stale_ = false;  // what runs is of a stream that was stopped
  std::optional<StreamId> begun_;
  std::optional<StreamId> stopping_;
};

}  // namespace dcr
