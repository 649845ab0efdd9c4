#include "delta/contents.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "delta/compose.h"
#include "tensor/memory_checkpoint.h"
#include "tensor/text.h"

namespace dcr {
namespace {

Status missing_file(const Checkpoint& checkpoint, const std::string& name) {
  return {Code::kNotFound,
          "file " + quoted_name(name) + " is missing from " + quoted_name(checkpoint.path)};
}

const DeltaFile* find_file(const DeltaReader& delta, const std::string& name) {
  const std::vector<DeltaFile>& files = delta.footer().files;
  const auto found =
      std::lower_bound(files.begin(), files.end(), name,
                       [](const DeltaFile& file, const std::string& n) { return file.name < n; });
  return found == files.end() || found->name != name ? nullptr : &*found;
}

// A dtype and a shape, as messages print them.
std::string type_text(Dtype dtype, const Shape& shape) {
  return std::string(dtype_name(dtype)) + " " + shape_text(shape);
}

}  // namespace

Result<Checkpoint> open_source(FileSystem& files, const CheckpointSource& source,
                               const std::string& name) {
  if (source.in_memory) return memory_checkpoint(source.tensors, name);
  return open_checkpoint(files, source.path);
}

const std::string& delta_name(const Checkpoint& checkpoint, const std::string& name) {
  static const std::string kSingle = kSingleFileName;
  return checkpoint.directory ? name : kSingle;
}

Result<Bytes> read_content(FileSystem& files, const Checkpoint& checkpoint, const std::string& name,
                           FileRole role) {
  if (role == FileRole::kWeights) {
    for (const CheckpointFile& file : checkpoint.files) {
      if (delta_name(checkpoint, file.name) == name) return file.prefix;
    }
    return missing_file(checkpoint, name);
  }
  const bool known = std::any_of(checkpoint.others.begin(), checkpoint.others.end(),
                                 [&](const OtherFile& other) { return other.name == name; });
  if (!known) return missing_file(checkpoint, name);
  return read_file(files, join_path(checkpoint.path, name), kCarriedFileBytesMax);
}

Result<Bytes> target_content(FileSystem& files, const std::vector<DeltaReader>& chain,
                             const Checkpoint& base, std::uint32_t file) {
  const DeltaFile& wanted = chain.back().footer().files[file];
  const DeltaFile* at = &wanted;
  std::size_t k = chain.size() - 1;
  while (!at->is_carried() && k > 0) {
    const DeltaFile* before = find_file(chain[k - 1], wanted.name);
    if (before == nullptr || !before->in_target || before->role != at->role ||
        !digest_equal(before->target_digest, at->base_digest)) {
      return Status(Code::kMismatch, "file " + quoted_name(wanted.name) + " of the base of " +
                                         chain[k].path() + " is not the one of the target of " +
                                         chain[k - 1].path());
    }
    at = before;
    --k;
  }
  Bytes content;
  if (at->is_carried()) {
    DCR_ASSIGN(content, chain[k].read_blob(at->carried));
  } else {
    DCR_ASSIGN(content, read_content(files, base, wanted.name, wanted.role));
  }
  if (!digest_equal(blake2b(content), wanted.target_digest)) {
    return Status(Code::kMismatch, "file " + quoted_name(wanted.name) + " of " +
                                       quoted_name(base.path) +
                                       " is not the one that the delta was made from");
  }
  if (wanted.role == FileRole::kWeights) {
    Status status = check_target_prefix(chain.back().footer(), file, content);
    if (!status.ok()) return status.with_context(chain.back().path());
  }
  return content;
}

Status check_table(const Checkpoint& checkpoint, const DeltaReader& delta, bool target) {
  const auto mismatch = [&](const std::string& name, const std::string& what) {
    return Status(Code::kMismatch,
                  quoted_name(checkpoint.path) + " is not the " + (target ? "target" : "base") +
                      " of " + delta.path() + ": tensor " + quoted_name(name) + " " + what,
                  name);
  };
  auto tensor = checkpoint.tensors.begin();
  for (const DeltaTensor& entry : delta.footer().tensors) {
    const TensorSide& side = target ? entry.target : entry.base;
    if (!side.present) continue;
    if (tensor != checkpoint.tensors.end() && tensor->name < entry.name) break;
    if (tensor == checkpoint.tensors.end() || tensor->name != entry.name) {
      return mismatch(entry.name, "is missing");
    }
    if (tensor->dtype != side.dtype || tensor->shape != side.shape) {
      return mismatch(entry.name, "is " + type_text(tensor->dtype, tensor->shape) + ", not " +
                                      type_text(side.dtype, side.shape));
    }
    ++tensor;
  }
  if (tensor == checkpoint.tensors.end()) return {};
  return mismatch(tensor->name, "is not in the delta's table");
}

Result<std::vector<Digest>> digest_tensors(const Work& work, const Checkpoint& checkpoint,
                                           std::span<const std::size_t> which,
                                           ProgressCounter* progress) {
  struct Part {
    std::size_t slot;
    std::uint64_t offset;
  };
  std::vector<Part> parts;
  for (std::size_t slot = 0; slot < which.size(); ++slot) {
    const std::uint64_t bytes = checkpoint.tensors[which[slot]].bytes;
    for (std::uint64_t at = 0; at < bytes; at += kDigestLeafBytes) parts.push_back({slot, at});
  }
  std::vector<std::vector<Digest>> leaves(which.size());
  const std::uint64_t window =
      pieces_in_flight(*work.executor, work.memory_bytes_max / 4, kDigestLeafBytes);
  const auto digest_leaf = [&](std::uint64_t index) -> Result<Digest> {
    const Part& part = parts[static_cast<std::size_t>(index)];
    const CheckpointTensor& tensor = checkpoint.tensors[which[part.slot]];
    Bytes bytes(static_cast<std::size_t>(
        std::min<std::uint64_t>(kDigestLeafBytes, tensor.bytes - part.offset)));
    DCR_TRY(read_tensor(checkpoint, tensor, part.offset, bytes));
    return xxh3(bytes);
  };
  const auto keep = [&](std::uint64_t index, Digest&& digest) -> Status {
    const Part& part = parts[static_cast<std::size_t>(index)];
    leaves[part.slot].push_back(digest);
    const std::uint64_t left = checkpoint.tensors[which[part.slot]].bytes - part.offset;
    if (progress != nullptr) progress->add(std::min<std::uint64_t>(kDigestLeafBytes, left));
    return {};
  };
  DCR_TRY(
      ordered_map<Digest>(*work.executor, parts.size(), window, work.cancel, digest_leaf, keep));
  std::vector<Digest> digests;
  digests.reserve(which.size());
  for (const std::vector<Digest>& of_tensor : leaves) digests.push_back(combine_leaves(of_tensor));
  return digests;
}

Result<const DeltaReader*> find_target(const Work& work, const Checkpoint& checkpoint,
                                       const std::vector<DeltaReader>& chain) {
  const auto fits = [&](const DeltaReader& delta) {
    return check_table(checkpoint, delta, true).ok();
  };
  const DeltaReader* none = nullptr;
  if (std::none_of(chain.begin(), chain.end(), fits)) return none;
  std::vector<std::size_t> all(checkpoint.tensors.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  DCR_ASSIGN(const std::vector<Digest> digests, digest_tensors(work, checkpoint, all, nullptr));
  std::vector<IdentityEntry> entries;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const CheckpointTensor& tensor = checkpoint.tensors[i];
    entries.push_back({tensor.name, tensor.dtype, &tensor.shape, digests[i]});
  }
  const Digest identity = checkpoint_identity(entries);
  for (auto delta = chain.rbegin(); delta != chain.rend(); ++delta) {
    if (delta->footer().target_identity == identity) return &*delta;
  }
  return none;
}

}  // namespace dcr
