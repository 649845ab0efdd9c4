#include "source/owner.h"

#include <algorithm>
#include <utility>

#include "base/mutant.h"
#include "simd/kernels.h"
#include "tensor/cast.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// What is read, cast, digested and compared at a time, within the second-level cache: so many bytes
// before and after a cast.
constexpr std::uint64_t kBlockBytes = 256 * kKiB;

std::uint64_t block_words(const TensorView& view, const Piece& piece) {
  return kBlockBytes / std::max(word_bytes(view.dtype), unsigned{piece.width});
}

void grow(Bytes* bytes, std::size_t size) {
  if (bytes->size() < size) bytes->resize(size);
}

// The block's words in the storage, in the item's order.
TensorView block_view(const TensorView& view, const Box& block) {
  TensorView part;
  part.storage = view.storage;
  part.dtype = view.dtype;
  part.offset = block.src_offset;
  for (const BoxDimension& dim : block.dims) {
    part.sizes.push_back(dim.size);
    part.strides.push_back(dim.src_stride);
  }
  return part;
}

}  // namespace

Owner::Owner(std::shared_ptr<const Geometry> geometry, OwnerInput input)
    : geometry_(std::move(geometry)), input_(std::move(input)) {}

Result<std::unique_ptr<Owner>> Owner::create(std::shared_ptr<const Geometry> geometry,
                                             OwnerInput input, const std::string& arena_path) {
  auto owner = std::make_unique<Owner>(std::move(geometry), std::move(input));
  const Status status = owner->plan(arena_path);
  if (!status.ok()) return status.with_context("owner " + std::to_string(owner->rank()));
  return owner;
}

Status Owner::plan(const std::string& arena_path) {
  SourcePlanInput input;
  input.catalogue = &geometry_->catalogue();
  input.tasks = input_.tasks;
  input.tracked = input_.tracked;
  input.rank = input_.rank;
  input.projected = [this](std::uint32_t tensor) { return geometry_->projected(tensor); };
  input.feeds = [this](const std::string& name) { return geometry_->feeds(name); };
  DCR_ASSIGN(plan_, plan_sources(input));
  findings_.resize(plan_.pieces.size());
  for (std::size_t i = 0; i < plan_.pieces.size(); ++i) {
    const std::uint64_t words = plan_.pieces[i].box.words();
    const std::uint64_t bytes = words * plan_.pieces[i].width;
    if (plan_.sources[i].counted) sizes_.source_elements += words;
    if (plan_.pieces[i].tensor == kNoTensor) {
      sizes_.tracked_bytes += bytes;
      continue;
    }
    sizes_.projected_words += words;
    sizes_.projected_bytes += bytes;
  }
  residual_ = std::make_unique<ResidualShare>(geometry_, input_.rank, plan_.arena_bytes);
  sizes_.residual_words = residual_->words();
  sizes_.residual_bytes = residual_->bytes();
  sizes_.baseline_bytes = plan_.arena_bytes + residual_->arena_bytes();
  DCR_ASSIGN(arena_, arena_path.empty() ? Arena::anonymous(sizes_.baseline_bytes)
                                        : Arena::mapped(arena_path, sizes_.baseline_bytes));
  return {};
}

std::vector<std::pair<std::uint32_t, ItemBox>> Owner::item_boxes() const {
  std::vector<std::pair<std::uint32_t, ItemBox>> boxes;
  for (BaselinePiece& piece : baseline_pieces())
    boxes.emplace_back(piece.tensor, std::move(piece.box));
  return boxes;
}

std::vector<BaselinePiece> Owner::baseline_pieces() const {
  std::vector<BaselinePiece> pieces;
  for (std::size_t i = 0; i < plan_.pieces.size(); ++i) {
    const Piece& piece = plan_.pieces[i];
    if (piece.tensor == kNoTensor) continue;
    pieces.push_back({piece.tensor, piece.width, piece.box, plan_.sources[i].arena_offset});
  }
  residual_->add_baseline_pieces(&pieces);
  return pieces;
}

const TensorView& Owner::view_of(const SourcePiece& source) const {
  const std::size_t tasks = input_.tasks.size();
  return source.source < tasks ? input_.tasks[source.source].view
                               : input_.tracked[source.source - tasks].view;
}

