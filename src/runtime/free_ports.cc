#include "runtime/free_ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace dcr {
namespace {

// A socket that is bound to a port of the system's choice; closed with its object.
struct Bound {
  Bound() = default;
  Bound(Bound&& other) noexcept : socket(other.socket) { other.socket = -1; }
  Bound& operator=(Bound&&) = delete;
  ~Bound() {
    if (socket >= 0) close(socket);
  }
  int socket = -1;
};

Status failed() {
  return {Code::kIo, "cannot find free ports: " + std::generic_category().message(errno)};
}

}  // namespace

Result<std::vector<std::uint16_t>> free_ports(std::size_t count) {
  std::vector<Bound> all;  // at the same time, so that they differ
  std::vector<std::uint16_t> ports;
  for (std::size_t i = 0; i < count; ++i) {
    Bound& bound = all.emplace_back();
    bound.socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bound.socket < 0) return failed();
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (bind(bound.socket, plain, size) != 0 || getsockname(bound.socket, plain, &size) != 0) {
      return failed();
    }
    ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

}  // namespace dcr
