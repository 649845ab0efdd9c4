// Memory that one process wrote and others on its machine read, handed over by descriptor through a
// Unix socket: it has no name, nobody can change it any more, and it goes with its last user.
//
// Every wait has a deadline. Whatever comes is hostile until it was checked: the peer's user, the
// message's size, that there is one descriptor, that it is sealed memory, and its size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "dcr/status.h"

namespace dcr {

// Of the message beside a descriptor.
inline constexpr std::uint64_t kDescriptorMessageBytesMax = 4096;

// A descriptor, closed when it goes.
class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int fd) : fd_(fd) {}
  ~OwnedDescriptor();
  OwnedDescriptor(OwnedDescriptor&& other) noexcept;
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;
  OwnedDescriptor(const OwnedDescriptor&) = delete;
  OwnedDescriptor& operator=(const OwnedDescriptor&) = delete;

  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Memory to be written once; what is not written is zero. Not thread-safe.
class WritableMemory {
 public:
  // Errors: kInvalidArgument for no bytes; kIo.
  static Result<WritableMemory> make(std::uint64_t bytes);

  // Errors: kInvalidArgument for what reaches beyond its end; kIo.
  Status write(std::uint64_t at, ByteSpan bytes);

  // From now on nobody can write, shrink or grow it, and nothing can take that back. Error: kIo.
  Result<OwnedDescriptor> seal() &&;

 private:
  WritableMemory(OwnedDescriptor descriptor, std::uint64_t size)
      : descriptor_(std::move(descriptor)), size_(size) {}

  OwnedDescriptor descriptor_;
  std::uint64_t size_ = 0;
};

// Sealed memory, mapped for reading. Thread-safe.
class SealedMemory {
 public:
  // Checks that it is sealed memory of at least one and at most `bytes_max` bytes. Errors:
  // kCorrupt, kTooLarge, kIo.
  static Result<SealedMemory> map(const OwnedDescriptor& descriptor, std::uint64_t bytes_max);

  ~SealedMemory();
  SealedMemory(SealedMemory&& other) noexcept;
  SealedMemory& operator=(SealedMemory&&) = delete;
  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;

  ByteSpan bytes() const { return {data_, static_cast<std::size_t>(size_)}; }

 private:
  SealedMemory(const std::uint8_t* data, std::uint64_t size) : data_(data), size_(size) {}

  const std::uint8_t* data_ = nullptr;
  std::uint64_t size_ = 0;
};

struct ReceivedDescriptor {
  OwnedDescriptor descriptor;
  Bytes message;
};

// One end of a connection between two processes of the same user. For one thread at a time in each
// direction.
class DescriptorSocket {
 public:
  // Connects to a listener. Errors: kNotFound, nobody listens; kMismatch, another user does;
  // kInvalidArgument for the path; kIo.
  static Result<DescriptorSocket> connect(const std::string& path);

  // Sends a descriptor and a message, at most kDescriptorMessageBytesMax and at least one byte of
  // it. Errors: kUnavailable, the other end did not take it in time; kNotFound, it is gone; kIo;
  // kInvalidArgument.
  Status send(const OwnedDescriptor& descriptor, ByteSpan message, std::uint64_t deadline_ms) const;

  // The next one. Errors: kUnavailable, nothing came in time; kNotFound, the other end is gone;
  // kCorrupt, it sent something else; kIo.
  Result<ReceivedDescriptor> receive(std::uint64_t deadline_ms) const;

 private:
  friend class DescriptorListener;
  explicit DescriptorSocket(OwnedDescriptor descriptor) : descriptor_(std::move(descriptor)) {}

  OwnedDescriptor descriptor_;
};

// Listens at a path, which it makes and removes.
class DescriptorListener {
 public:
  // A socket that a dead process left there is replaced. Errors: kExists, somebody listens there,
  // or it is something else; kInvalidArgument for the path; kIo.
  static Result<DescriptorListener> open(const std::string& path);

  ~DescriptorListener();
  DescriptorListener(DescriptorListener&& other) noexcept = default;
  DescriptorListener& operator=(DescriptorListener&&) = delete;
  DescriptorListener(const DescriptorListener&) = delete;
  DescriptorListener& operator=(const DescriptorListener&) = delete;

  // The next connection. Errors: kUnavailable, none came in time; kMismatch, another user's, which
  // is closed; kIo.
  Result<DescriptorSocket> accept(std::uint64_t deadline_ms) const;

 private:
  DescriptorListener(OwnedDescriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  OwnedDescriptor descriptor_;
  std::string path_;  // empty once it was moved from
};

}  // namespace dcr
