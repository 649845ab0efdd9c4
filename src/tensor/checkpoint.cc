#include "tensor/checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "base/limits.h"
#include "tensor/json.h"
#include "tensor/text.h"

namespace dcr {

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kWeightsSuffix = ".safetensors";
// What an interrupted run leaves beside a file has this in its name (docs/FORMAT.md "Journal").
constexpr std::string_view kLeftovers[] = {".dcr-journal", ".dcr-new", ".dcr-partial",
                                           ".dcr-replaced"};
constexpr std::string_view kPickleSuffixes[] = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"};

using WeightMap = std::map<std::string, std::string>;

Status named_error(Code code, const std::string& name, const std::string& what) {
  return Status(code, "tensor " + quoted_name(name) + " " + what, name);
}

// {"weight_map": {tensor: file…}, …}; what else the root holds is skipped.
class IndexVisitor : public JsonVisitor {
 public:
  explicit IndexVisitor(WeightMap* map) : map_(map) {}

  bool complete() const { return seen_; }

  bool open(bool is_object) override {
    ++depth_;
    if (depth_ == 1 && !is_object) return fail(Code::kCorrupt, "the index is not a JSON object");
    if (!in_map_) return true;
    if (depth_ == 2) {
      return is_object || fail(Code::kCorrupt, "\"weight_map\" is not an object");
    }
    return wrong_file();
  }

  bool close() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }

  bool key(std::string& key) override {
    if (depth_ == 1) {
      in_map_ = key == "weight_map";
      if (in_map_ && seen_) return fail(Code::kCorrupt, "\"weight_map\" is repeated");
      seen_ = seen_ || in_map_;
      return true;
    }
    return !in_map_ || take_tensor(key);
  }

  bool scalar(const JsonScalar& value) override {
    if (depth_ == 0) return fail(Code::kCorrupt, "the index is not a JSON object");
    if (!in_map_) return true;
    if (depth_ == 1) return fail(Code::kCorrupt, "\"weight_map\" is not an object");
    if (value.kind != JsonKind::kString) return wrong_file();
    const Status valid = validate_file_name(*value.string);
    if (!valid.ok()) return fail_tensor(valid.code(), "has in the index " + valid.message());
    if (!value.string->ends_with(kWeightsSuffix)) {
      return fail_tensor(Code::kCorrupt, "has in the index the file " + quoted_name(*value.string) +
                                             ", which is not a .safetensors file");
    }
    entry_->second = std::move(*value.string);
    return true;
  }

 private:
  bool take_tensor(std::string& key) {
    if (key.size() > kTensorNameBytesMax) {
      return fail(Code::kTooLarge, "the tensor name " + quoted_name(key) + " is above " +
                                       std::to_string(kTensorNameBytesMax) + " bytes");
    }
    if (map_->size() >= kTensorsPerCheckpointMax) {
      return fail(Code::kTooLarge,
                  "more than " + std::to_string(kTensorsPerCheckpointMax) + " tensors");
    }
    bool inserted = false;
    std::tie(entry_, inserted) = map_->try_emplace(std::move(key));
    return inserted || fail_tensor(Code::kCorrupt, "is repeated in \"weight_map\"");
  }
  bool fail_tensor(Code code, const std::string& what) {
    return fail(code, "tensor " + quoted_name(entry_->first) + " " + what, entry_->first);
  }
  bool wrong_file() {
    return fail_tensor(Code::kCorrupt, "has in the index what is not a file name");
  }

  WeightMap* map_;
  WeightMap::iterator entry_;
  unsigned depth_ = 0;
  bool in_map_ = false;  // within the value of "weight_map", or just before it
  bool seen_ = false;
};

// The steps of opening one checkpoint.
class Opener {
 public:
  Opener(FileSystem& files, const std::string& path, bool writable)
      : files_(files), writable_(writable) {
    checkpoint_.path = path;
  }

  Result<Checkpoint> open() {
    DCR_ASSIGN(const FileInfo info, files_.info(checkpoint_.path, true));
    if (info.kind == FileKind::kDirectory) {
      checkpoint_.directory = true;
      DCR_TRY(open_directory());
    } else if (info.kind == FileKind::kRegular) {
      DCR_TRY(refuse_links(checkpoint_.path));
      DCR_TRY(open_weights(base_name(checkpoint_.path), checkpoint_.path, info));
      DCR_TRY(build_table());
    } else {
      return Status(Code::kInvalidArgument,
                    quoted_name(checkpoint_.path) + " is neither a file nor a directory");
    }
    return std::move(checkpoint_);
  }

