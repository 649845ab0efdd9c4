#include "delta/diff.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/cancelled.h"
#include "base/checked.h"
#include "delta/contents.h"
#include "delta/output.h"
#include "tensor/checkpoint.h"

namespace dcr {
namespace {

constexpr std::uint32_t kPermissions = 0777;  // what a delta carries of them

// A tensor of the table where it is read from; -1: not there.
struct Row {
  std::int64_t base = -1, target = -1;  // indices into Checkpoint::tensors
};

class Differ {
 public:
  Differ(const Work& work, Checkpoint base, Checkpoint target)
      : work_(work), base_(std::move(base)), target_(std::move(target)) {}

  // Writes the whole delta into `out`.
  Result<DiffReport> run(File* out);

 private:
  friend class DiffSource;

  void merge_files();
  void merge_tensors();
  TensorSide side_of(const Checkpoint& checkpoint, std::int64_t index) const;
  std::vector<Piece> cut_pieces() const;
  Status write_payloads(DeltaWriter* writer, ProgressCounter* progress);
  Status digest_rest(ProgressCounter* progress);
  void combine_digests();
  Status write_contents(DeltaWriter* writer);

  const Work& work_;
  Checkpoint base_, target_;
  std::vector<Row> rows_;                                         // one per tensor of the table
  std::vector<std::vector<Digest>> base_leaves_, target_leaves_;  // likewise
  std::map<std::string, std::uint32_t> file_index_;
  DiffReport report_;
};

// Reads and digests pieces for the pipeline: one leaf of both sides at a time, so that it is in the
// cache when it is scanned.
class DiffSource final : public PieceSource {
 public:
  explicit DiffSource(Differ& differ) : differ_(differ) {}

  Status load(std::uint64_t, const Piece& piece, PieceBuffers* buffers,
              const std::function<void(const ScanBox&)>& scan) override {
    const Row& row = differ_.rows_[piece.tensor];
    const std::uint64_t start = piece.box.offset * piece.width;
    const auto size = static_cast<std::size_t>(piece.box.words() * piece.width);
    grow(&buffers->new_bytes, size);
    if (!piece.whole) grow(&buffers->old_bytes, size);
    for (std::size_t at = 0; at < size; at += kDigestLeafBytes) {
      const std::size_t bytes = std::min(kDigestLeafBytes, size - at);
      const auto leaf = static_cast<std::size_t>((start + at) / kDigestLeafBytes);
      ScanBox part;
      part.row_words = bytes / piece.width;
      if (!piece.whole) {
        const MutableByteSpan old_leaf(buffers->old_bytes.data() + at, bytes);
        DCR_TRY(read(differ_.base_, row.base, start + at, old_leaf));
        differ_.base_leaves_[piece.tensor][leaf] = xxh3(old_leaf);
        part.old_words = old_leaf.data();
      }
      const MutableByteSpan new_leaf(buffers->new_bytes.data() + at, bytes);
      DCR_TRY(read(differ_.target_, row.target, start + at, new_leaf));
      differ_.target_leaves_[piece.tensor][leaf] = xxh3(new_leaf);
      part.new_words = new_leaf.data();
      scan(part);
    }
    return {};
  }

 private:
  static void grow(Bytes* bytes, std::size_t size) {
    if (bytes->size() < size) bytes->resize(size);
  }

  static Status read(const Checkpoint& checkpoint, std::int64_t index, std::uint64_t offset,
                     MutableByteSpan out) {
    return read_tensor(checkpoint, checkpoint.tensors[static_cast<std::size_t>(index)], offset,
                       out);
  }

