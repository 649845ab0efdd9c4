#include "receiver/receiver.h"

#include <gtest/gtest.h>

#include "receiver/test_refit.h"

namespace dcr {
namespace {

const AttemptHeader kAttempt = {{9}, 7, 4, 5};

// "a": BF16 [8, 8], whole; "c": BF16 [6], cast to F32; "d": I8 [4], with its sign bit flipped.
// Owner 0 has rows 0 to 3 of "a", owner 1 the rest.
class ReceiverTest : public testing::Test {
 public:
  TestRank rank;
  Catalogue catalogue = make_catalogue(
      {{"a", Dtype::kBF16, {8, 8}}, {"c", Dtype::kBF16, {6}}, {"d", Dtype::kI8, {4}}});
  std::unique_ptr<Executor> executor = make_executor(1);
  std::unique_ptr<Receiver> receiver;
  ReceiverOptions options;
  std::vector<Bytes> old_words = {Bytes(128, 0x11), Bytes(12, 0x22), Bytes(4, 0x33)};
  std::vector<Bytes> before;
  TensorView a, c, d;
  bool cast_shifted = false;  // "c" is loaded into other elements than at prewarm

  void SetUp() override {
    TestLoader& loader = rank.loader;
    a = loader.add_target("pa", Dtype::kBF16, {8, 8});
    c = loader.add_target("pc", Dtype::kF32, {7});
    d = loader.add_target("pd", Dtype::kI8, {4});
    loader.loads["a"] = [&](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      DCR_TRY(loader.copy(hook, a, value));
      return LoadReport::kLoaded;
    };
    loader.loads["c"] = [&](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      DCR_TRY(loader.fill(hook, narrow(c, 0, cast_shifted ? 0 : 6, 1), 0));
      DCR_TRY(loader.copy(hook, narrow(c, 0, cast_shifted ? 1 : 0, 6), value));
      return LoadReport::kLoaded;
    };
    loader.loads["d"] = [&](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      DCR_ASSIGN(
          const TensorView made,
          loader.temporary(value, [](std::uint64_t word, std::uint64_t) { return word ^ 0x80; }));
      DCR_TRY(loader.copy(hook, d, made));
      return LoadReport::kLoaded;
    };
    options.owners = {
        {{0, ItemBox::range(0, 32)}},
        {{0, ItemBox::range(32, 32)}, {1, ItemBox::range(0, 6)}, {2, ItemBox::range(0, 4)}}};
  }

