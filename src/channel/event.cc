#include "channel/event.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

namespace dcr {

Result<Event> Event::make() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd >= 0) return Event(fd);
  return Status(Code::kIo, "cannot make an event: " + std::generic_category().message(errno));
}

Event::~Event() {
  if (fd_ >= 0) ::close(fd_);
}

Event::Event(Event&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

// Neither can fail but by finding the flag as it shall be.
void Event::set() const {
  const std::uint64_t one = 1;
  const ssize_t ignored = ::write(fd_, &one, sizeof(one));
  static_cast<void>(ignored);
}

void Event::clear() const {
  std::uint64_t count = 0;
  const ssize_t ignored = ::read(fd_, &count, sizeof(count));
  static_cast<void>(ignored);
}

void Event::wait(std::uint64_t timeout_ms) const {
  pollfd item{fd_, POLLIN, 0};
  const auto timeout = std::min<std::uint64_t>(timeout_ms, std::numeric_limits<int>::max());
  static_cast<void>(::poll(&item, 1, static_cast<int>(timeout)));
}

}  // namespace dcr
