// What of a payload stream has come to a receiver, in declared order (docs/PROTOCOL.md rule 8), and
// the credit that it gives its node. Counts only; the payloads themselves are the receiver's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dcr {

class Arrivals {
 public:
  struct Payload {
    std::uint32_t owner = 0;
    std::uint64_t number = 0;
    bool operator==(const Payload&) const = default;
  };
  // What its receiver has room for: so many payloads of so many decoded bytes together, and always
  // the next one.
  struct Window {
    std::uint64_t payloads = 1;
    std::uint64_t bytes = 0;
  };

  // REQUIRES: owners > 0.
  Arrivals(std::uint32_t owners, Window window);

  // A payload was handed over. Whether it is to be ingested: it is not one that came before, and
  // there is room. The others come again when they are missed.
  bool offer(const Payload& payload, std::uint64_t bytes);
  // What became of ingesting it: it waits for its turn; there was no room yet; or it was not here
  // any more, and may be offered again.
  void take(const Payload& payload);
  void set_aside(const Payload& payload);
  void withdraw(const Payload& payload);
  // So many were applied. Returns those that had been set aside, to be ingested again.
  std::vector<Payload> applied(std::uint64_t payloads);

  // Owner `owner` sends `payloads`. Whether the receiver is to be told: the first time, and when it
  // is said otherwise, which the receiver refuses.
  bool offer_end(std::uint32_t owner, std::uint64_t payloads);
  // The receiver took the end that was offered first.
  void take_end(std::uint32_t owner);

  // Payloads that can be applied now.
  std::uint64_t ready() const { return in_order_ - applied_; }
  // Every owner's end is known and every payload applied.
  bool complete() const { return all_came() && ready() == 0; }
  std::uint64_t applied() const { return applied_; }

  // For Credit: every payload of a lower order number has come; room for more.
  std::uint64_t next() const { return next_; }
  Window room() const;

  // "payload 3 of owner 1", "payload 3 or the end of owner 2" or "the application of payloads":
  // what is waited for. REQUIRES: !complete().
  std::string missing() const;

 private:
  enum class State : std::uint8_t { kOffered, kSetAside, kTaken };
  struct Entry {
    State state = State::kOffered;
    std::uint64_t bytes = 0;
  };

  std::uint64_t order(const Payload& payload) const {
    return payload.number * owners_ + payload.owner;
  }
  bool all_came() const { return ends_known_ == owners_ && next_ >= past_last_; }
  void advance();

  std::uint32_t owners_;
  Window window_;
  std::vector<std::optional<std::uint64_t>> told_;  // ends, by owner: said to the receiver
  std::vector<std::optional<std::uint64_t>> ends_;  // and taken by it
  std::map<std::uint64_t, Entry> entries_;          // by order, until they are applied
  std::uint32_t ends_known_ = 0;
  std::uint64_t past_last_ = 0;  // order number, as far as ends are known
  std::uint64_t bytes_ = 0;      // of the entries
  std::uint64_t next_ = 0;
  std::uint64_t in_order_ = 0;  // payloads below next_
  std::uint64_t applied_ = 0;
};

}  // namespace dcr