  void start() {
    ASSERT_TRUE(load_dense(rank.loader, catalogue, old_words).ok());
    before = rank.parameters();
    auto made = Receiver::create(catalogue, rank.loader, rank.memory, *executor, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    receiver = std::move(made).value();
    Status status = receiver->prewarm();
    ASSERT_TRUE(status.ok()) << status.message();
    status = receiver->begin_attempt(kAttempt);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  PayloadHeader header(std::uint32_t owner, std::uint64_t number) const {
    PayloadHeader made;
    made.run = kAttempt.run;
    made.attempt = kAttempt.attempt;
    made.base_version = kAttempt.base_version;
    made.target_version = kAttempt.target_version;
    made.owner = owner;
    made.owners = 2;
    made.number = number;
    made.schema = catalogue.schema();
    return made;
  }

  // Sets words [first, first + values.size()) of a tensor, in an item over `box`.
  EncodedItem item(std::uint32_t tensor, const ItemBox& box, std::uint64_t first,
                   const std::vector<std::uint64_t>& values,
                   Encoding encoding = Encoding::kOverwrite) const {
    const unsigned width = word_bytes(catalogue[tensor].dtype);
    Bytes after = old_words[tensor];
    for (std::size_t i = 0; i < values.size(); ++i) set_word(&after, width, first + i, values[i]);
    ItemEncoder encoder;
    EncodedItem made;
    EXPECT_TRUE(encode_case(&encoder, {width, box, old_words[tensor], after}, tensor,
                            choice_of(encoding), &made));
    return made;
  }

  Bytes payload(std::uint32_t owner, std::uint64_t number, std::vector<EncodedItem> items) const {
    return seal_payload(header(owner, number), std::move(items)).bytes;
  }

  // The error of ingesting, which changes nothing and fails the attempt.
  std::string ingest_error(const Bytes& bytes) {
    const Result<Ingested> result = receiver->ingest(bytes);
    EXPECT_FALSE(result.ok());
    if (result.ok()) return "";
    EXPECT_EQ(rank.parameters(), before);
    EXPECT_EQ(receiver->apply().status().message(), result.status().message());
    EXPECT_EQ(receiver->finish().status().message(), result.status().message());
    EXPECT_EQ(rank.parameters(), before);
    return result.status().message();
  }

  void expect_ingested(const Bytes& bytes, Ingested as = Ingested::kQueued) {
    const Result<Ingested> result = receiver->ingest(bytes);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(*result, as);
  }

  Result<ReceiverCounts> finish(std::uint64_t payloads0, std::uint64_t payloads1) {
    DCR_TRY(receiver->end_of_owner(0, payloads0));
    DCR_TRY(receiver->end_of_owner(1, payloads1));
    const auto applied = receiver->apply();
    if (!applied.ok()) return applied.status();
    return receiver->finish();
  }

  std::uint64_t word(const TensorView& view, std::uint64_t index) {
    const MutableByteSpan bytes = rank.memory.bytes(view.storage);
    return get_word(Bytes(bytes.begin(), bytes.end()), word_bytes(view.dtype), index);
  }
};

TEST_F(ReceiverTest, ClassesAndCounts) {
  start();
  EXPECT_EQ(receiver->classes()[0].path, TensorPath::kTraced);
  EXPECT_EQ(receiver->classes()[1].path, TensorPath::kScratch);
  EXPECT_EQ(receiver->classes()[2].path, TensorPath::kDense);
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 32), 3, {1, 2, 3}, Encoding::kAdd)}));
  expect_ingested(payload(1, 0,
                          {item(0, ItemBox::range(32, 32), 40, {9}, Encoding::kXor),
                           item(1, ItemBox::range(0, 6), 1, {0x3f80, 0x8000}),
                           whole_item(2, 1, ItemBox::range(0, 4), {1, 2, 3, 0x80})}));
  const auto counts = finish(1, 1);
  ASSERT_TRUE(counts.ok()) << counts.status().message();
  EXPECT_EQ(counts->payloads, 2u);
  EXPECT_EQ(counts->entries, 10u);
  EXPECT_EQ(counts->destinations, 10u);
  EXPECT_EQ(word(a, 2), 0x1111u);
  EXPECT_EQ(word(a, 3), 1u);
  EXPECT_EQ(word(a, 40), 9u);
  EXPECT_EQ(word(c, 0), 0x22220000u);
  EXPECT_EQ(word(c, 1), 0x3f800000u);
  EXPECT_EQ(word(c, 2), 0x80000000u);
  EXPECT_EQ(word(c, 6), 0u);
  EXPECT_EQ(word(d, 0), 0x81u);
  EXPECT_EQ(word(d, 3), 0x00u);
  EXPECT_EQ(rank.memory.scratch_bytes(), 12u);  // for "c", kept
}

// Hostile case 30: a value that is the placeholder is no placeholder.
TEST_F(ReceiverTest, AValueEqualToThePlaceholderIsWritten) {
  start();
  expect_ingested(payload(
      1, 0, {item(1, ItemBox::range(0, 6), 0, {0x7fc0, 0x7fc1, 0xffc0, 0x7f81, 0x8000, 0x0001})}));
  const auto counts = finish(0, 1);
  ASSERT_TRUE(counts.ok()) << counts.status().message();
  const std::uint32_t wanted[] = {0x7fc00000, 0x7fc10000, 0xffc00000,
                                  0x7f810000, 0x80000000, 0x00010000};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(word(c, i), wanted[i]) << i;
}

