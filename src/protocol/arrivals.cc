#include "protocol/arrivals.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace dcr {

Arrivals::Arrivals(std::uint32_t owners, Window window)
    : owners_(owners), window_(window), told_(owners), ends_(owners) {
  DCR_ASSERT(owners > 0);
}

bool Arrivals::offer(const Payload& payload, std::uint64_t bytes) {
  if (payload.owner >= owners_) return false;
  const std::uint64_t at = order(payload);
  if (at < next_ || entries_.contains(at)) return false;
  const bool room = entries_.size() < window_.payloads && bytes_ < window_.bytes &&
                    bytes <= window_.bytes - bytes_;
  if (at != next_ && !room) return false;
  entries_[at] = {State::kOffered, bytes};
  bytes_ += bytes;
  return true;
}

void Arrivals::take(const Payload& payload) {
  const auto found = entries_.find(order(payload));
  if (found == entries_.end()) return;
  found->second.state = State::kTaken;
  advance();
}

void Arrivals::set_aside(const Payload& payload) {
  const auto found = entries_.find(order(payload));
  if (found != entries_.end()) found->second.state = State::kSetAside;
}

void Arrivals::withdraw(const Payload& payload) {
  const auto found = entries_.find(order(payload));
  if (found == entries_.end()) return;
  bytes_ -= found->second.bytes;
  entries_.erase(found);
}

std::vector<Arrivals::Payload> Arrivals::applied(std::uint64_t payloads) {
  DCR_ASSERT(payloads <= ready());
  applied_ += payloads;
  for (std::uint64_t i = 0; i < payloads; ++i) {
    bytes_ -= entries_.begin()->second.bytes;
    entries_.erase(entries_.begin());
  }
  std::vector<Payload> again;
  for (auto& [at, entry] : entries_) {
    if (entry.state != State::kSetAside) continue;
    entry.state = State::kOffered;
    again.push_back({static_cast<std::uint32_t>(at % owners_), at / owners_});
  }
  return again;
}

bool Arrivals::offer_end(std::uint32_t owner, std::uint64_t payloads) {
  if (owner >= owners_ || told_[owner] == payloads) return false;
  if (!told_[owner]) told_[owner] = payloads;
  return true;
}

void Arrivals::take_end(std::uint32_t owner) {
  DCR_ASSERT(told_[owner] && !ends_[owner]);
  const std::uint64_t payloads = *told_[owner];
  ends_[owner] = payloads;
  ++ends_known_;
  if (payloads > 0) past_last_ = std::max(past_last_, order({owner, payloads - 1}) + 1);
  advance();
}

// Passes over what came and over numbers that an owner does not send.
void Arrivals::advance() {
  while (!all_came()) {
    const std::optional<std::uint64_t>& end = ends_[next_ % owners_];
    if (!end || next_ / owners_ < *end) {
      const auto found = entries_.find(next_);
      if (found == entries_.end() || found->second.state != State::kTaken) return;
      ++in_order_;
    }
    ++next_;
  }
}

Arrivals::Window Arrivals::room() const {
  return {window_.payloads - std::min<std::uint64_t>(window_.payloads, entries_.size()),
          window_.bytes - std::min(window_.bytes, bytes_)};
}

std::string Arrivals::missing() const {
  DCR_ASSERT(!complete());
  if (all_came()) return "the application of payloads";
  // Numbers that there are not were passed over, unless their owner's end is unknown.
  const std::string owner = " owner " + std::to_string(next_ % owners_);
  const std::string payload = "payload " + std::to_string(next_ / owners_);
  const bool known = ends_[next_ % owners_] || entries_.contains(next_);
  return payload + (known ? " of" : " or the end of") + owner;
}

}  // namespace dcr
