// Payloads that somebody else decoded, as a node hands them over: a receiver takes them only if
// they are what it would have read itself.
#include <gtest/gtest.h>

#include <limits>

#include "base/limits.h"
#include "receiver/decoded_memory.h"
#include "receiver/test_refit.h"

namespace dcr {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

// "a": BF16 [8, 8], placed as it is; "c": BF16 [6], cast to F32; "d": I8 [4], with its sign bit
// flipped. Owner 0 has all of "a", owner 1 the rest, and part of "c" owner 0 as well.
class DecodedIngest : public testing::Test {
 public:
  TestRank rank;
  Catalogue catalogue = make_catalogue(
      {{"a", Dtype::kBF16, {8, 8}}, {"c", Dtype::kBF16, {6}}, {"d", Dtype::kI8, {4}}});
  std::unique_ptr<Executor> executor = make_executor(1);
  std::unique_ptr<Receiver> receiver;
  std::vector<Bytes> before;

  void SetUp() override {
    TestLoader& loader = rank.loader;
    const TensorView a = loader.add_target("pa", Dtype::kBF16, {8, 8});
    const TensorView c = loader.add_target("pc", Dtype::kF32, {6});
    const TensorView d = loader.add_target("pd", Dtype::kI8, {4});
    for (const auto& [name, target] : {std::pair("a", a), std::pair("c", c)}) {
      loader.loads[name] = [&loader, target = target](const TensorView& value,
                                                      LoaderHook& hook) -> Result<LoadReport> {
        DCR_TRY(loader.copy(hook, target, value));
        return LoadReport::kLoaded;
      };
    }
    loader.loads["d"] = [&loader, d](const TensorView& value,
                                     LoaderHook& hook) -> Result<LoadReport> {
      DCR_ASSIGN(
          const TensorView made,
          loader.temporary(value, [](std::uint64_t word, std::uint64_t) { return word ^ 0x80; }));
      DCR_TRY(loader.copy(hook, d, made));
      return LoadReport::kLoaded;
    };
    ReceiverOptions options;
    options.owners = {{{0, ItemBox::range(0, 64)}, {1, ItemBox::range(0, 3)}},
                      {{1, ItemBox::range(0, 6)}, {2, ItemBox::range(0, 4)}}};
    auto made = Receiver::create(catalogue, loader, rank.memory, *executor, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    receiver = std::move(made).value();
    Status status = receiver->prewarm();
    ASSERT_TRUE(status.ok()) << status.message();
    before = rank.parameters();
  }

  // Of owner 0 rows 2 and 3 of "a" but for two columns, all of row 5, and what it has of "c"; of
  // owner 1 its tensors.
  Bytes stored(std::uint32_t owner) const {
    PayloadHeader header;
    header.owner = owner;
    header.owners = 2;
    header.schema = catalogue.schema();
    std::vector<EncodedItem> items;
    if (owner == 0) {
      const Bytes words(128, 7);
      items = {whole_item(0, 2, {16, {{2, 8}, {6, 1}}}, words),
               whole_item(0, 2, ItemBox::range(40, 8), words),
               whole_item(1, 2, ItemBox::range(0, 3), Bytes(12, 9))};
    } else {
      items = {whole_item(1, 2, ItemBox::range(0, 6), Bytes(12, 9)),
               whole_item(2, 1, ItemBox::range(0, 4), {1, 2, 3, 4})};
    }
    return seal_payload(header, std::move(items)).bytes;
  }

  // The block that a node makes of it.
  Bytes block(std::uint32_t owner) const {
    const Bytes bytes = stored(owner);
    const auto payload = Payload::read(bytes, catalogue.schema(), receiver->specs(), kTestLimits);
    EXPECT_TRUE(payload.ok()) << payload.status().message();
    Bytes made;
    EXPECT_TRUE(write_decoded(*payload, stored_digest(bytes), [&](std::uint64_t, ByteSpan part) {
                  made.insert(made.end(), part.begin(), part.end());
                  return Status();
                }).ok());
    return made;
  }

  // The same payload for a test to change.
  std::shared_ptr<DecodedPayload> decoded(std::uint32_t owner) const {
    const auto made =
        decode_payload(stored(owner), catalogue.schema(), receiver->specs(), kTestLimits, kGiB);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::make_shared<DecodedPayload>(**made);
  }

  // The error that `change` brings about; no parameter changes.
  template <typename Change>
  std::string error(std::uint32_t owner, const Change& change) {
    const std::shared_ptr<DecodedPayload> payload = decoded(owner);
    change(*payload);
    EXPECT_TRUE(receiver->begin_attempt({}).ok());
    const Result<Ingested> result = receiver->ingest(payload);
    EXPECT_FALSE(result.ok());
    EXPECT_FALSE(receiver->apply().ok());
    EXPECT_EQ(rank.parameters(), before);
    return result.status().message();
  }
  template <typename Change>
  std::string item_error(std::size_t item, const Change& change) {
    return error(0, [&](DecodedPayload& payload) { change(payload.items[item].header); });
  }
};

TEST_F(DecodedIngest, TakesWhatIsRight) {
  ASSERT_TRUE(receiver->begin_attempt({}).ok());
  std::vector<Bytes> blocks;  // which the payloads lie in
  for (std::uint32_t owner = 0; owner < 2; ++owner) {
    blocks.push_back(block(owner));
    const auto parsed = parse_decoded(blocks.back(), nullptr, kGiB);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const auto ingested = receiver->ingest(*parsed);
    ASSERT_TRUE(ingested.ok()) << ingested.status().message();
    EXPECT_EQ(*ingested, Ingested::kQueued);
    ASSERT_TRUE(receiver->end_of_owner(owner, 1).ok());
  }
  const auto applied = receiver->apply();
  ASSERT_TRUE(applied.ok()) << applied.status().message();
  EXPECT_TRUE(receiver->finish().ok());
  EXPECT_EQ(rank.parameters()[2], (Bytes{0x81, 0x82, 0x83, 0x84}));
}

TEST_F(DecodedIngest, TensorsAreOfTheCatalogue) {
  EXPECT_EQ(item_error(2, [](ItemHeader& header) { header.tensor = 3; }),
            "payload 0 of owner 0: item 2 (tensor index 3): tensor index out of range of 3");
  EXPECT_EQ(item_error(0, [](ItemHeader& header) { header.tensor = ~0u; }),
            "payload 0 of owner 0: item 0 (tensor index 4294967295): tensor index out of range of "
            "3");
}

TEST_F(DecodedIngest, WordsHaveTheirTensorsWidth) {
  EXPECT_EQ(item_error(1, [](ItemHeader& header) { header.width = 1; }),
            "payload 0 of owner 0: item 1 (tensor index 0): words of 1 bytes in a tensor of 2");
  EXPECT_EQ(item_error(1, [](ItemHeader& header) { header.width = 8; }),
            "payload 0 of owner 0: item 1 (tensor index 0): words of 8 bytes in a tensor of 2");
}

TEST_F(DecodedIngest, BoxesLieWithinTheirTensor) {
  const auto box_error = [this](const ItemBox& box) {
    const std::string where = "payload 0 of owner 0: item 0 (tensor index 0): ";
    std::string message = item_error(0, [&](ItemHeader& header) { header.box = box; });
    EXPECT_TRUE(message.starts_with(where)) << message;
    return message.substr(std::min(where.size(), message.size()));
  };
  EXPECT_EQ(box_error({16, {}}), "item box of rank 0");
  EXPECT_EQ(box_error({16, std::vector<ItemDimension>(9)}), "item box of rank 9");
  EXPECT_EQ(box_error({16, {{0, 1}}}), "item box is empty");
  EXPECT_EQ(box_error({16, {{2, 8}, {0, 1}}}), "item box is empty");
  EXPECT_EQ(box_error({16, {{kMost, 1}}}), "item box has more than 16777216 words");
  EXPECT_EQ(box_error({16, {{1u << 13, 1u << 12}, {1u << 12, 1}}}),
            "item box has more than 16777216 words");
  EXPECT_EQ(box_error({kMost, {{12, 1}}}), "item box overflows");
  EXPECT_EQ(box_error({16, {{3, kMost / 2 + 1}, {6, 1}}}), "item box overflows");
  EXPECT_EQ(box_error({16, {{2, kMost}, {6, 1}}}), "item box overflows");
  EXPECT_EQ(box_error({53, {{12, 1}}}), "item box ends at word 64 of a tensor of 64");
  EXPECT_EQ(box_error({16, {{2, 43}, {6, 1}}}), "item box ends at word 64 of a tensor of 64");
  EXPECT_EQ(box_error({16, {{2, 5}, {6, 1}}}), "item box reaches a word twice");
  EXPECT_EQ(box_error({16, {{12, 0}}}), "item box reaches a word twice");
}

TEST_F(DecodedIngest, ItemsHaveChanges) {
  EXPECT_EQ(error(0,
                  [](DecodedPayload& payload) {
                    payload.items[1].header.changes = 0;
                    payload.items[1].positions = {};
                    payload.items[1].values = {};
                  }),
            "payload 0 of owner 0: item 1 (tensor index 0): item without a change");
}

TEST_F(DecodedIngest, ItemsAscend) {
  EXPECT_EQ(
      error(0, [](DecodedPayload& payload) { std::swap(payload.items[1], payload.items[2]); }),
      "payload 0 of owner 0: item 2 (tensor index 0): tensor indices descend");
  EXPECT_EQ(
      error(0, [](DecodedPayload& payload) { std::swap(payload.items[0], payload.items[1]); }),
      "payload 0 of owner 0: item 1 (tensor index 0): item offsets descend");
  EXPECT_EQ(item_error(1, [](ItemHeader& header) { header.box.offset = 16; }),
            "payload 0 of owner 0: item 1 (tensor index 0): item offsets descend");
}

TEST_F(DecodedIngest, ItemsDoNotOverlap) {
  EXPECT_EQ(item_error(1, [](ItemHeader& header) { header.box.offset = 22; }),
            "payload 0 of owner 0: two items of tensor index 0 overlap at word 24");
  // Not where a tensor has several owners either, whose elements may come twice.
  EXPECT_EQ(error(1,
                  [](DecodedPayload& payload) {
                    payload.items.insert(payload.items.begin() + 1, payload.items[0]);
                    payload.items[0].header.box = ItemBox::range(0, 6);
                    payload.items[1].header.box = {1, {{5, 1}}};
                    payload.items[1].header.changes = 5;
                    payload.items[1].positions = payload.items[1].positions.first(5);
                    payload.items[1].values = payload.items[1].values.first(10);
                  }),
            "payload 0 of owner 1: two items of tensor index 1 overlap at word 1");
}

TEST_F(DecodedIngest, OwnersAndNumbersAreThoseThere) {
  EXPECT_EQ(error(0, [](DecodedPayload& payload) { payload.header.owner = 2; }),
            "payload 0 of owner 2: there are 2");
  EXPECT_EQ(error(0, [](DecodedPayload& payload) { payload.header.owner = ~0u; }),
            "payload 0 of owner 4294967295: there are 2");
  EXPECT_EQ(error(0, [](DecodedPayload& payload) { payload.header.number = kMost / 2 + 1; }),
            "payload 9223372036854775808 of owner 0: its number overflows");
}

// Whatever is still taken reaches no byte that is not a parameter's: memory is checked by
// sanitizers and by the size of what is applied.
TEST_F(DecodedIngest, SurvivesEveryMutation) {
  std::size_t refused = 0;
  std::size_t taken = 0;
  for (std::uint32_t owner = 0; owner < 2; ++owner) {
    const Bytes good = block(owner);
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
      SCOPED_TRACE(bit);
      Bytes mutated = good;
      mutated[bit / 8] = static_cast<std::uint8_t>(mutated[bit / 8] ^ (1u << bit % 8));
      const auto parsed = parse_decoded(mutated, nullptr, kGiB);
      if (!parsed.ok()) continue;
      ASSERT_TRUE(receiver->begin_attempt({}).ok());
      const Result<Ingested> ingested = receiver->ingest(*parsed);
      ++(ingested.ok() ? taken : refused);
      if (!ingested.ok()) continue;
      for (std::uint32_t other = 0; other < 2; ++other) {
        static_cast<void>(receiver->end_of_owner(other, other == owner ? 1 : 0).ok());
      }
      static_cast<void>(receiver->apply().ok());
    }
  }
  EXPECT_GT(refused, 500U);
  EXPECT_GT(taken, 500U);
}

}  // namespace
}  // namespace dcr