 private:
  struct Entry {
    std::string name;
    FileInfo info;              // of what it points to
    const char* why = nullptr;  // it is no regular file
  };

  // In place, a link's other name or target would change as well.
  Status refuse_links(const std::string& path) {
    if (!writable_) return {};
    DCR_ASSIGN(const FileInfo info, files_.info(path, false));
    if (info.kind == FileKind::kSymlink) {
      return Status(Code::kMismatch, quoted_name(path) +
                                         " is a symlink; it cannot be changed in place: "
                                         "write to another place, or copy the file first");
    }
    if (info.kind == FileKind::kRegular && info.links > 1) {
      return Status(Code::kMismatch, quoted_name(path) + " has " + std::to_string(info.links) +
                                         " links; it cannot be changed in place: "
                                         "write to another place, or copy the file first");
    }
    return {};
  }

  Status open_directory() {
    DCR_TRY(list_entries());
    DCR_ASSIGN(const std::vector<std::string> weights, choose_weights());
    for (const std::string& name : weights) {
      const Entry& entry = *find_entry(name);
      DCR_TRY(open_weights(name, join_path(checkpoint_.path, name), entry.info));
    }
    DCR_TRY(build_table());
    if (index_) DCR_TRY(check_index());
    sort_out_others();
    return {};
  }

