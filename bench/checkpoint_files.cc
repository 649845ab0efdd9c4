#include "bench/checkpoint_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/limits.h"
#include "bench/changes.h"
#include "bench/parallel_for.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kRowWords = 2048;
constexpr std::uint64_t kChunksAtOnce = 8;
constexpr std::uint32_t kPermissions = 0644;

// Which tensors lie in a shard: consecutive ones.
using Shard = std::span<const ModelTensor>;

std::vector<Shard> cut_shards(const std::vector<ModelTensor>& tensors, unsigned shards) {
  const std::size_t each = divide_up(tensors.size(), shards);
  std::vector<Shard> result;
  for (std::size_t first = 0; first < tensors.size(); first += each) {
    result.push_back(std::span(tensors).subspan(first, std::min(each, tensors.size() - first)));
  }
  return result;
}

void add_tensor(std::vector<ModelTensor>* tensors, std::string name, Shape shape) {
  ModelTensor tensor{std::move(name), std::move(shape), 1, 0};
  for (const std::uint64_t size : tensor.shape) tensor.words *= size;
  if (!tensors->empty()) {
    const ModelTensor& last = tensors->back();
    tensor.first_chunk = last.first_chunk + divide_up(last.words, kChunkWords);
  }
  tensors->push_back(std::move(tensor));
}

// Length, JSON and padding of a safetensors file.
Bytes safetensors_header(const Shard& shard) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t offset = 0;
  for (const ModelTensor& tensor : shard) {
    const std::uint64_t end = offset + tensor.words * kBf16Bytes;
    json += fmt::format(R"(,"{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                        tensor.name, fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  json += '}';
  json.resize(divide_up(json.size(), 8) * 8, ' ');
  Bytes header;
  ByteWriter writer(&header);
  writer.u64(json.size());
  writer.text(json);
  return header;
}

std::string index_json(const std::vector<Shard>& shards, const std::vector<std::string>& names) {
  std::uint64_t bytes = 0;
  std::string map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const ModelTensor& tensor : shards[i]) {
      map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", tensor.name, names[i]);
      bytes += tensor.words * kBf16Bytes;
    }
  }
  return fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{{}}}}})", bytes, map) +
         "\n";
}

Status write_text(const std::string& path, const std::string& text) {
  DCR_ASSIGN(const std::unique_ptr<File> file, posix_file_system().create(path, kPermissions));
  return file->write(0, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

Status write_words(File& file, std::uint64_t offset, std::span<const std::uint16_t> words) {
  return file.write(
      offset, {reinterpret_cast<const std::uint8_t*>(words.data()), words.size() * kBf16Bytes});
}

void fill_block(const WorkloadSpec& spec, std::uint64_t first_chunk,
                std::span<std::uint16_t> before, std::span<std::uint16_t> after) {
  parallel_for(divide_up(before.size(), kChunkWords), [&](std::uint64_t i) {
    const std::uint64_t at = i * kChunkWords;
    const std::uint64_t size = std::min<std::uint64_t>(kChunkWords, before.size() - at);
    fill_chunk(spec, first_chunk + i, before.subspan(at, size), after.subspan(at, size));
  });
}

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
  std::uint64_t at = header.size();
  for (const ModelTensor& tensor : shard) {
    for (std::uint64_t first = 0; first < tensor.words; first += old_words.size()) {
      const std::uint64_t count = std::min<std::uint64_t>(old_words.size(), tensor.words - first);
      const auto old_part = std::span(old_words).first(count);
      const auto new_part = std::span(new_words).first(count);
      fill_block(spec, tensor.first_chunk + first / kChunkWords, old_part, new_part);
      DCR_TRY(write_words(*before, at, old_part));
      DCR_TRY(write_words(*after, at, new_part));
      at += count * kBf16Bytes;
    }
  }
  DCR_TRY(before->sync());
  return after->sync();
}

}  // namespace

std::vector<ModelTensor> plain_tensors(std::uint64_t bytes) {
  std::vector<ModelTensor> tensors;
  const std::uint64_t words = std::max<std::uint64_t>(bytes / kBf16Bytes, 1);
  for (std::uint64_t first = 0; first < words; first += kTensorWords) {
    const std::uint64_t size = std::min(kTensorWords, words - first);
    Shape shape = {size};
    if (size == kTensorWords) shape = {size / kRowWords, kRowWords};
    add_tensor(&tensors, fmt::format("model.layers.{}.mlp.up_proj.weight", tensors.size()),
               std::move(shape));
  }
  return tensors;
}

std::vector<ModelTensor> transformer_tensors(std::uint64_t bytes) {
  // Widths as in models of 8 billion parameters, smaller ones in proportion; few words.
  std::uint64_t hidden = 4096;
  while (hidden > 64 && hidden * hidden * 21 * kBf16Bytes > bytes) hidden /= 2;
  const std::uint64_t inner = hidden / 2 * 7;
  const std::uint64_t key_value = hidden / 4;
  const std::uint64_t vocabulary = hidden * 4 - 8;  // no multiple of what shards are padded to
  const std::uint64_t layer_words = hidden * (2 * hidden + 2 * key_value + 3 * inner + 2);
  const std::uint64_t outer_words = hidden * (2 * vocabulary + 1);
  const std::uint64_t words = bytes / kBf16Bytes;
  const std::uint64_t layers =
      words > outer_words + layer_words ? (words - outer_words) / layer_words : 1;
  std::vector<ModelTensor> tensors;
  add_tensor(&tensors, "model.embed_tokens.weight", {vocabulary, hidden});
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add_tensor(&tensors, layer + "input_layernorm.weight", {hidden});
    add_tensor(&tensors, layer + "self_attn.q_proj.weight", {hidden, hidden});
    add_tensor(&tensors, layer + "self_attn.k_proj.weight", {key_value, hidden});
    add_tensor(&tensors, layer + "self_attn.v_proj.weight", {key_value, hidden});
    add_tensor(&tensors, layer + "self_attn.o_proj.weight", {hidden, hidden});
    add_tensor(&tensors, layer + "post_attention_layernorm.weight", {hidden});
    add_tensor(&tensors, layer + "mlp.gate_proj.weight", {inner, hidden});
    add_tensor(&tensors, layer + "mlp.up_proj.weight", {inner, hidden});
    add_tensor(&tensors, layer + "mlp.down_proj.weight", {hidden, inner});
  }
  add_tensor(&tensors, "model.norm.weight", {hidden});
  add_tensor(&tensors, "lm_head.weight", {vocabulary, hidden});
  return tensors;
}

void fill_tensor(const WorkloadSpec& spec, const ModelTensor& tensor,
                 std::span<std::uint16_t> before, std::span<std::uint16_t> after) {
  fill_block(spec, tensor.first_chunk, before, after);
}

Result<CheckpointPair> write_checkpoints(const WorkloadSpec& spec,
                                         const std::vector<ModelTensor>& tensors, unsigned shards,
                                         const std::string& directory) {
  const std::vector<Shard> cut = cut_shards(tensors, shards);
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
  const std::string index = index_json(cut, pair.shards);
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
