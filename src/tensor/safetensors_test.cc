#include "tensor/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/limits.h"
#include "tests/support/campaign.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

ByteSpan span_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Parses a header of a file with `data_bytes` of data.
Result<SafetensorsHeader> parse(const std::string& json, std::uint64_t data_bytes) {
  return parse_safetensors_header(span_of(json), 8 + json.size() + data_bytes);
}

struct BadHeader {
  const char* json;
  std::uint64_t data_bytes;
  Code code;
  const char* message;
  const char* tensor;
};

// Every error of the contract, with its exact words.
const BadHeader kBadHeaders[] = {
    // Not JSON.
    {"", 0, Code::kCorrupt, "the header does not begin with '{'", ""},
    {" {}", 0, Code::kCorrupt, "the header does not begin with '{'", ""},
    {"[]", 0, Code::kCorrupt, "the header does not begin with '{'", ""},
    {"{", 0, Code::kCorrupt, "the header: not JSON at byte 2", ""},
    {"{}x", 0, Code::kCorrupt, "the header: not JSON at byte 3", ""},
    {"{}{}", 0, Code::kCorrupt, "the header: not JSON at byte 3", ""},
    {"{/**/}", 0, Code::kCorrupt, "the header: not JSON at byte 1", ""},
    {R"({"a)", 0, Code::kCorrupt, "the header: not JSON at byte 3", ""},
    {R"({"a\)", 0, Code::kCorrupt, "the header: not JSON at byte 4", ""},
    {"{\"a\n\":{}}", 0, Code::kCorrupt, "the header: not JSON at byte 3", ""},
    {R"({"\ud800":{}})", 0, Code::kCorrupt, "the header: not JSON at byte 9", ""},
    {R"({"\x":{}})", 0, Code::kCorrupt, "the header: not JSON at byte 4", ""},
    {"{\"\xff\":{}}", 0, Code::kCorrupt, "the header: not UTF-8", ""},
    {"{\xc3\xbc}", 0, Code::kCorrupt, "the header: not JSON at byte 1", ""},
    // Wrong types.
    {R"({"a":1})", 0, Code::kCorrupt, "tensor \"a\": its value is not an object", "a"},
    {R"({"a":[]})", 0, Code::kCorrupt, "tensor \"a\": its value is not an object", "a"},
    {R"({"a":{"dtype":1}})", 0, Code::kCorrupt, "tensor \"a\": \"dtype\" is not a string", "a"},
    {R"({"a":{"dtype":["F32"]}})", 0, Code::kCorrupt, "tensor \"a\": \"dtype\" is not a string",
     "a"},
    {R"({"a":{"shape":"2"}})", 0, Code::kCorrupt, "tensor \"a\": \"shape\" is not an array", "a"},
    {R"({"a":{"shape":{}}})", 0, Code::kCorrupt, "tensor \"a\": \"shape\" is not an array", "a"},
    {R"({"a":{"data_offsets":7}})", 0, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" is not an array", "a"},
    {R"({"a":{"data_offsets":null}})", 0, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" is not an array", "a"},
    // Numbers.
    {R"({"a":{"shape":[1.0]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"shape\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"shape":[1e2]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"shape\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"shape":[-1]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"shape\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"shape":[-0]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"shape\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"shape":["1"]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"shape\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"shape":[true]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"shape\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"shape":[[1]]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"shape\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"data_offsets":[0,18446744073709551616]}})", 0, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" holds what is not an unsigned 64-bit integer", "a"},
    {R"({"a":{"shape":[1e999]}})", 0, Code::kCorrupt, "the header: not JSON at byte 20", ""},
    {R"({"a":{"shape":[01]}})", 0, Code::kCorrupt, "the header: not JSON at byte 17", ""},
    {R"({"a":{"shape":[12345678901234567890123456789012345678901234567890123456789012345]}})", 0,
     Code::kCorrupt, "the header: not JSON at byte 15", ""},
    // Fields.
    {R"({"a":{"colour":1}})", 0, Code::kCorrupt, "tensor \"a\": unknown field \"colour\"", "a"},
    {R"({"a":{"dtype":"U8","dtype":"U8"}})", 0, Code::kCorrupt,
     "tensor \"a\": \"dtype\" is repeated", "a"},
    {R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"dtype\" is missing", "a"},
    {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"shape\" is missing", "a"},
    {R"({"a":{"dtype":"U8","shape":[1]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" is missing", "a"},
    {R"({"a":{"data_offsets":[]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" is not two numbers", "a"},
    {R"({"a":{"data_offsets":[1]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" is not two numbers", "a"},
    {R"({"a":{"data_offsets":[0,1,2]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" is not two numbers", "a"},
    {R"({"a":{"data_offsets":[2,1]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" end before they begin", "a"},
    // Offsets against dtype × shape, each other and the file.
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}})", 7, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" hold 7 bytes, but dtype F32 and shape [2] need 8", "a"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" leave a hole: they begin at 1, not at 0", "a"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     3, Code::kCorrupt, "tensor \"b\": \"data_offsets\" leave a hole: they begin at 2, not at 1",
     "b"},
    {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
     3, Code::kCorrupt,
     "tensor \"b\": \"data_offsets\" overlap another tensor's: they begin at 1, not at 2", "b"},
    {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, Code::kCorrupt,
     "tensor \"a\": \"data_offsets\" end at 2, past the end of the data at 1", "a"},
    {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, Code::kCorrupt,
     "the tensors end at 2, but the data are 3 bytes", ""},
    {"{}", 1, Code::kCorrupt, "the tensors end at 0, but the data are 1 bytes", ""},
    {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, Code::kCorrupt,
     "tensor \"a\": shape [3] of dtype F4 does not end on a byte boundary", "a"},
    // Names and metadata.
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     2, Code::kCorrupt, "tensor \"a\": the name is repeated", "a"},
    {R"({"__metadata__":{},"__metadata__":{}})", 0, Code::kCorrupt,
     "the header: \"__metadata__\" is repeated", ""},
    {R"({"__metadata__":null})", 0, Code::kCorrupt, "the header: \"__metadata__\" is not an object",
     ""},
    {R"({"__metadata__":["a"]})", 0, Code::kCorrupt,
     "the header: \"__metadata__\" is not an object", ""},
    {R"({"__metadata__":{"a":1}})", 0, Code::kCorrupt,
     "the header: \"__metadata__\" holds what is not a string", ""},
    {R"({"__metadata__":{"a":{}}})", 0, Code::kCorrupt,
     "the header: \"__metadata__\" holds what is not a string", ""},
    {R"({"__metadata__":{"a":"","a":""}})", 0, Code::kCorrupt,
     "the header: \"__metadata__\" repeats the key \"a\"", ""},
    // Limits and dtypes.
    {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1, Code::kTooLarge,
     "tensor \"a\": the rank in \"shape\" is above 8", "a"},
    {R"({"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,0]}})", 0, Code::kTooLarge,
     "tensor \"a\": dimension 1099511627776 of shape [1099511627776] is above 1099511627775", "a"},
    {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
     Code::kTooLarge,
     "tensor \"a\": the elements of shape [4294967296, 4294967296] are more than 281474976710655",
     "a"},
    {R"({"a":{"dtype":"F31","shape":[],"data_offsets":[0,4]}})", 4, Code::kUnsupported,
     "tensor \"a\": dtype \"F31\" is not one of the safetensors format", "a"},
};

