#include "channel/descriptors.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "channel/uninterrupted.h"

namespace dcr {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
constexpr int kListenBacklog = 64;

Status system_failure(const std::string& what, int error) {
  return {Code::kIo, "cannot " + what + ": " + std::generic_category().message(error)};
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) ||
      path.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument, "a socket's path has 1 to " +
                                              std::to_string(sizeof(address.sun_path) - 1) +
                                              " bytes and none of them 0: \"" +
                                              path.substr(0, sizeof(address.sun_path)) + "\"");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<OwnedDescriptor> make_socket() {
  OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return system_failure("make a local socket", errno);
  return socket;
}

Status connect_to(const OwnedDescriptor& socket, const sockaddr_un& address) {
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return {};
  }
  if (errno == ECONNREFUSED || errno == ENOENT) {
    return {Code::kNotFound, std::string("nobody listens at ") + address.sun_path};
  }
  // Its backlog is full: that wait is the caller's, who may try again.
  if (errno == EAGAIN) {
    return {Code::kUnavailable, std::string("too many wait at ") + address.sun_path};
  }
  return system_failure(std::string("connect to ") + address.sun_path, errno);
}

Status check_user(const OwnedDescriptor& socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return system_failure("ask who is at a local socket", errno);
  }
  if (peer.uid == ::geteuid()) return {};
  return {Code::kMismatch, "process " + std::to_string(peer.pid) + " of user " +
                               std::to_string(peer.uid) + " is at a local socket of user " +
                               std::to_string(::geteuid())};
}

// Until the descriptor is ready. A signal begins the wait anew: senders of signals are not many.
Status wait_for(const OwnedDescriptor& descriptor, short events, std::uint64_t deadline_ms,
                const char* what) {
  pollfd item{descriptor.get(), events, 0};
  const auto timeout =
      static_cast<int>(std::min<std::uint64_t>(deadline_ms, std::numeric_limits<int>::max()));
  const int ready = uninterrupted([&] { return ::poll(&item, 1, timeout); });
  if (ready > 0) return {};
  if (ready < 0) return system_failure(what, errno);
  return {Code::kUnavailable,
          "cannot " + std::string(what) + " within " + std::to_string(deadline_ms) + " ms"};
}

bool gone(int error) { return error == EPIPE || error == ECONNRESET || error == ENOTCONN; }

Status peer_gone() { return {Code::kNotFound, "the other end of a local socket is gone"}; }

Status corrupt_message(const std::string& what) {
  return {Code::kCorrupt, "what came through a local socket " + what};
}

// Takes all descriptors of a message, so that none leaks, and keeps the one there should be.
Result<OwnedDescriptor> only_descriptor(msghdr* header) {
  OwnedDescriptor kept;
  std::size_t count = 0;
  bool other = false;
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      other = true;
      continue;
    }
    const std::size_t bytes = part->cmsg_len - CMSG_LEN(0);
    for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof(fd));
      kept = OwnedDescriptor(fd);
      ++count;
    }
  }
  if (other || count != 1 || (header->msg_flags & MSG_CTRUNC) != 0) {
    return corrupt_message("has not exactly one descriptor");
  }
  return kept;
}

}  // namespace

OwnedDescriptor::~OwnedDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

