#include "tensor/memory_checkpoint.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

Bytes counting(std::size_t size, std::uint8_t first) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(first + i);
  return bytes;
}

class MemoryCheckpointTest : public ::testing::Test {
 protected:
  void add(const std::string& name, Dtype dtype, Shape shape, std::size_t bytes) {
    memory_.push_back(
        std::make_unique<Bytes>(counting(bytes, static_cast<std::uint8_t>(10 * memory_.size()))));
    tensors_.push_back({name, dtype, std::move(shape), *memory_.back()});
  }
  void expect_error(Code code, const std::string& words, const std::string& tensor) {
    const Status status = memory_checkpoint(tensors_, "state").status();
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(status.tensor(), tensor);
  }

  std::vector<std::unique_ptr<Bytes>> memory_;
  std::vector<MemoryTensor> tensors_;
};

TEST_F(MemoryCheckpointTest, ReadsWhatLiesInMemory) {
  add("z", Dtype::kBF16, {2, 3}, 12);
  add("empty", Dtype::kF32, {0, 3}, 0);
  add("a", Dtype::kU8, {}, 1);
  add("none", Dtype::kU8, {0}, 0);
  add("m", Dtype::kF4, {6}, 3);
  const Result<Checkpoint> checkpoint = memory_checkpoint(tensors_, "state");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_FALSE(checkpoint->directory);
  ASSERT_EQ(checkpoint->files.size(), 1U);
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint->tensors) {
    names.push_back(tensor.name);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].name != tensor.name) continue;
      for (std::uint64_t offset = 0; offset <= tensor.bytes; ++offset) {
        Bytes out(static_cast<std::size_t>(tensor.bytes - offset));
        ASSERT_TRUE(read_tensor(*checkpoint, tensor, offset, out).ok()) << tensor.name << offset;
        EXPECT_TRUE(std::equal(out.begin(), out.end(),
                               memory_[i]->begin() + static_cast<std::ptrdiff_t>(offset)));
      }
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "empty", "m", "none", "z"}));
  const File& file = *checkpoint->files[0].file;
  EXPECT_EQ(file.size().value(), checkpoint->files[0].prefix.size() + 16);
  // A file's bytes before the tensors, and those after the last, are no tensor's.
  Bytes two(2);
  EXPECT_EQ(file.read(0, two).code(), Code::kIo);
  EXPECT_EQ(file.read(file.size().value() - 1, two).code(), Code::kIo);
  EXPECT_EQ(file.read(file.size().value() + 9, two).code(), Code::kIo);
}

TEST_F(MemoryCheckpointTest, ItsPrefixIsASafetensorsHeader) {
  add("b", Dtype::kF32, {2}, 8);
  add("a", Dtype::kU8, {3}, 3);
  const Result<Checkpoint> checkpoint = memory_checkpoint(tensors_, "state");
  ASSERT_TRUE(checkpoint.ok());
  const CheckpointFile& file = checkpoint->files[0];
  const Result<SafetensorsHeader> header =
      parse_safetensors_header(ByteSpan(file.prefix).subspan(8), file.header.file_bytes);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].offset, checkpoint->tensors[1].offset);
}

TEST_F(MemoryCheckpointTest, NoTensorsAreACheckpointToo) {
  EXPECT_TRUE(memory_checkpoint(tensors_, "state").ok());
}

TEST_F(MemoryCheckpointTest, RefusesWhatIsNone) {
  add("a", Dtype::kF32, {2}, 8);
  add("a", Dtype::kU8, {2}, 2);
  expect_error(Code::kInvalidArgument, "tensor \"a\" is there twice", "a");
  tensors_.pop_back();
  add("__metadata__", Dtype::kU8, {2}, 2);
  expect_error(Code::kInvalidArgument, "that of the metadata", "__metadata__");
  tensors_.pop_back();
  add("b", Dtype::kF32, {2}, 7);
  expect_error(Code::kInvalidArgument, "has 7 bytes of memory, not 8", "b");
}

}  // namespace
}  // namespace dcr
