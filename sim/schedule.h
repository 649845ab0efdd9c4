// The virtual clock: what happens in a simulated world, in the order of its times, and in the order
// in which it was scheduled where times are equal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace dcr {

using Microseconds = std::uint64_t;  // of virtual time, since the world began

// A function without arguments that is called once, kept in place: std::function would allocate for
// most of what is scheduled, several hundred times in a transition.
class Happening {
 public:
  template <typename Function>
  Happening(Function function) {  // NOLINT(google-explicit-constructor)
    static_assert(sizeof(Function) <= kBytes);
    static_assert(alignof(Function) <= alignof(std::max_align_t));
    ::new (static_cast<void*>(bytes_)) Function(std::move(function));
    act_ = [](Act act, std::byte* self, std::byte* to) {
      auto* const here = std::launder(reinterpret_cast<Function*>(self));
      if (act == Act::kCall) (*here)();
      if (act == Act::kMove) ::new (static_cast<void*>(to)) Function(std::move(*here));
      if (act != Act::kCall) std::destroy_at(here);
    };
  }
  Happening(Happening&& other) noexcept : act_(other.act_) { take(other); }
  Happening& operator=(Happening&& other) noexcept {
    if (act_ != nullptr) act_(Act::kDestroy, bytes_, nullptr);
    act_ = other.act_;
    take(other);
    return *this;
  }
  ~Happening() {
    if (act_ != nullptr) act_(Act::kDestroy, bytes_, nullptr);
  }

  void operator()() { act_(Act::kCall, bytes_, nullptr); }

 private:
  static constexpr std::size_t kBytes = 112;
  enum class Act : std::uint8_t { kCall, kMove, kDestroy };

  void take(Happening& other) {
    if (act_ != nullptr) act_(Act::kMove, other.bytes_, bytes_);
    other.act_ = nullptr;
  }

  void (*act_)(Act, std::byte*, std::byte*) = nullptr;
  alignas(std::max_align_t) std::byte bytes_[kBytes];
};

class SimProcess;

class Schedule {
 public:
  // What happens next, and in which life of which process; null: it is nobody's.
  struct Next {
    Happening what;
    SimProcess* process = nullptr;
    std::uint64_t life = 0;
  };

  Microseconds now() const { return now_; }
  std::uint64_t events() const { return events_; }
  // Of everything that happened so far: equal in two runs of one seed.
  std::uint64_t hash() const { return hash_; }

  void after(Microseconds delay, Happening what, SimProcess* process = nullptr,
             std::uint64_t life = 0) {
    std::size_t slot = nexts_.size();
    if (free_.empty()) {
      nexts_.push_back({std::move(what), process, life});
    } else {
      slot = free_.back();
      free_.pop_back();
      Next& next = nexts_[slot];
      next.what = std::move(what);
      next.process = process;
      next.life = life;
    }
    heap_.push_back({now_ + delay, number_++, slot});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  // Goes on to when the next thing happens. REQUIRES: !empty().
  Next next() {
    DCR_ASSERT(!heap_.empty());
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Entry entry = heap_.back();
    heap_.pop_back();
    free_.push_back(entry.slot);
    now_ = entry.time;
    ++events_;
    mix(entry.time);
    mix(entry.number);
    return std::move(nexts_[entry.slot]);
  }
  bool empty() const { return heap_.empty(); }

  // What happened becomes part of the hash.
  void mix(std::uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15;
    hash_ ^= hash_ >> 29;
  }

 private:
  struct Entry {
    Microseconds time = 0;
    std::uint64_t number = 0;
    std::size_t slot = 0;  // in nexts_
  };
  static bool later(const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time > b.time : a.number > b.number;
  }

  std::vector<Entry> heap_;
  std::vector<Next> nexts_;
  std::vector<std::size_t> free_;  // slots of what has happened
  Microseconds now_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace dcr
