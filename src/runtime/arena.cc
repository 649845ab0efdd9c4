#include "runtime/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"

namespace dcr {
namespace {

constexpr std::uint64_t kArenaBytesMax = std::uint64_t{1} << 47;  // what a process can address

Status arena_error(std::uint64_t bytes, const std::string& where, int error) {
  return {error == EEXIST ? Code::kExists : Code::kIo,
          "cannot make an arena of " + std::to_string(bytes) + " bytes" + where + ": " +
              std::generic_category().message(error)};
}

// `fd` is -1 for memory. Null on failure, which errno tells.
std::uint8_t* map(std::uint64_t bytes, int flags, int fd) {
  void* const data =
      ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, flags, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(data);
}

}  // namespace

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      in_file_(other.in_file_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(in_file_, other.in_file_);
  return *this;
}

Result<Arena> Arena::anonymous(std::uint64_t bytes) {
  if (bytes == 0) return Arena();
  if (bytes > kArenaBytesMax) return arena_error(bytes, "", ENOMEM);
  std::uint8_t* const data = map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (data == nullptr) return arena_error(bytes, "", errno);
  // Fewer page faults and translations; where the system has no huge pages this fails harmlessly.
  ::madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return Arena(data, bytes, false);
}

Result<Arena> Arena::mapped(const std::string& path, std::uint64_t bytes) {
  const std::string where = " in " + path;
  if (bytes == 0) return Arena();
  if (bytes > kArenaBytesMax) return arena_error(bytes, where, ENOMEM);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return arena_error(bytes, where, errno);
  int error = ::unlink(path.c_str()) == 0 ? 0 : errno;
  // All blocks now: a full disk is an error here and not a signal later.
  if (error == 0) error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  std::uint8_t* data = nullptr;
  if (error == 0) {
    data = map(bytes, MAP_SHARED, fd);
    if (data == nullptr) error = errno;
  }
  ::close(fd);
  if (error != 0) return arena_error(bytes, where, error);
  return Arena(data, bytes, true);
}

void Arena::release(std::uint64_t offset, std::uint64_t size) const {
  DCR_ASSERT(offset <= size_ && size <= size_ - offset);
  if (!in_file_) return;
  static const auto kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  // Whole pages within the range; what lies at its ends may belong to a neighbour in use.
  const std::uint64_t begin = (offset + kPage - 1) / kPage * kPage;
  const std::uint64_t end = (offset + size) / kPage * kPage;
  if (begin >= end) return;
  // Of a shared mapping the contents are the file's: only this process's view of them goes.
  ::madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

std::uint64_t storages_bytes(std::span<const std::uint64_t> storages) {
  std::optional<std::uint64_t> bytes = 0;
  for (const std::uint64_t storage : storages) {
    if (bytes) bytes = checked_add(*bytes, arena_bytes_of(storage));
  }
  return bytes.value_or(~std::uint64_t{0});
}

std::vector<MutableByteSpan> storages_in(const Arena& arena,
                                         std::span<const std::uint64_t> storages) {
  std::vector<MutableByteSpan> spans;
  spans.reserve(storages.size());
  std::uint64_t offset = 0;
  for (const std::uint64_t storage : storages) {
    spans.push_back(
        arena.bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(storage)));
    offset += arena_bytes_of(storage);
  }
  return spans;
}

}  // namespace dcr