TEST(SafetensorsHeader, EveryErrorNamesFieldAndTensor) {
  for (const BadHeader& bad : kBadHeaders) {
    const auto header = parse(bad.json, bad.data_bytes);
    ASSERT_FALSE(header.ok()) << bad.json;
    EXPECT_EQ(header.status().message(), bad.message) << bad.json;
    EXPECT_EQ(header.status().code(), bad.code) << bad.json;
    EXPECT_EQ(header.status().tensor(), bad.tensor) << bad.json;
  }
}

TEST(SafetensorsHeader, NulIsNotTheEnd) {
  const auto header = parse(std::string("{}\0{}", 5), 0);
  EXPECT_EQ(header.status().message(), "the header: not JSON at byte 2");
}

TEST(SafetensorsHeader, Limits) {
  const std::string name(kTensorNameBytesMax, 'n');
  const std::string entry = R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})";
  EXPECT_TRUE(parse("{\"" + name + entry, 1).ok());
  const auto long_name = parse("{\"" + name + "n" + entry, 1).status();
  EXPECT_EQ(long_name.code(), Code::kTooLarge);
  EXPECT_EQ(long_name.message(),
            "the header: the tensor name \"" + name + "\"… is above 1024 bytes");

  std::string metadata = R"({"__metadata__":{)";
  for (std::uint64_t i = 0; i <= kMetadataEntriesMax; ++i) {
    metadata += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  }
  const auto many = parse(metadata + "}}", 0).status();
  EXPECT_EQ(many.code(), Code::kTooLarge);
  EXPECT_EQ(many.message(), "the header: \"__metadata__\" has more than 65536 entries");

  const std::string text(kJsonStringBytesMax + 1, 't');
  const auto string = parse("{\"__metadata__\":{\"a\":\"" + text + "\"}}", 0).status();
  EXPECT_EQ(string.code(), Code::kTooLarge);
  EXPECT_EQ(string.message(), "the header: the JSON string at byte 21 is above 16777216 bytes");

  const std::string header(kSafetensorsHeaderBytesMax + 1, ' ');
  const auto too_long = parse(header, 0).status();
  EXPECT_EQ(too_long.code(), Code::kTooLarge);
  EXPECT_EQ(too_long.message(), "the header of 100000001 bytes is above 100000000");

  EXPECT_EQ(parse_safetensors_header(span_of("{}"), 9).status().message(),
            "the header of 2 bytes does not fit into the file of 9");
}