TEST_F(ReceiverTest, OtherAttemptsAreDropped) {
  start();
  PayloadHeader other = header(0, 0);
  const std::vector<EncodedItem> items = {item(0, ItemBox::range(0, 32), 0, {7})};
  for (const std::uint64_t attempt : {std::uint64_t{6}, std::uint64_t{8}}) {
    other.attempt = attempt;
    expect_ingested(seal_payload(other, items).bytes, Ingested::kOtherAttempt);
  }
  other = header(0, 0);
  other.run = {1};
  expect_ingested(seal_payload(other, items).bytes, Ingested::kOtherAttempt);
  // Whatever was agreed on then.
  other.schema = {1};
  expect_ingested(
      seal_payload(other, {item(1, ItemBox::range(0, 6), 0, {7}, Encoding::kXor)}).bytes,
      Ingested::kOtherAttempt);
  EXPECT_TRUE(finish(0, 0).ok());
  EXPECT_EQ(rank.parameters(), before);
}

TEST_F(ReceiverTest, OwnersAndVersionsAreTheAttempts) {
  const std::vector<EncodedItem> items = {item(0, ItemBox::range(0, 32), 0, {7})};
  start();
  PayloadHeader other = header(0, 0);
  other.owners = 3;
  EXPECT_EQ(ingest_error(seal_payload(other, items).bytes),
            "payload 0 of owner 0 counts 3 owners; there are 2");
  start();
  other = header(0, 0);
  other.base_version = 3;
  EXPECT_EQ(ingest_error(seal_payload(other, items).bytes),
            "payload 0 of owner 0 goes from version 3 to 5; the attempt goes from 4 to 5");
}

// Hostile case 29.
TEST_F(ReceiverTest, XorWhereOnlyOverwriteIsExact) {
  start();
  EXPECT_EQ(ingest_error(payload(1, 0, {item(1, ItemBox::range(0, 6), 0, {7}, Encoding::kXor)})),
            "payload: item 0 (tensor index 1): xor on a tensor that takes overwrite only");
}

// Hostile case 36.
TEST_F(ReceiverTest, ItemsOutsideOfWhatTheirOwnerOwns) {
  start();
  EXPECT_EQ(ingest_error(payload(0, 0, {item(0, ItemBox::range(30, 4), 31, {7})})),
            "tensor \"a\": owner 0 sent an item outside of what it owns");
  start();
  EXPECT_EQ(ingest_error(payload(0, 0, {item(1, ItemBox::range(0, 6), 0, {7})})),
            "tensor \"c\": owner 0 sent an item outside of what it owns");
}

TEST_F(ReceiverTest, TwoOwnersOfOneElement) {
  options.owners[0][0].box = ItemBox::range(0, 40);  // shares 32 to 39 with owner 1
  start();
  EXPECT_TRUE(receiver->specs()[0].overwrite_only);
  EXPECT_EQ(receiver->classes()[0].need, Need::kOverwrite);
  // Equal bits.
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 40), 33, {7, 8})}));
  expect_ingested(payload(1, 0, {item(0, ItemBox::range(32, 32), 34, {8, 9})}));
  EXPECT_TRUE(finish(1, 1).ok());
  EXPECT_EQ(word(a, 33), 7u);
  EXPECT_EQ(word(a, 34), 8u);
  EXPECT_EQ(word(a, 35), 9u);
  // Different bits.
  start();
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 40), 33, {7, 8})}));
  EXPECT_EQ(ingest_error(payload(1, 0, {item(0, ItemBox::range(32, 32), 34, {6})})),
            "tensor \"a\": owners 0 and 1 sent different bits for element 34");
}

