// A flag that a thread can wait for together with sockets.
#pragma once

#include <cstdint>

#include "dcr/status.h"

namespace dcr {

// Thread-safe.
class Event {
 public:
  static Result<Event> make();

  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void set() const;
  void clear() const;
  // Returns when it is set, after `timeout_ms`, or earlier when a signal interrupts.
  void wait(std::uint64_t timeout_ms) const;

  int descriptor() const { return fd_; }  // readable while it is set

 private:
  explicit Event(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace dcr
