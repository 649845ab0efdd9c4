#include "runtime/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "base/checked.h"

namespace dcr {
namespace {

constexpr std::uint64_t kOffsetMax =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
static_assert(sizeof(off_t) == 8, "files above 2 GiB need 64-bit offsets");

// What one system call is asked to move; Linux moves at most 0x7ffff000 bytes at a time anyway.
constexpr std::size_t kCallBytesMax = std::size_t{1} << 30;

// "cannot `verb` `path`: <errno's text>", with the code that an errno stands for.
Status system_error(const char* verb, const std::string& path, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound
                    : error == EEXIST                   ? Code::kExists
                                                        : Code::kIo;
  return {code, std::string("cannot ") + verb + " " + path + ": " +
                    std::generic_category().message(error)};
}

// Calls `call` again while a signal interrupts it.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// A path from outside that holds a NUL would be cut short by the system and name another file.
Status check_path(const char* verb, const std::string& path) {
  if (path.find('\0') == std::string::npos) return {};
  return {Code::kInvalidArgument, std::string("cannot ") + verb + " " +
                                      path.substr(0, path.find('\0')) +
                                      "…: the path contains a NUL byte"};
}

FileKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kRegular;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  if (S_ISLNK(mode)) return FileKind::kSymlink;
  return FileKind::kOther;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  // An error of close() is not reported: what must last was synced before, and only then was it
  // promised.
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }

 private:
  int fd_;
};

class PosixFile final : public File {
 public:
  PosixFile(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  Status read(std::uint64_t offset, MutableByteSpan out) const override {
    const std::optional<std::uint64_t> end = checked_add(offset, out.size());
    if (!end || *end > kOffsetMax) return system_error("read", path_, EOVERFLOW);
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t count = uninterrupted([&] {
        return ::pread(descriptor_.get(), out.data() + done,
                       std::min(out.size() - done, kCallBytesMax),
                       static_cast<off_t>(offset + done));
      });
      if (count < 0) return system_error("read", path_, errno);
      if (count == 0) return shrank(offset + done, *end);
      done += static_cast<std::size_t>(count);
    }
    return {};
  }

  Status write(std::uint64_t offset, ByteSpan bytes) override {
    const std::optional<std::uint64_t> end = checked_add(offset, bytes.size());
    if (!end || *end > kOffsetMax) return system_error("write", path_, EFBIG);
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count = uninterrupted([&] {
        return ::pwrite(descriptor_.get(), bytes.data() + done,
                        std::min(bytes.size() - done, kCallBytesMax),
                        static_cast<off_t>(offset + done));
      });
      if (count < 0) return system_error("write", path_, errno);
      // POSIX lets pwrite move nothing without an error; going on would spin.
      if (count == 0) return system_error("write", path_, EIO);
      done += static_cast<std::size_t>(count);
    }
    return {};
  }

  Status sync() override {
    if (uninterrupted([&] { return ::fsync(descriptor_.get()); }) != 0) {
      return system_error("sync", path_, errno);
    }
    return {};
  }

  Status resize(std::uint64_t size) override {
    if (size > kOffsetMax) return system_error("resize", path_, EFBIG);
    const auto length = static_cast<off_t>(size);
    if (uninterrupted([&] { return ::ftruncate(descriptor_.get(), length); }) != 0) {
      return system_error("resize", path_, errno);
    }
    return {};
  }

  Result<std::uint64_t> size() const override {
    struct stat info = {};
    if (::fstat(descriptor_.get(), &info) != 0) return system_error("examine", path_, errno);
    return static_cast<std::uint64_t>(info.st_size);
  }

 private:
  Status shrank(std::uint64_t at, std::uint64_t end) const {
    return {Code::kIo, "cannot read " + path_ + ": it ends at byte " + std::to_string(at) +
                           " but " + std::to_string(end) +
                           " are needed; it shrank while it was in use or was cut short"};
  }

  Descriptor descriptor_;
  std::string path_;
};

