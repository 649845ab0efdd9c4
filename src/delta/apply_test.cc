#include "delta/apply.h"

#include <gtest/gtest.h>

#include "delta/chain_applier.h"
#include "delta/diff.h"
#include "tests/support/campaign.h"
#include "tests/support/delta_disk.h"
#include "tests/support/fault_file_system.h"

namespace dcr {
namespace {

class ApplyTest : public DeltaDiskTest {
 protected:
  void diff(const std::string& from, const std::string& to, const std::string& delta) {
    const Result<DiffReport> report = write_diff(work(), from, to, delta);
    ASSERT_TRUE(report.ok()) << report.status().message();
  }

  void expect_error(const Status& status, Code code, const std::string& words,
                    const std::string& tensor = {}) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(status.tensor(), tensor);
  }

  // Two checkpoints "old" and "new" and their delta "d.dcr".
  void put_pair() {
    Prng prng(21);
    TestCheckpoint before;
    for (const char* name : {"a", "b", "c"}) {
      before.tensors[name] = {Dtype::kBF16, {500}, random_bytes(prng, 1000), 0};
    }
    before.tensors["empty"] = {Dtype::kF32, {0, 3}, {}, 0};
    before.tensors["gone"] = {Dtype::kU8, {9}, random_bytes(prng, 9), 0};
    before.others = {{"config.json", "{}"}, {"tokenizer.json", "[]"}};
    old_ = new_ = before;
    change_words(prng, &new_.tensors["a"], 30);
    change_words(prng, &new_.tensors["c"], 30);
    new_.tensors.erase("gone");
    new_.tensors["more"] = {Dtype::kI64, {3}, random_bytes(prng, 24), 0};
    new_.others["config.json"] = "{\"v\":2}";
    put("old", old_);
    put("new", new_);
    diff("old", "new", "d.dcr");
  }

  TestCheckpoint old_, new_;
};

TEST_F(ApplyTest, RandomChainsGiveTheTargetsFiles) {
  for (std::uint64_t seed = 0; seed < campaign_cases(300); ++seed) {
    SCOPED_TRACE(seed);
    disk_ = MemoryFileSystem();
    Prng prng(seed);
    executor_ = make_executor(1 + static_cast<unsigned>(prng.below(3)));
    TestCheckpoint checkpoint = random_checkpoint(prng);
    put("v0", checkpoint);
    std::vector<std::string> deltas;
    for (unsigned i = 1; i <= 3; ++i) {
      checkpoint = random_successor(prng, checkpoint);
      const std::string from = "v" + std::to_string(i - 1), to = "v" + std::to_string(i);
      put(to, checkpoint);
      deltas.push_back("d" + std::to_string(i) + ".dcr");
      diff(from, to, deltas.back());
      const Result<ApplyReport> one =
          apply_chain(work(), {deltas.back()}, from, "one" + std::to_string(i));
      ASSERT_TRUE(one.ok()) << one.status().message();
      ASSERT_EQ(files_at("one" + std::to_string(i)), files_at(to));
      EXPECT_EQ(one->tensors, checkpoint.tensors.size());
    }
    const Result<ApplyReport> all = apply_chain(work(), deltas, "v0", "all");
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(files_at("all"), files_at("v3"));
  }
}

TEST_F(ApplyTest, AFileBecomesADirectoryAndBack) {
  Prng prng(5);
  TestCheckpoint single;
  single.directory = false;
  single.tensors["a"] = {Dtype::kF32, {100}, random_bytes(prng, 400), 0};
  single.tensors["b"] = {Dtype::kF32, {}, random_bytes(prng, 4), 0};
  TestCheckpoint sharded = single;
  sharded.directory = true;
  sharded.tensors["b"].shard = 2;
  sharded.others = {{"config.json", "{}"}};
  change_words(prng, &sharded.tensors["a"], 5);
  put("single.safetensors", single);
  put("sharded", sharded);
  diff("single.safetensors", "sharded", "there.dcr");
  diff("sharded", "single.safetensors", "back.dcr");
  ASSERT_TRUE(apply_chain(work(), {"there.dcr"}, "single.safetensors", "x").ok());
  EXPECT_EQ(files_at("x"), files_at("sharded"));
  const Result<ApplyReport> back = apply_chain(work(), {"back.dcr"}, "sharded", "y.safetensors");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->files, std::vector<std::string>{"y.safetensors"});
  EXPECT_EQ(disk_.get("y.safetensors"), disk_.get("single.safetensors"));
  ASSERT_TRUE(
      apply_chain(work(), {"there.dcr", "back.dcr"}, "single.safetensors", "z.safetensors").ok());
  EXPECT_EQ(disk_.get("z.safetensors"), disk_.get("single.safetensors"));
}

