#include "channel/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

constexpr std::uint64_t kSoonMs = 10'000, kNowMs = 0;
constexpr std::uint64_t kBytesMax = 1 << 20;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) != -1 ? 1U : 0U;
  return count;
}

OwnedDescriptor sealed(std::uint64_t size, std::uint8_t value) {
  Result<WritableMemory> memory = WritableMemory::make(size);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  // In parts, the last of them first, and the first zero byte by not being written.
  if (value != 0 && size > 0) {
    const std::uint64_t half = size / 2;
    EXPECT_TRUE(memory->write(half, Bytes(static_cast<std::size_t>(size - half), value)).ok());
    EXPECT_TRUE(memory->write(0, Bytes(static_cast<std::size_t>(half), value)).ok());
  }
  EXPECT_EQ(memory->write(size, Bytes(1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(memory->write(0, Bytes(static_cast<std::size_t>(size) + 1)).code(),
            Code::kInvalidArgument);
  Result<OwnedDescriptor> descriptor = std::move(*memory).seal();
  EXPECT_TRUE(descriptor.ok()) << descriptor.status().message();
  return std::move(descriptor).value();
}

// A connection whose one end is another program's.
class RawEnd {
 public:
  explicit RawEnd(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawEnd() { ::close(fd_); }
  RawEnd(const RawEnd&) = delete;
  RawEnd& operator=(const RawEnd&) = delete;

  bool connected() const { return connected_; }
  bool send(std::size_t bytes, const std::vector<int>& descriptors) {
    std::vector<std::uint8_t> message(bytes, 1);
    iovec part{message.data(), message.size()};
    std::vector<std::uint8_t> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!descriptors.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
    }
    return ::sendmsg(fd_, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  }

 private:
  int fd_;
  bool connected_ = false;
};

class DescriptorsTest : public testing::Test {
 protected:
  void listen() {
    Result<DescriptorListener> listener = DescriptorListener::open(path_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_ = std::make_unique<DescriptorListener>(std::move(*listener));
  }
  DescriptorSocket accept() {
    Result<DescriptorSocket> socket = listener_->accept(kSoonMs);
    EXPECT_TRUE(socket.ok()) << socket.status().message();
    return std::move(socket).value();
  }
  void expect_refused(const DescriptorSocket& socket, Code code, const std::string& message) {
    const Status status = socket.receive(kSoonMs).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), message);
  }

  TempDirectory directory_;
  std::string path_ = directory_.at("socket");
  std::unique_ptr<DescriptorListener> listener_;
};

TEST_F(DescriptorsTest, MemoryIsReadByAnotherProcess) {
  listen();
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<DescriptorSocket> socket = DescriptorSocket::connect(path_);
    if (!socket.ok()) ::_exit(1);
    for (std::uint8_t value = 1; value <= 3; ++value) {
      const Result<ReceivedDescriptor> received = socket->receive(kSoonMs);
      if (!received.ok() || received->message != Bytes(value, value)) ::_exit(2);
      const Result<SealedMemory> memory = SealedMemory::map(received->descriptor, kBytesMax);
      if (!memory.ok() || memory->bytes().size() != 10'000U * value) ::_exit(3);
      for (const std::uint8_t byte : memory->bytes()) {
        if (byte != value) ::_exit(4);
      }
    }
    ::_exit(0);
  }
  const DescriptorSocket socket = accept();
  for (std::uint8_t value = 1; value <= 3; ++value) {
    const OwnedDescriptor memory = sealed(10'000U * value, value);
    ASSERT_TRUE(socket.send(memory, Bytes(value, value), kSoonMs).ok());
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  // The other end is gone, whichever way one asks.
  EXPECT_EQ(socket.receive(kSoonMs).status().code(), Code::kNotFound);
  EXPECT_EQ(socket.send(sealed(1, 1), Bytes(1), kSoonMs).code(), Code::kNotFound);
}

TEST_F(DescriptorsTest, NobodyChangesSealedMemory) {
  const OwnedDescriptor memory = sealed(5'000, 7);
  EXPECT_EQ(::ftruncate(memory.get(), 1), -1);
  EXPECT_EQ(::ftruncate(memory.get(), 10'000), -1);
  EXPECT_EQ(::pwrite(memory.get(), "x", 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, 5'000, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0),
            MAP_FAILED);
  EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  const Result<SealedMemory> mapped = SealedMemory::map(memory, 5'000);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(mapped->bytes().size(), 5'000U);
  EXPECT_EQ(mapped->bytes()[4'999], 7);
}

TEST_F(DescriptorsTest, OnlyWhollySealedMemoryIsMapped) {
  const std::string refusal = "what came through a local socket is no sealed memory";
  for (int seals = 0; seals < 16; ++seals) {
    // The four seals are bits 0 to 3.
    OwnedDescriptor memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(memory.get(), 100), 0);
    ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, seals), 0);
    const Status status = SealedMemory::map(memory, kBytesMax).status();
    EXPECT_EQ(status.ok(), seals == 15) << seals;
    if (seals == 15) continue;
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_EQ(status.message(), refusal);
  }
  directory_.put("file", std::string("bytes"));
  const OwnedDescriptor file(::open(directory_.at("file").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(SealedMemory::map(file, kBytesMax).status().message(), refusal);
  const OwnedDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(SealedMemory::map(socket, kBytesMax).status().message(), refusal);
  EXPECT_EQ(SealedMemory::map(OwnedDescriptor(), kBytesMax).status().message(), refusal);
}

TEST_F(DescriptorsTest, SizesAreBounded) {
  EXPECT_EQ(WritableMemory::make(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(WritableMemory::make(~std::uint64_t{0}).status().code(), Code::kInvalidArgument);
  const OwnedDescriptor memory = sealed(101, 0);
  EXPECT_TRUE(SealedMemory::map(memory, 101).ok());
  const Status status = SealedMemory::map(memory, 100).status();
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_EQ(status.message(),
            "what came through a local socket is sealed memory of 101 bytes, above the limit of "
            "100");
  // A size that no machine has.
  OwnedDescriptor huge(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(huge.get(), off_t{1} << 60), 0);
  ASSERT_EQ(::fcntl(huge.get(), F_ADD_SEALS, 15), 0);
  EXPECT_EQ(SealedMemory::map(huge, kBytesMax).status().code(), Code::kTooLarge);
  const OwnedDescriptor empty(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::fcntl(empty.get(), F_ADD_SEALS, 15), 0);
  EXPECT_EQ(SealedMemory::map(empty, kBytesMax).status().message(),
            "what came through a local socket is sealed memory of no bytes");
}

TEST_F(DescriptorsTest, OtherMessagesAreRefusedAndLeaveNothingOpen) {
  listen();
  RawEnd raw(path_);
  ASSERT_TRUE(raw.connected());
  const DescriptorSocket socket = accept();
  const OwnedDescriptor memory = sealed(1, 1);
  const std::size_t before = open_descriptors();
  const std::string one = "what came through a local socket has not exactly one descriptor";
  ASSERT_TRUE(raw.send(1, {}));
  expect_refused(socket, Code::kCorrupt, one);
  for (const std::size_t count : {2U, 3U, 200U}) {
    ASSERT_TRUE(raw.send(1, std::vector<int>(count, memory.get())));
    expect_refused(socket, Code::kCorrupt, one);
  }
  ASSERT_TRUE(raw.send(kDescriptorMessageBytesMax + 1, {memory.get()}));
  expect_refused(socket, Code::kCorrupt,
                 "what came through a local socket is a message of more than 4096 bytes");
  EXPECT_EQ(open_descriptors(), before);
  ASSERT_TRUE(raw.send(kDescriptorMessageBytesMax, {memory.get()}));
  const Result<ReceivedDescriptor> received = socket.receive(kSoonMs);
  ASSERT_TRUE(received.ok()) << received.status().message();
  EXPECT_EQ(received->message, Bytes(kDescriptorMessageBytesMax, 1));
  EXPECT_NE(::fcntl(received->descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(DescriptorsTest, EveryWaitEnds) {
  listen();
  const Status none = listener_->accept(kNowMs).status();
  EXPECT_EQ(none.code(), Code::kUnavailable);
  EXPECT_EQ(none.message(), "cannot accept a local connection within 0 ms");
  const Result<DescriptorSocket> sender = DescriptorSocket::connect(path_);
  ASSERT_TRUE(sender.ok()) << sender.status().message();
  const DescriptorSocket socket = accept();
  EXPECT_EQ(socket.receive(kNowMs).status().message(), "cannot receive a descriptor within 0 ms");
  // Nobody takes them: the kernel's queue fills up.
  const OwnedDescriptor memory = sealed(1, 1);
  Status status;
  for (int i = 0; status.ok() && i < 100'000; ++i) {
    status = sender->send(memory, Bytes(kDescriptorMessageBytesMax), kNowMs);
  }
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "cannot send a descriptor within 0 ms");
  ASSERT_TRUE(socket.receive(kSoonMs).ok());
  EXPECT_EQ(sender->send(memory, {}, kNowMs).code(), Code::kInvalidArgument);
  EXPECT_EQ(sender->send(memory, Bytes(kDescriptorMessageBytesMax + 1), kNowMs).message(),
            "a message beside a descriptor has 1 to 4096 bytes, not 4097");
}

TEST_F(DescriptorsTest, OneListensAtAPath) {
  EXPECT_EQ(DescriptorSocket::connect(path_).status().message(), "nobody listens at " + path_);
  listen();
  const Status taken = DescriptorListener::open(path_).status();
  EXPECT_EQ(taken.code(), Code::kExists);
  EXPECT_EQ(taken.message(), "somebody listens at " + path_ + " already");
  EXPECT_EQ(posix_file_system().info(path_, false)->permissions, 0600U);
  listener_.reset();
  EXPECT_EQ(posix_file_system().info(path_, false).status().code(), Code::kNotFound);

  // One that a dead process left.
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<DescriptorListener> listener = DescriptorListener::open(path_);
    ::_exit(listener.ok() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(posix_file_system().info(path_, false).ok());
  EXPECT_EQ(DescriptorSocket::connect(path_).status().code(), Code::kNotFound);
  listen();
  EXPECT_TRUE(DescriptorSocket::connect(path_).ok());

  directory_.put("file", std::string("mine"));
  const Status file = DescriptorListener::open(directory_.at("file")).status();
  EXPECT_EQ(file.code(), Code::kExists);
  EXPECT_EQ(file.message(), directory_.at("file") + " exists and is no socket: give another path");
  for (const std::string& path : {std::string(), std::string(108, 'a'), std::string("a\0b", 3)}) {
    EXPECT_EQ(DescriptorListener::open(path).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(DescriptorSocket::connect(path).status().code(), Code::kInvalidArgument);
  }
}

// Only root can be somebody else.
TEST_F(DescriptorsTest, AnotherUserIsTurnedAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be another user";
  constexpr uid_t kOther = 12345;
  listen();
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(kOther) != 0) ::_exit(1);
    ::_exit(DescriptorSocket::connect(path_).status().code() == Code::kMismatch ? 0 : 2);
  }
  const Status refused = listener_->accept(kSoonMs).status();
  EXPECT_EQ(refused.code(), Code::kMismatch);
  EXPECT_EQ(refused.message(),
            "process " + std::to_string(child) + " of user 12345 is at a local socket of user 0");
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace dcr
