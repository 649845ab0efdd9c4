#include "delta/delta_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "codec/compress.h"
#include "codec/container.h"
#include "source/pipeline.h"
#include "tensor/safetensors.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::string_view kDeltaMagic = "DCRDELTA";
constexpr std::string_view kTrailerMagic = "DCRTRAIL";

// The trailer's fields before its digest, which the digest covers too.
constexpr std::size_t kTrailerCoveredBytes = 24;

// The part of the memory bound that the places of items may take.
constexpr std::uint64_t kPlacesShare = 8;

Bytes prologue_bytes() {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text(kDeltaMagic);
  out.u32(kFormatVersion);
  out.u32(0);
  DCR_ASSERT(bytes.size() == kDeltaPrologueBytes);
  return bytes;
}

// What names a delta: BLAKE2b-128 over the prologue, the footer and the trailer's first fields.
Digest trailer_digest(ByteSpan prologue, ByteSpan footer, ByteSpan trailer) {
  Blake2b hash;
  hash.update(prologue);
  hash.update(footer);
  hash.update(trailer.first(kTrailerCoveredBytes));
  return hash.finish();
}

bool all_zero(ByteSpan bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

Status check_version(std::uint32_t version) {
  if (version == kFormatVersion) return {};
  return {Code::kUnsupported, "delta format version " + std::to_string(version) +
                                  " is not known to this build, which reads version " +
                                  std::to_string(kFormatVersion)};
}

Status check_prologue(ByteSpan prologue) {
  ByteReader in(prologue);
  if (in.text(kDeltaMagic.size()) != kDeltaMagic) {
    return {Code::kCorrupt, "not a delta file: it does not start with \"DCRDELTA\""};
  }
  DCR_TRY(check_version(in.u32()));
  if (in.u32() != 0) return {Code::kCorrupt, "reserved bytes of the prologue are not zero"};
  return {};
}

struct Trailer {
  std::uint64_t footer_offset = 0, footer_bytes = 0;
  Digest digest{};
};

Result<Trailer> parse_trailer(ByteSpan bytes, std::uint64_t file_bytes) {
  ByteReader in(bytes);
  Trailer trailer;
  trailer.footer_offset = in.u64();
  trailer.footer_bytes = in.u64();
  const std::uint8_t algorithm = in.u8();
  const ByteSpan reserved = in.bytes(7);
  const ByteSpan digest = in.bytes(trailer.digest.size());
  const std::uint32_t version = in.u32();
  const ByteSpan more_reserved = in.bytes(4);
  if (in.text(kTrailerMagic.size()) != kTrailerMagic) {
    return Status(Code::kCorrupt, "the delta is cut short: it does not end with \"DCRTRAIL\"");
  }
  DCR_TRY(check_version(version));
  if (algorithm != kDigestBlake2b128) {
    return Status(Code::kUnsupported, "trailer: digest algorithm " + std::to_string(algorithm) +
                                          " is not known to this build");
  }
  if (!all_zero(reserved) || !all_zero(more_reserved)) {
    return Status(Code::kCorrupt, "reserved bytes of the trailer are not zero");
  }
  const std::optional<std::uint64_t> end = checked_add(trailer.footer_offset, trailer.footer_bytes);
  if (trailer.footer_offset < kDeltaPrologueBytes || !end ||
      *end != file_bytes - kDeltaTrailerBytes) {
    return Status(Code::kCorrupt, "trailer: the footer's place does not fit the file's size");
  }
  if (trailer.footer_bytes > kFooterBytesMax) {
    return Status(Code::kTooLarge, "trailer: a footer of " + std::to_string(trailer.footer_bytes) +
                                       " bytes is above the limit of " +
                                       std::to_string(kFooterBytesMax));
  }
  std::copy(digest.begin(), digest.end(), trailer.digest.begin());
  return trailer;
}

// The digest field of a payload. REQUIRES: made by PayloadWriter or accepted by Payload::read.
Digest payload_digest(ByteSpan payload) {
  Digest digest;
  DCR_ASSERT(payload.size() >= kPayloadDigestOffset + digest.size());
  std::copy_n(payload.begin() + kPayloadDigestOffset, digest.size(), digest.begin());
  return digest;
}

std::string payload_name(std::size_t index) { return "payload " + std::to_string(index); }

}  // namespace

Status DeltaWriter::append(ByteSpan bytes) {
  DCR_TRY(file_->write(offset_, bytes));
  offset_ += bytes.size();
  return {};
}

Status DeltaWriter::begin() { return append(prologue_bytes()); }

Status DeltaWriter::send(std::uint64_t number, ByteSpan payload) {
  DCR_ASSERT(number == payloads_.size());
  if (payloads_.size() == kPayloadsPerDeltaMax) {
    return {Code::kTooLarge, "the delta needs more than " + std::to_string(kPayloadsPerDeltaMax) +
                                 " payloads; make deltas of smaller steps"};
  }
  payloads_.push_back({offset_, payload.size(), payload_digest(payload)});
  return append(payload);
}