const std::string& Owner::name_of(const SourcePiece& source) const {
  const std::size_t tasks = input_.tasks.size();
  return source.source < tasks ? input_.tasks[source.source].name
                               : input_.tracked[source.source - tasks].name;
}

void Owner::begin_initialize(SpanRecorder* spans) {
  baseline_.reset();
  prepared_ = false;
  forget_candidate();
  spans_ = spans;
  frozen_broken_ = false;
  for (Finding& finding : findings_) finding.changed = true;
  residual_->begin({&arena_, spans, ResidualUse::kInitialize, 0, false, false, {}});
}

void Owner::begin_prepare(const Attempt& attempt, Executor& executor, const BucketOptions& options,
                          PayloadSink& sink) {
  const bool same =
      attempt.candidate == attempt_.candidate && attempt.target_version == attempt_.target_version;
  if (!same) forget_candidate();
  attempt_ = attempt;
  prepared_ = false;
  frozen_broken_ = false;
  has_baseline_ = baseline_ == attempt.base_version;
  dense_ = attempt.mode == AttemptMode::kDense || !has_baseline_;
  spans_ = options.spans;
  PayloadHeader header;
  header.run = attempt.run;
  header.attempt = attempt.attempt;
  header.owner = input_.rank;
  header.owners = geometry_->ranks();
  header.base_version = attempt.base_version;
  header.target_version = attempt.target_version;
  header.schema = geometry_->catalogue().schema();
  bucket_options_ = options;
  buckets_.emplace(executor, options, header, sink);
  for (Finding& finding : findings_) {
    finding.changed = false;
    finding.changes = 0;
  }
  residual_->begin({&arena_, spans_, ResidualUse::kCompare, attempt.attempt, has_baseline_, dense_,
                    attempt_.needs});
}

void Owner::begin_commit(SpanRecorder* spans) {
  baseline_.reset();  // neither version's until all of it is copied
  spans_ = spans;
  frozen_broken_ = false;
  residual_->begin({&arena_, spans, ResidualUse::kCommit, attempt_.attempt, false, false, {}});
}

Piece Owner::attempt_piece(std::size_t index) const {
  Piece piece = plan_.pieces[index];
  if (piece.tensor == kNoTensor) return piece;
  const Need need = attempt_.needs.empty() ? Need::kAny : attempt_.needs[piece.tensor];
  const bool overwrite = attempt_.mode == AttemptMode::kOverwrite || need == Need::kOverwrite;
  piece.send = need != Need::kSkip && !(DCR_MUTANT("owner_forgets_piece") && index == 0);
  piece.whole = dense_ || need == Need::kDense;
  piece.choice = overwrite ? EncodingChoice::kOverwrite : attempt_.mixed;
  return piece;
}

Lane Owner::lane() {
  lane_pieces_.clear();
  for (std::size_t i = 0; i < plan_.pieces.size(); ++i) lane_pieces_.push_back(attempt_piece(i));
  return {lane_pieces_, this, &*buckets_, input_.rank};
}

Lane Owner::storing() {
  lane_pieces_.clear();
  storing_.indices.clear();
  for (std::uint32_t i = 0; i < findings_.size(); ++i) {
    if (!findings_[i].changed || (DCR_MUTANT("baseline_forgets_piece") && i == 0)) continue;
    storing_.indices.push_back(i);
    lane_pieces_.push_back(plan_.pieces[i]);
    lane_pieces_.back().send = false;
  }
  return {lane_pieces_, &storing_, nullptr, input_.rank};
}

Status Owner::read_block(const SourcePiece& source, const Piece& piece, const Box& block,
                         std::unique_ptr<PendingRead> begun, PieceBuffers* buffers,
                         MutableByteSpan out) {
  const TensorView view = block_view(view_of(source), block);
  Dtype dtype = view.dtype;
  if (piece.tensor != kNoTensor) {
    const Dtype canonical = geometry_->catalogue()[piece.tensor].dtype;
    if (dtype_bits(canonical) >= 8) dtype = canonical;
  }
  const bool cast = dtype != view.dtype;
  MutableByteSpan words = out;
  if (cast) {
    const auto bytes = static_cast<std::size_t>(block.elements()) * word_bytes(view.dtype);
    grow(&buffers->old_bytes, bytes);
    words = MutableByteSpan(buffers->old_bytes).first(bytes);
  }
  const Status status = begun ? begun->finish(words) : input_.memory->read(view, words);
  if (!status.ok()) return status.with_context("task " + quoted_name(name_of(source)));
  if (cast) cast_words(view.dtype, dtype, words, out);
  return {};
}

