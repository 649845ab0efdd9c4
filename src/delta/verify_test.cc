#include "delta/verify.h"

#include <gtest/gtest.h>

#include "tests/support/delta_disk.h"

namespace dcr {
namespace {

struct Found {
  DifferenceKind kind;
  std::string name, detail;
  bool operator==(const Found&) const = default;
};

void PrintTo(const Found& found, std::ostream* out) {
  *out << static_cast<int>(found.kind) << " " << found.name << ": " << found.detail;
}

class VerifyTest : public DeltaDiskTest {
 protected:
  void SetUp() override {
    Prng prng(41);
    checkpoint_.tensors["a"] = {Dtype::kBF16, {10, 50}, random_bytes(prng, 1000), 0};
    checkpoint_.tensors["b"] = {Dtype::kF4, {8}, random_bytes(prng, 4), 0};
    checkpoint_.tensors["c"] = {Dtype::kF32, {}, random_bytes(prng, 4), 0};
    checkpoint_.tensors["e"] = {Dtype::kF32, {0}, {}, 0};
    checkpoint_.metadata = {{"format", "pt"}};
    checkpoint_.others = {{"config.json", "{}"}};
    put("x", checkpoint_);
  }

  std::vector<Found> compare(const std::string& a, const std::string& b, bool files = false) {
    std::vector<Found> found;
    const Result<VerifyReport> report = compare_checkpoints(
        work(), a, b, files,
        [&](DifferenceKind kind, const std::string& name, const std::string& detail) {
          found.push_back({kind, name, detail});
        });
    EXPECT_TRUE(report.ok()) << report.status().message();
    if (report.ok()) report_ = *report;
    EXPECT_EQ(report_.differing, found.size());
    return found;
  }

  TestCheckpoint checkpoint_;
  VerifyReport report_;
};

TEST_F(VerifyTest, EqualCheckpointsHaveNoDifference) {
  put("y", checkpoint_);
  EXPECT_TRUE(compare("x", "y", true).empty());
  EXPECT_EQ(report_.tensors, 4U);
  EXPECT_EQ(report_.elements, 500U + 8 + 1);
  EXPECT_EQ(report_.bytes, 1000U + 4 + 4);
  EXPECT_EQ(report_.files, 2U);
}

TEST_F(VerifyTest, ShardingAndFileNamesDoNotMatterWithoutFiles) {
  TestCheckpoint other = checkpoint_;
  other.tensors["b"].shard = 1;
  put("y", other);
  EXPECT_TRUE(compare("x", "y").empty());
  EXPECT_FALSE(compare("x", "y", true).empty());
  other.directory = false;
  for (auto& [name, tensor] : other.tensors) tensor.shard = 0;
  put("z.safetensors", other);
  EXPECT_TRUE(compare("x", "z.safetensors").empty());
  // With files, the header is the same; the configuration is missing.
  EXPECT_EQ(compare("x", "z.safetensors", true),
            (std::vector<Found>{{DifferenceKind::kFile, "config.json", "only in \"x\""}}));
}

TEST_F(VerifyTest, BitsAreCountedAndTheFirstIsNamed) {
  TestCheckpoint other = checkpoint_;
  other.tensors["a"].bytes[7] ^= 0x80;
  other.tensors["a"].bytes[999] ^= 1;
  other.tensors["b"].bytes[3] ^= 1;
  other.tensors["c"].bytes[0] ^= 1;
  put("y", other);
  EXPECT_EQ(compare("x", "y"),
            (std::vector<Found>{
                {DifferenceKind::kBits, "a", "2 of 500 elements differ, the first at index 3"},
                {DifferenceKind::kBits, "b", "1 of 4 bytes differs, the first at index 3"},
                {DifferenceKind::kBits, "c", "1 of 1 elements differs, the first at index 0"}}));
}

TEST_F(VerifyTest, TablesThatDifferAreSaid) {
  TestCheckpoint other = checkpoint_;
  other.tensors.erase("a");
  other.tensors["b"].dtype = Dtype::kU8;
  other.tensors["b"].shape = {4};
  other.tensors["c"].shape = {1};
  other.tensors["d"] = other.tensors["c"];
  put("y", other);
  EXPECT_EQ(compare("x", "y"),
            (std::vector<Found>{{DifferenceKind::kMissing, "a", "only in \"x\""},
                                {DifferenceKind::kDtype, "b", "F4 and U8"},
                                {DifferenceKind::kShape, "c", "[] and [1]"},
                                {DifferenceKind::kExtra, "d", "only in \"y\""}}));
  EXPECT_EQ(report_.tensors, 1U);
}

TEST_F(VerifyTest, MetadataIsComparedOverAllFiles) {
  TestCheckpoint other = checkpoint_;
  other.metadata = {{"format", "np"}, {"step", "7"}};
  put("y", other);
  EXPECT_EQ(compare("x", "y"),
            (std::vector<Found>{{DifferenceKind::kMetadata, "format", "\"pt\" is only in \"x\""},
                                {DifferenceKind::kMetadata, "format", "\"np\" is only in \"y\""},
                                {DifferenceKind::kMetadata, "step", "\"7\" is only in \"y\""}}));
}

TEST_F(VerifyTest, FilesAreComparedByteForByte) {
  TestCheckpoint other = checkpoint_;
  other.others = {{"config.json", "{ }"}, {"extra.txt", ""}};
  put("y", other);
  EXPECT_TRUE(compare("x", "y").empty());
  EXPECT_EQ(compare("x", "y", true),
            (std::vector<Found>{{DifferenceKind::kFile, "config.json",
                                 "contents of 2 and 3 bytes differ, first at byte 1"},
                                {DifferenceKind::kFile, "extra.txt", "only in \"y\""}}));
  // A header that says the same with another byte.
  put("y", checkpoint_);
  ASSERT_TRUE(disk_.remove("y/extra.txt").ok());
  Bytes weights = disk_.get("y/model.safetensors");
  std::uint64_t length = load_little<std::uint64_t>(weights.data());
  store_little<std::uint64_t>(weights.data(), length + 8);
  weights.insert(weights.begin() + static_cast<std::ptrdiff_t>(8 + length), 8, ' ');
  disk_.put("y/model.safetensors", weights);
  EXPECT_TRUE(compare("x", "y").empty());
  const std::vector<Found> found = compare("x", "y", true);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].name, "model.safetensors");
}

TEST_F(VerifyTest, LargeTensorsAreComparedToTheLastByteOnAnyThreads) {
  TestCheckpoint big;
  big.tensors["t"] = {Dtype::kU8, {20 * kMiB + 3}, Bytes(20 * kMiB + 3, 1), 0};
  put("x2", big);
  big.tensors["t"].bytes[9 * kMiB] ^= 1;
  big.tensors["t"].bytes.back() ^= 1;
  put("y2", big);
  for (const unsigned threads : {1U, 2U, 4U}) {
    executor_ = make_executor(threads);
    EXPECT_EQ(compare("x2", "y2"),
              (std::vector<Found>{{DifferenceKind::kBits, "t",
                                   "2 of 20971523 elements differ, the first at index 9437184"}}));
  }
}

TEST_F(VerifyTest, CancellingIsAnError) {
  CancelToken cancel;
  cancel.cancel();
  Work work = this->work();
  work.cancel = &cancel;
  const Result<VerifyReport> report =
      compare_checkpoints(work, "x", "x", false, [](auto, const auto&, const auto&) {});
  EXPECT_EQ(report.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace dcr