Status DeltaWriter::add_blob(ByteSpan raw, Blob* blob) {
  Bytes stored;
  blob->coding = compress_stream(raw, &stored);
  blob->offset = offset_;
  blob->stored_bytes = stored.size();
  blob->raw_bytes = raw.size();
  blob->digest = blake2b(stored);
  return append(stored);
}

Result<std::uint64_t> DeltaWriter::finish(DeltaFooter* footer, Digest* id) {
  footer->payloads = std::move(payloads_);
  const Bytes encoded = encode_footer(*footer);
  if (encoded.size() > kFooterBytesMax) {
    return Status(Code::kTooLarge, "the tensor table takes " + std::to_string(encoded.size()) +
                                       " bytes, above the limit of " +
                                       std::to_string(kFooterBytesMax));
  }
  Bytes trailer;
  ByteWriter out(&trailer);
  out.u64(offset_);
  out.u64(encoded.size());
  out.u8(kDigestBlake2b128);
  out.zeros(7);
  *id = trailer_digest(prologue_bytes(), encoded, trailer);
  out.bytes(*id);
  out.u32(kFormatVersion);
  out.zeros(4);
  out.text(kTrailerMagic);
  DCR_ASSERT(trailer.size() == kDeltaTrailerBytes);
  DCR_TRY(append(encoded));
  DCR_TRY(append(trailer));
  return offset_;
}

Result<DeltaReader> DeltaReader::open(FileSystem& files, const std::string& path) {
  DeltaReader reader;
  reader.path_ = path;
  DCR_ASSIGN(reader.file_, files.open_read(path));
  DCR_ASSIGN(reader.file_bytes_, reader.file_->size());
  if (Status status = reader.read_footer(); !status.ok()) return status.with_context(path);
  return reader;
}

Status DeltaReader::read_footer() {
  if (file_bytes_ < kDeltaPrologueBytes + kDeltaTrailerBytes) {
    return {Code::kCorrupt,
            "not a delta file: " + std::to_string(file_bytes_) + " bytes are too few for one"};
  }
  std::uint8_t prologue[kDeltaPrologueBytes];
  DCR_TRY(file_->read(0, prologue));
  DCR_TRY(check_prologue(prologue));
  std::uint8_t trailer_bytes[kDeltaTrailerBytes];
  DCR_TRY(file_->read(file_bytes_ - kDeltaTrailerBytes, trailer_bytes));
  DCR_ASSIGN(const Trailer trailer, parse_trailer(trailer_bytes, file_bytes_));
  Bytes footer(static_cast<std::size_t>(trailer.footer_bytes));
  DCR_TRY(file_->read(trailer.footer_offset, footer));
  if (!digest_equal(trailer.digest, trailer_digest(prologue, footer, trailer_bytes))) {
    return {Code::kCorrupt, "the footer's digest does not match: the delta is damaged"};
  }
  id_ = trailer.digest;
  DCR_ASSIGN(footer_, decode_footer(footer, file_bytes_));
  specs_ = delta_specs(footer_.tensors);
  schema_ = delta_schema(footer_.tensors);
  return {};
}

std::uint64_t DeltaReader::read_bytes_max() const {
  std::uint64_t stored_bytes_max = 0;
  for (const PayloadIndexEntry& payload : footer_.payloads) {
    stored_bytes_max = std::max(stored_bytes_max, payload.stored_bytes);
  }
  return stored_bytes_max + footer_.payload_raw_bytes_max;
}

Result<Payload> DeltaReader::read_payload(std::size_t index) const {
  DCR_ASSERT(index < footer_.payloads.size());
  const PayloadIndexEntry& entry = footer_.payloads[index];
  const std::string context = path_ + ": " + payload_name(index);
  Bytes stored(static_cast<std::size_t>(entry.stored_bytes));
  DCR_TRY(file_->read(entry.offset, stored));
  // The limit also holds for the values of items, which may be more than their streams.
  const PayloadLimits limits{entry.stored_bytes,
                             std::max(footer_.payload_raw_bytes_max, kDeltaValueBytesMax)};
  Result<Payload> payload = Payload::read(stored, schema_, specs_, limits);
  if (!payload.ok()) return payload.status().with_context(context);
  // The payload's digest matches its bytes; the footer says that it is this delta's.
  if (!digest_equal(entry.digest, payload_digest(stored))) {
    return Status(Code::kMismatch, context + ": it belongs to another delta");
  }
  if (Status status = check_payload(*payload, index); !status.ok()) {
    return status.with_context(context);
  }
  return payload;
}

