// One stream of payloads at a node: what it has of them, and how far its receivers are.
//
// Order numbers are number × owners + owner. Which of them there are is known owner by owner, when
// its end is; before that any may come.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "protocol/node.h"

namespace dcr {

class NodeStream {
 public:
  struct Payload {
    enum class State : std::uint8_t { kFetching, kFetched, kDecoding, kDecoded };
    State state = State::kFetching;
    std::uint64_t stored_bytes = 0;  // while it is being fetched: about
    std::uint64_t decoded_bytes = 0;
    bool works() const { return state == State::kFetching || state == State::kDecoding; }
    bool waits() const { return state == State::kFetching || state == State::kFetched; }
  };

  // One owner's side.
  struct Sender {
    std::optional<std::vector<PayloadEntry>> end;
    std::vector<std::optional<PayloadEntry>> seen;  // until the end is known, to compare with it
    std::uint64_t sent = 0;                         // payloads that are there, as far as is known
    std::uint64_t missing = 0;  // no lower number that is wanted is missing here
    bool fetching_end = false;
    bool end_hinted = false;    // since it was asked for last
    Milliseconds end_at = 0;    // when it is asked for again
    Milliseconds retry_at = 0;  // when the missing payload may be asked for again
    Milliseconds probe_at = 0;  // when it is looked for though nobody said that it is there
  };

  // One receiver's side.
  struct Feed {
    Endpoint receiver;
    bool again = false;        // it takes the stream for the second time
    bool begun = false;        // it has given credit, this time
    std::uint64_t next = 0;    // it has taken all below
    std::uint64_t handed = 0;  // all below were handed over since it last said what it misses
    std::uint64_t payloads = 0, bytes = 0;  // its room from `next` on
    Milliseconds heard_at = 0;
  };

  NodeStream(StreamId stream, std::uint32_t owners, bool applying, Milliseconds now);

  std::uint64_t order(std::uint32_t owner, std::uint64_t number) const {
    return number * owners() + owner;
  }
  std::uint32_t owner_of(std::uint64_t order) const {
    return static_cast<std::uint32_t>(order % owners());
  }
  std::uint64_t number_of(std::uint64_t order) const { return order / owners(); }
  std::uint64_t owners() const { return senders.size(); }

  // The first order number from `order` on that there is or may be; kOrderAll: none.
  std::uint64_t first_from(std::uint64_t order) const;
  // Whether the receiver that is furthest behind waits for it next. It alone is always admitted: a
  // fast receiver takes no memory from a slow one.
  bool is_turn(std::uint64_t order) const { return order == first_from(low); }
  // Every payload that owners count is here.
  bool complete() const;

  // Makes `missing` right after payloads came or went.
  void advance_missing(std::uint32_t owner);
  // Everything below is wanted no more, or everything from it on is.
  void set_low(std::uint64_t order);

  Feed* feed_of(const std::string& receiver);

  std::uint64_t stored_bytes() const;  // of payloads that wait to be decoded
  std::uint64_t decoded_bytes() const;
  std::uint64_t fetching() const;

  const StreamId id;
  bool applying;  // receivers take payloads: decode them
  std::vector<Sender> senders;
  std::vector<Feed> feeds;
  std::map<std::uint64_t, Payload> payloads;  // by order number
  std::set<std::uint64_t> late;   // wanted no more, but work on them is not answered: asked for
                                  // again only after that
  std::uint64_t low = 0;          // all receivers have taken what is below
  std::uint64_t largest = 0;      // stored bytes of a payload so far
  std::uint64_t outstanding = 0;  // work that is not answered
  std::optional<Failure> failure;
};

}  // namespace dcr
