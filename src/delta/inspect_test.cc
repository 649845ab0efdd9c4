#include "delta/inspect.h"

#include <gtest/gtest.h>

#include "delta/diff.h"
#include "tests/support/delta_disk.h"

namespace dcr {
namespace {

class InspectTest : public DeltaDiskTest {};

TEST_F(InspectTest, GroupsReplaceNumbersBetweenDots) {
  EXPECT_EQ(group_name("model.layers.17.mlp.up_proj.weight"), "model.layers.*.mlp.up_proj.weight");
  EXPECT_EQ(group_name("0"), "*");
  EXPECT_EQ(group_name("a.0.12.b3"), "a.*.*.b3");
  EXPECT_EQ(group_name(""), "");
  EXPECT_EQ(group_name("..1"), "..*");
}

TEST_F(InspectTest, TotalsAreThoseOfTheDelta) {
  TestCheckpoint before;
  before.tensors["l.0.w"] = {Dtype::kBF16, {100}, Bytes(200, 1), 0};
  before.tensors["l.1.w"] = {Dtype::kBF16, {100}, Bytes(200, 2), 0};
  before.tensors["s"] = {Dtype::kF32, {3}, Bytes(12, 3), 0};
  TestCheckpoint after = before;
  for (const unsigned at : {0U, 20U, 198U}) after.tensors["l.0.w"].bytes[at] ^= 1;
  after.tensors["l.1.w"].bytes[8] ^= 1;
  after.tensors["added"] = {Dtype::kU8, {50}, Bytes(50, 4), 0};
  put("old", before);
  put("new", after);
  const Result<DiffReport> report = write_diff(work(), "old", "new", "d.dcr");
  ASSERT_TRUE(report.ok()) << report.status().message();
  const Result<DeltaReader> reader = DeltaReader::open(disk_, "d.dcr");
  ASSERT_TRUE(reader.ok());
  const Result<DeltaContents> contents = read_contents(work(), *reader);
  ASSERT_TRUE(contents.ok()) << contents.status().message();
  EXPECT_EQ(contents->items, 3U);
  std::uint64_t items = 0;
  for (const auto& [encoding, count] : contents->encodings) {
    EXPECT_EQ(count, report->pipeline.items_by_encoding[static_cast<unsigned>(encoding)]);
    items += count;
  }
  EXPECT_EQ(items, 3U);
  ASSERT_EQ(contents->groups.size(), 3U);
  const TensorGroup& layers = contents->groups.at("l.*.w");
  EXPECT_EQ(layers.tensors, 2U);
  EXPECT_EQ(layers.elements, 200U);
  EXPECT_EQ(layers.changed, 4U);
  EXPECT_EQ(contents->groups.at("added").changed, 0U);
  EXPECT_GT(contents->groups.at("added").raw_bytes, 0U);
  EXPECT_EQ(contents->groups.at("s").raw_bytes, 0U);
  std::uint64_t raw = 0, item_records = 0, grouped = 0;
  for (const auto& [stream, totals] : contents->streams) {
    raw += totals.raw_bytes;
    if (stream.first == StreamKind::kItems) item_records += totals.raw_bytes;
  }
  for (const auto& [name, group] : contents->groups) grouped += group.raw_bytes;
  EXPECT_EQ(raw, reader->footer().payload_raw_bytes_max);
  EXPECT_EQ(raw, item_records + grouped);
}

TEST_F(InspectTest, ADamagedDeltaIsAnError) {
  TestCheckpoint before, after;
  before.tensors["a"] = {Dtype::kU8, {3}, {1, 2, 3}, 0};
  after.tensors["a"] = {Dtype::kU8, {3}, {1, 2, 4}, 0};
  put("old", before);
  put("new", after);
  ASSERT_TRUE(write_diff(work(), "old", "new", "d.dcr").ok());
  Bytes damaged = disk_.get("d.dcr");
  damaged[kDeltaPrologueBytes + 60] ^= 1;
  disk_.put("d.dcr", damaged);
  const Result<DeltaReader> reader = DeltaReader::open(disk_, "d.dcr");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(read_contents(work(), *reader).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace dcr
