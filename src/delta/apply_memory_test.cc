#include "delta/apply_memory.h"

#include <gtest/gtest.h>

#include "delta/diff.h"
#include "delta/verify.h"
#include "tests/support/campaign.h"
#include "tests/support/delta_disk.h"

namespace dcr {
namespace {

// Tensors of a checkpoint in memory, which it owns.
class State {
 public:
  explicit State(const TestCheckpoint& checkpoint) : tensors_(checkpoint.tensors) {}

  std::vector<MemoryTensor> get() {
    std::vector<MemoryTensor> result;
    for (auto& [name, tensor] : tensors_) {
      result.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
    }
    return result;
  }
  // Gets the tensors of a result.
  TensorMemory memory() {
    return [this](const CanonicalTensor& wanted) -> std::span<std::uint8_t> {
      TestTensor& tensor = tensors_[wanted.name];
      tensor = {wanted.dtype, wanted.shape, {}, 0};
      tensor.bytes.resize(
          static_cast<std::size_t>(tensor_bytes(wanted.dtype, wanted.shape).value()));
      return tensor.bytes;
    };
  }
  std::map<std::string, TestTensor>& tensors() { return tensors_; }
  bool equals(const TestCheckpoint& checkpoint) const {
    return std::equal(tensors_.begin(), tensors_.end(), checkpoint.tensors.begin(),
                      checkpoint.tensors.end(), [](const auto& a, const auto& b) {
                        return a.first == b.first && a.second.dtype == b.second.dtype &&
                               a.second.shape == b.second.shape && a.second.bytes == b.second.bytes;
                      });
  }

 private:
  std::map<std::string, TestTensor> tensors_;
};

class ApplyMemoryTest : public DeltaDiskTest {
 protected:
  void diff(const CheckpointSource& from, const CheckpointSource& to, const std::string& delta) {
    const Result<DiffReport> report = write_diff(forced(), from, to, delta);
    ASSERT_TRUE(report.ok()) << report.status().message();
  }

  void expect_refused(std::span<const MemoryTensor> base, Code code, const std::string& words,
                      const std::string& tensor = {}) {
    const Status status = apply_chain_in_memory(work(), {"d.dcr"}, base).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(status.tensor(), tensor);
  }

  // "old" and "new" have the same tensors; "d.dcr" is their delta.
  void put_pair() {
    Prng prng(3);
    for (const char* name : {"a", "b"}) {
      old_.tensors[name] = {Dtype::kBF16, {500}, random_bytes(prng, 1000), 0};
    }
    old_.tensors["empty"] = {Dtype::kF32, {0, 3}, {}, 0};
    old_.tensors["scalar"] = {Dtype::kF64, {}, random_bytes(prng, 8), 0};
    new_ = old_;
    change_words(prng, &new_.tensors["a"], 30);
    change_words(prng, &new_.tensors["b"], 30);
    change_words(prng, &new_.tensors["scalar"], 1);
    put("old", old_);
    put("new", new_);
    diff("old", "new", "d.dcr");
  }