Status DeltaReader::check_payload(const Payload& payload, std::size_t index) const {
  PayloadHeader expected;
  expected.number = index;
  const PayloadHeader& header = payload.header();
  if (header.run != expected.run || header.attempt != expected.attempt ||
      header.owner != expected.owner || header.owners != expected.owners ||
      header.number != expected.number || header.base_version != expected.base_version ||
      header.target_version != expected.target_version) {
    return {Code::kCorrupt,
            "its header is not that of a delta file's payload " + std::to_string(index)};
  }
  if (payload.items().empty()) return {Code::kCorrupt, "it has no item"};
  if (payload.raw_bytes() > footer_.payload_raw_bytes_max) {
    return {Code::kCorrupt, "it has more raw bytes than the footer's largest payload"};
  }
  for (const ItemView& item : payload.items()) {
    const DeltaTensor& tensor = footer_.tensors[item.header.tensor];
    const ItemBox& box = item.header.box;
    const TensorSpec& spec = specs_[item.header.tensor];
    const std::uint64_t piece = piece_words(spec.width);
    if (!box.is_range() || box.offset % piece != 0 ||
        box.dims[0].size != std::min(piece, spec.words - box.offset)) {
      return {Code::kCorrupt,
              "an item of tensor " + quoted_name(tensor.name) + " is not one piece of the grid",
              tensor.name};
    }
    if (!tensor.common() && (item.header.location != LocationCoding::kAll ||
                             item.header.encoding != Encoding::kOverwrite)) {
      return {Code::kCorrupt,
              "tensor " + quoted_name(tensor.name) + " must be carried whole but an item is not",
              tensor.name};
    }
  }
  return {};
}

Result<Bytes> DeltaReader::read_blob(const Blob& blob) const {
  Bytes stored(static_cast<std::size_t>(blob.stored_bytes));
  DCR_TRY(file_->read(blob.offset, stored));
  if (!digest_equal(blob.digest, blake2b(stored))) {
    return Status(Code::kCorrupt, path_ + ": a carried file's digest does not match its bytes");
  }
  if (blob.coding == kCodingStored) return stored;
  if (Status status = check_frame(stored, blob.raw_bytes); !status.ok()) {
    return status.with_context(path_ + ": a carried file");
  }
  Bytes raw(static_cast<std::size_t>(blob.raw_bytes));
  if (Status status = decompress_frame(stored, raw); !status.ok()) {
    return status.with_context(path_ + ": a carried file");
  }
  return raw;
}

namespace {

// What the payloads of a delta must be together; fed with them in order.
class ContentCheck {
 public:
  // At most `items_max` items in all are taken.
  ContentCheck(const DeltaFooter& footer, std::uint64_t items_max)
      : footer_(footer), items_max_(items_max), whole_words_(footer.tensors.size()) {}

  Status add(std::uint32_t index, const Payload& payload) {
    raw_bytes_max_ = std::max(raw_bytes_max_, payload.raw_bytes());
    // A few bytes can hold many items; what is kept of each is bounded as well.
    if (payload.items().size() > items_max_ - places_.size()) {
      return {Code::kTooLarge, payload_name(index) + ": with it the delta has more than " +
                                   std::to_string(items_max_) +
                                   " items, too many for the memory limit; raise it"};
    }
    std::uint32_t position = 0;
    for (const ItemView& item : payload.items()) {
      const ItemPlace place{item.header.tensor, index, position++, item.header.box.offset};
      const DeltaTensor& tensor = footer_.tensors[place.tensor];
      if (!places_.empty() &&
          (place.tensor < places_.back().tensor ||
           (place.tensor == places_.back().tensor && place.offset <= places_.back().offset))) {
        return {Code::kCorrupt,
                payload_name(index) + ": an item of tensor " + quoted_name(tensor.name) +
                    " is out of order or there twice",
                tensor.name};
      }
      places_.push_back(place);
      if (tensor.common()) {
        changed_ += item.header.changes;
      } else {
        whole_words_[place.tensor] += item.header.changes;
      }
    }
    return {};
  }

  Status finish(const std::vector<TensorSpec>& specs) const {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const DeltaTensor& tensor = footer_.tensors[i];
      // Pieces are disjoint and within the tensor, so that their sum tells whether one is missing.
      if (!tensor.common() && whole_words_[i] != specs[i].words) {
        return {
            Code::kCorrupt,
            "tensor " + quoted_name(tensor.name) + " must be carried whole but a piece is missing",
            tensor.name};
      }
    }
    if (changed_ != footer_.changed) {
      return {Code::kCorrupt, "the payloads change " + std::to_string(changed_) +
                                  " words but the footer says " + std::to_string(footer_.changed)};
    }
    if (raw_bytes_max_ != footer_.payload_raw_bytes_max) {
      return {Code::kCorrupt, "the footer's largest raw payload is not the payloads'"};
    }
    return {};
  }