TEST_F(ReceiverTest, OneOwnerTwice) {
  start();
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 16), 0, {7})}));
  expect_ingested(payload(0, 1, {item(0, ItemBox::range(16, 16), 20, {7})}));
  EXPECT_EQ(ingest_error(payload(0, 2, {item(0, ItemBox::range(10, 4), 12, {7})})),
            "tensor \"a\": owner 0 sent elements twice");
  start();
  const ItemBox columns = {1, {{4, 8}, {3, 1}}};
  expect_ingested(payload(0, 0, {item(0, columns, 9, {7})}));
  expect_ingested(payload(0, 1, {item(0, {4, {{4, 8}, {2, 1}}}, 12, {7})}));
  EXPECT_EQ(ingest_error(payload(0, 2, {item(0, ItemBox::range(10, 4), 12, {7})})),
            "tensor \"a\": owner 0 sent elements twice");
}

TEST_F(ReceiverTest, DuplicatesAndConflicts) {
  start();
  const Bytes first = payload(0, 0, {item(0, ItemBox::range(0, 32), 0, {7})});
  expect_ingested(first);
  expect_ingested(first, Ingested::kDuplicate);
  const std::string error = ingest_error(payload(0, 0, {item(0, ItemBox::range(0, 32), 0, {8})}));
  EXPECT_TRUE(error.starts_with("payload 0 of owner 0 came twice with other bytes: digests "))
      << error;
}

TEST_F(ReceiverTest, EveryBrokenBitChangesNothing) {
  start();
  const Bytes good = payload(
      1, 0,
      {item(0, ItemBox::range(32, 32), 40, {9, 8, 7}), item(1, ItemBox::range(0, 6), 1, {0x3f80})});
  std::size_t dropped = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes broken = good;
    broken[bit / 8] = static_cast<std::uint8_t>(broken[bit / 8] ^ (1u << bit % 8));
    ASSERT_TRUE(receiver->begin_attempt(kAttempt).ok());
    const Result<Ingested> result = receiver->ingest(broken);
    ASSERT_TRUE(!result.ok() || *result == Ingested::kOtherAttempt) << bit;
    dropped += result.ok() ? 1u : 0u;
  }
  EXPECT_EQ(dropped, 8 * (sizeof(Digest) + sizeof(std::uint64_t)));  // those of run and attempt
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_TRUE(receiver->begin_attempt(kAttempt).ok());
    ASSERT_FALSE(receiver->ingest(ByteSpan(good).first(size)).ok()) << size;
  }
  EXPECT_EQ(rank.parameters(), before);
  // The next attempt succeeds.
  ASSERT_TRUE(receiver->begin_attempt(kAttempt).ok());
  expect_ingested(good);
  EXPECT_TRUE(finish(0, 1).ok());
}

TEST_F(ReceiverTest, AWholeTensorThatCameInPart) {
  start();
  expect_ingested(payload(1, 0, {item(2, ItemBox::range(0, 4), 1, {1, 2, 3})}));
  EXPECT_EQ(finish(0, 1).status().message(),
            "tensor \"d\": its loader needs it whole, and 3 of 4 words came");
  EXPECT_EQ(rank.parameters(), before);
  // In two payloads it is whole.
  ASSERT_TRUE(receiver->begin_attempt(kAttempt).ok());
  expect_ingested(payload(1, 1, {whole_item(2, 1, ItemBox::range(2, 2), {0, 0, 6, 7})}));
  expect_ingested(payload(1, 0, {whole_item(2, 1, ItemBox::range(0, 2), {4, 5, 0, 0})}));
  EXPECT_TRUE(finish(0, 2).ok());
  EXPECT_EQ(word(d, 3), 0x87u);
}

TEST_F(ReceiverTest, AnotherPrewarmForgetsWhereThingsWere) {
  start();
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 32), 3, {1})}));
  EXPECT_TRUE(finish(1, 0).ok());
  const std::uint64_t old_storage = a.storage;
  a.storage = rank.memory.add(128);
  rank.loader.all_targets[0].view = a;
  ASSERT_TRUE(receiver->prewarm().ok());
  ASSERT_TRUE(receiver->begin_attempt(kAttempt).ok());
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 32), 4, {2})}));
  EXPECT_TRUE(finish(1, 0).ok());
  EXPECT_EQ(word(a, 4), 2u);
  EXPECT_EQ(rank.memory.bytes(old_storage)[8], 0x11);
}

