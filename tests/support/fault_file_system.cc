#include "tests/support/fault_file_system.h"

#include <utility>

namespace dcr {
namespace {

Status dead_status() { return {Code::kIo, "the process is dead (planned fault)"}; }

}  // namespace

class FaultFileSystem::FaultyFile final : public File {
 public:
  FaultyFile(FaultFileSystem& owner, std::unique_ptr<File> file, std::string path)
      : owner_(owner), file_(std::move(file)), path_(std::move(path)) {}

  Status read(std::uint64_t offset, MutableByteSpan out) const override {
    DCR_TRY(owner_.begin_read());
    return file_->read(offset, out);
  }

  Status write(std::uint64_t offset, ByteSpan bytes) override {
    return owner_.operate(
        "write " + path_ + " " + std::to_string(offset) + "+" + std::to_string(bytes.size()),
        [&] { return file_->write(offset, bytes); },
        [&] { return file_->write(offset, bytes.first(bytes.size() / 2)); });
  }

  Status sync() override {
    return owner_.operate("sync " + path_, [&] { return file_->sync(); });
  }

  Status resize(std::uint64_t size) override {
    return owner_.operate("resize " + path_ + " " + std::to_string(size),
                          [&] { return file_->resize(size); });
  }

  Result<std::uint64_t> size() const override {
    DCR_TRY(owner_.alive());
    return file_->size();
  }

 private:
  FaultFileSystem& owner_;
  std::unique_ptr<File> file_;
  std::string path_;
};

FaultFileSystem::FaultFileSystem(FileSystem& files) : files_(files) {}

void FaultFileSystem::set_fault(Fault fault) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fault_ = std::move(fault);
}

void FaultFileSystem::before_read(std::uint64_t number, std::function<Status()> action) {
  const std::lock_guard<std::mutex> lock(mutex_);
  before_read_number_ = number;
  before_read_ = std::move(action);
}

bool FaultFileSystem::fired() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fired_;
}

std::uint64_t FaultFileSystem::operations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return trace_.size();
}

std::uint64_t FaultFileSystem::reads() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reads_;
}

std::vector<std::string> FaultFileSystem::trace() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return trace_;
}

// The lock is held throughout, so that with concurrent callers no other operation slips in between
// a kill and the calls that it ends.
Status FaultFileSystem::operate(std::string name, const std::function<Status()>& whole,
                                const std::function<Status()>& half) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (dead_) return dead_status();
  const std::uint64_t number = trace_.size();
  trace_.push_back(std::move(name));
  if (!fault_ || fault_->operation != number) return whole();
  fired_ = true;
  dead_ = fault_->kind == Fault::Kind::kKill;
  if (fault_->half_done) DCR_TRY(half());
  return dead_ ? dead_status() : fault_->status.with_context(trace_.back());
}

Status FaultFileSystem::begin_read() {
  std::function<Status()> action;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (dead_) return dead_status();
    if (reads_++ == before_read_number_) action = before_read_;
  }
  return action ? action() : Status();
}

Status FaultFileSystem::alive() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return dead_ ? dead_status() : Status();
}

Result<std::unique_ptr<File>> FaultFileSystem::open_read(const std::string& path) {
  DCR_TRY(alive());
  DCR_ASSIGN(std::unique_ptr<File> file, files_.open_read(path));
  return {std::make_unique<FaultyFile>(*this, std::move(file), path)};
}

Result<std::unique_ptr<File>> FaultFileSystem::open_write(const std::string& path) {
  DCR_TRY(alive());
  DCR_ASSIGN(std::unique_ptr<File> file, files_.open_write(path));
  return {std::make_unique<FaultyFile>(*this, std::move(file), path)};
}

Result<std::unique_ptr<File>> FaultFileSystem::create(const std::string& path,
                                                      std::uint32_t permissions) {
  std::unique_ptr<File> created;
  DCR_TRY(operate("create " + path, [&]() -> Status {
    DCR_ASSIGN(created, files_.create(path, permissions));
    return {};
  }));
  return {std::make_unique<FaultyFile>(*this, std::move(created), path)};
}

Result<FileInfo> FaultFileSystem::info(const std::string& path, bool follow) {
  DCR_TRY(alive());
  return files_.info(path, follow);
}

Result<std::vector<DirectoryEntry>> FaultFileSystem::list(const std::string& directory) {
  DCR_TRY(alive());
  return files_.list(directory);
}

Status FaultFileSystem::make_directory(const std::string& path, std::uint32_t permissions) {
  return operate("make_directory " + path,
                 [&] { return files_.make_directory(path, permissions); });
}

Status FaultFileSystem::rename(const std::string& from, const std::string& to) {
  return operate("rename " + from + " " + to, [&] { return files_.rename(from, to); });
}

Status FaultFileSystem::remove(const std::string& path) {
  return operate("remove " + path, [&] { return files_.remove(path); });
}

Status FaultFileSystem::remove_directory(const std::string& path) {
  return operate("remove_directory " + path, [&] { return files_.remove_directory(path); });
}

Status FaultFileSystem::set_permissions(const std::string& path, std::uint32_t permissions) {
  return operate("set_permissions " + path,
                 [&] { return files_.set_permissions(path, permissions); });
}

Status FaultFileSystem::sync_directory(const std::string& directory) {
  return operate("sync_directory " + directory, [&] { return files_.sync_directory(directory); });
}

}  // namespace dcr