  Status list_entries() {
    DCR_ASSIGN(const std::vector<DirectoryEntry> listed, files_.list(checkpoint_.path));
    if (listed.size() > kFilesPerCheckpointMax) {
      return Status(Code::kTooLarge, quoted_name(checkpoint_.path) + " has " +
                                         std::to_string(listed.size()) + " entries, more than " +
                                         std::to_string(kFilesPerCheckpointMax));
    }
    for (const DirectoryEntry& listed_entry : listed) {
      const std::string path = join_path(checkpoint_.path, listed_entry.name);
      DCR_ASSIGN(const FileInfo own, files_.info(path, false));
      const bool symlink = own.kind == FileKind::kSymlink;
      Entry entry{listed_entry.name, own, nullptr};
      if (symlink) {
        Result<FileInfo> target = files_.info(path, true);
        if (target.ok()) {
          entry.info = *target;
        } else if (target.status().code() == Code::kNotFound) {
          entry.why = "symlink to nothing";
        } else {
          return target.status();
        }
      }
      if (entry.why == nullptr && entry.info.kind == FileKind::kDirectory) {
        entry.why = symlink ? "symlink to a directory" : "directory";
      } else if (entry.why == nullptr && entry.info.kind != FileKind::kRegular) {
        entry.why = "not a regular file";
      }
      if (entry.why == nullptr) DCR_TRY(refuse_links(path));
      entries_.push_back(std::move(entry));
    }
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.name < b.name; });
    return {};
  }

  const Entry* find_entry(std::string_view name) const {
    const auto found = std::lower_bound(
        entries_.begin(), entries_.end(), name,
        [](const Entry& entry, std::string_view wanted) { return entry.name < wanted; });
    return found != entries_.end() && found->name == name ? &*found : nullptr;
  }

  // The names of the files that hold the tensors, sorted; reads the index if there is one.
  Result<std::vector<std::string>> choose_weights() {
    if (find_entry(kIndexName) != nullptr) return read_index();
    if (find_entry(kSingleName) != nullptr) {
      DCR_TRY(require_file(kSingleName, ""));
      return std::vector<std::string>{std::string(kSingleName)};
    }
    std::vector<std::string> candidates;
    for (const Entry& entry : entries_) {
      if (entry.why == nullptr && entry.name.ends_with(kWeightsSuffix)) {
        candidates.push_back(entry.name);
      }
    }
    if (candidates.size() == 1) return candidates;
    return Status(Code::kNotFound, quoted_name(checkpoint_.path) +
                                       " holds no checkpoint: looked for " +
                                       std::string(kIndexName) + ", " + std::string(kSingleName) +
                                       " and a single *.safetensors file (found " +
                                       std::to_string(candidates.size()) + ")");
  }

  Result<std::vector<std::string>> read_index() {
    DCR_TRY(require_file(kIndexName, ""));
    const std::string path = join_path(checkpoint_.path, std::string(kIndexName));
    DCR_ASSIGN(const Bytes json, read_file(files_, path, kCarriedFileBytesMax));
    Result<WeightMap> map = parse_index(json);
    if (!map.ok()) return map.status().with_context("index " + quoted_name(path));
    index_ = std::move(map).value();
    std::map<std::string_view, const std::string*> shards;  // to the first tensor in each
    for (const auto& [tensor, file] : *index_) shards.try_emplace(file, &tensor);
    std::vector<std::string> names;
    for (const auto& [file, tensor] : shards) {
      DCR_TRY(require_file(file, *tensor));
      names.emplace_back(file);
    }
    return names;
  }

  // Error: kNotFound, also naming the tensor for which a shard is needed.
  Status require_file(std::string_view name, const std::string& tensor) {
    const Entry* entry = find_entry(name);
    if (entry != nullptr && entry->why == nullptr) return {};
    const std::string path = quoted_name(join_path(checkpoint_.path, std::string(name)));
    const std::string what =
        path + (entry == nullptr ? " is missing" : std::string(": ") + entry->why);
    if (tensor.empty()) return Status(Code::kNotFound, what);
    return Status(Code::kNotFound,
                  "shard " + what + " (the index places tensor " + quoted_name(tensor) + " in it)",
                  tensor);
  }

  Status open_weights(const std::string& name, const std::string& path, const FileInfo& info) {
    CheckpointFile opened;
    opened.name = name;
    opened.path = path;
    opened.permissions = info.permissions;
    DCR_ASSIGN(opened.file, writable_ ? files_.open_write(path) : files_.open_read(path));
    DCR_ASSIGN(SafetensorsFile read, read_safetensors(*opened.file, path));
    header_bytes_ += read.prefix.size();
    if (header_bytes_ > kHeaderBytesPerCheckpointMax) {
      return Status(Code::kTooLarge, "the headers of " + quoted_name(checkpoint_.path) +
                                         " are above " +
                                         std::to_string(kHeaderBytesPerCheckpointMax) + " bytes");
    }
    opened.header = std::move(read.header);
    opened.prefix = std::move(read.prefix);
    checkpoint_.files.push_back(std::move(opened));
    return {};
  }

  // The name-sorted table over all files.
  Status build_table() {
    std::vector<CheckpointTensor>& tensors = checkpoint_.tensors;
    for (std::size_t i = 0; i < checkpoint_.files.size(); ++i) {
      const SafetensorsHeader& header = checkpoint_.files[i].header;
      if (header.tensors.size() > kTensorsPerCheckpointMax - tensors.size()) {
        return Status(Code::kTooLarge, quoted_name(checkpoint_.path) + " has more than " +
                                           std::to_string(kTensorsPerCheckpointMax) + " tensors");
      }
      for (const TensorEntry& entry : header.tensors) {
        tensors.push_back({entry.name, entry.dtype, entry.shape, entry.bytes,
                           static_cast<std::uint32_t>(i), entry.offset});
      }
    }
    // Of one name the earlier file first, so that the error below names them in order.
    std::stable_sort(
        tensors.begin(), tensors.end(),
        [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name < b.name; });
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].name != tensors[i - 1].name) continue;
      return named_error(
          Code::kCorrupt, tensors[i].name,
          "is in two files: " + file_label(tensors[i - 1]) + " and " + file_label(tensors[i]));
    }
    return {};
  }

  std::string file_label(const CheckpointTensor& tensor) const {
    return quoted_name(checkpoint_.files[tensor.file].path);
  }

  // The index and the shards' headers say the same. Both are sorted by name.
  Status check_index() {
    auto expected = index_->begin();
    for (const CheckpointTensor& tensor : checkpoint_.tensors) {
      if (expected == index_->end() || tensor.name < expected->first) {
        return named_error(Code::kCorrupt, tensor.name,
                           "of " + file_label(tensor) + " is not in the index");
      }
      if (expected->first < tensor.name) break;
      if (expected->second != checkpoint_.files[tensor.file].name) {
        return named_error(Code::kCorrupt, tensor.name,
                           "is in " + file_label(tensor) + ", but the index places it in " +
                               quoted_name(expected->second));
      }
      ++expected;
    }
    if (expected == index_->end()) return {};
    return named_error(Code::kCorrupt, expected->first,
                       "is missing from " +
                           quoted_name(join_path(checkpoint_.path, expected->second)) +
                           ", where the index places it");
  }

  void sort_out_others() {
    for (const Entry& entry : entries_) {
      const bool weights =
          std::any_of(checkpoint_.files.begin(), checkpoint_.files.end(),
                      [&entry](const CheckpointFile& file) { return file.name == entry.name; });
      if (weights) continue;
      const char* reason = entry.why != nullptr ? entry.why : reason_to_leave_out(entry);
      if (reason == nullptr) {
        checkpoint_.others.push_back({entry.name, entry.info.size, entry.info.permissions});
      } else {
        checkpoint_.left_out.push_back({entry.name, reason});
      }
    }
  }

  const char* reason_to_leave_out(const Entry& entry) const {
    if (!validate_file_name(entry.name).ok()) return "file name not allowed";
    if (entry.name.ends_with(kWeightsSuffix)) {
      return index_ ? "safetensors file outside the index" : "second safetensors file";
    }
    for (const std::string_view suffix : kPickleSuffixes) {
      if (entry.name.ends_with(suffix)) return "pickle";
    }
    for (const std::string_view part : kLeftovers) {
      if (entry.name.find(part) != std::string::npos) return "left by an interrupted run of dcr";
    }
    static_assert(kCarriedFileBytesMax == 64 * kMiB);  // the words below
    return entry.info.size > kCarriedFileBytesMax ? "above 64 MiB" : nullptr;
  }

  FileSystem& files_;
  const bool writable_;
  Checkpoint checkpoint_;
  std::vector<Entry> entries_;      // sorted by name
  std::optional<WeightMap> index_;  // if the directory has one
  std::uint64_t header_bytes_ = 0;
};

}  // namespace