// Halves that two owners send both: the tensor is whole when both halves came, not two of any.
TEST_F(ReceiverTest, AWholeTensorOfTwoOwners) {
  options.owners[0].push_back({2, ItemBox::range(0, 4)});
  start();
  const Bytes words = {1, 2, 3, 4};
  for (std::uint32_t owner = 0; owner < 2; ++owner) {
    expect_ingested(payload(owner, 0, {whole_item(2, 1, ItemBox::range(0, 2), words)}));
    expect_ingested(payload(owner, 1, {whole_item(2, 1, ItemBox::range(2, 2), words)}));
  }
  const auto counts = finish(2, 2);
  ASSERT_TRUE(counts.ok()) << counts.status().message();
  EXPECT_EQ(rank.memory.bytes(d.storage)[0], 0x81);
  EXPECT_EQ(rank.memory.bytes(d.storage)[3], 0x84);
}

TEST_F(ReceiverTest, RefusedTensors) {
  rank.loader.loads["a"] = [this](const TensorView&, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(rank.loader.event(hook, LoaderEventKind::kReplace, a));
    return LoadReport::kLoaded;
  };
  start();
  EXPECT_EQ(receiver->classes()[0].path, TensorPath::kRefused);
  EXPECT_EQ(ingest_error(payload(0, 0, {item(0, ItemBox::range(0, 32), 0, {7})})),
            "tensor \"a\" is refused: the loader gives a parameter another storage");
}

TEST_F(ReceiverTest, TheLayoutIsBoundToThePrewarm) {
  start();
  const Digest fingerprint = receiver->fingerprint();
  const TensorView kept = a;
  rank.loader.all_targets[0].view.storage = rank.memory.add(128);
  EXPECT_EQ(receiver->begin_attempt(kAttempt).message(),
            "parameters lie elsewhere, or are others, than at prewarm; prewarm again");
  EXPECT_EQ(receiver->ingest(Bytes{}).status().message(), "the receiver is in no attempt");
  rank.loader.all_targets[0].view = kept;
  ASSERT_TRUE(receiver->begin_attempt(kAttempt).ok());
  rank.loader.all_targets[0].view.storage = rank.memory.add(128);
  EXPECT_EQ(finish(0, 0).status().message(),
            "parameters moved during the attempt; prewarm again and refit dense");
  rank.loader.all_targets[0].view = kept;
  ASSERT_TRUE(receiver->prewarm().ok());
  EXPECT_EQ(receiver->fingerprint(), fingerprint);
}

TEST_F(ReceiverTest, ALoaderThatChangedItsWaysWritesNothing) {
  start();
  cast_shifted = true;
  expect_ingested(payload(1, 0, {item(1, ItemBox::range(0, 6), 0, {7})}));
  EXPECT_EQ(finish(0, 1).status().message(),
            "payload 0 of owner 1: tensor \"c\": write 0 of the loader is another than the one "
            "that prewarm traced; prewarm again");
  EXPECT_EQ(rank.parameters(), before);
}

TEST_F(ReceiverTest, PlaceholdersThatChangeOnTheirWayFailTheAttempt) {
  bool erase = false;
  TestLoader& loader = rank.loader;
  loader.loads["c"] = [&](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.fill(hook, narrow(c, 0, 6, 1), 0));
    DCR_ASSIGN(const TensorView made,
               loader.temporary(value, [&](std::uint64_t word, std::uint64_t) {
                 return erase && word == 0x7fc0 ? 0 : word;
               }));
    DCR_TRY(loader.copy(hook, narrow(c, 0, 0, 6), made));
    return LoadReport::kLoaded;
  };
  start();
  erase = true;
  expect_ingested(payload(1, 0, {item(1, ItemBox::range(0, 6), 0, {7})}));
  EXPECT_EQ(finish(0, 1).status().message(),
            "payload 0 of owner 1: tensor \"c\": the loader changed placeholders on their way to a "
            "parameter");
  EXPECT_EQ(rank.parameters(), before);
}