  TestCheckpoint old_, new_;
};

TEST_F(ApplyMemoryTest, RandomChainsGiveTheTargetsBits) {
  for (std::uint64_t seed = 0; seed < campaign_cases(200); ++seed) {
    SCOPED_TRACE(seed);
    disk_ = MemoryFileSystem();
    Prng prng(seed);
    executor_ = make_executor(1 + static_cast<unsigned>(prng.below(3)));
    const TestCheckpoint first = random_checkpoint(prng);
    TestCheckpoint checkpoint = first;
    put("v0", checkpoint);
    std::vector<std::string> deltas;
    for (unsigned i = 1; i <= 3; ++i) {
      State before(checkpoint);
      checkpoint = random_successor(prng, checkpoint);
      State after(checkpoint);
      put("v" + std::to_string(i), checkpoint);
      deltas.push_back("d" + std::to_string(i));
      // Files and memory may be mixed.
      const auto from = before.get(), to = after.get();
      const bool from_memory = prng.below(2) == 0;
      diff(from_memory ? CheckpointSource(from) : "v" + std::to_string(i - 1), CheckpointSource(to),
           deltas.back());
    }
    State base(first), made((TestCheckpoint()));
    const auto tensors = base.get();
    const bool from_memory = prng.below(2) == 0;
    const Result<ApplyReport> report = apply_chain_to_memory(
        work(), deltas, from_memory ? CheckpointSource(tensors) : "v0", made.memory());
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->tensors, checkpoint.tensors.size());
    ASSERT_TRUE(made.equals(checkpoint));
    ASSERT_TRUE(base.equals(first));
  }
}

TEST_F(ApplyMemoryTest, InPlaceGivesTheTargetsBits) {
  for (const unsigned threads : {1U, 3U}) {
    executor_ = make_executor(threads);
    put_pair();
    Prng prng(4);
    TestCheckpoint last = new_;
    change_words(prng, &last.tensors["a"], 100);
    put("last", last);
    diff("new", "last", "e.dcr");
    State state(old_);
    const Result<ApplyReport> report =
        apply_chain_in_memory(work(), {"d.dcr", "e.dcr"}, state.get());
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_TRUE(state.equals(last));
    EXPECT_EQ(report->tensors, 4U);
    EXPECT_GT(report->changed, 100U);
  }
}

TEST_F(ApplyMemoryTest, ABaseThatIsNotTheDeltasStaysAsItIs) {
  put_pair();
  TestCheckpoint wrong = old_;
  wrong.tensors["b"].bytes[999] ^= 1;
  State state(wrong);
  expect_refused(state.get(), Code::kMismatch, "tensor \"b\" has other bits", "b");
  EXPECT_TRUE(state.equals(wrong));
  State done(new_);
  expect_refused(done.get(), Code::kMismatch, "already at the target of d.dcr");
  EXPECT_TRUE(done.equals(new_));
}

TEST_F(ApplyMemoryTest, ADeltaThatIsCorruptChangesNothing) {
  put_pair();
  Bytes delta = disk_.get("d.dcr");
  for (std::size_t at = 0; at < delta.size(); at += 7) {
    Bytes broken = delta;
    broken[at] ^= 0x10;
    disk_.put("d.dcr", broken);
    State state(old_);
    EXPECT_FALSE(apply_chain_in_memory(work(), {"d.dcr"}, state.get()).ok()) << at;
    EXPECT_TRUE(state.equals(old_)) << at;
  }
}

TEST_F(ApplyMemoryTest, ACancelledOneChangesNothing) {
  put_pair();
  CancelToken cancel;
  Work work = this->work();
  work.cancel = &cancel;
  work.progress = [&](const char* stage, std::uint64_t, std::uint64_t) {
    if (std::string(stage) == "apply") cancel.cancel();
  };
  State state(old_);
  EXPECT_EQ(apply_chain_in_memory(work, {"d.dcr"}, state.get()).status().code(), Code::kCancelled);
  EXPECT_TRUE(state.equals(old_));
}

TEST_F(ApplyMemoryTest, TensorsThatComeOrGoAreNotDoneInPlace) {
  put_pair();
  TestCheckpoint more = new_;
  more.tensors["more"] = {Dtype::kU8, {1}, {7}, 0};
  put("more", more);
  diff("old", "more", "d.dcr");
  State state(old_);
  expect_refused(state.get(), Code::kMismatch, "adds tensor \"more\"", "more");
  diff("more", "new", "d.dcr");
  State larger(more);
  expect_refused(larger.get(), Code::kMismatch, "removes tensor \"more\"", "more");
  more.tensors["more"] = {Dtype::kI8, {1}, {7}, 0};
  put("more", more);
  TestCheckpoint retyped = more;
  retyped.tensors["more"].shape = {1, 1};
  put("retyped", retyped);
  diff("more", "retyped", "d.dcr");
  State other(more);
  expect_refused(other.get(), Code::kMismatch, "gives another dtype or shape to", "more");
}

TEST_F(ApplyMemoryTest, TiedTensorsAreChangedOnce) {
  put_pair();
  old_.tensors["tied"] = old_.tensors["a"];
  new_.tensors["tied"] = new_.tensors["a"];
  put("old", old_);
  put("new", new_);
  diff("old", "new", "d.dcr");
  State state(old_);
  std::vector<MemoryTensor> tensors = state.get();
  tensors.back().bytes = tensors.front().bytes;
  ASSERT_EQ(tensors.back().name, "tied");
  const Result<ApplyReport> report = apply_chain_in_memory(work(), {"d.dcr"}, tensors);
  ASSERT_TRUE(report.ok()) << report.status().message();
  state.tensors()["tied"] = state.tensors()["a"];
  EXPECT_TRUE(state.equals(new_));
}

TEST_F(ApplyMemoryTest, TiedTensorsThatPartAreRefused) {
  put_pair();
  old_.tensors["tied"] = old_.tensors["a"];
  new_.tensors["tied"] = old_.tensors["a"];
  put("old", old_);
  put("new", new_);
  diff("old", "new", "d.dcr");
  State state(old_);
  std::vector<MemoryTensor> tensors = state.get();
  tensors.back().bytes = tensors.front().bytes;
  expect_refused(tensors, Code::kMismatch, "share memory, but get different bits", "tied");
  EXPECT_TRUE(state.equals(old_));
}

TEST_F(ApplyMemoryTest, TensorsThatOverlapInPartAreRefused) {
  put_pair();
  Bytes memory(1500);
  State state(old_);
  std::vector<MemoryTensor> tensors = state.get();
  tensors[0].bytes = std::span(memory).first(1000);
  tensors[1].bytes = std::span(memory).last(1000);
  expect_refused(tensors, Code::kInvalidArgument, "share a part of their memory", "b");
}

TEST_F(ApplyMemoryTest, MemoryIsVerifiedAsFilesAre) {
  put_pair();
  State before(old_), after(new_);
  const auto a = before.get(), b = after.get();
  std::vector<std::string> differing;
  const auto found = [&](DifferenceKind kind, const std::string& name, const std::string&) {
    EXPECT_EQ(kind, DifferenceKind::kBits);
    differing.push_back(name);
  };
  Result<VerifyReport> report =
      compare_checkpoints(work(), CheckpointSource(a), "new", false, found);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(differing, (std::vector<std::string>{"a", "b", "scalar"}));
  new_.metadata = {{"format", "pt"}};
  put("new", new_);
  report = compare_checkpoints(work(), "new", CheckpointSource(b), false, found);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->differing, 0U);
  EXPECT_EQ(compare_checkpoints(work(), "new", CheckpointSource(b), true, found).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace dcr
