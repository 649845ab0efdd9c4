#include "layout/converters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/prng.h"
#include "layout/shard.h"
#include "layout/test_random_layout.h"
#include "tensor/cast.h"
#include "tests/support/campaign.h"
#include "tests/support/test_memory.h"

namespace dcr {
namespace {

float random_float(Prng& prng) {
  const double value = (prng.uniform() - 0.5) * (prng.below(8) == 0 ? 1000.0 : 2.0);
  return prng.below(20) == 0 ? 0.0F : static_cast<float>(value);
}

// A tensor of random values in a storage of its own, with room around its rows where `strided`.
struct Input {
  TensorView view;
  std::vector<float> values;  // after rounding to the dtype
};

Input make_input(Prng& prng, TestMemory& memory, Dtype dtype, const Shape& sizes, bool strided) {
  Input made;
  made.view = contiguous_view(0, dtype, sizes);
  if (strided && sizes.size() == 2) made.view.strides[0] += 3;
  if (strided) made.view.offset = 5;
  const std::size_t width = word_bytes(dtype);
  std::uint64_t reach = made.view.offset + 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) reach += sizes[d] * made.view.strides[d];
  made.view.storage = memory.allocate(reach * width).value();
  const std::uint64_t words = view_words(made.view);
  std::vector<float> values(words);
  for (float& value : values) value = random_float(prng);
  Bytes bytes(words * width);
  const ByteSpan floats(reinterpret_cast<const std::uint8_t*>(values.data()), 4 * words);
  cast_words(Dtype::kF32, dtype, floats, bytes);
  EXPECT_TRUE(memory.write(made.view, bytes).ok());
  made.values.resize(words);
  cast_words(dtype, Dtype::kF32, bytes,
             MutableByteSpan(reinterpret_cast<std::uint8_t*>(made.values.data()), 4 * words));
  return made;
}

Bytes cast_floats(const std::vector<float>& values, Dtype dtype) {
  Bytes bytes(values.size() * word_bytes(dtype));
  cast_words(Dtype::kF32, dtype,
             ByteSpan(reinterpret_cast<const std::uint8_t*>(values.data()), 4 * values.size()),
             bytes);
  return bytes;
}

ConverterOutput output(const std::string& name, Dtype dtype, const Shape& sizes) {
  return {name, dtype, 0, sizes, contiguous_strides(sizes)};
}

// Converts a part whole and in random ranges: both must give `expected`.
void expect_part(Prng& prng, Converter& converter, std::uint64_t part, std::size_t width,
                 const Bytes& expected) {
  const std::uint64_t words = expected.size() / width;
  Bytes whole(expected.size());
  const Status status = converter.convert(part, 0, words, whole);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(whole, expected);
  for (int i = 0; i < 5; ++i) {
    const std::uint64_t first = prng.below(words + 1);
    const std::uint64_t count = prng.below(words - first + 1);
    Bytes range(count * width);
    ASSERT_TRUE(converter.convert(part, first, count, range).ok());
    EXPECT_TRUE(std::equal(range.begin(), range.end(),
                           expected.begin() + static_cast<std::ptrdiff_t>(first * width)));
  }
}

constexpr Dtype kInputs[] = {Dtype::kBF16, Dtype::kF32, Dtype::kF16};

TEST(Converters, Scale) {
  Prng prng(61);
  for (std::uint64_t round = 0; round < campaign_cases(200); ++round) {
    TestMemory memory;
    const Shape sizes = {1 + prng.below(9), 1 + prng.below(30)};
    const Input weight =
        make_input(prng, memory, kInputs[prng.below(3)], sizes, prng.below(2) == 0);
    const Input scale = make_input(prng, memory, Dtype::kF32, {}, false);
    auto made = make_scale_converter(memory, "s", {"w", weight.view}, {"scale", scale.view},
                                     output("out", Dtype::kBF16, sizes));
    ASSERT_TRUE(made.ok()) << made.status().message();
    std::vector<float> expected;
    for (const float value : weight.values) expected.push_back(value * scale.values[0]);
    expect_part(prng, **made, 0, 2, cast_floats(expected, Dtype::kBF16));
    const ConverterDeclaration declaration = (*made)->declare();
    EXPECT_EQ(declaration.inputs, (std::vector<std::string>{"w", "scale"}));
    EXPECT_EQ(declaration.outputs, std::vector<std::string>{"out"});
    EXPECT_EQ(declaration.parts[0].sizes, sizes);
  }
}

TEST(Converters, LowRank) {
  Prng prng(62);
  for (std::uint64_t round = 0; round < campaign_cases(200); ++round) {
    TestMemory memory;
    const std::uint64_t n = 1 + prng.below(9);
    const std::uint64_t m = 1 + prng.below(30);
    const std::uint64_t rank = prng.below(6);
    const bool strided = prng.below(2) == 0;
    const Input weight = make_input(prng, memory, Dtype::kBF16, {n, m}, strided);
    const Input a = make_input(prng, memory, kInputs[prng.below(3)], {rank, m}, strided);
    const Input b = make_input(prng, memory, kInputs[prng.below(3)], {n, rank}, strided);
    auto made = make_low_rank_converter(memory, "l", {"w", weight.view}, {"a", a.view},
                                        {"b", b.view}, 0.75F, output("out", Dtype::kBF16, {n, m}));
    ASSERT_TRUE(made.ok()) << made.status().message();
    std::vector<float> expected;
    for (std::uint64_t i = 0; i < n; ++i) {
      for (std::uint64_t j = 0; j < m; ++j) {
        float sum = 0;
        for (std::uint64_t k = 0; k < rank; ++k) {
          const float product = b.values[i * rank + k] * a.values[k * m + j];
          sum += product;
        }
        const float added = 0.75F * sum;
        expected.push_back(weight.values[i * m + j] + added);
      }
    }
    expect_part(prng, **made, 0, 2, cast_floats(expected, Dtype::kBF16));
  }
}

// A rank so large that a block of columns is narrower than a row.
TEST(Converters, LowRankInColumnBlocks) {
  Prng prng(63);
  TestMemory memory;
  const Input weight = make_input(prng, memory, Dtype::kF32, {3, 100}, false);
  const Input a = make_input(prng, memory, Dtype::kF32, {1500, 100}, false);
  const Input b = make_input(prng, memory, Dtype::kF32, {3, 1500}, false);
  auto made = make_low_rank_converter(memory, "l", {"w", weight.view}, {"a", a.view}, {"b", b.view},
                                      1.0F, output("out", Dtype::kF32, {3, 100}));
  ASSERT_TRUE(made.ok());
  std::vector<float> expected = weight.values;
  for (std::uint64_t at = 0; at < 300; ++at) {
    float sum = 0;
    for (std::uint64_t k = 0; k < 1500; ++k) {
      const float product = b.values[at / 100 * 1500 + k] * a.values[k * 100 + at % 100];
      sum += product;
    }
    expected[at] += sum;
  }
  expect_part(prng, **made, 0, 4, cast_floats(expected, Dtype::kF32));
}

TEST(Converters, Fp8Blocks) {
  Prng prng(64);
  for (std::uint64_t round = 0; round < campaign_cases(20); ++round) {
    TestMemory memory;
    const std::uint64_t n = 1 + prng.below(300);
    const std::uint64_t m = 1 + prng.below(300);
    Input weight = make_input(prng, memory, Dtype::kBF16, {n, m}, prng.below(2) == 0);
    if (prng.below(2) == 0) {
      const Bytes nan = {0xc0, 0x7f};
      TensorView one = weight.view;
      one.sizes = {1, 1};
      ASSERT_TRUE(memory.write(one, nan).ok());
      weight.values[0] = std::nanf("");
    }
    const Shape blocks = {(n + 127) / 128, (m + 127) / 128};
    auto made =
        make_fp8_converter(memory, "f", {"w", weight.view}, output("out", Dtype::kF8E4M3, {n, m}),
                           output("scale", Dtype::kF32, blocks));
    ASSERT_TRUE(made.ok()) << made.status().message();
    std::vector<float> scales(blocks[0] * blocks[1], 0.0F);
    for (std::uint64_t at = 0; at < n * m; ++at) {
      float& largest = scales[at / m / 128 * blocks[1] + at % m / 128];
      if (!std::isnan(weight.values[at])) {
        largest = std::max(largest, std::abs(weight.values[at]));
      }
    }
    for (float& scale : scales) scale = scale == 0.0F ? 1.0F : scale / 448.0F;
    std::vector<float> expected;
    for (std::uint64_t at = 0; at < n * m; ++at) {
      expected.push_back(weight.values[at] / scales[at / m / 128 * blocks[1] + at % m / 128]);
    }
    const Bytes words = cast_floats(expected, Dtype::kF8E4M3);
    EXPECT_EQ(words[0] & 0x7f, std::isnan(weight.values[0]) ? 0x7f : words[0] & 0x7f);
    for (std::size_t i = 1; i < words.size(); ++i) EXPECT_NE(words[i] & 0x7f, 0x7f);
    expect_part(prng, **made, 0, 1, words);
    expect_part(prng, **made, 1, 4, cast_floats(scales, Dtype::kF32));
    // Some rows only, whatever the size.
    EXPECT_LE(memory.largest_access(), 64u * 1024 * 4);
  }
}

// A scale that would be 0 in F32 would make NaN of 0 and infinity of everything else.
TEST(Converters, Fp8OfTheSmallestNumbers) {
  TestMemory memory;
  const TensorView weight = contiguous_view(memory.allocate(3 * 4).value(), Dtype::kF32, {1, 3});
  const Bytes words = {1, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0x80};
  ASSERT_TRUE(memory.write(weight, words).ok());
  const auto made =
      make_fp8_converter(memory, "f", {"w", weight}, output("out", Dtype::kF8E4M3, {1, 3}),
                         output("scale", Dtype::kF32, {1, 1}));
  ASSERT_TRUE(made.ok()) << made.status().message();
  Bytes out(3);
  ASSERT_TRUE((*made)->convert(0, 0, 3, out).ok());
  EXPECT_EQ(out, (Bytes{0, 0, 0x80}));
  Bytes scale(4);
  ASSERT_TRUE((*made)->convert(1, 0, 1, scale).ok());
  EXPECT_EQ(scale, (Bytes{0, 0, 0x80, 0x3f}));
}

TEST(Converters, Refuse) {
  TestMemory memory;
  const auto view = [](const Shape& sizes, Dtype dtype = Dtype::kBF16) {
    return contiguous_view(0, dtype, sizes);
  };
  const auto out = [](const Shape& sizes) { return output("out", Dtype::kBF16, sizes); };
  const auto scale = [&](const TensorView& w, const TensorView& s, const ConverterOutput& o) {
    return make_scale_converter(memory, "c", {"w", w}, {"s", s}, o).status().message();
  };
  EXPECT_EQ(scale(view({2, 3}), view({}, Dtype::kF32), out({3, 2})),
            "converter \"c\": input \"w\" of shape [2, 3] does not make an output of shape [3, 2]");
  EXPECT_EQ(scale(view({2}), view({2}, Dtype::kF32), out({2})),
            "converter \"c\": input \"s\" is not one F32");
  EXPECT_EQ(scale(view({2}), view({}), out({2})), "converter \"c\": input \"s\" is not one F32");
  EXPECT_FALSE(scale(view({2}, Dtype::kI64), view({}, Dtype::kF32), out({2})).empty());
  const auto low = [&](const Shape& w, const Shape& a, const Shape& b) {
    return make_low_rank_converter(memory, "c", {"w", view(w)}, {"a", view(a)}, {"b", view(b)}, 1,
                                   out(w))
        .status()
        .message();
  };
  EXPECT_EQ(low({2, 3}, {4, 3}, {2, 4}), "");
  EXPECT_EQ(low({6}, {4, 3}, {2, 4}), "converter \"c\": input \"w\" is no matrix");
  EXPECT_EQ(low({2, 3}, {4, 2}, {2, 4}),
            "converter \"c\": input \"a\" of shape [4, 2] does not go with weight [2, 3]");
  EXPECT_EQ(low({2, 3}, {4, 3}, {2, 5}),
            "converter \"c\": input \"b\" of shape [2, 5] does not go with weight [2, 3] and rank "
            "4");
  EXPECT_EQ(low({2, 3}, {5000, 3}, {2, 5000}),
            "converter \"c\": input \"a\" has rank 5000, above 4096");
  const auto fp8 =
      make_fp8_converter(memory, "c", {"w", view({129, 3})}, output("o", Dtype::kF8E4M3, {129, 3}),
                         output("s", Dtype::kF32, {1, 1}));
  EXPECT_EQ(fp8.status().message(),
            "converter \"c\": input \"w\" of shape [129, 3] makes scales of shape [2, 1], not "
            "[1, 1]");
  Bytes bytes(4);
  auto made =
      make_scale_converter(memory, "c", {"w", view({2})}, {"s", view({}, Dtype::kF32)}, out({2}));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)->convert(1, 0, 2, bytes).message(), "converter \"c\": no such part");
  EXPECT_EQ((*made)->convert(0, 1, 2, bytes).message(), "converter \"c\": past the part's end");
  EXPECT_EQ((*made)->convert(0, 0, 1, bytes).message(),
            "converter \"c\": a buffer of another size");
}