TEST_F(ReceiverTest, AuditsComparesResidentBitsWithTheBase) {
  start();
  const CanonicalRead base = [this](std::uint32_t tensor, std::uint64_t first,
                                    MutableByteSpan out) {
    const unsigned width = word_bytes(catalogue[tensor].dtype);
    std::copy_n(old_words[tensor].begin() + static_cast<std::ptrdiff_t>(first * width), out.size(),
                out.begin());
    return Status();
  };
  EXPECT_EQ(receiver->audit(base).message(), "");
  const auto corrupt = [&](const TensorView& view) {
    std::uint8_t& byte = rank.memory.bytes(view.storage)[3];
    byte = static_cast<std::uint8_t>(byte ^ 1);
    const std::vector<Bytes> kept = rank.parameters();
    std::string message = receiver->audit(base).message();
    EXPECT_EQ(rank.parameters(), kept);
    byte = static_cast<std::uint8_t>(byte ^ 1);
    return message;
  };
  EXPECT_EQ(corrupt(a),
            "tensor \"a\": 1 of 64 resident words are not what its loader makes of the base");
  EXPECT_EQ(corrupt(c),
            "tensor \"c\": 1 of 6 resident words are not what its loader makes of the base");
  EXPECT_EQ(corrupt(d),
            "tensor \"d\": 1 of 4 resident words are not what its loader makes of the base");
}

// "b" fills the parameter before it writes its part; "c" has the rest.
TEST_F(ReceiverTest, AuditsKnowWhoseBytesTheyAre) {
  catalogue = make_catalogue({{"b", Dtype::kBF16, {3}}, {"c", Dtype::kBF16, {4}}});
  TestLoader& loader = rank.loader;
  loader.loads["b"] = [&](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.fill(hook, c, 0));
    DCR_TRY(loader.copy(hook, narrow(c, 0, 0, 3), value));
    return LoadReport::kLoaded;
  };
  loader.loads["c"] = [&](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader.copy(hook, narrow(c, 0, 3, 4), value));
    return LoadReport::kLoaded;
  };
  options.owners = {{{0, ItemBox::range(0, 3)}, {1, ItemBox::range(0, 4)}}, {}};
  options.never_loaded = {"pa", "pd"};
  old_words = {Bytes(6, 0x22), Bytes(8, 0x33)};
  start();
  EXPECT_EQ(receiver->classes()[0].path, TensorPath::kScratch);
  const auto base = [this](std::uint32_t tensor, std::uint64_t, MutableByteSpan out) {
    std::copy_n(old_words[tensor].begin(), out.size(), out.begin());
    return Status();
  };
  EXPECT_EQ(receiver->audit(base).message(), "");
}

TEST_F(ReceiverTest, VerifyingTakesOverwritesOnly) {
  start();
  AttemptHeader verify = kAttempt;
  verify.mode = ApplyMode::kVerify;
  ASSERT_TRUE(receiver->begin_attempt(verify).ok());
  EXPECT_EQ(ingest_error(payload(0, 0, {item(0, ItemBox::range(0, 32), 0, {7}, Encoding::kXor)})),
            "tensor \"a\": xor where only overwrite can be verified");
}

