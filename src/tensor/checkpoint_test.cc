#include "tensor/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/limits.h"
#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

ByteSpan text_span(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// A safetensors file with one U8 tensor of the given content per name.
Bytes weights(const std::map<std::string, std::string>& tensors) {
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  for (const auto& [name, data] : tensors) {
    entries.push_back({name, Dtype::kU8, {data.size()}, 0, 0});
  }
  Result<Bytes> made = make_safetensors_prefix(entries, {});
  DCR_ASSERT(made.ok());
  Bytes bytes = std::move(made).value();
  for (const auto& [name, data] : tensors) bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

std::string index_of(const std::map<std::string, std::string>& map) {
  std::string json = R"({"metadata":{"total_size":1.5e3,"nested":[{"x":null}]},"weight_map":{)";
  for (const auto& [tensor, file] : map) {
    json.append("\"").append(tensor).append("\":\"").append(file).append("\",");
  }
  json.back() = '}';
  return json + "}";
}

class CheckpointTest : public ::testing::Test {
 protected:
  Result<Checkpoint> open(bool writable = false) {
    return open_checkpoint(posix_file_system(), directory_.path(), writable);
  }
  std::string quoted(const std::string& name) const { return "\"" + directory_.at(name) + "\""; }
  void expect_error(Code code, const std::string& message, const std::string& tensor,
                    bool writable = false) {
    const Status status = open(writable).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(status.tensor(), tensor);
  }
  static std::string text_of(const Checkpoint& checkpoint, std::string_view name) {
    const std::int64_t at = find_tensor(checkpoint, name);
    if (at < 0) return "no such tensor";
    const CheckpointTensor& tensor = checkpoint.tensors[static_cast<std::size_t>(at)];
    std::string text(tensor.bytes, '\0');
    const Status status = read_tensor(checkpoint, tensor, 0,
                                      {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
    return status.ok() ? text : status.message();
  }
  void put_two_shards() {
    directory_.put("m-2.safetensors", weights({{"a", "AA"}, {"d", "D"}}));
    directory_.put("m-1.safetensors", weights({{"b", "B"}, {"c", "CCC"}}));
  }
  void put_index(const std::map<std::string, std::string>& map) {
    directory_.put("model.safetensors.index.json", index_of(map));
  }
  const std::map<std::string, std::string> two_shards_ = {{"a", "m-2.safetensors"},
                                                          {"b", "m-1.safetensors"},
                                                          {"c", "m-1.safetensors"},
                                                          {"d", "m-2.safetensors"}};

  TempDirectory directory_;
};

TEST_F(CheckpointTest, SingleFile) {
  directory_.put("w.safetensors", weights({{"x", "12345"}, {"b", ""}}));
  ASSERT_EQ(::chmod(directory_.at("w.safetensors").c_str(), 0640), 0);
  auto checkpoint = open_checkpoint(posix_file_system(), directory_.at("w.safetensors"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_FALSE(checkpoint->directory);
  EXPECT_EQ(checkpoint->path, directory_.at("w.safetensors"));
  ASSERT_EQ(checkpoint->files.size(), 1U);
  EXPECT_EQ(checkpoint->files[0].name, "w.safetensors");
  EXPECT_EQ(checkpoint->files[0].permissions, 0640U);
  EXPECT_EQ(checkpoint->files[0].prefix.size(), checkpoint->files[0].header.data_offset);
  ASSERT_EQ(checkpoint->tensors.size(), 2U);
  EXPECT_EQ(checkpoint->tensors[0].name, "b");
  EXPECT_EQ(text_of(*checkpoint, "x"), "12345");
  EXPECT_EQ(text_of(*checkpoint, "b"), "");
  EXPECT_EQ(find_tensor(*checkpoint, "y"), -1);
  std::uint8_t two[2];
  ASSERT_TRUE(read_tensor(*checkpoint, checkpoint->tensors[1], 2, two).ok());
  EXPECT_EQ(two[0], '3');
  EXPECT_EQ(two[1], '4');
}

TEST_F(CheckpointTest, ShardsThroughTheIndex) {
  put_two_shards();
  put_index(two_shards_);
  directory_.put("config.json", "{}");
  auto checkpoint = open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_TRUE(checkpoint->directory);
  ASSERT_EQ(checkpoint->files.size(), 2U);
  EXPECT_EQ(checkpoint->files[0].name, "m-1.safetensors");
  EXPECT_EQ(checkpoint->files[1].name, "m-2.safetensors");
  std::string names;
  for (const CheckpointTensor& tensor : checkpoint->tensors) names += tensor.name;
  EXPECT_EQ(names, "abcd");
  EXPECT_EQ(text_of(*checkpoint, "a"), "AA");
  EXPECT_EQ(text_of(*checkpoint, "c"), "CCC");
  ASSERT_EQ(checkpoint->others.size(), 2U);
  EXPECT_EQ(checkpoint->others[0].name, "config.json");
  EXPECT_EQ(checkpoint->others[0].size, 2U);
  EXPECT_EQ(checkpoint->others[1].name, "model.safetensors.index.json");
  EXPECT_TRUE(checkpoint->left_out.empty());
}

TEST_F(CheckpointTest, SaysWhatIsLeftOutAndWhy) {
  put_two_shards();
  put_index(two_shards_);
  directory_.put("model.safetensors", weights({}));
  directory_.put("pytorch_model.bin", "x");
  directory_.put("optimizer.pt", "x");
  directory_.put("a.pkl", "x");
  directory_.put("a.ckpt", "x");
  directory_.put("a.pth", "x");
  directory_.put("m-1.safetensors.dcr-journal", "x");
  directory_.put("config.json.dcr-partial.1", "x");
  directory_.put("limit.txt", "");
  directory_.put("large.txt", "");
  std::filesystem::resize_file(directory_.at("limit.txt"), kCarriedFileBytesMax);
  std::filesystem::resize_file(directory_.at("large.txt"), kCarriedFileBytesMax + 1);
  std::filesystem::create_directory(directory_.at("sub"));
  std::filesystem::create_symlink("sub", directory_.at("to_sub"));
  std::filesystem::create_symlink("gone", directory_.at("to_nothing"));
  std::filesystem::create_symlink("limit.txt", directory_.at("to_limit"));
  ASSERT_EQ(::mkfifo(directory_.at("fifo").c_str(), 0600), 0);
  auto checkpoint = open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::string others;
  for (const OtherFile& file : checkpoint->others) others += file.name + "\n";
  EXPECT_EQ(others, "limit.txt\nmodel.safetensors.index.json\nto_limit\n");
  EXPECT_EQ(checkpoint->others[2].size, kCarriedFileBytesMax);
  std::string left_out;
  for (const LeftOutFile& file : checkpoint->left_out) {
    left_out += file.name + ": " + file.reason + "\n";
  }
  EXPECT_EQ(left_out,
            "a.ckpt: pickle\n"
            "a.pkl: pickle\n"
            "a.pth: pickle\n"
            "config.json.dcr-partial.1: left by an interrupted run of dcr\n"
            "fifo: not a regular file\n"
            "large.txt: above 64 MiB\n"
            "m-1.safetensors.dcr-journal: left by an interrupted run of dcr\n"
            "model.safetensors: safetensors file outside the index\n"
            "optimizer.pt: pickle\n"
            "pytorch_model.bin: pickle\n"
            "sub: directory\n"
            "to_nothing: symlink to nothing\n"
            "to_sub: symlink to a directory\n");
}

TEST_F(CheckpointTest, DirectoriesWithoutIndex) {
  const std::string looked =
      "\"" + directory_.path() +
      "\" holds no checkpoint: looked for model.safetensors.index.json, model.safetensors and a "
      "single *.safetensors file (found ";
  expect_error(Code::kNotFound, looked + "0)", "");
  directory_.put("one.safetensors", weights({{"a", "1"}}));
  auto one = open();
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(text_of(*one, "a"), "1");
  directory_.put("two.safetensors", weights({{"a", "2"}}));
  expect_error(Code::kNotFound, looked + "2)", "");
  directory_.put("model.safetensors", weights({{"a", "3"}}));
  auto model = open();
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(text_of(*model, "a"), "3");
  ASSERT_EQ(model->left_out.size(), 2U);
  EXPECT_EQ(model->left_out[1].reason, "second safetensors file");
}

TEST_F(CheckpointTest, NothingThere) {
  const Status status = open_checkpoint(posix_file_system(), directory_.at("absent")).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find(directory_.at("absent")), std::string::npos);
  ASSERT_EQ(::mkfifo(directory_.at("fifo").c_str(), 0600), 0);
  const Status fifo = open_checkpoint(posix_file_system(), directory_.at("fifo")).status();
  EXPECT_EQ(fifo.code(), Code::kInvalidArgument);
  EXPECT_EQ(fifo.message(), quoted("fifo") + " is neither a file nor a directory");
}

TEST_F(CheckpointTest, NameInTwoShards) {
  put_two_shards();
  directory_.put("m-3.safetensors", weights({{"c", "other"}, {"e", ""}}));
  auto map = two_shards_;
  map["e"] = "m-3.safetensors";
  put_index(map);
  expect_error(Code::kCorrupt,
               "tensor \"c\" is in two files: " + quoted("m-1.safetensors") + " and " +
                   quoted("m-3.safetensors"),
               "c");
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  put_two_shards();
  auto map = two_shards_;
  map["z"] = "m-9.safetensors";
  put_index(map);
  expect_error(
      Code::kNotFound,
      "shard " + quoted("m-9.safetensors") + " is missing (the index places tensor \"z\" in it)",
      "z");
  map["z"] = "m-1.safetensors";
  put_index(map);
  expect_error(
      Code::kCorrupt,
      "tensor \"z\" is missing from " + quoted("m-1.safetensors") + ", where the index places it",
      "z");
  map.erase("z");
  map["bb"] = "m-1.safetensors";
  put_index(map);
  expect_error(
      Code::kCorrupt,
      "tensor \"bb\" is missing from " + quoted("m-1.safetensors") + ", where the index places it",
      "bb");
  map.erase("bb");
  map["b"] = "m-2.safetensors";
  put_index(map);
  expect_error(Code::kCorrupt,
               "tensor \"b\" is in " + quoted("m-1.safetensors") +
                   ", but the index places it in \"m-2.safetensors\"",
               "b");
  map.erase("b");
  put_index(map);
  expect_error(Code::kCorrupt,
               "tensor \"b\" of " + quoted("m-1.safetensors") + " is not in the index", "b");
  map = two_shards_;
  map.erase("d");
  put_index(map);
  expect_error(Code::kCorrupt,
               "tensor \"d\" of " + quoted("m-2.safetensors") + " is not in the index", "d");
}

TEST_F(CheckpointTest, BadShardAndBadIndexAreNamed) {
  put_two_shards();
  put_index(two_shards_);
  directory_.put("m-2.safetensors", "short");
  expect_error(Code::kCorrupt,
               "safetensors file " + quoted("m-2.safetensors") +
                   ": 5 bytes are too short for the header's length",
               "");
  directory_.put("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../x.safetensors\"}}");
  expect_error(Code::kCorrupt,
               "index " + quoted("model.safetensors.index.json") +
                   ": tensor \"a\" has in the index the file name \"../x.safetensors\", which is "
                   "not one plain component of 1 to 255 bytes",
               "a");
  std::filesystem::remove(directory_.at("model.safetensors.index.json"));
  std::filesystem::create_symlink("gone", directory_.at("model.safetensors.index.json"));
  expect_error(Code::kNotFound, quoted("model.safetensors.index.json") + ": symlink to nothing",
               "");
}

// The layout of the Hugging Face cache: every entry is a symlink into a directory of blobs.
TEST_F(CheckpointTest, SymlinksAreReadThroughButNeverWritten) {
  TempDirectory blobs;
  blobs.put("0a", weights({{"a", "AA"}}));
  blobs.put("0b", "{}");
  std::filesystem::create_symlink(blobs.at("0a"), directory_.at("model.safetensors"));
  auto checkpoint = open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(text_of(*checkpoint, "a"), "AA");
  const std::string advice =
      "; it cannot be changed in place: write to another place, or copy the file first";
  expect_error(Code::kMismatch, quoted("model.safetensors") + " is a symlink" + advice, "", true);
  const Status alone =
      open_checkpoint(posix_file_system(), directory_.at("model.safetensors"), true).status();
  EXPECT_EQ(alone.code(), Code::kMismatch);
  EXPECT_EQ(alone.message(), quoted("model.safetensors") + " is a symlink" + advice);

  std::filesystem::remove(directory_.at("model.safetensors"));
  directory_.put("model.safetensors", weights({{"a", "AA"}}));
  EXPECT_TRUE(open(true).ok());
  std::filesystem::create_symlink(blobs.at("0b"), directory_.at("config.json"));
  EXPECT_EQ(open()->others.at(0).size, 2U);
  expect_error(Code::kMismatch, quoted("config.json") + " is a symlink" + advice, "", true);
}

TEST_F(CheckpointTest, FilesWithSeveralLinksAreNeverWritten) {
  TempDirectory other;
  directory_.put("model.safetensors", weights({{"a", "AA"}}));
  directory_.put("config.json", "{}");
  std::filesystem::create_hard_link(directory_.at("config.json"), other.at("config.json"));
  const std::string advice =
      " has 2 links; it cannot be changed in place: write to another place, or copy the file first";
  EXPECT_TRUE(open().ok());
  expect_error(Code::kMismatch, quoted("config.json") + advice, "", true);
  std::filesystem::create_hard_link(directory_.at("model.safetensors"), other.at("w"));
  const Status alone = open_checkpoint(posix_file_system(), other.at("w"), true).status();
  EXPECT_EQ(alone.code(), Code::kMismatch);
  EXPECT_EQ(alone.message(), "\"" + other.at("w") + "\"" + advice);
}

TEST_F(CheckpointTest, WritableIsWritten) {
  directory_.put("model.safetensors", weights({{"a", "AA"}}));
  auto checkpoint = open(true);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  ASSERT_TRUE(checkpoint->files[0].file->write(checkpoint->tensors[0].offset, text_span("Z")).ok());
  EXPECT_EQ(text_of(*checkpoint, "a"), "ZA");
  EXPECT_EQ(text_of(*open(), "a"), "ZA");
}

TEST_F(CheckpointTest, AFileThatShrinksIsAnError) {
  directory_.put("model.safetensors", weights({{"a", "AAAA"}}));
  auto checkpoint = open();
  ASSERT_TRUE(checkpoint.ok());
  const std::uint64_t end = checkpoint->files[0].header.file_bytes;
  std::filesystem::resize_file(directory_.at("model.safetensors"), end - 1);
  std::uint8_t out[4];
  const Status status = read_tensor(*checkpoint, checkpoint->tensors[0], 0, out);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.tensor(), "a");
  EXPECT_EQ(status.message().rfind("tensor \"a\": ", 0), 0U) << status.message();
  EXPECT_NE(status.message().find(directory_.at("model.safetensors")), std::string::npos);
  EXPECT_NE(status.message().find("shrank"), std::string::npos) << status.message();
  EXPECT_TRUE(read_tensor(*checkpoint, checkpoint->tensors[0], 0, {out, 3}).ok());
}

TEST_F(CheckpointTest, TooManyEntries) {
  for (std::uint64_t i = 0; i <= kFilesPerCheckpointMax; ++i) {
    directory_.put(std::to_string(i), "");
  }
  expect_error(Code::kTooLarge, "\"" + directory_.path() + "\" has 4097 entries, more than 4096",
               "");
}

TEST(FileName, OnePlainComponent) {
  for (const std::string& name :
       {std::string("a"), std::string("..."), std::string(".a"), std::string(255, 'x'),
        std::string("a b\n"), std::string("a\\b")}) {
    EXPECT_TRUE(validate_file_name(name).ok()) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("/"),
        std::string("a/"), std::string("a\0b", 3), std::string(256, 'x')}) {
    const Status status = validate_file_name(name);
    EXPECT_EQ(status.code(), Code::kCorrupt) << name;
    EXPECT_NE(status.message().find("which is not one plain component of 1 to 255 bytes"),
              std::string::npos);
  }
}

struct BadIndex {
  const char* json;
  Code code;
  const char* message;
  const char* tensor;
};

const BadIndex kBadIndices[] = {
    {"", Code::kCorrupt, "not JSON at byte 1", ""},
    {"1", Code::kCorrupt, "the index is not a JSON object", ""},
    {"[]", Code::kCorrupt, "the index is not a JSON object", ""},
    {"{}", Code::kCorrupt, "\"weight_map\" is missing", ""},
    {R"({"metadata":{"weight_map":{}}})", Code::kCorrupt, "\"weight_map\" is missing", ""},
    {R"({"weight_map":1})", Code::kCorrupt, "\"weight_map\" is not an object", ""},
    {R"({"weight_map":[]})", Code::kCorrupt, "\"weight_map\" is not an object", ""},
    {R"({"weight_map":{},"weight_map":{}})", Code::kCorrupt, "\"weight_map\" is repeated", ""},
    {R"({"weight_map":{"a":1}})", Code::kCorrupt,
     "tensor \"a\" has in the index what is not a file name", "a"},
    {R"({"weight_map":{"a":{}}})", Code::kCorrupt,
     "tensor \"a\" has in the index what is not a file name", "a"},
    {R"({"weight_map":{"a":["f.safetensors"]}})", Code::kCorrupt,
     "tensor \"a\" has in the index what is not a file name", "a"},
    {R"({"weight_map":{"a":"f.bin"}})", Code::kCorrupt,
     "tensor \"a\" has in the index the file \"f.bin\", which is not a .safetensors file", "a"},
    {R"({"weight_map":{"a":"\u0000.safetensors"}})", Code::kCorrupt,
     "tensor \"a\" has in the index the file name \"\\x00.safetensors\", which is not one plain "
     "component of 1 to 255 bytes",
     "a"},
    {R"({"weight_map":{"a":"f.safetensors","a":"g.safetensors"}})", Code::kCorrupt,
     "tensor \"a\" is repeated in \"weight_map\"", "a"},
    {R"({"metadata":[[[[[[[[]]]]]]]],"weight_map":{}})", Code::kTooLarge,
     "JSON is nested deeper than 8 levels", ""},
    {"{\"weight_map\":{\"\xc0\":\"f.safetensors\"}}", Code::kCorrupt, "not UTF-8", ""},
    {"\xef\xbb\xbf{\"weight_map\":{}}", Code::kCorrupt, "not JSON at byte 0", ""},
};

TEST(Index, EveryErrorNamesTheTensor) {
  for (const BadIndex& bad : kBadIndices) {
    const Status status = parse_index(text_span(bad.json)).status();
    EXPECT_EQ(status.message(), bad.message) << bad.json;
    EXPECT_EQ(status.code(), bad.code) << bad.json;
    EXPECT_EQ(status.tensor(), bad.tensor) << bad.json;
  }
}

TEST(Index, SkipsWhatIsNotTheWeightMap) {
  const auto map = parse_index(text_span(
      R"( {"metadata":{"a":[1,-2,3.5,true,null,{"b":"c"}],"a":1},"other":"x",)"
      R"("weight_map":{"t":"f.safetensors","":"g.safetensors"},"last":[[[[[[[]]]]]]]} )"));
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(*map,
            (std::map<std::string, std::string>{{"", "g.safetensors"}, {"t", "f.safetensors"}}));
}

TEST(Index, Limits) {
  const std::string name(kTensorNameBytesMax + 1, 'n');
  const Status status =
      parse_index(text_span("{\"weight_map\":{\"" + name + "\":\"f.safetensors\"}}")).status();
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_NE(status.message().find("is above 1024 bytes"), std::string::npos);
  // A hundred thousand levels must neither recurse nor pass.
  const Status deep = parse_index(text_span(std::string(100'000, '['))).status();
  EXPECT_EQ(deep.code(), Code::kCorrupt);
  EXPECT_EQ(deep.message(), "the index is not a JSON object");
  const Status nested = parse_index(text_span("{\"m\":" + std::string(100'000, '['))).status();
  EXPECT_EQ(nested.code(), Code::kTooLarge);
}

TEST(Identity, IsTheDigestOfTheDocumentedBytes) {
  const Shape matrix = {2, 3};
  const Shape scalar;
  Digest first{};
  first.fill(0x11);
  Digest second{};
  second.fill(0x22);
  Bytes bytes;
  ByteWriter writer(&bytes);
  writer.text("dcr-identity");
  writer.u64(2);
  writer.u32(1);
  writer.text("a");
  writer.u8(11);
  writer.u8(2);
  writer.u64(2);
  writer.u64(3);
  writer.bytes(first);
  writer.u32(2);
  writer.text("bc");
  writer.u8(14);
  writer.u8(0);
  writer.bytes(second);
  EXPECT_EQ(checkpoint_identity(
                {{"a", Dtype::kBF16, &matrix, first}, {"bc", Dtype::kF32, &scalar, second}}),
            blake2b(bytes));
  const Bytes empty = {'d', 'c', 'r', '-', 'i', 'd', 'e', 'n', 't', 'i',
                       't', 'y', 0,   0,   0,   0,   0,   0,   0,   0};
  EXPECT_EQ(checkpoint_identity({}), blake2b(empty));
}

}  // namespace
}  // namespace dcr
