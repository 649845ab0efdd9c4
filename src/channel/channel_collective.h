// The Collective of owners in processes of their own (docs/ARCHITECTURE.md "Channel"), over a
// channel: keys, an allow-list and bounded queues as for control messages, and a socket of its own,
// so that parts hold up no control message.
//
// Owners meet: to initialise their baselines, in each attempt, and once more when it is committed.
// Every message says which meeting it is of and which life of which process it is from and for, so
// that nothing of an attempt that failed is taken in the next, and that whoever waits for a process
// that has restarted, or has left the meeting, hears so at once. What is lost is sent again. A wait
// ends in bounded time: kUnavailable names the rank that was waited for.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "channel/channel.h"
#include "channel/collective_message.h"
#include "dcr/ports.h"
#include "dcr/status.h"
#include "runtime/clock.h"
#include "runtime/event_queue.h"
#include "runtime/threads.h"

namespace dcr {

struct CollectivePeer {
  std::string name;
  std::string address;
};

struct ChannelCollectiveOptions {
  RunId run{};
  std::uint32_t rank = 0;
  std::vector<CollectivePeer> peers;  // by rank; this one's own among them
  std::uint64_t repeat_ms = 200;      // after which a message is sent again
  Clock* clock = nullptr;             // outlives the collective
};

// Which meeting, in the order in which they come.
struct Meeting {
  std::uint64_t attempt = 0;  // 0: of first baselines
  bool commit = false;
  bool operator==(const Meeting&) const = default;
};

// Calls of one thread at a time. Parts come to the sink on the thread that waits in one of them.
class ChannelCollective final : public Collective {
 public:
  // `life`: of this process, random, in [1, kCounterMax]. The channel's allow-list has the peers.
  ChannelCollective(ChannelCollectiveOptions options, std::unique_ptr<Channel> channel,
                    std::uint64_t life);
  ~ChannelCollective() override;
  ChannelCollective(const ChannelCollective&) = delete;
  ChannelCollective& operator=(const ChannelCollective&) = delete;

  // Where this rank's parts go. `sink` must outlive every call.
  void connect(PartSink& sink) { sink_ = &sink; }

  // Starts a meeting. A call of it waits for at most `wait_ms`, and ends with kCancelled when
  // `cancel` says so. Error kConflict: a meeting that is not after all before.
  Status begin(const Meeting& meeting, std::uint64_t wait_ms, const CancelToken& cancel);
  // Ends it; the peers hear how, if it failed.
  void end(const Status& status);
  // Forgets all meetings, under another life: for first baselines, whose meeting failed.
  void restart(std::uint64_t life);

  std::uint32_t rank() const override { return options_.rank; }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(options_.peers.size()); }
  Status all_reduce_flags(std::span<std::uint8_t> flags) override;
  Status send_part(std::uint32_t to, const PartHeader& header,
                   std::span<const std::uint8_t> bytes) override;

 private:
  // A part that came, or comes.
  struct Coming {
    std::uint64_t number = 0;
    PartHeader header;
    std::uint64_t total = 0;
    Bytes bytes;
  };
  struct Peer {
    std::uint64_t life = 0;                // in the meeting; 0: not heard of yet
    std::map<std::uint32_t, Bytes> flags;  // by sequence: those that are not reduced yet
    // Flags of a meeting that has not begun here, and of whose life.
    std::optional<CollectiveMessage> early;
    std::uint64_t early_life = 0;
    Coming coming;
    std::optional<Coming> ready;  // whole
    // Of this life, the last part that went to the sink, and the last that it took.
    std::uint64_t taken_life = 0;
    std::uint64_t handed = 0;
    CollectiveTaken taken;
  };
  struct Kept {
    std::uint32_t sequence = 0;
    Bytes flags;
  };
  struct Outgoing {
    std::uint32_t to = 0;
    std::uint64_t number = 0;
    std::optional<Status> answer;
  };
  // A message and the lives that its envelope has.
  struct Heard {
    std::uint32_t from = 0;
    std::uint64_t life = 0;
    std::uint64_t own_life = 0;  // 0: whichever this is
    CollectiveMessage message;
  };
  // A wait of a call.
  struct Patience {
    std::uint64_t since_ms = 0;
    std::uint64_t sent_ms = 0;
    std::uint64_t repeat_ms = 0;
  };

  static std::uint64_t ordinal(const Meeting& meeting) {
    return 2 * meeting.attempt + (meeting.commit ? 1 : 0);
  }
  std::uint64_t now_ms() const { return options_.clock->nanoseconds() / 1'000'000; }

  void receive();
  void take(Heard heard);
  void take_current(Heard heard);
  void take_flags(std::uint32_t from, CollectiveFlags flags);
  void take_part(std::uint32_t from, std::uint64_t life, CollectivePart part);
  void take_left(std::uint32_t from, const CollectiveLeft& left);
  // Whether the message is of the life that this meeting is with. As long as nothing was reduced,
  // another takes its place.
  bool is_met(std::uint32_t from, std::uint64_t life);
  void answer_late(const Heard& heard);

  using What = decltype(CollectiveMessage::what);
  // To the life that the meeting is with, or whichever there is; and to one that asked.
  void send(std::uint32_t to, std::uint64_t meeting, What what);
  void answer(std::uint32_t to, std::uint64_t life, std::uint64_t meeting, What what);
  void send_flags(const Kept& kept, bool to_all);
  bool send_kept(std::uint32_t to, std::uint32_t sequence);  // false: it is kept no more
  void send_fragments(const Outgoing& part, std::uint64_t meeting, const PartHeader& header,
                      std::span<const std::uint8_t> bytes);
  void hand_to_sink();
  std::optional<std::uint32_t> missing() const;
  Status check_under_way() const;
  Status merge(std::span<std::uint8_t> flags);
  // Waits for something to change. True: it is time to send again. An error ends the meeting.
  Result<bool> wait(Patience* patience, std::uint32_t for_whom);
  Status fail(Status status);
  const std::string& name_of(std::uint32_t rank) const { return options_.peers[rank].name; }
  std::string meeting_text() const;

  const ChannelCollectiveOptions options_;
  const std::unique_ptr<Channel> channel_;
  std::map<std::string, std::uint32_t> ranks_;  // by name
  PartSink* sink_ = nullptr;
  std::uint64_t wait_ms_ = 0;
  const CancelToken* cancel_ = nullptr;
  EventQueue<bool> changed_;  // holds at most one

  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::uint64_t life_ = 0;
  std::optional<Meeting> meeting_;    // under way, or the last
  bool active_ = false;               // it is under way
  CollectiveLeft left_;               // how it ended
  Status failure_;                    // of the meeting: every call says it
  std::uint32_t contributed_ = 0;     // reductions that this rank's flags were sent for
  std::uint32_t reduced_ = 0;         // and that are done
  std::deque<Kept> kept_;             // flags of the last reductions, for peers that lost them
  std::vector<Peer> peers_;           // by rank
  std::optional<Outgoing> outgoing_;  // the part that send_part() waits with
  std::uint64_t parts_ = 0;           // numbers of parts that were sent

  std::unique_ptr<Executor> thread_;
};

}  // namespace dcr