// The identity converters of all ranks make every canonical tensor from its shards, each element
// once.
TEST(Converters, IdentityMakesTheCanonicalTensors) {
  Prng prng(65);
  for (std::uint64_t round = 0; round < campaign_cases(200); ++round) {
    const RandomLayout random = random_layout(prng, false);
    SCOPED_TRACE("round " + std::to_string(round) + "\n" + random.json);
    Result<Layout> layout = parse_owner_layout(random.json);
    ASSERT_TRUE(layout.ok());
    const Result<OwnerPlan> plan = OwnerPlan::make(random.catalogue, std::move(*layout));
    ASSERT_TRUE(plan.ok());
    TestCanonical canonical(random.catalogue);
    for (std::uint32_t t = 0; t < random.catalogue.size(); ++t) {
      Bytes& bytes = canonical.tensors[t];
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(prng.next());
      if (random.catalogue[t].dtype == Dtype::kBF16) {  // a cast there and back keeps no NaN
        for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] &= 0xbf;
      }
    }
    TestCanonical made(random.catalogue);
    std::vector<std::set<std::uint64_t>> seen(random.catalogue.size());
    std::vector<std::string> names;
    for (std::uint32_t rank = 0; rank < plan->ranks(); ++rank) {
      const OwnerRank owner = plan->rank(random.catalogue, rank);
      TestMemory memory(owner.storage_bytes);
      for (std::size_t i = 0; i < owner.tasks.size(); ++i) {
        ASSERT_TRUE(
            fill_shard(random.catalogue, owner.tasks[i], canonical, memory.storage(i)).ok());
      }
      const auto converters = make_identity_converters(random.catalogue, *plan, rank, memory);
      std::vector<std::string> mine;
      for (const std::unique_ptr<Converter>& converter : converters) {
        const ConverterDeclaration declaration = converter->declare();
        mine.push_back(declaration.name);
        EXPECT_TRUE(declaration.custom_export);
        for (std::uint64_t p = 0; p < declaration.parts.size(); ++p) {
          const ConverterPart& part = declaration.parts[p];
          const auto t = static_cast<std::uint32_t>(random.catalogue.find(part.canonical));
          const std::size_t width = word_bytes(random.catalogue[t].dtype);
          TensorView view{0, Dtype::kU8, part.offset, part.sizes, part.strides};
          const std::uint64_t words = view_words(view);
          Bytes out(words * width);
          const Status status = converter->convert(p, 0, words, out);
          ASSERT_TRUE(status.ok()) << status.message();
          for (std::uint64_t w = 0; w < words; ++w) {
            std::uint64_t at = part.offset;
            std::uint64_t rest = w;
            for (std::size_t d = part.sizes.size(); d-- > 0;) {
              at += rest % part.sizes[d] * part.strides[d];
              rest /= part.sizes[d];
            }
            EXPECT_TRUE(seen[t].insert(at).second);
            std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(w * width), width,
                        made.tensors[t].begin() + static_cast<std::ptrdiff_t>(at * width));
          }
        }
      }
      if (rank == 0) names = mine;
      EXPECT_EQ(mine, names);
    }
    EXPECT_EQ(made.tensors, canonical.tensors);
  }
}

}  // namespace
}  // namespace dcr