// Opens `path` and makes sure that it is a regular file: a FIFO or a device would block or have no
// positions. O_NONBLOCK keeps the open itself from waiting for a FIFO's other end; on regular files
// it means nothing.
Result<std::unique_ptr<File>> open_file(const char* verb, const std::string& path, int flags,
                                        mode_t permissions) {
  DCR_TRY(check_path(verb, path));
  const int fd = uninterrupted([&] {
    return ::openat(AT_FDCWD, path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, permissions);
  });
  if (fd < 0) return system_error(verb, path, errno);
  Descriptor descriptor(fd);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return system_error("examine", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kIo, std::string("cannot ") + verb + " " + path +
                                 (S_ISDIR(info.st_mode) ? ": it is a directory"
                                                        : ": it is not a regular file"));
  }
  return {std::make_unique<PosixFile>(std::move(descriptor), path)};
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open_read(const std::string& path) override {
    return open_file("open", path, O_RDONLY, 0);
  }

  Result<std::unique_ptr<File>> open_write(const std::string& path) override {
    return open_file("open for writing", path, O_RDWR, 0);
  }

  Result<std::unique_ptr<File>> create(const std::string& path,
                                       std::uint32_t permissions) override {
    return open_file("create", path, O_RDWR | O_CREAT | O_EXCL, static_cast<mode_t>(permissions));
  }

  Result<FileInfo> info(const std::string& path, bool follow) override {
    DCR_TRY(check_path("examine", path));
    struct stat info = {};
    if (::fstatat(AT_FDCWD, path.c_str(), &info, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
      return system_error("examine", path, errno);
    }
    FileInfo result;
    result.kind = kind_of(info.st_mode);
    result.size = static_cast<std::uint64_t>(info.st_size);
    result.permissions = static_cast<std::uint32_t>(info.st_mode) & 07777;
    result.links = static_cast<std::uint64_t>(info.st_nlink);
    result.owner = static_cast<std::uint32_t>(info.st_uid);
    result.device = static_cast<std::uint64_t>(info.st_dev);
    result.inode = static_cast<std::uint64_t>(info.st_ino);
    return result;
  }

  Result<std::vector<DirectoryEntry>> list(const std::string& directory) override {
    DCR_TRY(check_path("list", directory));
    std::unique_ptr<DIR, CloseDirectory> stream(::opendir(directory.c_str()));
    if (!stream) return system_error("list", directory, errno);
    std::vector<DirectoryEntry> entries;
    while (true) {
      errno = 0;
      // readdir is safe here: each call has its own stream (POSIX.1-2024 says so; glibc does it).
      const dirent* entry = ::readdir(stream.get());  // NOLINT(concurrency-mt-unsafe)
      if (entry == nullptr) break;
      const std::string name(entry->d_name);
      if (name == "." || name == "..") continue;
      struct stat info = {};
      if (::fstatat(::dirfd(stream.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;  // removed since it was listed
        return system_error("examine", join_path(directory, name), errno);
      }
      entries.push_back({name, kind_of(info.st_mode)});
    }
    if (errno != 0) return system_error("list", directory, errno);
    std::sort(entries.begin(), entries.end(),
              [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
    return entries;
  }

  Status make_directory(const std::string& path, std::uint32_t permissions) override {
    DCR_TRY(check_path("make directory", path));
    if (::mkdir(path.c_str(), static_cast<mode_t>(permissions)) != 0) {
      return system_error("make directory", path, errno);
    }
    return {};
  }

  Status rename(const std::string& from, const std::string& to) override {
    DCR_TRY(check_path("rename", from));
    DCR_TRY(check_path("rename to", to));
    if (std::rename(from.c_str(), to.c_str()) != 0) {
      return system_error("rename", from + " to " + to, errno);
    }
    return {};
  }

  Status remove(const std::string& path) override {
    DCR_TRY(check_path("remove", path));
    if (::unlink(path.c_str()) != 0) return system_error("remove", path, errno);
    return {};
  }

  Status remove_directory(const std::string& path) override {
    DCR_TRY(check_path("remove directory", path));
    if (::rmdir(path.c_str()) == 0) return {};
    // A directory with entries is no "exists" in the sense of kExists, though POSIX allows EEXIST.
    return system_error("remove directory", path, errno == EEXIST ? ENOTEMPTY : errno);
  }

  Status set_permissions(const std::string& path, std::uint32_t permissions) override {
    DCR_TRY(check_path("set permissions of", path));
    if (::fchmodat(AT_FDCWD, path.c_str(), static_cast<mode_t>(permissions), 0) != 0) {
      return system_error("set permissions of", path, errno);
    }
    return {};
  }

  Status sync_directory(const std::string& directory) override {
    DCR_TRY(check_path("sync directory", directory));
    const int fd = uninterrupted(
        [&] { return ::openat(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return system_error("sync directory", directory, errno);
    const Descriptor descriptor(fd);
    if (uninterrupted([&] { return ::fsync(fd); }) == 0) return {};
    // EINVAL: this file system (some network ones) has no separate sync of a directory.
    if (errno == EINVAL) return {};
    return system_error("sync directory", directory, errno);
  }
};

// `path` without trailing slashes, but "/" stays.
std::string without_trailing_slashes(const std::string& path) {
  const std::size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return path.empty() ? path : "/";
  return path.substr(0, last + 1);
}

}  // namespace

std::uint32_t this_user() { return ::geteuid(); }

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

std::string parent_path(const std::string& path) {
  const std::string trimmed = without_trailing_slashes(path);
  const std::size_t slash = trimmed.rfind('/');
  if (slash == std::string::npos) return ".";
  return without_trailing_slashes(trimmed.substr(0, slash + 1));
}

std::string base_name(const std::string& path) {
  std::string trimmed = without_trailing_slashes(path);
  if (trimmed == "/") return trimmed;
  return trimmed.substr(trimmed.rfind('/') + 1);  // npos + 1 is 0: the whole
}

std::string join_path(const std::string& directory, const std::string& name) {
  if (directory.empty()) return name;
  return directory.back() == '/' ? directory + name : directory + "/" + name;
}

Result<Bytes> read_file(FileSystem& files, const std::string& path, std::uint64_t bytes_max) {
  DCR_ASSIGN(const std::unique_ptr<File> file, files.open_read(path));
  DCR_ASSIGN(const std::uint64_t size, file->size());
  if (size > bytes_max) {
    return Status(Code::kTooLarge, path + " has " + std::to_string(size) +
                                       " bytes, more than the limit of " +
                                       std::to_string(bytes_max));
  }
  Bytes bytes(static_cast<std::size_t>(size));
  DCR_TRY(file->read(0, bytes));
  return bytes;
}

Status replace_file(FileSystem& files, const std::string& path, ByteSpan bytes,
                    std::uint32_t permissions) {
  const std::string beside = path + ".partial";
  Status left_over = files.remove(beside);  // of a writer that was killed
  if (!left_over.ok() && left_over.code() != Code::kNotFound) return left_over;
  const auto write_beside = [&]() -> Status {
    DCR_ASSIGN(const std::unique_ptr<File> file, files.create(beside, permissions));
    DCR_TRY(file->write(0, bytes));
    return file->sync();
  };
  Status written = write_beside();
  if (written.ok()) written = files.rename(beside, path);
  if (!written.ok()) {
    static_cast<void>(files.remove(beside));  // the first error is the one to tell
    return written;
  }
  return files.sync_directory(parent_path(path));
}

}  // namespace dcr