TEST(SafetensorsHeader, KeepsWhatItSays) {
  const auto header = parse(R"({"b\"\\\u00fc":{"data_offsets":[2,6],"shape":[1,2],"dtype":"BF16"},)"
                            R"("__metadata__":{"format":"pt","":"x"},)"
                            R"("empty":{"dtype":"F32","shape":[0,3],"data_offsets":[2,2]},)"
                            R"("a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
                            R"("":{"dtype":"F64","shape":[],"data_offsets":[6,14]}}   )"
                            "\n",
                            14);
  ASSERT_TRUE(header.ok()) << header.status().message();
  const std::uint64_t start = header->data_offset;
  EXPECT_EQ(header->file_bytes, start + 14);
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"", "x"}, {"format", "pt"}}));
  ASSERT_EQ(header->tensors.size(), 4U);
  const TensorEntry* entry = header->tensors.data();
  EXPECT_EQ(entry[0].name, "a");
  EXPECT_EQ(entry[0].dtype, Dtype::kI8);
  EXPECT_EQ(entry[0].offset, start);
  EXPECT_EQ(entry[0].bytes, 2U);
  EXPECT_EQ(entry[1].name, "empty");
  EXPECT_EQ(entry[1].shape, (Shape{0, 3}));
  EXPECT_EQ(entry[1].bytes, 0U);
  EXPECT_EQ(entry[2].name, "b\"\\\xc3\xbc");
  EXPECT_EQ(entry[2].dtype, Dtype::kBF16);
  EXPECT_EQ(entry[2].offset, start + 2);
  EXPECT_EQ(entry[2].shape, (Shape{1, 2}));
  EXPECT_EQ(entry[3].name, "");
  EXPECT_EQ(entry[3].shape, Shape{});
  EXPECT_EQ(entry[3].offset, start + 6);
}

TEST(SafetensorsPrefix, IsTheFormatsOwnSpelling) {
  const auto prefix = make_safetensors_prefix({{"attn.0", Dtype::kF32, {1, 2, 3}, 0, 0}}, {});
  ASSERT_TRUE(prefix.ok());
  // What the format's own implementation writes for this tensor.
  const std::string json = R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})";
  ASSERT_EQ(json.size(), 64U);
  Bytes expected = {64, 0, 0, 0, 0, 0, 0, 0};
  expected.insert(expected.end(), json.begin(), json.end());
  EXPECT_EQ(*prefix, expected);

  const auto padded = make_safetensors_prefix({}, {{"framework", "pt"}});
  ASSERT_TRUE(padded.ok());
  const std::string text(padded->begin() + 8, padded->end());
  EXPECT_EQ(text, "{\"__metadata__\":{\"framework\":\"pt\"}}     ");
}

TEST(SafetensorsPrefix, ReadsBackAsWritten) {
  std::vector<TensorEntry> tensors;
  std::string names = "z";
  for (unsigned i = 0; i < kDtypeCount; ++i) {
    names += static_cast<char>(i + 1);  // control characters, then others
    tensors.push_back({names + "\"\\/\xf0\x9f\x98\x80", static_cast<Dtype>(i), {4, i}, 0, 0});
  }
  const std::map<std::string, std::string> metadata = {{"\"", "\n\t\\"}, {"k", "\xe2\x82\xac"}};
  const auto prefix = make_safetensors_prefix(tensors, metadata);
  ASSERT_TRUE(prefix.ok()) << prefix.status().message();
  std::uint64_t end = prefix->size();
  for (TensorEntry& tensor : tensors) {
    tensor.offset = end;
    tensor.bytes = *tensor_bytes(tensor.dtype, tensor.shape);
    end += tensor.bytes;
  }
  const auto header = parse_safetensors_header(ByteSpan(*prefix).subspan(8), end);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->metadata, metadata);
  EXPECT_EQ(header->data_offset, prefix->size());
  EXPECT_EQ(prefix->size() % 8, 0U);
  ASSERT_EQ(header->tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(header->tensors[i].name, tensors[i].name);
    EXPECT_EQ(header->tensors[i].dtype, tensors[i].dtype);
    EXPECT_EQ(header->tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(header->tensors[i].offset, tensors[i].offset);
    EXPECT_EQ(header->tensors[i].bytes, tensors[i].bytes);
  }
}