  Differ& differ_;
};

void Differ::merge_files() {
  std::map<std::string, DeltaFile> merged;
  const auto file_of = [&](const std::string& name, FileRole role) -> DeltaFile& {
    DeltaFile& file = merged[name];
    // Weights end with ".safetensors" and other files never do (tensor/checkpoint.h).
    DCR_ASSERT(file.name.empty() || file.role == role);
    file.name = name;
    file.role = role;
    return file;
  };
  for (const CheckpointFile& weights : base_.files) {
    DeltaFile& file = file_of(delta_name(base_, weights.name), FileRole::kWeights);
    file.in_base = true;
    file.base_size = weights.header.file_bytes;
  }
  for (const OtherFile& other : base_.others) {
    file_of(other.name, FileRole::kOther).in_base = true;
  }
  for (const CheckpointFile& weights : target_.files) {
    DeltaFile& file = file_of(delta_name(target_, weights.name), FileRole::kWeights);
    file.in_target = true;
    file.target_size = weights.header.file_bytes;
    file.permissions = weights.permissions & kPermissions;
  }
  for (const OtherFile& other : target_.others) {
    DeltaFile& file = file_of(other.name, FileRole::kOther);
    file.in_target = true;
    file.permissions = other.permissions & kPermissions;
  }
  for (auto& [name, file] : merged) {
    file_index_[name] = static_cast<std::uint32_t>(report_.footer.files.size());
    report_.footer.files.push_back(std::move(file));
  }
  report_.footer.directory = target_.directory;
  for (const LeftOutFile& file : target_.left_out) {
    report_.footer.left_out.push_back({file.name, file.reason});
  }
}

TensorSide Differ::side_of(const Checkpoint& checkpoint, std::int64_t index) const {
  TensorSide side;
  if (index < 0) return side;
  const CheckpointTensor& tensor = checkpoint.tensors[static_cast<std::size_t>(index)];
  side.present = true;
  side.dtype = tensor.dtype;
  side.shape = tensor.shape;
  side.file = file_index_.at(delta_name(checkpoint, checkpoint.files[tensor.file].name));
  side.offset = tensor.offset;
  side.bytes = tensor.bytes;
  return side;
}

void Differ::merge_tensors() {
  std::size_t b = 0, t = 0;
  const auto leaves = [](const TensorSide& side) {
    return static_cast<std::size_t>(divide_up(side.bytes, kDigestLeafBytes));
  };
  while (b < base_.tensors.size() || t < target_.tensors.size()) {
    const bool no_base = b == base_.tensors.size();
    const bool no_target = t == target_.tensors.size();
    const int order = no_base     ? 1
                      : no_target ? -1
                                  : base_.tensors[b].name.compare(target_.tensors[t].name);
    Row row;
    DeltaTensor tensor;
    tensor.name = order <= 0 ? base_.tensors[b].name : target_.tensors[t].name;
    if (order <= 0) row.base = static_cast<std::int64_t>(b++);
    if (order >= 0) row.target = static_cast<std::int64_t>(t++);
    tensor.base = side_of(base_, row.base);
    tensor.target = side_of(target_, row.target);
    base_leaves_.emplace_back(leaves(tensor.base));
    target_leaves_.emplace_back(leaves(tensor.target));
    rows_.push_back(row);
    report_.footer.tensors.push_back(std::move(tensor));
  }
}

std::vector<Piece> Differ::cut_pieces() const {
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i < rows_.size(); ++i) {
    const DeltaTensor& tensor = report_.footer.tensors[i];
    if (!tensor.target.present) continue;
    Piece piece;
    piece.tensor = i;
    piece.width = static_cast<std::uint8_t>(word_bytes(tensor.target.dtype));
    piece.whole = !tensor.common();
    const std::uint64_t words = tensor.target.bytes / piece.width;
    const std::uint64_t step = piece_words(piece.width);
    for (std::uint64_t offset = 0; offset < words; offset += step) {
      piece.box = ItemBox::range(offset, std::min(step, words - offset));
      pieces.push_back(piece);
    }
  }
  return pieces;
}

Status Differ::write_payloads(DeltaWriter* writer, ProgressCounter* progress) {
  const std::vector<Piece> pieces = cut_pieces();
  DiffSource source(*this);
  PipelineOptions options;
  options.bucket_bytes = kDeltaBucketBytes;
  const DiffPlan plan = plan_diff(work_.memory_bytes_max, work_.executor->threads());
  options.window = plan.window;
  options.sealing = plan.sealing;
  options.header.schema = delta_schema(report_.footer.tensors);
  options.cancel = work_.cancel;
  options.progress = [progress](std::uint64_t bytes) { progress->add(bytes); };
  DCR_ASSIGN(report_.pipeline, build_payloads(*work_.executor, pieces, source, options, *writer));
  report_.footer.payload_raw_bytes_max = report_.pipeline.payload_raw_bytes_max;
  report_.footer.changed = report_.pipeline.changed;
  return {};
}

// The base side of tensors that are carried whole or removed: no piece reads it, but the base's
// identity needs it.
Status Differ::digest_rest(ProgressCounter* progress) {
  std::vector<std::size_t> rest;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const bool wanted = rows_[i].base >= 0 && !report_.footer.tensors[i].common();
    if (wanted) rest.push_back(static_cast<std::size_t>(rows_[i].base));
  }
  DCR_ASSIGN(const std::vector<Digest> digests, digest_tensors(work_, base_, rest, progress));
  auto digest = digests.begin();
  for (DeltaTensor& tensor : report_.footer.tensors) {
    if (tensor.base.present && !tensor.common()) tensor.base.digest = *digest++;
  }
  return {};
}