std::unique_ptr<PendingRead> Owner::begin_next(const SourcePiece& source,
                                               std::span<const Box> blocks, std::size_t at) {
  if (at + 1 == blocks.size()) return nullptr;
  return input_.memory->begin_read(block_view(view_of(source), blocks[at + 1]));
}

Status Owner::load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
                   const std::function<void(const ScanBox&)>& scan) {
  const auto slot = static_cast<std::size_t>(index);
  const SourcePiece& source = plan_.sources[slot];
  const std::uint8_t* const old_words = arena_.bytes().data() + source.arena_offset;
  const bool compare = has_baseline_ && (piece.whole || !piece.send);
  const std::uint64_t bytes = piece.box.words() * piece.width;
  grow(&buffers->new_bytes,
       static_cast<std::size_t>(piece.whole ? bytes : std::min<std::uint64_t>(bytes, kBlockBytes)));
  std::vector<Digest> leaves;
  std::uint64_t changes = 0;
  std::size_t at = 0;
  const std::vector<Box> blocks = split(source.box, block_words(view_of(source), piece));
  std::unique_ptr<PendingRead> begun;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint64_t words = blocks[i].elements();
    const MutableByteSpan out(buffers->new_bytes.data() + (piece.whole ? at : 0),
                              static_cast<std::size_t>(words) * piece.width);
    DCR_TRY(read_block(source, piece, blocks[i], std::move(begun), buffers, out));
    begun = begin_next(source, blocks, i);
    leaves.push_back(xxh3(out));
    ScanBox part;
    part.old_words = old_words + at;
    part.new_words = out.data();
    part.row_words = words;
    if (compare) changes += kernels().count_changes(piece.width, part);
    if (piece.whole) part.old_words = nullptr;
    if (piece.send) scan(part);
    if (DCR_MUTANT("owner_updates_early")) {
      std::copy(out.begin(), out.end(),
                arena_.bytes().begin() + static_cast<std::ptrdiff_t>(source.arena_offset + at));
    }
    at += out.size();
  }
  arena_.release(source.arena_offset, bytes);
  DCR_TRY(check_frozen(slot, combine_leaves(leaves)));
  Finding& finding = findings_[slot];
  if (piece.whole || !piece.send) {
    finding.changes = changes;
    finding.changed = changes > 0 || !has_baseline_;
  }
  return {};
}

void Owner::scanned(std::uint64_t index, std::uint64_t changes) {
  Finding& finding = findings_[static_cast<std::size_t>(index)];
  finding.changes = changes;
  finding.changed = changes > 0;
}

Status Owner::Storing::load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
                            const std::function<void(const ScanBox&)>&) {
  return owner.store(indices[static_cast<std::size_t>(index)], piece, buffers);
}

Status Owner::store(std::size_t index, const Piece& piece, PieceBuffers* buffers) {
  const SourcePiece& source = plan_.sources[index];
  std::vector<Digest> leaves;
  std::uint64_t at = source.arena_offset;
  const std::vector<Box> blocks = split(source.box, block_words(view_of(source), piece));
  std::unique_ptr<PendingRead> begun;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const MutableByteSpan out = arena_.bytes().subspan(
        static_cast<std::size_t>(at), static_cast<std::size_t>(blocks[i].elements()) * piece.width);
    DCR_TRY(read_block(source, piece, blocks[i], std::move(begun), buffers, out));
    begun = begin_next(source, blocks, i);
    leaves.push_back(xxh3(out));
    at += out.size();
  }
  arena_.release(source.arena_offset, at - source.arena_offset);
  return check_frozen(index, combine_leaves(leaves));
}

