// What a load writes, found out by probes; classes and places made of it: prewarm_test.cc.
#include "receiver/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "receiver/test_loader.h"

namespace dcr {
namespace {

class TraceTest : public testing::Test {
 protected:
  LoadTrace trace(Dtype dtype, const Shape& shape) {
    catalogue_ = make_catalogue({{"w", dtype, shape}});
    std::set<std::uint64_t> storages;
    for (const LoaderTarget& target : loader_.all_targets) storages.insert(target.view.storage);
    Tracer tracer(catalogue_, loader_, memory_, storages);
    Result<LoadTrace> made = tracer.trace(0);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(made).value() : LoadTrace{};
  }

  // The given tensor's elements as F32.
  Result<std::vector<float>> floats(const TensorView& value) {
    Bytes words(static_cast<std::size_t>(view_words(value)) * word_bytes(value.dtype));
    DCR_TRY(memory_.read(value, words));
    std::vector<float> made(static_cast<std::size_t>(view_words(value)));
    cast_words(value.dtype, Dtype::kF32, words,
               {reinterpret_cast<std::uint8_t*>(made.data()), 4 * made.size()});
    return made;
  }

  HostMemory memory_{std::uint64_t{1} << 26};
  TestLoader loader_{memory_};
  Catalogue catalogue_;
};

// Both codes of a scalar are beyond what the parameter's dtype holds, and become the same NaN.
TEST_F(TraceTest, AFillThroughANarrowTypeIsNoConstant) {
  const TensorView p = loader_.add_target("p", Dtype::kF8E4M3, {1});
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32, Dtype::kF64}) {
    loader_.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
      Bytes word(word_bytes(value.dtype));
      Bytes cast(1);
      DCR_TRY(memory_.read(value, word));
      cast_words(value.dtype, Dtype::kF8E4M3, word, cast);
      DCR_TRY(loader_.fill(hook, p, cast[0]));
      return LoadReport::kLoaded;
    };
    const LoadTrace found = trace(dtype, {1});
    ASSERT_EQ(found.writes.size(), 1U);
    EXPECT_EQ(found.writes[0].kind, WriteKind::kOpaque) << dtype_name(dtype);
  }
}

// Of arbitrary bits a maximum is NaN, or the largest number that there is.
TEST_F(TraceTest, AScaleFromAMaximumIsNoConstant) {
  const TensorView p = loader_.add_target("p", Dtype::kF32, {1});
  loader_.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_ASSIGN(const std::vector<float> values, floats(value));
    float largest = 0;
    for (const float one : values) {
      if (!(one <= largest)) largest = one;
    }
    std::uint32_t word = 0;
    std::memcpy(&word, &largest, sizeof(word));
    DCR_TRY(loader_.fill(hook, p, word));
    return LoadReport::kLoaded;
  };
  for (const std::uint64_t size : {3U, 100U, 10'000U}) {
    const LoadTrace found = trace(Dtype::kBF16, {size});
    ASSERT_EQ(found.writes.size(), 1U);
    EXPECT_EQ(found.writes[0].kind, WriteKind::kOpaque) << size;
  }
}

TEST_F(TraceTest, AMaximumOfIntegersIsNoConstant) {
  const TensorView p = loader_.add_target("p", Dtype::kU8, {1});
  loader_.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    Bytes words(static_cast<std::size_t>(view_words(value)));
    DCR_TRY(memory_.read(value, words));
    DCR_TRY(loader_.fill(hook, p, *std::max_element(words.begin(), words.end())));
    return LoadReport::kLoaded;
  };
  const LoadTrace found = trace(Dtype::kU8, {10'000});
  ASSERT_EQ(found.writes.size(), 1U);
  EXPECT_EQ(found.writes[0].kind, WriteKind::kOpaque);
}

// The same by a copy: every element that a temporary takes from the tensor is NaN for both codes.
TEST_F(TraceTest, ACopyOfAComputedScalarIsNoConstant) {
  const TensorView p = loader_.add_target("p", Dtype::kF32, {1});
  loader_.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_ASSIGN(const std::vector<float> values, floats(value));
    float sum = 0;
    for (const float one : values) sum += one;
    if (sum != sum) sum = std::numeric_limits<float>::quiet_NaN();
    std::uint32_t bits = 0;
    std::memcpy(&bits, &sum, sizeof(bits));
    DCR_ASSIGN(const TensorView made, loader_.temporary(p, [&](std::uint64_t, std::uint64_t) {
      return std::uint64_t{bits};
    }));
    DCR_TRY(loader_.copy(hook, p, made));
    return LoadReport::kLoaded;
  };
  const LoadTrace found = trace(Dtype::kBF16, {5000});
  EXPECT_EQ(found.refusal, "an element of a parameter depends on several of the tensor's");
}

TEST_F(TraceTest, PaddingIsAConstant) {
  const TensorView p = loader_.add_target("p", Dtype::kBF16, {6});
  loader_.loads["w"] = [&, p](const TensorView& value, LoaderHook& hook) -> Result<LoadReport> {
    DCR_TRY(loader_.copy(hook, narrow(p, 0, 0, 4), value));
    DCR_TRY(loader_.fill(hook, narrow(p, 0, 4, 1), 0));
    DCR_ASSIGN(const TensorView made,
               loader_.temporary(narrow(p, 0, 5, 1), [](std::uint64_t, std::uint64_t) {
                 return std::uint64_t{0x3f80};
               }));
    DCR_TRY(loader_.copy(hook, narrow(p, 0, 5, 1), made));
    return LoadReport::kLoaded;
  };
  const LoadTrace found = trace(Dtype::kBF16, {4});
  ASSERT_EQ(found.writes.size(), 3U);
  EXPECT_EQ(found.writes[0].kind, WriteKind::kPlaced);
  EXPECT_EQ(found.writes[1].kind, WriteKind::kConstant);
  EXPECT_EQ(found.writes[2].kind, WriteKind::kConstant);
}

}  // namespace
}  // namespace dcr