TEST_F(ReceiverTest, VerifyingNamesTheFirstTensorThatDiffers) {
  start();
  AttemptHeader verify = kAttempt;
  verify.mode = ApplyMode::kVerify;
  const EncodedItem whole = whole_item(2, 1, ItemBox::range(0, 4), {1, 2, 3, 0x80});
  const EncodedItem cast = item(1, ItemBox::range(0, 6), 1, {0x3f80});
  const auto verified = [&](std::vector<EncodedItem> items) {
    EXPECT_TRUE(receiver->begin_attempt(verify).ok());
    expect_ingested(payload(1, 0, std::move(items)));
    const auto counts = finish(0, 1);
    EXPECT_EQ(rank.parameters(), before);
    return counts->different_tensor;
  };
  EXPECT_EQ(verified({whole}), 2U);
  EXPECT_EQ(verified({cast, whole}), 1U);
  EXPECT_EQ(verified({item(0, ItemBox::range(32, 32), 40, {9}), cast, whole}), 0U);
  EXPECT_EQ(verified({}), std::nullopt);
}

TEST_F(ReceiverTest, AttemptsAfterAFailureTakeOverwritesOnly) {
  start();
  AttemptHeader again = kAttempt;
  again.overwrite_only = true;
  ASSERT_TRUE(receiver->begin_attempt(again).ok());
  EXPECT_EQ(ingest_error(payload(0, 0, {item(0, ItemBox::range(0, 32), 0, {7}, Encoding::kAdd)})),
            "tensor \"a\": add where only overwrite is exact");
  ASSERT_TRUE(receiver->begin_attempt(again).ok());
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 32), 0, {7})}));
}

TEST_F(ReceiverTest, WhatWasDecodedForAnotherCatalogue) {
  start();
  const auto decoded = std::make_shared<DecodedPayload>();
  decoded->header = header(0, 0);
  decoded->header.schema = {1};
  decoded->items.resize(1);
  decoded->items[0].header.tensor = 3;
  EXPECT_EQ(receiver->ingest(decoded).status().message(),
            "payload 0 of owner 0 is made for another catalogue");
}

TEST_F(ReceiverTest, TiedTensorsDoNotTakeTheScratchPath) {
  rank.loader.loads["c"] = [this](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(rank.loader.copy(hook, narrow(c, 0, 0, 6), value));
    return LoadReport::kLoaded;
  };
  catalogue = make_catalogue({{"b", Dtype::kBF16, {6}}, {"c", Dtype::kBF16, {6}}});
  rank.loader.loads["b"] = rank.loader.loads["c"];
  options.owners = {{{0, ItemBox::range(0, 6)}, {1, ItemBox::range(0, 6)}}, {}};
  options.never_loaded = {"pa", "pc", "pd"};
  old_words = {Bytes(12, 0x22), Bytes(12, 0x22)};
  start();
  EXPECT_EQ(receiver->classes()[0].path, TensorPath::kSkip);
  EXPECT_EQ(receiver->require_scratch(0).message(),
            "tensor \"b\": its loader talks to other ranks, but here it cannot take the scratch "
            "path: tensor \"c\" has the same bytes");
}

