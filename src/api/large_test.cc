// Checkpoints above the 2^31 and 2^32 borders, and the memory bound: on sparse files, so that they
// take no space. Release builds only: it reads tens of gigabytes, and measures the peak of its own
// process.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <mutex>

#include "base/prng.h"
#include "dcr/delta.h"
#include "tensor/safetensors.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;

// The operating system's files, but zeros that are written become holes.
class SparseFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open_read(const std::string& path) override {
    return posix_.open_read(path);
  }
  Result<std::unique_ptr<File>> open_write(const std::string& path) override {
    return wrap(posix_.open_write(path));
  }
  Result<std::unique_ptr<File>> create(const std::string& path, std::uint32_t mode) override {
    return wrap(posix_.create(path, mode));
  }
  Result<FileInfo> info(const std::string& path, bool follow) override {
    return posix_.info(path, follow);
  }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    return posix_.list(path);
  }
  Status make_directory(const std::string& path, std::uint32_t mode) override {
    return posix_.make_directory(path, mode);
  }
  Status rename(const std::string& from, const std::string& to) override {
    return posix_.rename(from, to);
  }
  Status remove(const std::string& path) override { return posix_.remove(path); }
  Status remove_directory(const std::string& path) override {
    return posix_.remove_directory(path);
  }
  Status set_permissions(const std::string& path, std::uint32_t mode) override {
    return posix_.set_permissions(path, mode);
  }
  Status sync_directory(const std::string& path) override { return posix_.sync_directory(path); }

 private:
  class SparseFile final : public File {
   public:
    explicit SparseFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
    Status read(std::uint64_t offset, MutableByteSpan out) const override {
      return file_->read(offset, out);
    }
    Status write(std::uint64_t offset, ByteSpan bytes) override {
      const std::lock_guard<std::mutex> lock(mutex_);
      DCR_ASSIGN(const std::uint64_t size, file_->size());
      const bool hole = offset >= size && std::all_of(bytes.begin(), bytes.end(),
                                                      [](std::uint8_t byte) { return byte == 0; });
      if (hole) return file_->resize(offset + bytes.size());
      return file_->write(offset, bytes);
    }
    Status sync() override { return file_->sync(); }
    Status resize(std::uint64_t size) override { return file_->resize(size); }
    Result<std::uint64_t> size() const override { return file_->size(); }

   private:
    std::unique_ptr<File> file_;
    std::mutex mutex_;
  };

  static Result<std::unique_ptr<File>> wrap(Result<std::unique_ptr<File>> file) {
    if (!file.ok()) return file.status();
    return {std::make_unique<SparseFile>(std::move(file).value())};
  }

  FileSystem& posix_ = posix_file_system();
};

class LargeTest : public ::testing::Test {
 protected:
  LargeTest() {
    options_.memory_bytes_max = kMemoryBytesMin;
    options_.threads = 2;
    options_.files = &files_;
  }

  // A file of the given tensors, all zeros; returns it open.
  std::unique_ptr<File> make(const std::string& name, const std::vector<TensorEntry>& tensors) {
    const Result<Bytes> prefix = make_safetensors_prefix(tensors, {});
    DCR_ASSERT(prefix.ok());
    std::uint64_t size = prefix->size();
    for (const TensorEntry& tensor : tensors) {
      size += tensor_bytes(tensor.dtype, tensor.shape).value();
    }
    std::unique_ptr<File> file = posix_file_system().create(directory_.at(name), 0600).value();
    DCR_ASSERT(file->write(0, *prefix).ok());
    DCR_ASSERT(file->resize(size).ok());
    return file;
  }

  void expect_within_memory() const {
    rusage usage = {};
    ASSERT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
    EXPECT_LE(static_cast<std::uint64_t>(usage.ru_maxrss) * 1024,
              options_.memory_bytes_max + 128 * kMiB);
  }

  TempDirectory directory_;
  SparseFileSystem files_;
  DeltaOptions options_;
};