Result<Checkpoint> open_checkpoint(FileSystem& files, const std::string& path, bool writable) {
  return Opener(files, path, writable).open();
}

std::int64_t find_tensor(const Checkpoint& checkpoint, std::string_view name) {
  const std::vector<CheckpointTensor>& tensors = checkpoint.tensors;
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const CheckpointTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  if (found == tensors.end() || found->name != name) return -1;
  return found - tensors.begin();
}

Status read_tensor(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                   std::uint64_t offset, MutableByteSpan out) {
  DCR_ASSERT(offset <= tensor.bytes && out.size() <= tensor.bytes - offset);
  const Status status = checkpoint.files[tensor.file].file->read(tensor.offset + offset, out);
  if (status.ok()) return {};
  return Status(status.code(), "tensor " + quoted_name(tensor.name) + ": " + status.message(),
                tensor.name);
}

Status validate_file_name(std::string_view name) {
  const bool allowed = !name.empty() && name.size() <= kFileNameBytesMax && name != "." &&
                       name != ".." && name.find('/') == std::string_view::npos &&
                       name.find('\0') == std::string_view::npos;
  if (allowed) return {};
  return Status(Code::kCorrupt, "the file name " + quoted_name(name) +
                                    ", which is not one plain component of 1 to " +
                                    std::to_string(kFileNameBytesMax) + " bytes");
}

Result<std::map<std::string, std::string>> parse_index(ByteSpan json) {
  WeightMap map;
  IndexVisitor visitor(&map);
  DCR_TRY(parse_json(json, visitor));
  if (!visitor.complete()) return Status(Code::kCorrupt, "\"weight_map\" is missing");
  return map;
}

Digest checkpoint_identity(const std::vector<IdentityEntry>& entries) {
  Bytes bytes;
  ByteWriter writer(&bytes);
  Blake2b hash;
  writer.text("dcr-identity");
  writer.u64(entries.size());
  for (const IdentityEntry& entry : entries) {
    writer.u32(static_cast<std::uint32_t>(entry.name.size()));
    writer.text(entry.name);
    writer.u8(static_cast<std::uint8_t>(entry.dtype));
    writer.u8(static_cast<std::uint8_t>(entry.shape->size()));
    for (const std::uint64_t size : *entry.shape) writer.u64(size);
    writer.bytes(entry.digest);
    hash.update(bytes);
    bytes.clear();
  }
  hash.update(bytes);  // the head, if there are no entries
  return hash.finish();
}

}  // namespace dcr