TEST(SafetensorsPrefix, Errors) {
  const auto name = make_safetensors_prefix({{"\xff", Dtype::kU8, {}, 0, 0}}, {}).status();
  EXPECT_EQ(name.code(), Code::kInvalidArgument);
  EXPECT_EQ(name.message(), "tensor \"\\xff\": the name is not UTF-8, or that of the metadata");
  const auto reserved =
      make_safetensors_prefix({{"__metadata__", Dtype::kU8, {}, 0, 0}}, {}).status();
  EXPECT_EQ(reserved.code(), Code::kInvalidArgument);
  const auto metadata = make_safetensors_prefix({}, {{"k", "\x80"}}).status();
  EXPECT_EQ(metadata.code(), Code::kInvalidArgument);
  EXPECT_EQ(metadata.message(), "\"__metadata__\" entry \"k\" is not UTF-8");
  const auto twice =
      make_safetensors_prefix({{"a", Dtype::kU8, {}, 0, 0}, {"a", Dtype::kU8, {}, 0, 0}}, {});
  EXPECT_EQ(twice.status().message(), "tensor \"a\": the name is repeated");
  const auto half = make_safetensors_prefix({{"a", Dtype::kF4, {1}, 0, 0}}, {}).status();
  EXPECT_EQ(half.message(), "tensor \"a\": shape [1] of dtype F4 does not end on a byte boundary");
}

// `count` tensors, the last one in the data first: the worst order for the parser.
std::string backwards(std::uint64_t count) {
  std::string json = "{";
  for (std::uint64_t i = count; i-- > 0;) {
    json += "\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
            std::to_string(i) + "," + std::to_string(i + 1) + "]},";
  }
  json.back() = '}';
  return json;
}

// As many tensors as a checkpoint may have; anything quadratic would take hours.
TEST(SafetensorsHeader, AMillionTensorsBackwards) {
  const std::uint64_t count = campaign_cases(kTensorsPerCheckpointMax);
  const auto header = parse(backwards(count), count);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), count);
  EXPECT_EQ(header->tensors[777].name, "t777");
}

TEST(SafetensorsHeader, OneTensorTooMany) {
  if (campaign_cases(2) == 1) GTEST_SKIP() << "a million tensors are for the release build";
  const Status status = parse(backwards(kTensorsPerCheckpointMax + 1), 0).status();
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_EQ(status.message(), "the header: more than 1048576 tensors");
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  // What reading a file with this content gives.
  Result<SafetensorsFile> read(const std::string& content) {
    directory_.put("f.safetensors", content);
    auto file = posix_file_system().open_read(directory_.at("f.safetensors"));
    if (!file.ok()) return file.status();
    return read_safetensors(**file, "f.safetensors");
  }
  static std::string with_length(std::uint64_t length, const std::string& rest) {
    std::string content(8, '\0');
    std::memcpy(content.data(), &length, 8);
    return content + rest;
  }

  TempDirectory directory_;
};

TEST_F(SafetensorsFileTest, ReadsHeaderAndPrefix) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}  )";
  const std::string head = with_length(json.size(), json);
  const auto file = read(head + "xyz");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(std::string(file->prefix.begin(), file->prefix.end()), head);
  EXPECT_EQ(file->header.tensors.at(0).offset, head.size());
  EXPECT_EQ(file->header.file_bytes, head.size() + 3);
}

TEST_F(SafetensorsFileTest, LengthPrefix) {
  const auto expect = [this](const std::string& content, Code code, const std::string& message) {
    const Status status = read(content).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "safetensors file \"f.safetensors\": " + message);
  };
  expect("", Code::kCorrupt, "0 bytes are too short for the header's length");
  expect("1234567", Code::kCorrupt, "7 bytes are too short for the header's length");
  expect(with_length(3, "{}"), Code::kCorrupt,
         "the header's length 3 does not fit into the file of 10 bytes");
  expect(with_length(0, ""), Code::kCorrupt, "the header does not begin with '{'");
  expect(with_length(kSafetensorsHeaderBytesMax + 1, "{}"), Code::kTooLarge,
         "the header's length 100000001 is above 100000000");
  expect(with_length(~std::uint64_t{0}, "{}"), Code::kTooLarge,
         "the header's length 18446744073709551615 is above 100000000");
  expect(with_length(2, "{}z"), Code::kCorrupt, "the tensors end at 0, but the data are 1 bytes");
}

}  // namespace
}  // namespace dcr