TEST_F(LargeTest, TensorsAboveTheBordersOfFourBytes) {
  constexpr std::uint64_t kElements = (std::uint64_t{1} << 31) + 8;  // 2^32 + 16 bytes
  constexpr std::uint64_t kBytes = (std::uint64_t{1} << 31) + 3;
  const std::vector<TensorEntry> tensors{{"a", Dtype::kBF16, {kElements}, 0, 0},
                                         {"b", Dtype::kU8, {kBytes}, 0, 0}};
  const std::string before = directory_.at("old.safetensors");
  const std::string after = directory_.at("new.safetensors");
  const std::string delta = directory_.at("d.dcr");
  const std::string copy = directory_.at("copy.safetensors");
  make("old.safetensors", tensors);
  const std::unique_ptr<File> file = make("new.safetensors", tensors);
  const std::uint64_t size = file->size().value();
  const std::uint8_t one[] = {1};
  ASSERT_TRUE(file->write(size - 1, one).ok());           // the last element of b
  ASSERT_TRUE(file->write(size - kBytes - 1, one).ok());  // the last element of a
  ASSERT_TRUE(file->write(size - kBytes - 4096, one).ok());

  const Result<DiffResult> made = diff(before, after, delta, options_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->elements, kElements + kBytes);
  EXPECT_EQ(made->changed, 3U);
  EXPECT_LT(made->delta_bytes, 2000U);
  expect_within_memory();

  const Result<ApplyResult> copied = apply({delta}, before, copy, options_);
  ASSERT_TRUE(copied.ok()) << copied.status().message();
  EXPECT_EQ(copied->changed, 3U);
  expect_within_memory();
  const Result<VerifyResult> differing = verify(before, copy, {}, options_);
  ASSERT_TRUE(differing.ok()) << differing.status().message();
  ASSERT_EQ(differing->differences.size(), 2U);
  EXPECT_EQ(differing->differences[0].detail,
            "2 of 2147483656 elements differ, the first at index 2147481608");
  EXPECT_EQ(differing->differences[1].detail,
            "1 of 2147483651 elements differs, the first at index 2147483650");

  const Result<ApplyResult> in_place = apply_in_place({delta}, before, options_);
  ASSERT_TRUE(in_place.ok()) << in_place.status().message();
  for (const std::string& path : {copy, before}) {
    const Result<VerifyResult> same = verify(after, path, {.files = true}, options_);
    ASSERT_TRUE(same.ok()) << same.status().message();
    EXPECT_EQ(same->differing, 0U);
    EXPECT_EQ(same->bytes, 2 * kElements + kBytes);
  }
  expect_within_memory();
}

// What takes most memory: everything changes to bits that do not compress.
TEST_F(LargeTest, AllChangedStaysWithinTheMemoryBound) {
  constexpr std::uint64_t kSize = 320 * kMiB;
  const std::vector<TensorEntry> tensors{{"a", Dtype::kBF16, {kSize / 2}, 0, 0}};
  make("old.safetensors", tensors);
  const std::unique_ptr<File> file = make("new.safetensors", tensors);
  const std::uint64_t start = file->size().value() - kSize;
  Prng prng(3);
  Bytes block(kMiB);
  for (std::uint64_t at = 0; at < kSize; at += block.size()) {
    for (std::size_t i = 0; i < block.size(); i += 8) {
      store_little<std::uint64_t>(block.data() + i, prng.next());
    }
    ASSERT_TRUE(file->write(start + at, block).ok());
  }
  const std::string before = directory_.at("old.safetensors");
  const std::string delta = directory_.at("d.dcr");
  const std::string copy = directory_.at("copy.safetensors");
  const Result<DiffResult> made = diff(before, directory_.at("new.safetensors"), delta, options_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_GT(made->delta_bytes, kSize * 99 / 100);
  expect_within_memory();
  ASSERT_TRUE(apply({delta}, before, copy, options_).ok());
  expect_within_memory();
  ASSERT_TRUE(apply_in_place({delta}, before, options_).ok());
  expect_within_memory();
  EXPECT_EQ(verify(copy, before, {}, options_)->differing, 0U);
}

}  // namespace
}  // namespace dcr