OwnedDescriptor::OwnedDescriptor(OwnedDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Result<WritableMemory> WritableMemory::make(std::uint64_t bytes) {
  if (bytes == 0 || bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    return Status(Code::kInvalidArgument,
                  "shared memory of " + std::to_string(bytes) + " bytes cannot be");
  }
  const std::string what = "make shared memory of " + std::to_string(bytes) + " bytes";
  OwnedDescriptor descriptor(::memfd_create("dcr", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (descriptor.get() < 0) return system_failure(what, errno);
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    return system_failure(what, errno);
  }
  return WritableMemory(std::move(descriptor), bytes);
}

// Not through a mapping: that would zero every page first, and take a fault for each.
Status WritableMemory::write(std::uint64_t at, ByteSpan bytes) {
  if (at > size_ || bytes.size() > size_ - at) {
    return {Code::kInvalidArgument, "writing beyond the end of shared memory"};
  }
  while (!bytes.empty()) {
    const ssize_t written = uninterrupted([&] {
      return ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    });
    if (written < 0) return system_failure("write shared memory", errno);
    if (written == 0) return {Code::kIo, "cannot write shared memory: it takes no more bytes"};
    at += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<OwnedDescriptor> WritableMemory::seal() && {
  if (::fcntl(descriptor_.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_failure("seal shared memory", errno);
  }
  return std::move(descriptor_);
}

Result<SealedMemory> SealedMemory::map(const OwnedDescriptor& descriptor, std::uint64_t bytes_max) {
  // Seals first: without them all that is seen after could change again. Only memory has them.
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return corrupt_message("is no sealed memory");
  struct stat info = {};
  if (::fstat(descriptor.get(), &info) != 0) return system_failure("examine shared memory", errno);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size == 0) return corrupt_message("is sealed memory of no bytes");
  if (size > bytes_max) {
    return Status(Code::kTooLarge, corrupt_message("is sealed memory of ").message() +
                                       std::to_string(size) + " bytes, above the limit of " +
                                       std::to_string(bytes_max));
  }
  void* data =
      ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) return system_failure("map shared memory", errno);
  return SealedMemory(static_cast<const std::uint8_t*>(data), size);
}

SealedMemory::SealedMemory(SealedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SealedMemory::~SealedMemory() {
  if (data_ == nullptr) return;
  ::munmap(const_cast<std::uint8_t*>(data_), static_cast<std::size_t>(size_));
}

Result<DescriptorSocket> DescriptorSocket::connect(const std::string& path) {
  DCR_ASSIGN(const sockaddr_un address, address_of(path));
  DCR_ASSIGN(OwnedDescriptor socket, make_socket());
  DCR_TRY(connect_to(socket, address));
  DCR_TRY(check_user(socket));
  return DescriptorSocket(std::move(socket));
}

Status DescriptorSocket::send(const OwnedDescriptor& descriptor, ByteSpan message,
                              std::uint64_t deadline_ms) const {
  if (message.empty() || message.size() > kDescriptorMessageBytesMax) {
    return {Code::kInvalidArgument, "a message beside a descriptor has 1 to " +
                                        std::to_string(kDescriptorMessageBytesMax) +
                                        " bytes, not " + std::to_string(message.size())};
  }
  iovec part{const_cast<std::uint8_t*>(message.data()), message.size()};
  alignas(cmsghdr) std::array<std::uint8_t, CMSG_SPACE(sizeof(int))> control = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = descriptor.get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  while (true) {
    DCR_TRY(wait_for(descriptor_, POLLOUT, deadline_ms, "send a descriptor"));
    const ssize_t sent =
        uninterrupted([&] { return ::sendmsg(descriptor_.get(), &header, MSG_NOSIGNAL); });
    if (sent == static_cast<ssize_t>(message.size())) return {};
    if (sent < 0 && gone(errno)) return peer_gone();
    if (sent < 0 && errno != EAGAIN) return system_failure("send a descriptor", errno);
  }
}

Result<ReceivedDescriptor> DescriptorSocket::receive(std::uint64_t deadline_ms) const {
  DCR_TRY(wait_for(descriptor_, POLLIN, deadline_ms, "receive a descriptor"));
  ReceivedDescriptor received;
  received.message.resize(kDescriptorMessageBytesMax);
  iovec part{received.message.data(), received.message.size()};
  // Room for a second one, to see that there is one; the kernel closes those without room.
  alignas(cmsghdr) std::array<std::uint8_t, CMSG_SPACE(2 * sizeof(int))> control = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t size =
      uninterrupted([&] { return ::recvmsg(descriptor_.get(), &header, MSG_CMSG_CLOEXEC); });
  if (size < 0 && errno == EAGAIN) {
    return Status(Code::kUnavailable, "a descriptor that was there is gone");
  }
  if (size < 0 && !gone(errno)) return system_failure("receive a descriptor", errno);
  if (size < 0) return peer_gone();
  Result<OwnedDescriptor> descriptor = only_descriptor(&header);
  // The end of a connection reads as a message of no bytes; send() sends none such.
  if (size == 0) return peer_gone();
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    return corrupt_message("is a message of more than " +
                           std::to_string(kDescriptorMessageBytesMax) + " bytes");
  }
  if (!descriptor.ok()) return descriptor.status();
  received.descriptor = std::move(descriptor).value();
  received.message.resize(static_cast<std::size_t>(size));
  return received;
}

Result<DescriptorListener> DescriptorListener::open(const std::string& path) {
  DCR_ASSIGN(const sockaddr_un address, address_of(path));
  struct stat info = {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return Status(Code::kExists, path + " exists and is no socket: give another path");
    }
    DCR_ASSIGN(const OwnedDescriptor probe, make_socket());
    if (connect_to(probe, address).code() != Code::kNotFound) {
      return Status(Code::kExists, "somebody listens at " + path + " already");
    }
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return system_failure("remove the dead socket " + path, errno);
    }
  }
  DCR_ASSIGN(OwnedDescriptor socket, make_socket());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EADDRINUSE) {
      return Status(Code::kExists, "somebody listens at " + path + " already");
    }
    return system_failure("listen at " + path, errno);
  }
  DescriptorListener listener(std::move(socket), path);
  // Before anybody can connect, for until then it refuses.
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0) {
    return system_failure("keep others from " + path, errno);
  }
  if (::listen(listener.descriptor_.get(), kListenBacklog) != 0) {
    return system_failure("listen at " + path, errno);
  }
  return listener;
}

DescriptorListener::~DescriptorListener() {
  if (descriptor_.get() >= 0) ::unlink(path_.c_str());
}

Result<DescriptorSocket> DescriptorListener::accept(std::uint64_t deadline_ms) const {
  DCR_TRY(wait_for(descriptor_, POLLIN, deadline_ms, "accept a local connection"));
  OwnedDescriptor socket(uninterrupted([&] {
    return ::accept4(descriptor_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  }));
  if (socket.get() < 0 && (errno == EAGAIN || errno == ECONNABORTED)) {
    return Status(Code::kUnavailable, "a local connection that was there is gone");
  }
  if (socket.get() < 0) return system_failure("accept a local connection", errno);
  DCR_TRY(check_user(socket));
  return DescriptorSocket(std::move(socket));
}

}  // namespace dcr
