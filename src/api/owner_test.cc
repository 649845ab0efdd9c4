#include "dcr/owner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "dcr/cancel.h"

namespace dcr {
namespace {

using Words = std::vector<std::uint16_t>;
using Encoded = std::vector<std::uint8_t>;

constexpr std::uint64_t kRows = 6, kColumns = 5;

// Rank `rank` of two has every second row of "weight", cut as [3, 5], and both have all of "norm".
RankDeclaration declaration_of(std::uint32_t rank) {
  RankDeclaration declaration{rank, 2, {}, {}};
  declaration.tensors.push_back({"weight", Dtype::kBF16, {kRows, kColumns}, 0});
  declaration.tensors.push_back({"norm", Dtype::kBF16, {kColumns}, 0});
  DeclaredTask weight{
      "weight/" + std::to_string(rank), Dtype::kBF16, {3, kColumns}, {kColumns, 1}, {}};
  weight.parts.push_back(
      {0, {0, rank * kColumns, {{3, kColumns, 2 * kColumns}, {kColumns, 1, 1}}}});
  DeclaredTask norm{"norm", Dtype::kBF16, {kColumns}, {1}, {}};
  norm.parts.push_back({1, {0, 0, {{kColumns, 1, 1}}}});
  declaration.tasks = {std::move(weight), std::move(norm)};
  return declaration;
}

std::span<const std::uint8_t> bytes_of(const Words& words) {
  return {reinterpret_cast<const std::uint8_t*>(words.data()), words.size() * 2};
}

class CountingSink final : public PayloadSink {
 public:
  Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) override {
    EXPECT_EQ(number, payloads++);
    size += bytes.size();
    return {};
  }
  std::uint64_t payloads = 0, size = 0;
};

// Two ranks, each with its weights and its owner.
struct TwoRanks {
  Words weights[2] = {Words(15, 1), Words(15, 2)};
  Words norms[2] = {Words(5, 3), Words(5, 3)};
  HostStorages memories[2] = {HostStorages(2), HostStorages(2)};
  std::vector<Encoded> declarations;

  TwoRanks() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      declarations.push_back(encode_declaration(declaration_of(rank)));
      memories[rank].set(0, bytes_of(weights[rank]));
      memories[rank].set(1, bytes_of(norms[rank]));
    }
  }

  Result<std::unique_ptr<EmbeddedOwner>> make(std::uint32_t rank,
                                              const CancelToken* cancel = nullptr) {
    const std::vector<std::span<const std::uint8_t>> all(declarations.begin(), declarations.end());
    EmbeddedOwnerOptions options;
    options.threads = 1;
    return EmbeddedOwner::create(all, rank, memories[rank], std::move(options), cancel);
  }
};

OwnerAttempt attempt_to(std::uint64_t version) {
  OwnerAttempt attempt;
  attempt.attempt = version;
  attempt.candidate = version;
  attempt.base_version = version - 1;
  attempt.target_version = version;
  return attempt;
}

TEST(EmbeddedOwner, RanksAgreeOnWhoSendsWhat) {
  TwoRanks ranks;
  std::uint64_t words = 0;
  std::vector<std::vector<CanonicalBox>> boxes;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto owner = ranks.make(rank);
    ASSERT_TRUE(owner.ok()) << owner.status().message();
    EXPECT_EQ((*owner)->tensors()[0].name, "norm");
    EXPECT_EQ((*owner)->tensors()[1].name, "weight");
    words += (*owner)->sizes().canonical_words;
    if (rank == 0) boxes = (*owner)->boxes();
    EXPECT_EQ(boxes, (*owner)->boxes());
  }
  EXPECT_EQ(words, kRows * kColumns + kColumns);
  EXPECT_EQ(boxes[0].back(), (CanonicalBox{1, 0, {3, kColumns}, {2 * kColumns, 1}}));
}

TEST(EmbeddedOwner, PreparesWhatChangedAndCommits) {
  TwoRanks ranks;
  const auto made = ranks.make(1);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EmbeddedOwner& owner = **made;
  EXPECT_FALSE(owner.baseline_version());
  ASSERT_TRUE(owner.initialize(0).ok());
  Words moved = ranks.weights[1];
  moved[7] = 99;
  ranks.memories[1].set(0, bytes_of(moved));
  CountingSink sink;
  const auto result = owner.prepare(attempt_to(1), sink);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->changed_source_elements, 1u);
  EXPECT_EQ(result->entries, 1u);
  EXPECT_EQ(result->payloads, sink.payloads);
  EXPECT_EQ(result->payload_bytes, sink.size);
  EXPECT_FALSE(result->stages.empty());
  ASSERT_TRUE(owner.commit(1).ok());
  EXPECT_EQ(owner.baseline_version(), 1u);
  CountingSink restored;
  EXPECT_TRUE(owner.restore({}, 2, 1, restored).ok());
  EXPECT_GT(restored.payloads, 0u);
  EXPECT_EQ(owner.restore({}, 3, 7, restored).status().code(), Code::kMismatch);
}

