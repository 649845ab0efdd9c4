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
  Happening() = default;  // nothing
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
    drop();
    act_ = other.act_;
    take(other);
    return *this;
  }
  ~Happening() { drop(); }

  void operator()() { act_(Act::kCall, bytes_, nullptr); }
  void drop() {
    if (act_ != nullptr) act_(Act::kDestroy, bytes_, nullptr);
    act_ = nullptr;
  }

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
    if (free_.empty()) add_block();
    const std::size_t slot = free_.back();
    free_.pop_back();
    Next& next = at(slot);
    next.what = std::move(what);
    next.process = process;
    next.life = life;
    heap_.push_back({now_ + delay, number_++, slot});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  // Goes on to when the next thing happens, and hands it to `body`, which may take it.
  // REQUIRES: !empty().
  template <typename Body>
  void next(const Body& body) {
    DCR_ASSERT(!heap_.empty());
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Entry entry = heap_.back();
    heap_.pop_back();
    now_ = entry.time;
    ++events_;
    mix(entry.time);
    mix(entry.number);
    Next& next = at(entry.slot);
    body(next);
    next.what.drop();
    free_.push_back(entry.slot);
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
    std::size_t slot = 0;  // in the blocks
  };
  static constexpr std::size_t kBlock = 256;
  Next& at(std::size_t slot) { return blocks_[slot / kBlock][slot % kBlock]; }
  void add_block() {
    const std::size_t first = blocks_.size() * kBlock;
    blocks_.push_back(std::make_unique<Next[]>(kBlock));
    for (std::size_t slot = first + kBlock; slot > first; --slot) free_.push_back(slot - 1);
  }
  static bool later(const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time > b.time : a.number > b.number;
  }

  std::vector<Entry> heap_;
  // Where they are they stay: one that happens schedules others.
  std::vector<std::unique_ptr<Next[]>> blocks_;
  std::vector<std::size_t> free_;  // slots
  Microseconds now_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace dcr
