// A device that is none, for tests: what it is given is done as late as the interface allows, so
// that a buffer which is used again too early, or read before it was waited for, shows. Pinned
// memory holds noise while something is on its way there, and must hold what was sent from there,
// or that noise, until it is done.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "device/device.h"
#include "simd/words.h"

namespace dcr {

// A stream, to a LateDevice: does what the stream was given.
using LateStream = void (*)();

// Thread safety: any; more than a Device has to have, so that its users' faults stay faults of
// bits.
class LateDevice final : public Device {
 public:
  // What others give the device, done no earlier than somebody waits for the device.
  std::function<void()> others;
  // Fails the operation with this number, counted from 0, and all after it.
  std::uint64_t fails_at = ~std::uint64_t{0};
  std::uint64_t bytes_max = ~std::uint64_t{0};  // of one allocation

  // What was asked for so far.
  struct Uses {
    std::uint64_t operations = 0;  // of any kind
    std::uint64_t copies_in = 0;
    std::uint64_t copies_out = 0;
    std::uint64_t kernels = 0;
    std::uint64_t waits = 0;  // for a mark, the stream or the whole device
    bool operator==(const Uses&) const = default;
  };
  Uses uses() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return uses_;
  }
  // That are not done yet.
  std::uint64_t on_their_way() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return queue_.size();
  }
  std::uint64_t allocated_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::uint64_t bytes = 0;
    for (const auto& [memory, size] : sizes_) bytes += size;
    return bytes;
  }

  ~LateDevice() override { DCR_ASSERT(sizes_.empty()); }

  std::string name() const override { return "none"; }

  Result<void*> allocate(std::uint64_t bytes) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    return allocate_noise(bytes);
  }
  void release(void* memory) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    DCR_ASSERT(sizes_.erase(memory) == 1);
    memory_.erase(memory);
  }
  Result<void*> allocate_pinned(std::uint64_t bytes) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    DCR_ASSIGN(void* const memory, allocate_noise(bytes));
    pinned_.insert(memory);
    return memory;
  }
  void release_pinned(void* memory) override {
    {
      const std::unique_lock<std::mutex> lock = in_turn();
      DCR_ASSERT(pinned_.erase(memory) == 1);
    }
    release(memory);
  }

  Status copy_in(void* device, const void* pinned, std::uint64_t bytes) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    ++uses_.copies_in;
    const Range from = range(pinned, bytes);
    std::vector<std::uint8_t> sent(from.begin, from.end);
    return later(
        [device, from, sent = std::move(sent)] {
          // Nobody writes there in between.
          DCR_ASSERT(std::equal(sent.begin(), sent.end(), from.begin));
          std::memcpy(device, sent.data(), sent.size());
        },
        from);
  }
  Status copy_out(void* pinned, const void* device, std::uint64_t bytes) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    ++uses_.copies_out;
    const Range to = range(pinned, bytes);
    // What is still being sent from there has to stay.
    bool noise = uses_.operations < fails_at;
    for (const Work& work : queue_) noise = noise && !work.pinned.meets(to);
    if (noise) std::memset(to.begin, kNoise, static_cast<std::size_t>(bytes));
    return later(
        [device, to, noise] {
          const auto is_noise = [](std::uint8_t byte) { return byte == kNoise; };
          DCR_ASSERT(!noise || std::all_of(to.begin, to.end, is_noise));
          std::memcpy(to.begin, device, static_cast<std::size_t>(to.end - to.begin));
        },
        to);
  }
  Status zero(void* device, std::uint64_t bytes) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    return later([=] { std::memset(device, 0, static_cast<std::size_t>(bytes)); });
  }

  Status apply(const DeviceBatch& batch) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    ++uses_.kernels;
    return later([batch] {
      for (std::uint64_t turn = 0; turn < batch.turns; ++turn) {
        const DeviceChanges& changes = target_of(batch, turn);
        DCR_ASSERT((turn - changes.first_turn) * kDeviceTurn < changes.count);  // none is idle
        for (std::uint32_t thread = 0; thread < kDeviceTurn; ++thread) {
          bool different = false;
          changes.counts->words += apply_turn(changes, turn, thread, &different) ? 1U : 0U;
          changes.counts->different += different ? 1U : 0U;
        }
      }
    });
  }
  Status gather(const DeviceWords& words) override { return copy_words(words, true); }
  Status scatter(const DeviceWords& words) override { return copy_words(words, false); }

  Status follow(void* stream) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    return later([stream] {
      if (stream != nullptr) reinterpret_cast<LateStream>(stream)();
    });
  }

  Status mark(unsigned mark) override {
    const std::unique_lock<std::mutex> lock = in_turn();
    DCR_TRY(next());
    marks_[mark] = queued_;
    return {};
  }
  Status wait(unsigned mark) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++uses_.waits;
    DCR_TRY(next());
    run(marks_[mark]);
    return {};
  }
  Status synchronize() override {
    const std::unique_lock<std::mutex> lock = in_turn();
    ++uses_.waits;
    run(queued_);
    return next();
  }
  Status wait_idle() override {
    if (others) std::exchange(others, {})();
    return synchronize();
  }

 private:
  static constexpr std::uint8_t kNoise = 0xa5;  // what nobody wrote

  struct Range {
    std::uint8_t* begin = nullptr;
    std::uint8_t* end = nullptr;
    bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
  };
  struct Work {
    std::function<void()> run;
    Range pinned;
  };

  // All but wait() writes what nobody guards: ThreadSanitizer sees who does not take turns.
  std::unique_lock<std::mutex> in_turn() {
    ++turns_;
    return std::unique_lock<std::mutex>(mutex_);
  }

  Result<void*> allocate_noise(std::uint64_t bytes) {
    DCR_TRY(next());
    if (bytes > bytes_max) return Status(Code::kTooLarge, "the device is full");
    const auto words = static_cast<std::size_t>(bytes / 8 + 1);
    auto memory = std::make_unique<std::uint64_t[]>(words);
    std::memset(memory.get(), kNoise, words * 8);
    void* const at = memory.get();
    sizes_[at] = bytes;
    memory_[at] = std::move(memory);
    return at;
  }

  Range range(const void* pinned, std::uint64_t bytes) const {
    for (void* const memory : pinned_) {
      auto* const begin = static_cast<std::uint8_t*>(memory);
      const auto* const first = static_cast<const std::uint8_t*>(pinned);
      if (first < begin || first + bytes > begin + sizes_.at(memory)) continue;
      std::uint8_t* const from = begin + (first - begin);
      return {from, from + bytes};
    }
    DCR_ASSERT(false);  // it is not pinned
    return {};
  }

  Status next() {
    if (uses_.operations++ < fails_at) return {};
    return {Code::kUnavailable, "the device has gone"};
  }

  Status later(std::function<void()> work) { return later(std::move(work), Range()); }
  Status later(std::function<void()> work, const Range& pinned) {
    DCR_TRY(next());
    queue_.push_back({std::move(work), pinned});
    ++queued_;
    return {};
  }

  // All up to so many since the beginning.
  void run(std::uint64_t until) {
    for (; done_ < until; ++done_) {
      queue_.front().run();
      queue_.pop_front();
    }
  }

  Status copy_words(const DeviceWords& words, bool out) {
    const std::unique_lock<std::mutex> lock = in_turn();
    ++uses_.kernels;
    return later([words, out] {
      for_width(words.width, [&]<typename Word>(Word) {
        auto* const storage = static_cast<Word*>(words.storage);
        auto* const packed = static_cast<Word*>(words.packed);
        for (std::uint64_t i = 0; i < words.count; ++i) {
          Word& word = storage[view_word(words.view, words.first + i)];
          if (out) {
            packed[i] = word;
          } else {
            word = packed[i];
          }
        }
      });
    });
  }

  std::uint64_t turns_ = 0;
  mutable std::mutex mutex_;
  std::map<void*, std::unique_ptr<std::uint64_t[]>> memory_;
  std::map<void*, std::uint64_t> sizes_;
  std::set<void*> pinned_;
  std::deque<Work> queue_;
  std::uint64_t queued_ = 0, done_ = 0;
  Uses uses_;
  std::uint64_t marks_[kDeviceMarks] = {};
};

}  // namespace dcr
