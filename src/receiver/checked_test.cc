#include "receiver/checked.h"

#include <gtest/gtest.h>

#include "receiver/host_memory.h"

namespace dcr {
namespace {

// A memory that writes one byte wrong.
class WrongMemory final : public TargetMemory {
 public:
  explicit WrongMemory(HostMemory& memory) : memory_(memory) {}
  std::uint64_t wrong_byte = 0;

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override {
    return memory_.storage_bytes(storage);
  }
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override {
    Status status = memory_.apply(target, positions, values, mode, counts);
    std::uint8_t& byte = memory_.bytes(target.storage)[wrong_byte];
    byte = static_cast<std::uint8_t>(byte ^ 4);
    return status;
  }
  Status read(const TensorView& view, std::span<std::uint8_t> out) override {
    return memory_.read(view, out);
  }
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override {
    return memory_.write(view, in);
  }
  Result<std::uint64_t> allocate(std::uint64_t bytes) override { return memory_.allocate(bytes); }
  Status release(std::uint64_t storage) override { return memory_.release(storage); }
  Status synchronize() override { return {}; }

 private:
  HostMemory& memory_;
};

// Columns 1 and 2 of four, kept as rows of three words.
TargetChanges columns() {
  TargetChanges target;
  target.width = 2;
  target.dims = {{4, 3, 0, 4}, {4, 1, 1, 3}};
  return target;
}

constexpr std::uint32_t kPositions[] = {0, 2, 5, 14};
constexpr std::uint16_t kValues[] = {7, 8, 9, 10};

TEST(CheckedTest, CountsWhatItCompares) {
  for (const Encoding encoding : {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd}) {
    HostMemory memory(0), plain(0);
    memory.add(32);
    plain.add(32);
    TargetChanges target = columns();
    target.encoding = encoding;
    ApplyCounts counts, plain_counts;
    std::uint64_t checked = 0;
    const Status status = apply_checked(memory, target, kPositions, kValues, &counts, &checked);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(plain.apply(target, kPositions, kValues, ApplyMode::kWrite, &plain_counts).ok());
    EXPECT_EQ(counts.words, 3u);
    EXPECT_EQ(plain_counts.words, 3u);
    EXPECT_EQ(checked, 8u);
    EXPECT_TRUE(std::equal(memory.bytes(0).begin(), memory.bytes(0).end(), plain.bytes(0).begin()));
  }
}

TEST(CheckedTest, FindsAWrongWordAndAChangedNeighbour) {
  HostMemory memory(0);
  memory.add(32);
  WrongMemory wrong(memory);
  for (const std::uint64_t byte : {std::uint64_t{2}, std::uint64_t{6}}) {
    wrong.wrong_byte = byte;
    ApplyCounts counts;
    std::uint64_t checked = 0;
    EXPECT_EQ(apply_checked(wrong, columns(), kPositions, kValues, &counts, &checked).message(),
              "post-apply check: words of storage 0 are not what their changes make of them");
  }
}

}  // namespace
}  // namespace dcr