// Rows in another order, and elements so: the one has a place for each row, the other too many.
TEST_F(ReceiverTest, PermutedRowsAndElements) {
  for (const Shape& shape : {Shape{6000, 3}, Shape{120'000, 1}}) {
    const TensorPath path = shape[1] > 1 ? TensorPath::kTraced : TensorPath::kDense;
    TestRank permuted;
    TestLoader& loader = permuted.loader;
    const Catalogue one = make_catalogue({{"w", Dtype::kBF16, shape}});
    const std::uint64_t words = shape[0] * shape[1];
    const TensorView p = loader.add_target("p", Dtype::kBF16, shape);
    Prng random(1);
    std::vector<std::uint64_t> rows(shape[0]);
    std::iota(rows.begin(), rows.end(), std::uint64_t{0});
    for (std::size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
    loader.loads["w"] = [&](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      Bytes all(2 * words);
      DCR_TRY(permuted.memory.read(value, all));
      DCR_ASSIGN(const TensorView made,
                 loader.temporary(value, [&](std::uint64_t, std::uint64_t at) {
                   return get_word(all, 2, rows[at / shape[1]] * shape[1] + at % shape[1]);
                 }));
      DCR_TRY(loader.copy(hook, p, made));
      return LoadReport::kLoaded;
    };
    Bytes content(2 * words);
    for (std::uint8_t& byte : content) byte = static_cast<std::uint8_t>(random.next());
    ASSERT_TRUE(load_dense(loader, one, {content}).ok());
    const std::vector<Bytes> wanted = permuted.parameters();
    ASSERT_TRUE(load_dense(loader, one, {Bytes(2 * words)}).ok());
    ReceiverOptions of_one;
    of_one.owners = {{{0, ItemBox::range(0, words)}}};
    const auto made = Receiver::create(one, loader, permuted.memory, *executor, of_one);
    ASSERT_TRUE((*made)->prewarm().ok());
    EXPECT_EQ((*made)->classes()[0].path, path) << (*made)->classes()[0].reason;
    ASSERT_TRUE((*made)->begin_attempt({}).ok());
    PayloadHeader first;
    first.schema = one.schema();
    const EncodedItem all = whole_item(0, 2, ItemBox::range(0, words), content);
    ASSERT_TRUE((*made)->ingest(seal_payload(first, {all}).bytes).ok());
    const auto applied = (*made)->apply();
    EXPECT_TRUE(applied.ok()) << applied.status().message();
    EXPECT_TRUE(permuted.parameters() == wanted);
  }
}

TEST_F(ReceiverTest, ScratchOnRequest) {
  start();
  ASSERT_TRUE(receiver->require_scratch(0).ok());
  EXPECT_EQ(receiver->classes()[0].path, TensorPath::kScratch);
  EXPECT_EQ(receiver->classes()[0].need, Need::kAny);
  EXPECT_EQ(receiver->require_scratch(2).message(),
            "tensor \"d\": its loader talks to other ranks, but here it cannot take the scratch "
            "path: the loader writes it by no plain copy");
  ASSERT_TRUE(receiver->begin_attempt(kAttempt).ok());
  expect_ingested(payload(0, 0, {item(0, ItemBox::range(0, 32), 3, {1, 2, 3}, Encoding::kXor)}));
  EXPECT_TRUE(finish(1, 0).ok());
  EXPECT_EQ(word(a, 4), 2u);
}

TEST_F(ReceiverTest, NotBeforePrewarm) {
  auto made = Receiver::create(catalogue, rank.loader, rank.memory, *executor, options);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)->begin_attempt(kAttempt).message(), "an attempt before prewarm");
  EXPECT_EQ((*made)->ingest(Bytes{}).status().message(), "the receiver is in no attempt");
  EXPECT_EQ((*made)->audit({}).message(), "an audit before prewarm");
  EXPECT_EQ((*made)->require_scratch(0).message(), "scratch for a tensor that no prewarm has seen");
  options.owners[1].push_back({0, ItemBox::range(60, 5)});
  EXPECT_EQ(
      Receiver::create(catalogue, rank.loader, rank.memory, *executor, options).status().message(),
      "tensor \"a\", owner 1: the box reaches source element 64 of 64");
  options.owners[1].back().tensor = 3;
  EXPECT_EQ(
      Receiver::create(catalogue, rank.loader, rank.memory, *executor, options).status().message(),
      "owner 1 has a box of tensor 3 of 3");
}

TEST_F(ReceiverTest, PayloadsWaitInBounds) {
  options.decoded_bytes_max = 100;
  start();
  // Six bytes an entry.
  expect_ingested(payload(0, 1, {item(0, ItemBox::range(0, 16), 0, Shape(10, 7))}));
  expect_ingested(payload(0, 2, {item(0, ItemBox::range(16, 16), 20, Shape(10, 7))}),
                  Ingested::kFull);
  EXPECT_EQ(receiver->finish().status().message(),
            "payload 0 of owner 0, or its end has not been applied");
  start();
  EXPECT_EQ(ingest_error(payload(0, 0, {item(0, ItemBox::range(0, 32), 0, Shape(17, 7))})),
            "payload: decoding takes 102 bytes, above the limit of 100");
}

}  // namespace
}  // namespace dcr