Status Owner::check_frozen(std::size_t index, const Digest& digest) {
  Finding& finding = findings_[index];
  if (!finding.known) {
    finding.digest = digest;
    finding.known = true;
    return {};
  }
  if (finding.digest == digest) return {};
  frozen_broken_ = true;
  const Piece& piece = plan_.pieces[index];
  std::string what = "task " + quoted_name(name_of(plan_.sources[index]));
  std::string tensor;
  if (piece.tensor != kNoTensor) {
    tensor = geometry_->catalogue()[piece.tensor].name;
    what += " (tensor " + quoted_name(tensor) + ", from word " + std::to_string(piece.box.offset) +
            " on)";
  }
  return {Code::kMismatch,
          "owner " + std::to_string(input_.rank) + ": " + what +
              " changed while the candidate had to stay fixed; the owner's baseline is void and "
              "its next refit is dense",
          tensor};
}

void Owner::raise_flags(std::span<std::uint8_t> flags) const {
  const FlagLayout& layout = geometry_->flags();
  if (dense_ && !DCR_MUTANT("dense_owner_says_nothing")) flags[layout.dense + input_.rank] = 1;
  if (DCR_MUTANT("owner_hides_changes")) return;
  std::uint32_t last = ~std::uint32_t{0};  // most pieces of a source follow each other
  for (std::size_t i = 0; i < findings_.size(); ++i) {
    const SourcePiece& source = plan_.sources[i];
    if (!findings_[i].changed || source.source == last) continue;
    last = source.source;
    flags[FlagLayout::kChanged] = 1;
    const std::int64_t named = geometry_->find_source(name_of(source));
    if (named >= 0) flags[layout.source + static_cast<std::size_t>(named)] = 1;
  }
}

Status Owner::convert_round(std::span<const std::uint32_t> pieces) {
  Bytes words;
  for (const std::uint32_t index : pieces) {
    const ResidualPiece& piece = geometry_->residual()[index];
    if (piece.from != input_.rank) continue;
    words.resize(static_cast<std::size_t>(piece.words) * piece.width);
    {
      const SpanTimer timer(spans_, kStageConvert, input_.rank);
      const Status status = input_.converters[piece.group]->convert(
          piece.converter_part, piece.first, piece.words, words);
      if (!status.ok()) {
        return status.with_context("owner " + std::to_string(input_.rank) + ": converter " +
                                   quoted_name(geometry_->groups()[piece.group].name));
      }
    }
    const PartHeader header = {residual_->attempt(), input_.rank, piece.tensor, piece.part,
                               piece.first};
    DCR_TRY(input_.collective->send_part(piece.to, header, words));
  }
  return {};
}

Status Owner::take_round(std::span<const std::uint32_t> pieces) {
  return residual_->take_round(pieces, bucket_options_.bytes, bucket_options_.raw_bytes_max,
                               buckets_ ? &*buckets_ : nullptr);
}

Status Owner::close_affine() { return buckets_->close(); }

Result<PrepareResult> Owner::finish_prepare() {
  DCR_TRY(residual_->finish_items(&*buckets_));
  DCR_TRY(buckets_->finish());
  PrepareResult result;
  result.pipeline = buckets_->result();
  result.mode = dense_ ? AttemptMode::kDense : attempt_.mode;
  for (std::size_t i = 0; i < findings_.size(); ++i) {
    if (plan_.sources[i].counted) result.changed_source_elements += findings_[i].changes;
    if (plan_.pieces[i].tensor == kNoTensor) continue;
    result.changed_projected_words += findings_[i].changes;
  }
  result.changed_residual_words = residual_->changed_words();
  result.converted_bytes = residual_->compared_bytes();
  buckets_.reset();
  residual_->begin({});
  prepared_ = true;
  return result;
}

void Owner::finish_initialize(std::uint64_t version) {
  baseline_ = version;
  residual_->begin({});
  forget_candidate();
}

void Owner::finish_commit() {
  baseline_ = attempt_.target_version;
  prepared_ = false;
  residual_->begin({});
  forget_candidate();
}

void Owner::fail() {
  buckets_.reset();
  const bool broken = frozen_broken_ || residual_->frozen_broken();
  residual_->begin({});
  if (!broken) return;
  baseline_.reset();
  prepared_ = false;
  forget_candidate();
}

void Owner::forget_candidate() {
  for (Finding& finding : findings_) finding.known = false;
  residual_->forget_candidate();
}

}  // namespace dcr