void Differ::combine_digests() {
  DeltaFooter& footer = report_.footer;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (footer.tensors[i].common()) {
      footer.tensors[i].base.digest = combine_leaves(base_leaves_[i]);
    }
    if (footer.tensors[i].target.present) {
      footer.tensors[i].target.digest = combine_leaves(target_leaves_[i]);
    }
  }
  footer.base_identity = base_identity(footer.tensors);
  footer.target_identity = target_identity(footer.tensors);
}

// Prefixes and other files, one at a time.
Status Differ::write_contents(DeltaWriter* writer) {
  for (DeltaFile& file : report_.footer.files) {
    DCR_TRY(check_cancelled(work_.cancel));
    const bool other = file.role == FileRole::kOther;
    if (file.in_base) {
      DCR_ASSIGN(const Bytes content, read_content(*work_.files, base_, file.name, file.role));
      file.base_content_bytes = content.size();
      if (other) file.base_size = content.size();
      file.base_digest = blake2b(content);
    }
    if (!file.in_target) continue;
    DCR_ASSIGN(const Bytes content, read_content(*work_.files, target_, file.name, file.role));
    file.target_content_bytes = content.size();
    if (other) file.target_size = content.size();
    file.target_digest = blake2b(content);
    file.same_as_base = file.in_base && file.base_size == file.target_size &&
                        file.base_content_bytes == file.target_content_bytes &&
                        file.base_digest == file.target_digest;
    if (!file.same_as_base) DCR_TRY(writer->add_blob(content, &file.carried));
  }
  return {};
}

Result<DiffReport> Differ::run(File* out) {
  merge_files();
  merge_tensors();
  std::uint64_t bytes_total = 0;
  for (const DeltaTensor& tensor : report_.footer.tensors) {
    bytes_total += tensor.target.bytes;
    if (!tensor.common()) bytes_total += tensor.base.bytes;
  }
  ProgressCounter progress(work_, "diff", bytes_total);
  DeltaWriter writer(out);
  DCR_TRY(writer.begin());
  DCR_TRY(write_payloads(&writer, &progress));
  DCR_TRY(digest_rest(&progress));
  combine_digests();
  DCR_TRY(write_contents(&writer));
  Digest id;
  DCR_ASSIGN(report_.delta_bytes, writer.finish(&report_.footer, &id));
  return std::move(report_);
}

}  // namespace

DiffPlan plan_diff(std::uint64_t memory_bytes_max, unsigned threads) {
  // A piece that is scanned: both sides' bytes, and the encoder's gaps and values, at most
  // 4 + width bytes a word, which is most for two-byte words.
  constexpr std::uint64_t kScratch = piece_words(2) * (4 + 2);
  static_assert(kScratch >= piece_words(1) * 5 && kScratch >= piece_words(8) * 12);
  constexpr std::uint64_t kScanned = 2 * kPieceBytesMax + kScratch;
  // A piece until it is in its bucket: an item, at most the words themselves and a little.
  constexpr std::uint64_t kWaiting = kPieceBytesMax + kMiB;
  // The bucket that is filled has at most the words, and again as much while a stream moves to
  // make room. One that is compressed has them and what comes of them.
  constexpr std::uint64_t kFilled = 2 * kDeltaBucketBytes;
  constexpr std::uint64_t kSealed = 2 * kDeltaBucketBytes;
  const auto takes = [threads](const DiffPlan& plan) {
    return kFilled + plan.sealing * kSealed +
           std::min<std::uint64_t>(plan.window, threads) * kScanned + plan.window * kWaiting;
  };
  DiffPlan plan{1, 2};
  if (takes(plan) > memory_bytes_max) plan.sealing = 1;
  const std::uint64_t window_max = std::uint64_t{2} * threads;
  while (plan.window < window_max && takes({plan.window + 1, plan.sealing}) <= memory_bytes_max) {
    ++plan.window;
  }
  return plan;
}

Result<DiffReport> write_diff(const Work& work, const CheckpointSource& before,
                              const CheckpointSource& after, const std::string& output) {
  DCR_ASSIGN(Checkpoint base, open_source(*work.files, before, "old"));
  DCR_ASSIGN(Checkpoint target, open_source(*work.files, after, "new"));
  std::vector<std::string> inputs;
  if (!before.in_memory) inputs = input_paths(base);
  if (!after.in_memory) {
    for (std::string& path : input_paths(target)) inputs.push_back(std::move(path));
  }
  DCR_TRY(check_output(*work.files, output, false, work.force, inputs));
  DCR_ASSIGN(PartialFile partial, PartialFile::create(*work.files, output));
  Result<DiffReport> report = Differ(work, std::move(base), std::move(target)).run(&partial.file());
  if (!report.ok()) return partial.discard(report.status());
  DCR_TRY(partial.commit());
  return report;
}

}  // namespace dcr
