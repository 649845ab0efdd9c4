// The same words give the same payload, and the same tensor back, whatever kernels run. They are
// chosen once per process, so each set works in a child.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "base/digest.h"
#include "codec/test_items.h"
#include "tests/support/forked.h"

namespace dcr {
namespace {

// Items of every width, encoding and density: the digest of what the encoder made (independent of
// the compression library), of the payload, and of the tensors that it gives.
std::string encode_and_apply() {
  Blake2b encoded;
  std::vector<EncodedItem> items;
  std::vector<ItemCase> cases;
  std::vector<TensorSpec> specs;
  ItemEncoder encoder;
  Prng random(2024);
  for (const unsigned width : kTestWidths) {
    for (const EncodingChoice choice : {EncodingChoice::kOverwrite, EncodingChoice::kXor,
                                        EncodingChoice::kAdd, EncodingChoice::kSmallest}) {
      for (const std::uint64_t one_in : {1u, 2u, 4u, 20u, 150u, 3000u}) {
        ItemCase test;
        test.width = width;
        const bool strided = random.below(2) == 0;
        test.box = strided ? ItemBox{5, {{97, 130}, {123, 1}}} : ItemBox::range(3, 20'000);
        test.old_tensor.resize(static_cast<std::size_t>(test.box.end() + 4) * width);
        for (std::uint8_t& byte : test.old_tensor) byte = static_cast<std::uint8_t>(random.next());
        test.new_tensor = test.old_tensor;
        const unsigned shift = static_cast<unsigned>(random.below(64));
        for (const std::uint64_t index : box_indices(test.box)) {
          if (random.below(one_in) != 0) continue;
          const std::uint64_t word = get_word(test.old_tensor, width, index);
          set_word(&test.new_tensor, width, index,
                   (word + (random.next() >> shift) + 1) & width_mask(width));
        }
        EncodedItem item;
        if (!encode_case(&encoder, test, static_cast<std::uint32_t>(specs.size()), choice, &item)) {
          continue;
        }
        for (const Bytes* part :
             {&item.locations, &item.gap_low, &item.symbols, &item.escapes, &item.extra}) {
          encoded.update(*part);
        }
        items.push_back(item);
        specs.push_back({test.tensor_words(), static_cast<std::uint8_t>(width), false});
        cases.push_back(std::move(test));
      }
    }
  }
  const Bytes stored = seal_items(items);
  const Result<Payload> payload = Payload::read(stored, Digest{}, specs, kTestLimits);
  if (!payload.ok()) return payload.status().message();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    apply_to_tensor(payload->items()[i], &cases[i].old_tensor);
    if (cases[i].old_tensor != cases[i].new_tensor)
      return "tensor " + std::to_string(i) + " differs";
  }
  return digest_text(encoded.finish()) + " " + digest_text(blake2b(stored));
}

// The encoder chooses by integers, so these words give these streams on every machine. A change
// here is a change of what is sent.
constexpr const char* kStreams = "021881a60ae1530d22c4cc9449fd3fe4";

TEST(ItemIsa, EveryKernelSetMakesTheSamePayload) {
  if (!can_fork()) {
    // Of this process's kernels, which the test's run chose.
    EXPECT_EQ(encode_and_apply().substr(0, 32), kStreams);
    return;
  }
  const std::string scalar = run_with_isa("scalar", encode_and_apply);
  ASSERT_EQ(scalar.size(), 65u) << scalar;
  for (const Kernels* set : supported_kernels()) {
    std::printf("%s\n", set->name);
    EXPECT_EQ(run_with_isa(set->name, encode_and_apply), scalar) << set->name;
  }
  EXPECT_EQ(scalar.substr(0, 32), kStreams);
}

}  // namespace
}  // namespace dcr
