#include "bench/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/limits.h"
#include "bench/changes.h"
#include "bench/parallel_for.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kWidth = sizeof(std::uint16_t);
constexpr std::uint64_t kRowWords = 2048;
constexpr std::uint64_t kChunksAtOnce = 8;
constexpr std::uint32_t kPermissions = 0644;

std::string tensor_name(std::uint64_t tensor) {
  return fmt::format("model.layers.{}.mlp.up_proj.weight", tensor);
}

// Which tensors lie in a shard: consecutive ones, the last of all maybe shorter.
struct Shard {
  std::uint64_t first_tensor = 0, tensors = 0;
  std::uint64_t words = 0;
};

std::vector<Shard> cut_shards(std::uint64_t words, unsigned shards) {
  const std::uint64_t tensors = divide_up(words, kTensorWords);
  const std::uint64_t each = divide_up(tensors, shards);
  std::vector<Shard> result;
  for (std::uint64_t first = 0; first < tensors; first += each) {
    const std::uint64_t count = std::min(each, tensors - first);
    const std::uint64_t end = std::min((first + count) * kTensorWords, words);
    result.push_back({first, count, end - first * kTensorWords});
  }
  return result;
}

// Length, JSON and padding of a safetensors file.
Bytes safetensors_header(const Shard& shard) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t words = shard.words;
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < shard.tensors; ++i) {
    const std::uint64_t size = std::min(kTensorWords, words);
    const std::string shape = size == kTensorWords
                                  ? fmt::format("{},{}", size / kRowWords, kRowWords)
                                  : fmt::format("{}", size);
    json += fmt::format(R"(,"{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                        tensor_name(shard.first_tensor + i), shape, offset, offset + size * kWidth);
    offset += size * kWidth;
    words -= size;
  }
  json += '}';
  json.resize(divide_up(json.size(), 8) * 8, ' ');
  Bytes header;
  ByteWriter writer(&header);
  writer.u64(json.size());
  writer.text(json);
  return header;
}

std::string index_json(const std::vector<Shard>& shards, const std::vector<std::string>& names,
                       std::uint64_t bytes) {
  std::string json = fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{)", bytes);
  const char* separator = "";
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (std::uint64_t tensor = 0; tensor < shards[i].tensors; ++tensor) {
      json += fmt::format(R"({}"{}":"{}")", separator, tensor_name(shards[i].first_tensor + tensor),
                          names[i]);
      separator = ",";
    }
  }
  return json + "}}\n";
}

Status write_text(const std::string& path, const std::string& text) {
  DCR_ASSIGN(const std::unique_ptr<File> file, posix_file_system().create(path, kPermissions));
  return file->write(0, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

Status write_words(File& file, std::uint64_t offset, const std::vector<std::uint16_t>& words,
                   std::uint64_t count) {
  return file.write(offset, {reinterpret_cast<const std::uint8_t*>(words.data()), count * kWidth});
}

// Tensors are a whole number of chunks, so a shard starts with a chunk of its own.
static_assert(kTensorWords % kChunkWords == 0);

Status write_shard(const WorkloadSpec& spec, const Shard& shard, const std::string& before_path,
                   const std::string& after_path) {
  const Bytes header = safetensors_header(shard);
  DCR_ASSIGN(const std::unique_ptr<File> before,
             posix_file_system().create(before_path, kPermissions));
  DCR_ASSIGN(const std::unique_ptr<File> after,
             posix_file_system().create(after_path, kPermissions));
  DCR_TRY(before->write(0, header));
  DCR_TRY(after->write(0, header));
  std::vector<std::uint16_t> old_words(kChunksAtOnce * kChunkWords);
  std::vector<std::uint16_t> new_words(kChunksAtOnce * kChunkWords);
  const std::uint64_t first_chunk = shard.first_tensor * (kTensorWords / kChunkWords);
  for (std::uint64_t done = 0; done < shard.words; done += old_words.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(old_words.size(), shard.words - done);
    parallel_for(divide_up(count, kChunkWords), [&](std::uint64_t i) {
      const std::uint64_t at = i * kChunkWords;
      const std::uint64_t size = std::min(kChunkWords, count - at);
      fill_chunk(spec, first_chunk + done / kChunkWords + i, std::span(old_words).subspan(at, size),
                 std::span(new_words).subspan(at, size));
    });
    DCR_TRY(write_words(*before, header.size() + done * kWidth, old_words, count));
    DCR_TRY(write_words(*after, header.size() + done * kWidth, new_words, count));
  }
  DCR_TRY(before->sync());
  return after->sync();
}

}  // namespace

Result<CheckpointPair> write_checkpoints(const WorkloadSpec& spec, std::uint64_t bytes,
                                         unsigned shards, const std::string& directory) {
  const std::uint64_t words = std::max<std::uint64_t>(bytes / kWidth, 1);
  const std::vector<Shard> cut = cut_shards(words, shards);
  CheckpointPair pair{join_path(directory, "old"), join_path(directory, "new"), {}};
  if (shards == 1) {
    pair.before += ".safetensors";
    pair.after += ".safetensors";
    DCR_TRY(write_shard(spec, cut[0], pair.before, pair.after));
    return pair;
  }
  DCR_TRY(posix_file_system().make_directory(pair.before, 0755));
  DCR_TRY(posix_file_system().make_directory(pair.after, 0755));
  for (std::size_t i = 0; i < cut.size(); ++i) {
    pair.shards.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, cut.size()));
    DCR_TRY(write_shard(spec, cut[i], join_path(pair.before, pair.shards[i]),
                        join_path(pair.after, pair.shards[i])));
  }
  const std::string index = index_json(cut, pair.shards, words * kWidth);
  for (const std::string& side : {pair.before, pair.after}) {
    DCR_TRY(write_text(join_path(side, "model.safetensors.index.json"), index));
  }
  return pair;
}

Status compare_files(const std::string& expected, const std::string& actual) {
  DCR_ASSIGN(const std::unique_ptr<File> a, posix_file_system().open_read(expected));
  DCR_ASSIGN(const std::unique_ptr<File> b, posix_file_system().open_read(actual));
  DCR_ASSIGN(const std::uint64_t size, a->size());
  DCR_ASSIGN(const std::uint64_t other_size, b->size());
  bool equal = size == other_size;
  Bytes left(16 * kMiB);
  Bytes right(left.size());
  for (std::uint64_t at = 0; equal && at < size; at += left.size()) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left.size(), size - at));
    DCR_TRY(a->read(at, MutableByteSpan(left).first(count)));
    DCR_TRY(b->read(at, MutableByteSpan(right).first(count)));
    equal =
        std::equal(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count), right.begin());
  }
  if (equal) return {};
  return Status(Code::kMismatch, actual + " differs from " + expected);
}

}  // namespace dcr