  std::vector<ItemPlace> take_places() { return std::move(places_); }

 private:
  const DeltaFooter& footer_;
  const std::uint64_t items_max_;
  std::vector<std::uint64_t> whole_words_;  // per tensor that is not common
  std::vector<ItemPlace> places_;
  std::uint64_t changed_ = 0;
  std::uint64_t raw_bytes_max_ = 0;
};

}  // namespace

Status DeltaReader::validate_blobs() const {
  for (std::uint32_t i = 0; i < footer_.files.size(); ++i) {
    const DeltaFile& file = footer_.files[i];
    if (!file.is_carried()) continue;
    DCR_ASSIGN(const Bytes content, read_blob(file.carried));
    if (!digest_equal(file.target_digest, blake2b(content))) {
      return {Code::kCorrupt, path_ + ": carried file " + quoted_name(file.name) +
                                  ": its digest does not match its content"};
    }
    if (file.role != FileRole::kWeights) continue;
    if (Status status = check_target_prefix(footer_, i, content); !status.ok()) {
      return status.with_context(path_);
    }
  }
  return {};
}

Result<std::vector<ItemPlace>> DeltaReader::validate_all(
    const Work& work, const std::function<void(const Payload&)>& visit) const {
  const std::uint64_t each = std::max<std::uint64_t>(1, read_bytes_max());
  const std::uint64_t window = std::min<std::uint64_t>(work.memory_bytes_max / each,
                                                       std::uint64_t{2} * work.executor->threads());
  if (window == 0) {
    return Status(Code::kTooLarge, path_ + ": reading a payload takes " + std::to_string(each) +
                                       " bytes of memory, above the limit of " +
                                       std::to_string(work.memory_bytes_max) +
                                       "; raise the memory limit");
  }
  ContentCheck check(footer_, work.memory_bytes_max / kPlacesShare / sizeof(ItemPlace));
  std::uint64_t bytes_total = 0;
  for (const PayloadIndexEntry& payload : footer_.payloads) bytes_total += payload.stored_bytes;
  ProgressCounter progress(work, "check", bytes_total);
  DCR_TRY(ordered_map<Payload>(
      *work.executor, footer_.payloads.size(), window, work.cancel,
      [this](std::uint64_t i) { return read_payload(static_cast<std::size_t>(i)); },
      [&](std::uint64_t i, Payload&& payload) -> Status {
        if (Status status = check.add(static_cast<std::uint32_t>(i), payload); !status.ok()) {
          return status.with_context(path_);
        }
        if (visit) visit(payload);
        progress.add(footer_.payloads[static_cast<std::size_t>(i)].stored_bytes);
        return {};
      }));
  if (Status status = check.finish(specs_); !status.ok()) return status.with_context(path_);
  DCR_TRY(validate_blobs());
  return check.take_places();
}

Status check_target_prefix(const DeltaFooter& footer, std::uint32_t file, ByteSpan prefix) {
  const DeltaFile& of = footer.files[file];
  const std::string context = "prefix of " + quoted_name(of.name);
  if (prefix.size() < 8 || load_little<std::uint64_t>(prefix.data()) != prefix.size() - 8) {
    return {Code::kCorrupt, context + ": its length does not match its first eight bytes"};
  }
  Result<SafetensorsHeader> header = parse_safetensors_header(prefix.subspan(8), of.target_size);
  if (!header.ok()) return header.status().with_context(context);
  std::size_t expected = 0;
  for (const DeltaTensor& tensor : footer.tensors) {
    if (tensor.target.present && tensor.target.file == file) ++expected;
  }
  for (const TensorEntry& entry : header->tensors) {
    const std::int64_t index = find_delta_tensor(footer.tensors, entry.name);
    const TensorSide* side =
        index < 0 ? nullptr : &footer.tensors[static_cast<std::size_t>(index)].target;
    if (side == nullptr || !side->present || side->file != file || side->dtype != entry.dtype ||
        side->shape != entry.shape || side->offset != entry.offset) {
      return {Code::kCorrupt,
              context + ": tensor " + quoted_name(entry.name) + " is not as in the delta's table",
              entry.name};
    }
  }
  if (header->tensors.size() != expected) {
    return {Code::kCorrupt, context + ": it lacks a tensor of the delta's table"};
  }
  return {};
}

Status check_chain(const std::vector<DeltaReader>& chain) {
  for (std::size_t i = 1; i < chain.size(); ++i) {
    if (chain[i].footer().base_identity != chain[i - 1].footer().target_identity) {
      return {Code::kMismatch, chain[i].path() + " does not follow " + chain[i - 1].path() +
                                   ": its base is another checkpoint than the other's target"};
    }
  }
  return {};
}

}  // namespace dcr