TEST(EmbeddedOwner, FindsWhatChangedUnderARefit) {
  TwoRanks ranks;
  const auto made = ranks.make(0);
  ASSERT_TRUE(made.ok());
  EmbeddedOwner& owner = **made;
  ASSERT_TRUE(owner.initialize(0).ok());
  ranks.weights[0][3] = 50;
  CountingSink sink;
  ASSERT_TRUE(owner.prepare(attempt_to(1), sink).ok());
  ranks.weights[0][3] = 51;
  const Status status = owner.commit(1);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("weight"), std::string::npos) << status.message();
  EXPECT_FALSE(owner.baseline_version());
  CountingSink after;
  const auto next = owner.prepare(attempt_to(2), after);
  ASSERT_TRUE(next.ok()) << next.status().message();
  EXPECT_EQ(next->mode, AttemptMode::kDense);
}

TEST(EmbeddedOwner, StopsWhenAsked) {
  TwoRanks ranks;
  const auto made = ranks.make(0);
  ASSERT_TRUE(made.ok());
  CancelToken cancel;
  cancel.cancel();
  EXPECT_EQ(ranks.make(0, &cancel).status().code(), Code::kCancelled);
  EXPECT_EQ((*made)->initialize(0, {&cancel, {}}).code(), Code::kCancelled);
  cancel.reset();
  EXPECT_TRUE((*made)->initialize(0, {&cancel, {}}).ok());
}

TEST(EmbeddedOwner, ComparesReplicas) {
  TwoRanks ranks;
  std::vector<Encoded> digests;
  std::vector<std::unique_ptr<EmbeddedOwner>> owners;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    auto owner = ranks.make(rank);
    ASSERT_TRUE(owner.ok());
    owners.push_back(std::move(owner).value());
    digests.push_back(owners.back()->replica_digests().value());
  }
  std::vector<std::span<const std::uint8_t>> all(digests.begin(), digests.end());
  EXPECT_TRUE(owners[0]->check_replicas(all).ok());
  ranks.norms[1][4] = 4;
  digests[1] = owners[1]->replica_digests().value();
  all = {digests.begin(), digests.end()};
  const Status status = owners[0]->check_replicas(all);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("\"norm\" differ: rank 0 and rank 1"), std::string::npos)
      << status.message();
  all[1] = all[1].first(all[1].size() - 1);
  EXPECT_EQ(owners[0]->check_replicas(all).code(), Code::kCorrupt);
}

// What ranks say that contradicts itself or another rank, and what is said of it.
TEST(EmbeddedOwner, RefusesContradictions) {
  struct Case {
    const char* said;
    void (*spoil)(RankDeclaration*);
  };
  const Case cases[] = {
      {"rank 0 declares BF16 [6, 5] and rank 1 F32 [6, 5]",
       [](RankDeclaration* d) { d->tensors[0].dtype = Dtype::kF32; }},
      {"with tensor \"huge\" of rank 1 there are more than",
       [](RankDeclaration* d) {
         d->tensors.push_back({"huge", Dtype::kF64, {std::uint64_t{1} << 39, 100}, 0});
       }},
      {"declaration 1 of 2 is of rank 0 of 2", [](RankDeclaration* d) { d->rank = 0; }},
      {"different shapes or dtypes", [](RankDeclaration* d) { d->tasks[1].sizes = {4}; }},
      {"place it differently",
       [](RankDeclaration* d) { d->tasks[1].parts[0].box.dims[0].size = 4; }},
      {"tensor \"weight\"", [](RankDeclaration* d) { d->tasks[0].parts.clear(); }},
      {"hold elements of it in common",
       [](RankDeclaration* d) { d->tasks[0].parts[0].box.destination_offset = 0; }},
      {"task \"norm\": rank 1 declares it twice",
       [](RankDeclaration* d) { d->tasks.push_back(d->tasks[1]); }},
      {"tensor \"norm\": rank 1 declares it twice",
       [](RankDeclaration* d) { d->tensors.push_back(d->tensors[1]); }},
      {"task \"weight/1\"",
       [](RankDeclaration* d) {
         d->tasks[0].strides = {~std::uint64_t{0} / 2, 1};
       }},
  };
  for (const Case& one : cases) {
    TwoRanks ranks;
    RankDeclaration spoilt = declaration_of(1);
    one.spoil(&spoilt);
    ranks.declarations[1] = encode_declaration(spoilt);
    const auto owner = ranks.make(0);
    ASSERT_FALSE(owner.ok()) << one.said;
    EXPECT_NE(owner.status().message().find(one.said), std::string::npos)
        << one.said << "\n"
        << owner.status().message();
  }
}

TEST(EmbeddedOwner, PartsOfAShard) {
  // Rows 2 and 3 of a [4, 6] tensor whose columns are dealt out to two tensors.
  const DeclaredBox shard{0, 12, {{2, 6, 6}, {6, 1, 1}}};
  const std::vector<DeclaredPart> whole = {{0, {0, 0, {{12, 2, 1}}}}, {1, {1, 0, {{12, 2, 1}}}}};
  const auto parts = parts_of_shard(std::span(&shard, 1), whole);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  const std::vector<DeclaredPart> want = {{0, {0, 6, {{6, 2, 1}}}}, {1, {1, 6, {{6, 2, 1}}}}};
  EXPECT_EQ(*parts, want);
  const DeclaredBox repeated{0, 0, {{2, 1, 0}}};
  EXPECT_EQ(parts_of_shard(std::span(&repeated, 1), whole).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace dcr
