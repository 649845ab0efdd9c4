#include "tensor/catalogue.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace dcr {
namespace {

CanonicalTensor tensor(const std::string& name, Dtype dtype = Dtype::kBF16, Shape shape = {2, 3}) {
  return {name, dtype, std::move(shape), 0};
}

void expect_error(std::vector<CanonicalTensor> tensors, Code code, const std::string& message,
                  const std::string& about) {
  const Result<Catalogue> catalogue = Catalogue::make(std::move(tensors));
  ASSERT_FALSE(catalogue.ok());
  EXPECT_EQ(catalogue.status().code(), code);
  EXPECT_EQ(catalogue.status().message(), message);
  EXPECT_EQ(catalogue.status().tensor(), about);
}

TEST(Catalogue, SortsByBytesAndCountsWords) {
  const Result<Catalogue> made =
      Catalogue::make({tensor("b"), tensor("\xc3\xa4", Dtype::kF4, {4}), tensor("B"),
                       tensor("a.10", Dtype::kF64, {}), tensor("a.1", Dtype::kU8, {0, 7})});
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(made->size(), 5u);
  std::vector<std::string> names;
  std::vector<std::uint64_t> words;
  for (const CanonicalTensor& t : made->tensors()) {
    names.push_back(t.name);
    words.push_back(t.words);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"B", "a.1", "a.10", "b", "\xc3\xa4"}));
  EXPECT_EQ(words, (std::vector<std::uint64_t>{6, 0, 1, 6, 2}));
  for (std::uint32_t i = 0; i < made->size(); ++i) EXPECT_EQ(made->find((*made)[i].name), i);
  for (const char* absent : {"", "A", "a", "a.100", "c", "\xff"}) {
    EXPECT_EQ(made->find(absent), -1) << absent;
  }
}

TEST(Catalogue, NothingIsACatalogueToo) {
  const Result<Catalogue> made = Catalogue::make({});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->size(), 0u);
  EXPECT_EQ(made->find("a"), -1);
  EXPECT_NE(made->schema(), Catalogue().schema());
}

// The digest's input, spelt out byte by byte.
TEST(Catalogue, SchemaIsWhatTheFormatSays) {
  const Result<Catalogue> made =
      Catalogue::make({tensor("w", Dtype::kF32, {258}), tensor("norm", Dtype::kBF16, {})});
  ASSERT_TRUE(made.ok());
  const std::string input(
      "dcr-catalogue"
      "\x02\0\0\0\0\0\0\0"
      "\x04\0\0\0norm\x0b\x00"
      "\x01\0\0\0w\x0e\x01\x02\x01\0\0\0\0\0\0",
      13 + 8 + 10 + 15);
  EXPECT_EQ(made->schema(),
            blake2b({reinterpret_cast<const std::uint8_t*>(input.data()), input.size()}));
}

TEST(Catalogue, SchemaBindsNamesDtypesAndShapes) {
  const auto schema = [](std::vector<CanonicalTensor> tensors) {
    return Catalogue::make(std::move(tensors))->schema();
  };
  const Digest reference = schema({tensor("a"), tensor("b")});
  EXPECT_EQ(schema({tensor("b"), tensor("a")}), reference);
  EXPECT_NE(schema({tensor("a"), tensor("c")}), reference);
  EXPECT_NE(schema({tensor("a"), tensor("b", Dtype::kF16)}), reference);
  EXPECT_NE(schema({tensor("a"), tensor("b", Dtype::kBF16, {3, 2})}), reference);
  EXPECT_NE(schema({tensor("a"), tensor("b", Dtype::kBF16, {6})}), reference);
  EXPECT_NE(schema({tensor("a")}), reference);
}

TEST(Catalogue, Errors) {
  expect_error({tensor("a"), tensor("b"), tensor("a")}, Code::kCorrupt,
               "catalogue: tensor \"a\" is there twice", "a");
  expect_error({tensor("")}, Code::kCorrupt, "catalogue: a tensor without a name", "");
  expect_error({tensor("x\xff")}, Code::kCorrupt,
               "catalogue: tensor \"x\\xff\": its name is not UTF-8", "x\xff");
  const std::string longest(kTensorNameBytesMax, 'n');
  EXPECT_TRUE(Catalogue::make({tensor(longest)}).ok());
  expect_error({tensor(longest + "n")}, Code::kTooLarge,
               "catalogue: tensor \"" + longest + "\"…: its name is above 1024 bytes",
               longest + "n");
  expect_error({tensor("a", Dtype::kF4, {3})}, Code::kCorrupt,
               "catalogue: tensor \"a\": shape [3] of dtype F4 does not end on a byte boundary",
               "a");
  expect_error({tensor("a", Dtype::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1})}, Code::kTooLarge,
               "catalogue: tensor \"a\": rank 9 is above 8", "a");
}

TEST(Catalogue, ItsBytesAreBounded) {
  // 2^47 elements of eight bytes; 2^10 of them are the limit.
  std::vector<CanonicalTensor> tensors;
  for (unsigned i = 0; i < 1024; ++i) {
    tensors.push_back(tensor("t" + std::to_string(i), Dtype::kU64, {std::uint64_t{1} << 39, 256}));
  }
  EXPECT_TRUE(Catalogue::make(tensors).ok());
  tensors.push_back(tensor("z", Dtype::kU8, {1}));
  expect_error(tensors, Code::kTooLarge,
               "catalogue: with tensor \"z\" there are more than 1152921504606846976 bytes", "z");
}

}  // namespace
}  // namespace dcr
