// A device that is none, for tests: what it is given is done as late as the interface allows, so
// that a buffer which is used again too early, or read before it was waited for, shows.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/assert.h"
#include "device/device.h"
#include "simd/words.h"

namespace dcr {

// A stream, to a LateDevice: does what the stream was given.
using LateStream = void (*)();

class LateDevice final : public Device {
 public:
  // What others give the device, done no earlier than somebody waits for the device.
  std::function<void()> others;
  // Fails the operation with this number, counted from 0, and all after it.
  std::uint64_t fails_at = ~std::uint64_t{0};
  std::uint64_t bytes_max = ~std::uint64_t{0};  // of one allocation
  std::uint64_t operations() const { return operations_; }
  std::uint64_t allocated_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [memory, size] : sizes_) bytes += size;
    return bytes;
  }

  ~LateDevice() override { DCR_ASSERT(sizes_.empty()); }

  std::string name() const override { return "none"; }

  Result<void*> allocate(std::uint64_t bytes) override {
    DCR_TRY(next());
    if (bytes > bytes_max) return Status(Code::kTooLarge, "the device is full");
    auto memory = std::make_unique<std::uint64_t[]>(static_cast<std::size_t>(bytes / 8 + 1));
    // What nobody wrote is noise.
    std::memset(memory.get(), 0xa5, static_cast<std::size_t>(bytes / 8 + 1) * 8);
    void* const at = memory.get();
    sizes_[at] = bytes;
    memory_[at] = std::move(memory);
    return at;
  }
  void release(void* memory) override {
    DCR_ASSERT(sizes_.erase(memory) == 1);
    memory_.erase(memory);
  }
  Result<void*> allocate_pinned(std::uint64_t bytes) override {
    DCR_ASSIGN(void* const memory, allocate(bytes));
    pinned_.insert(memory);
    return memory;
  }
  void release_pinned(void* memory) override {
    DCR_ASSERT(pinned_.erase(memory) == 1);
    release(memory);
  }

  Status copy_in(void* device, const void* pinned, std::uint64_t bytes) override {
    DCR_ASSERT(is_pinned(pinned, bytes));
    return later([=] { std::memcpy(device, pinned, static_cast<std::size_t>(bytes)); });
  }
  Status copy_out(void* pinned, const void* device, std::uint64_t bytes) override {
    DCR_ASSERT(is_pinned(pinned, bytes));
    return later([=] { std::memcpy(pinned, device, static_cast<std::size_t>(bytes)); });
  }
  Status zero(void* device, std::uint64_t bytes) override {
    return later([=] { std::memset(device, 0, static_cast<std::size_t>(bytes)); });
  }

  Status apply(const DeviceChanges& changes) override {
    return later([changes] {
      for_width(changes.width, [&]<typename Word>(Word) {
        for (std::uint64_t i = 0; i < changes.count; ++i) {
          bool different = false;
          const bool hit = apply_change(changes.grid, changes.encoding, changes.verify,
                                        static_cast<Word*>(changes.storage), changes.positions[i],
                                        static_cast<const Word*>(changes.values)[i], &different);
          changes.counts->words += hit ? 1 : 0;
          changes.counts->different += different ? 1 : 0;
        }
      });
    });
  }
  Status gather(const DeviceWords& words) override { return copy_words(words, true); }
  Status scatter(const DeviceWords& words) override { return copy_words(words, false); }

  Status follow(void* stream) override {
    return later([stream] {
      if (stream != nullptr) reinterpret_cast<LateStream>(stream)();
    });
  }

  Status mark(unsigned mark) override {
    DCR_TRY(next());
    marks_[mark] = queued_;
    return {};
  }
  Status wait(unsigned mark) override {
    DCR_TRY(next());
    run(marks_[mark]);
    return {};
  }
  Status synchronize() override {
    run(queued_);
    return next();
  }
  Status wait_idle() override {
    if (others) std::exchange(others, {})();
    return synchronize();
  }

 private:
  bool is_pinned(const void* at, std::uint64_t bytes) const {
    const auto* const first = static_cast<const std::uint8_t*>(at);
    for (void* const memory : pinned_) {
      const auto* const begin = static_cast<const std::uint8_t*>(memory);
      if (first >= begin && first + bytes <= begin + sizes_.at(memory)) return true;
    }
    return false;
  }

  Status next() {
    if (operations_++ < fails_at) return {};
    return {Code::kUnavailable, "the device has gone"};
  }

  Status later(std::function<void()> work) {
    DCR_TRY(next());
    queue_.push_back(std::move(work));
    ++queued_;
    return {};
  }

  // All up to so many since the beginning.
  void run(std::uint64_t until) {
    for (; done_ < until; ++done_) {
      queue_.front()();
      queue_.pop_front();
    }
  }

  Status copy_words(const DeviceWords& words, bool out) {
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

  std::map<void*, std::unique_ptr<std::uint64_t[]>> memory_;
  std::map<void*, std::uint64_t> sizes_;
  std::set<void*> pinned_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t queued_ = 0, done_ = 0, operations_ = 0;
  std::uint64_t marks_[kDeviceMarks] = {};
};

}  // namespace dcr