TEST_F(ApplyTest, LargeTensorsAreTheSameOnAnyThreads) {
  Prng prng(31);
  TestCheckpoint before;
  before.tensors["big"] = {Dtype::kBF16, {9 * kMiB}, Bytes(18 * kMiB, 1), 0};
  before.tensors["whole"] = {Dtype::kU8, {1}, {1}, 0};
  TestCheckpoint after = before;
  change_words(prng, &after.tensors["big"], 50'000);
  after.tensors["whole"] = {Dtype::kU8, {9 * kMiB}, Bytes(9 * kMiB, 5), 0};
  TestCheckpoint later = after;
  change_words(prng, &later.tensors["big"], 2'000);
  change_words(prng, &later.tensors["whole"], 20'000);
  put("v0", before);
  put("v1", after);
  put("v2", later);
  diff("v0", "v1", "d1.dcr");
  diff("v1", "v2", "d2.dcr");
  for (const unsigned threads : {1U, 2U, 4U}) {
    executor_ = make_executor(threads);
    const std::string output = "out" + std::to_string(threads);
    const Result<ApplyReport> report = apply_chain(work(), {"d1.dcr", "d2.dcr"}, "v0", output);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_TRUE(files_at(output) == files_at("v2")) << threads;
  }
  // The last byte of the last piece.
  before.tensors["big"].bytes.back() ^= 1;
  put("wrong", before);
  expect_error(apply_chain(work(), {"d1.dcr", "d2.dcr"}, "wrong", "x").status(), Code::kMismatch,
               "tensor \"big\" has other bits", "big");
  EXPECT_TRUE(files_at("x").empty());
}

TEST_F(ApplyTest, AWrongBaseIsRefusedByItsFirstTensor) {
  put_pair();
  TestCheckpoint wrong = old_;
  wrong.tensors["b"].bytes[7] ^= 1;
  wrong.tensors["c"].bytes[7] ^= 1;
  put("wrong", wrong);
  const auto before = disk_.all();
  expect_error(apply_chain(work(), {"d.dcr"}, "wrong", "x").status(), Code::kMismatch,
               "\"wrong\" is not the base of d.dcr: tensor \"b\" has other bits", "b");
  EXPECT_EQ(disk_.all(), before);
  EXPECT_FALSE(disk_.exists("x"));
}

TEST_F(ApplyTest, ARemovedTensorsBitsAreCheckedToo) {
  put_pair();
  TestCheckpoint wrong = old_;
  wrong.tensors["gone"].bytes[0] ^= 1;
  put("wrong", wrong);
  expect_error(apply_chain(work(), {"d.dcr"}, "wrong", "x").status(), Code::kMismatch,
               "tensor \"gone\" has other bits", "gone");
}

TEST_F(ApplyTest, AnotherTableIsRefusedBeforeAnythingIsWritten) {
  put_pair();
  FaultFileSystem files(disk_);
  TestCheckpoint wrong = old_;
  wrong.tensors.erase("b");
  put("missing", wrong);
  expect_error(apply_chain(work_on(files), {"d.dcr"}, "missing", "x").status(), Code::kMismatch,
               "tensor \"b\" is missing", "b");
  wrong = old_;
  wrong.tensors["b"].dtype = Dtype::kF16;
  put("retyped", wrong);
  expect_error(apply_chain(work_on(files), {"d.dcr"}, "retyped", "x").status(), Code::kMismatch,
               "tensor \"b\" is F16 [500], not BF16 [500]", "b");
  wrong = old_;
  wrong.tensors["aa"] = wrong.tensors["b"];
  put("more", wrong);
  expect_error(apply_chain(work_on(files), {"d.dcr"}, "more", "x").status(), Code::kMismatch,
               "tensor \"aa\" is not in the delta's table", "aa");
  EXPECT_EQ(files.operations(), 0U);
}

TEST_F(ApplyTest, ABaseThatIsTheTargetSaysSo) {
  put_pair();
  expect_error(apply_chain(work(), {"d.dcr"}, "new", "x").status(), Code::kMismatch,
               "\"new\" is already at the target of d.dcr; there is nothing to apply");
  // With the same table on both sides.
  TestCheckpoint later = new_;
  later.tensors["b"].bytes[0] ^= 1;
  put("later", later);
  diff("new", "later", "e.dcr");
  expect_error(apply_chain(work(), {"e.dcr"}, "later", "x").status(), Code::kMismatch,
               "\"later\" is already at the target of e.dcr; there is nothing to apply");
  expect_error(apply_chain(work(), {"d.dcr", "e.dcr"}, "new", "x").status(), Code::kMismatch,
               "\"new\" is already at the target of d.dcr; apply only the deltas after it");
  EXPECT_FALSE(disk_.exists("x"));
}

TEST_F(ApplyTest, AChainThatDoesNotConnectIsRefused) {
  put_pair();
  expect_error(apply_chain(work(), {"d.dcr", "d.dcr"}, "old", "x").status(), Code::kMismatch,
               "d.dcr does not follow d.dcr");
  expect_error(apply_chain(work(), {}, "old", "x").status(), Code::kInvalidArgument, "no delta");
}

TEST_F(ApplyTest, AnotherFileOfTheBaseIsRefused) {
  put_pair();
  disk_.put("old/tokenizer.json", text_bytes("[1]"));
  expect_error(apply_chain(work(), {"d.dcr"}, "old", "x").status(), Code::kMismatch,
               "file \"tokenizer.json\" of \"old\" is not the one that the delta was made from");
  ASSERT_TRUE(disk_.remove("old/tokenizer.json").ok());
  expect_error(apply_chain(work(), {"d.dcr"}, "old", "x").status(), Code::kNotFound,
               "file \"tokenizer.json\" is missing from \"old\"");
  EXPECT_FALSE(disk_.exists("x"));
}

TEST_F(ApplyTest, ADamagedDeltaWritesNothing) {
  put_pair();
  Bytes damaged = disk_.get("d.dcr");
  damaged[kDeltaPrologueBytes + 200] ^= 1;
  disk_.put("damaged.dcr", damaged);
  FaultFileSystem files(disk_);
  const Status status = apply_chain(work_on(files), {"damaged.dcr"}, "old", "x").status();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(files.operations(), 0U);
}

TEST_F(ApplyTest, ADeltaThatGivesOtherBitsThanItSaysIsRefused) {
  put_pair();
  DeltaFooter footer = DeltaReader::open(disk_, "d.dcr")->footer();
  footer.tensors[0].target.digest[0] ^= 1;
  footer.target_identity = target_identity(footer.tensors);
  disk_.put("lying.dcr", replace_footer(disk_.get("d.dcr"), encode_footer(footer)));
  expect_error(apply_chain(work(), {"lying.dcr"}, "old", "x").status(), Code::kCorrupt,
               "tensor \"a\" does not come out with the bits that the delta says", "a");
  EXPECT_FALSE(disk_.exists("x"));
}

TEST_F(ApplyTest, PermissionsAreKept) {
  put_pair();
  disk_.put("new/config.json", text_bytes("{\"v\":2}"), 0600);
  disk_.put("new/model.safetensors", disk_.get("new/model.safetensors"), 0444);
  ASSERT_TRUE(write_diff(forced(), "old", "new", "d.dcr").ok());
  ASSERT_TRUE(apply_chain(work(), {"d.dcr"}, "old", "x").ok());
  EXPECT_EQ(disk_.info("x/config.json", false)->permissions, 0600U);
  EXPECT_EQ(disk_.info("x/model.safetensors", false)->permissions, 0444U);
  EXPECT_EQ(disk_.info("x/tokenizer.json", false)->permissions, 0644U);
}

TEST_F(ApplyTest, AnExistingOutputNeedsForce) {
  put_pair();
  disk_.put("x/old.json", Bytes{1});
  expect_error(apply_chain(work(), {"d.dcr"}, "old", "x").status(), Code::kExists, "\"x\" exists");
  ASSERT_TRUE(apply_chain(forced(), {"d.dcr"}, "old", "x").ok());
  EXPECT_EQ(files_at("x"), files_at("new"));
  EXPECT_FALSE(disk_.exists("x.dcr-replaced"));
  // A file makes room for a directory as well.
  disk_.put("y", Bytes{1});
  ASSERT_TRUE(apply_chain(forced(), {"d.dcr"}, "old", "y").ok());
  EXPECT_EQ(files_at("y"), files_at("new"));
}

TEST_F(ApplyTest, OutputsThatWouldTakeMoreWithThemAreRefused) {
  put_pair();
  disk_.put("tree/inner/file", Bytes{1});
  disk_.put("place/d.dcr", disk_.get("d.dcr"));
  for (const auto& [name, bytes] : files_at("old")) disk_.put("place2/old/" + name, bytes);
  const auto before = disk_.all();
  expect_error(apply_chain(forced(), {"d.dcr"}, "old", "tree").status(), Code::kExists,
               "holds the directory \"inner\"");
  expect_error(apply_chain(forced(), {"d.dcr"}, "old", "old").status(), Code::kInvalidArgument,
               "is the input \"old\"");
  expect_error(apply_chain(forced(), {"place/d.dcr"}, "old", "place").status(),
               Code::kInvalidArgument, "holds the input \"place/d.dcr\"");
  expect_error(apply_chain(forced(), {"d.dcr"}, "place2/old", "place2").status(),
               Code::kInvalidArgument, "holds the input \"place2/old\"");
  expect_error(apply_chain(forced(), {"d.dcr"}, "old", "d.dcr").status(), Code::kInvalidArgument,
               "is the input \"d.dcr\"");
  EXPECT_EQ(disk_.all(), before);
}

TEST_F(ApplyTest, AFailureAnywhereLeavesNothingBehind) {
  put_pair();
  const auto before = disk_.all();
  for (std::uint64_t n = 0;; ++n) {
    FaultFileSystem files(disk_);
    files.set_fault({.operation = n, .kind = Fault::Kind::kFail});
    const Status status = apply_chain(work_on(files), {"d.dcr"}, "old", "x").status();
    if (!files.fired()) break;
    expect_error(status, Code::kIo, "No space left on device");
    if (disk_.exists("x")) {
      // Only the last step, the directory's sync, comes after the rename.
      EXPECT_EQ(n + 1, files.operations());
      EXPECT_EQ(files_at("x"), files_at("new"));
      break;
    }
    EXPECT_EQ(disk_.all(), before) << "operation " << n;
    EXPECT_FALSE(disk_.exists("x.dcr-partial"));
  }
}

TEST_F(ApplyTest, AFailureWhileReplacingKeepsOneOfTheTwo) {
  put_pair();
  const std::map<std::string, Bytes> previous{{"config.json", Bytes{1}}, {"x.json", Bytes{2}}};
  for (std::uint64_t n = 0;; ++n) {
    for (const auto& [name, bytes] : previous) disk_.put("x/" + name, bytes);
    FaultFileSystem files(disk_);
    files.set_fault({.operation = n, .kind = Fault::Kind::kFail});
    Work work = work_on(files);
    work.force = true;
    const Status status = apply_chain(work, {"d.dcr"}, "old", "x").status();
    if (!files.fired()) break;
    EXPECT_FALSE(status.ok());
    const auto now = files_at("x");
    EXPECT_TRUE(now == previous || now == files_at("new")) << "operation " << n;
    EXPECT_FALSE(disk_.exists("x.dcr-partial")) << "operation " << n;
    for (const char* place : {"x", "x.dcr-replaced"}) clear(place);
  }
}

TEST_F(ApplyTest, PowerLossLeavesAllOrNothing) {
  put_pair();
  for (std::uint64_t n = 0;; ++n) {
    FaultFileSystem files(disk_);
    files.set_fault({.operation = n, .kind = Fault::Kind::kKill, .half_done = true});
    (void)apply_chain(work_on(files), {"d.dcr"}, "old", "x");
    if (!files.fired()) break;
    for (const Unsynced unsynced : {Unsynced::kNone, Unsynced::kAll, Unsynced::kSome}) {
      const auto after = disk_.recover(unsynced, n);
      if (!after->exists("x")) continue;
      for (const auto& [name, bytes] : files_at("new")) {
        ASSERT_TRUE(after->exists("x/" + name)) << "operation " << n;
        EXPECT_EQ(after->get("x/" + name), bytes) << "operation " << n;
      }
    }
    for (const char* place : {"x", "x.dcr-partial"}) clear(place);
  }
}

TEST_F(ApplyTest, CancellingLeavesNothing) {
  put_pair();
  const auto before = disk_.all();
  CancelToken cancel;
  Work work = this->work();
  work.cancel = &cancel;
  work.progress = [&](const char* stage, std::uint64_t, std::uint64_t) {
    if (std::string(stage) == "apply") cancel.cancel();
  };
  expect_error(apply_chain(work, {"d.dcr"}, "old", "x").status(), Code::kCancelled, "cancelled");
  EXPECT_EQ(disk_.all(), before);
  EXPECT_FALSE(disk_.exists("x.dcr-partial"));
}

TEST_F(ApplyTest, DeltasThatTakeTooMuchMemoryAreRefused) {
  put_pair();
  Work small = work();
  small.memory_bytes_max = kMiB;
  expect_error(apply_chain(small, {"d.dcr"}, "old", "x").status(), Code::kTooLarge,
               "apply them in parts, or raise the memory limit");
  std::vector<DeltaReader> chain;
  chain.push_back(DeltaReader::open(disk_, "d.dcr").value());
  EXPECT_EQ(apply_window(chain, 256 * kMiB, 1), 2U);
  EXPECT_EQ(apply_window(chain, 24 * kMiB, 8), 1U);
  EXPECT_EQ(apply_window(chain, 16 * kMiB, 8), 0U);
}

}  // namespace
}  // namespace dcr
