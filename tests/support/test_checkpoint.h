// Small checkpoints for tests: described in memory, written out as the files that they are on disk.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/prng.h"
#include "dcr/tensor.h"
#include "tensor/safetensors.h"

namespace dcr {

struct TestTensor {
  Dtype dtype = Dtype::kU8;
  Shape shape;
  Bytes bytes;
  unsigned shard = 0;
};

struct TestCheckpoint {
  bool directory = true;
  std::map<std::string, TestTensor> tensors;
  std::map<std::string, std::string> metadata;  // of every weights file
  unsigned padding = 0;                         // more spaces than it needs, at a header's end
  std::map<std::string, std::string> others;    // name to content; of a directory

  // Its files by their paths, if the checkpoint is at `path`. One shard is `model.safetensors`,
  // several have an index.
  std::map<std::string, Bytes> files(const std::string& path) const;
};

inline Bytes text_bytes(const std::string& text) { return {text.begin(), text.end()}; }

// A weights file with the tensors of one shard, in the order of their names.
inline Bytes weights_file(const TestCheckpoint& checkpoint, unsigned shard) {
  std::vector<TensorEntry> entries;
  Bytes data;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.shard != shard) continue;
    entries.push_back({name, tensor.dtype, tensor.shape, 0, tensor.bytes.size()});
    data.insert(data.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  Result<Bytes> file = make_safetensors_prefix(entries, checkpoint.metadata);
  DCR_ASSERT(file.ok());
  file->insert(file->end(), checkpoint.padding, ' ');
  store_little<std::uint64_t>(file->data(), file->size() - 8);
  file->insert(file->end(), data.begin(), data.end());
  return std::move(file).value();
}

inline std::map<std::string, Bytes> TestCheckpoint::files(const std::string& path) const {
  if (!directory) return {{path, weights_file(*this, 0)}};
  std::map<std::string, Bytes> result;
  const auto add = [&](const std::string& name, Bytes content) {
    std::string at = path;
    at.append("/").append(name);
    result[at] = std::move(content);
  };
  for (const auto& [name, content] : others) add(name, text_bytes(content));
  unsigned shards = 0;
  for (const auto& [name, tensor] : tensors) shards = std::max(shards, tensor.shard + 1);
  if (shards <= 1) {
    add("model.safetensors", weights_file(*this, 0));
    return result;
  }
  std::string map;
  for (const auto& [name, tensor] : tensors) {
    const std::string file = "model-" + std::to_string(tensor.shard + 1) + "-of-" +
                             std::to_string(shards) + ".safetensors";
    if (!map.empty()) map += ",";
    map.append("\"").append(name).append("\":\"").append(file).append("\"");
    add(file, weights_file(*this, tensor.shard));
  }
  add("model.safetensors.index.json", text_bytes("{\"metadata\":{},\"weight_map\":{" + map + "}}"));
  return result;
}

inline Bytes random_bytes(Prng& prng, std::size_t size) {
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(prng.next());
  return bytes;
}

// Any dtype, rank 0 to 2, mostly a few kilobytes, sometimes empty.
inline TestTensor random_tensor(Prng& prng, unsigned shards) {
  constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kF32, Dtype::kU8, Dtype::kF64,
                               Dtype::kF4,   Dtype::kI8,  Dtype::kI64};
  TestTensor tensor;
  tensor.dtype = kDtypes[prng.below(std::size(kDtypes))];
  // Even sizes, so that tensors of half bytes end on a byte.
  const std::uint64_t rank =
      prng.below(10) == 0 && dtype_bits(tensor.dtype) >= 8 ? 0 : 1 + prng.below(2);
  if (rank > 0) tensor.shape.push_back(2 * prng.below(prng.below(8) == 0 ? 1 : 1200));
  if (rank > 1) tensor.shape.push_back(1 + prng.below(3));
  const Result<std::uint64_t> size = tensor_bytes(tensor.dtype, tensor.shape);
  DCR_ASSERT(size.ok());
  tensor.bytes = random_bytes(prng, static_cast<std::size_t>(*size));
  tensor.shard = static_cast<unsigned>(prng.below(shards));
  return tensor;
}

inline TestCheckpoint random_checkpoint(Prng& prng) {
  TestCheckpoint made;
  made.directory = prng.below(4) != 0;
  const unsigned shards = made.directory ? 1 + 2 * static_cast<unsigned>(prng.below(2)) : 1;
  const std::uint64_t count = 3 + prng.below(5);
  for (std::uint64_t i = 0; i < count; ++i) {
    made.tensors["layers." + std::to_string(i) + ".weight"] = random_tensor(prng, shards);
  }
  made.metadata = {{"format", "pt"}};
  made.padding = static_cast<unsigned>(prng.below(4));
  if (made.directory) {
    made.others = {{"config.json", "{\"v\":1}"}, {"tokenizer.json", "[1,2,3]"}};
  }
  return made;
}

// Another value for `count` words, mostly near the old one as training steps are.
inline void change_words(Prng& prng, TestTensor* tensor, std::uint64_t count) {
  const std::size_t width = word_bytes(tensor->dtype);
  if (tensor->bytes.empty()) return;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint8_t* word = &tensor->bytes[prng.below(tensor->bytes.size() / width) * width];
    if (prng.below(4) == 0) {
      for (std::size_t k = 0; k < width; ++k) word[k] = static_cast<std::uint8_t>(prng.next());
    } else {
      *word = static_cast<std::uint8_t>(*word + (prng.below(2) == 0 ? 1 : 255));
    }
  }
}

// A later step of it: words changed, and sometimes tensors added, removed, retyped or sharded
// otherwise, headers and other files changed.
inline TestCheckpoint random_successor(Prng& prng, const TestCheckpoint& before) {
  TestCheckpoint made = before;
  const bool plain = prng.below(3) == 0;  // only words change
  for (auto& [name, tensor] : made.tensors) {
    const std::uint64_t words = tensor.bytes.size() / word_bytes(tensor.dtype);
    const std::uint64_t kind = prng.below(8);
    if (kind < 4) change_words(prng, &tensor, 1 + words / 50);
    if (kind == 4) change_words(prng, &tensor, 3 * words);
    if (kind == 5 && !plain) tensor = random_tensor(prng, 1);
  }
  if (plain) return made;
  if (prng.below(2) == 0)
    made.tensors["added." + std::to_string(prng.below(9))] = random_tensor(prng, 1);
  if (prng.below(3) == 0 && made.tensors.size() > 2) made.tensors.erase(made.tensors.begin());
  if (prng.below(3) == 0) made.metadata["step"] = std::to_string(prng.below(1000));
  if (!made.directory) return made;
  if (prng.below(2) == 0) {
    const std::uint64_t shards = 1 + 2 * prng.below(2);
    for (auto& [name, tensor] : made.tensors)
      tensor.shard = static_cast<unsigned>(prng.below(shards));
  }
  if (prng.below(2) == 0)
    made.others["config.json"] = "{\"v\":" + std::to_string(prng.next()) + "}";
  if (prng.below(3) == 0) made.others["new.txt"] = std::to_string(prng.next());
  if (prng.below(4) == 0) made.others.erase("tokenizer.json");
  return made;
}

}  // namespace dcr
