// An accelerator as DCR uses it: one stream of work on one device, memory on it, and the few
// operations on words that refits need (docs/ARCHITECTURE.md "Devices"). CUDA's is a shared object
// of its own, loaded when a device is first used (device/load_device.h).
//
// Everything goes onto the stream in the order of the calls and may end later; wait() and
// synchronize() end it. The calling thread's current device stays what it was, if anybody has used
// that. Thread safety: none, but that of wait(), which may be called at any time.
//
// Errors: kUnavailable where the device's runtime refuses, with its own words; kTooLarge, no memory
// of that size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dcr/status.h"
#include "device/words.h"

namespace dcr {

// Words [first, first + count) of a view, in the order of its indices.
struct DeviceWords {
  DeviceView view;
  std::uint8_t width = 1;
  void* storage = nullptr;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  void* packed = nullptr;  // in the device's memory, aligned to words
};

// Marks of wait(), one for each slice of the staging memory.
inline constexpr unsigned kDeviceMarks = 32;

class Device {
 public:
  virtual ~Device() = default;

  // "NVIDIA H100 80GB HBM3", for messages.
  virtual std::string name() const = 0;

  // Memory of the device, and page-locked memory of the host. Released by release() and
  // release_pinned() of the same device.
  virtual Result<void*> allocate(std::uint64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual Result<void*> allocate_pinned(std::uint64_t bytes) = 0;
  virtual void release_pinned(void* memory) = 0;

  // Pinned host memory to the device, and back.
  virtual Status copy_in(void* device, const void* pinned, std::uint64_t bytes) = 0;
  virtual Status copy_out(void* pinned, const void* device, std::uint64_t bytes) = 0;
  virtual Status zero(void* device, std::uint64_t bytes) = 0;

  virtual Status apply(const DeviceBatch& batch) = 0;
  virtual Status gather(const DeviceWords& words) = 0;   // storage → packed
  virtual Status scatter(const DeviceWords& words) = 0;  // packed → storage

  // What follows begins when everything that `stream` (a cudaStream_t; null: the default stream)
  // has been given so far is done: how an owner reads what a training step has written.
  virtual Status follow(void* stream) = 0;

  // mark() notes where the stream is; wait() returns when it has come there, at once if nothing was
  // marked. Others may use the device during a wait(), but not the same mark. REQUIRES: mark <
  // kDeviceMarks.
  virtual Status mark(unsigned mark) = 0;
  virtual Status wait(unsigned mark) = 0;

  // Returns when everything is done. Errors of earlier work come out here, too.
  virtual Status synchronize() = 0;

  // The same for everything that anybody in this process has given the device, on any stream.
  virtual Status wait_idle() = 0;
};

}  // namespace dcr
