#include "source/residual_share.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "base/mutant.h"
#include "simd/kernels.h"
#include "source/attempt.h"
#include "tensor/text.h"

namespace dcr {
namespace {

std::string piece_label(const Geometry& geometry, const ResidualPiece& piece) {
  return "tensor " + quoted_name(geometry.catalogue()[piece.tensor].name) + ": part " +
         std::to_string(piece.part) + " from rank " + std::to_string(piece.from) + ", word " +
         std::to_string(piece.first);
}

auto header_key(const ResidualPiece& piece) {
  return std::make_tuple(piece.from, piece.tensor, piece.part, piece.first);
}

}  // namespace

ResidualShare::ResidualShare(std::shared_ptr<const Geometry> geometry, std::uint32_t rank,
                             std::uint64_t arena_offset)
    : geometry_(std::move(geometry)), rank_(rank) {
  const std::span<const ResidualPiece> pieces = geometry_->residual();
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].to != rank) continue;
    by_header_.push_back(static_cast<std::uint32_t>(states_.size()));
    State& state = states_.emplace_back();
    state.piece = i;
    state.arena_offset = arena_offset + arena_bytes_;
    const std::uint64_t bytes = pieces[i].words * pieces[i].width;
    arena_bytes_ += arena_bytes_of(bytes);
    words_ += pieces[i].words;
    bytes_ += bytes;
  }
  std::sort(by_header_.begin(), by_header_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return header_key(pieces[states_[a].piece]) < header_key(pieces[states_[b].piece]);
  });
}

void ResidualShare::add_baseline_pieces(std::vector<BaselinePiece>* pieces) const {
  for (const State& state : states_) {
    const ResidualPiece& piece = geometry_->residual()[state.piece];
    pieces->push_back({piece.tensor, piece.width, piece.box, state.arena_offset});
  }
}

void ResidualShare::begin(const Phase& phase) {
  phase_ = phase;
  waiting_.clear();
  waiting_bytes_ = 0;
  waiting_raw_bytes_ = 0;
  frozen_broken_ = false;
  if (phase.use == ResidualUse::kCompare) {
    changed_words_ = 0;
    compared_bytes_ = 0;
  }
  for (State& state : states_) {
    state.received = false;
    state.has_item = false;
    state.item = EncodedItem();
    if (phase.use == ResidualUse::kCompare) state.changed = false;
  }
}

void ResidualShare::forget_candidate() {
  for (State& state : states_) state.known = false;
}

ResidualShare::State* ResidualShare::find(const PartHeader& header) {
  const auto key = std::make_tuple(header.from, header.tensor, header.part, header.first);
  const std::span<const ResidualPiece> pieces = geometry_->residual();
  const auto found = std::lower_bound(by_header_.begin(), by_header_.end(), key,
                                      [&](std::uint32_t state, const auto& wanted) {
                                        return header_key(pieces[states_[state].piece]) < wanted;
                                      });
  if (found == by_header_.end()) return nullptr;
  State& state = states_[*found];
  return header_key(pieces[state.piece]) == key ? &state : nullptr;
}

Status ResidualShare::receive(const PartHeader& header, std::span<const std::uint8_t> bytes) {
  const std::string owner = "owner " + std::to_string(rank_) + ": ";
  if (phase_.use == ResidualUse::kNone || header.attempt != phase_.attempt) {
    return {Code::kMismatch, owner + "a part of attempt " + std::to_string(header.attempt) +
                                 " from rank " + std::to_string(header.from) +
                                 " belongs to no attempt under way"};
  }
  State* const state = find(header);
  if (state == nullptr) {
    return {Code::kMismatch, owner + "a part of tensor index " + std::to_string(header.tensor) +
                                 " from rank " + std::to_string(header.from) + " (part " +
                                 std::to_string(header.part) + ", word " +
                                 std::to_string(header.first) + ") is none that was declared"};
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Status status = accept(*state, bytes);
    if (!status.ok()) return status.with_context("owner " + std::to_string(rank_));
    state->received = true;
  }
  const SpanTimer timer(phase_.spans, kStageAssemble, rank_);
  const Digest digest = tensor_digest(bytes);
  const bool frozen = state->known && digest != state->digest;
  if (frozen) {
    const ResidualPiece& piece = geometry_->residual()[state->piece];
    const std::lock_guard<std::mutex> lock(mutex_);
    frozen_broken_ = true;
    return {Code::kMismatch,
            owner + piece_label(*geometry_, piece) +
                ": what it is converted from changed while the candidate had to stay fixed; the "
                "owner's baseline is void and its next refit is dense",
            geometry_->catalogue()[piece.tensor].name};
  }
  if (phase_.use == ResidualUse::kCompare) {
    state->digest = digest;
    state->known = true;
    compare(state, bytes);
  } else if (phase_.use == ResidualUse::kInitialize || !DCR_MUTANT("converted_baseline_stays")) {
    std::memcpy(phase_.arena->bytes().data() + state->arena_offset, bytes.data(), bytes.size());
  }
  phase_.arena->release(state->arena_offset, bytes.size());
  return {};
}

Status ResidualShare::accept(const State& state, std::span<const std::uint8_t> bytes) {
  const ResidualPiece& piece = geometry_->residual()[state.piece];
  const std::string& name = geometry_->catalogue()[piece.tensor].name;
  if (state.received) {
    return {Code::kMismatch, piece_label(*geometry_, piece) + " came twice", name};
  }
  if (bytes.size() != piece.words * piece.width) {
    return {Code::kMismatch,
            piece_label(*geometry_, piece) + ": " + std::to_string(bytes.size()) +
                " bytes instead of " + std::to_string(piece.words * piece.width),
            name};
  }
  return {};
}

void ResidualShare::compare(State* state, std::span<const std::uint8_t> bytes) {
  const ResidualPiece& piece = geometry_->residual()[state->piece];
  const Need need = phase_.needs.empty() ? Need::kAny : phase_.needs[piece.tensor];
  const bool whole = phase_.dense || need == Need::kDense;
  ScanBox part;
  part.old_words = phase_.arena->bytes().data() + state->arena_offset;
  part.new_words = bytes.data();
  part.row_words = piece.words;
  std::unique_ptr<ItemEncoder> encoder;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!encoders_.empty()) {
      encoder = std::move(encoders_.back());
      encoders_.pop_back();
    }
  }
  if (encoder == nullptr) encoder = std::make_unique<ItemEncoder>();
  if (whole || need == Need::kSkip) {
    const std::size_t changes =
        phase_.has_baseline ? kernels().count_changes(piece.width, part) : 0;
    state->changes = changes;
    state->changed = changes > 0 || !phase_.has_baseline;
    state->has_item = need != Need::kSkip;
    if (state->has_item) {
      encoder->encode_whole(piece.tensor, piece.width, piece.box, {&part, 1}, &state->item);
    }
  } else {
    encoder->begin(piece.tensor, piece.width, piece.box, EncodingChoice::kOverwrite);
    encoder->scan(part);
    state->changed = encoder->finish({&part, 1}, &state->item);
    state->has_item = state->changed;
    state->changes = state->changed ? state->item.header.changes : 0;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  encoders_.push_back(std::move(encoder));
}

Status ResidualShare::take_round(std::span<const std::uint32_t> pieces, std::uint64_t bucket_bytes,
                                 std::uint64_t raw_bytes_max, Buckets* buckets) {
  for (const std::uint32_t index : pieces) {
    const ResidualPiece& piece = geometry_->residual()[index];
    if (piece.to != rank_) continue;
    const auto found =
        std::lower_bound(states_.begin(), states_.end(), index,
                         [](const State& a, std::uint32_t wanted) { return a.piece < wanted; });
    State& state = *found;
    if (!state.received) {
      return {Code::kMismatch,
              "owner " + std::to_string(rank_) + ": " + piece_label(*geometry_, piece) +
                  " did not come",
              geometry_->catalogue()[piece.tensor].name};
    }
    if (phase_.use != ResidualUse::kCompare) continue;
    changed_words_ += state.changes;
    const std::uint64_t bytes = piece.words * piece.width;
    compared_bytes_ += bytes;
    if (!state.has_item) continue;
    const std::uint64_t raw = state.item.raw_bytes();
    if (!waiting_.empty() &&
        (waiting_bytes_ + bytes > bucket_bytes || waiting_raw_bytes_ + raw > raw_bytes_max)) {
      DCR_TRY(flush_items(buckets));
    }
    waiting_.push_back(&state);
    waiting_bytes_ += bytes;
    waiting_raw_bytes_ += raw;
  }
  return {};
}

Status ResidualShare::finish_items(Buckets* buckets) { return flush_items(buckets); }

// Groups come in declared order and items of a payload by tensor.
Status ResidualShare::flush_items(Buckets* buckets) {
  const auto place = [this](const State* state) {
    const ResidualPiece& piece = geometry_->residual()[state->piece];
    return std::make_pair(piece.tensor, piece.box.offset);
  };
  std::sort(waiting_.begin(), waiting_.end(),
            [&](const State* a, const State* b) { return place(a) < place(b); });
  for (State* const state : waiting_) {
    const ResidualPiece& piece = geometry_->residual()[state->piece];
    const Need need = phase_.needs.empty() ? Need::kAny : phase_.needs[piece.tensor];
    if (!phase_.dense && need != Need::kDense) buckets->result().changed += state->changes;
    DCR_TRY(buckets->add(state->item, piece.words * piece.width));
    state->item = EncodedItem();
    state->has_item = false;
  }
  waiting_.clear();
  waiting_bytes_ = 0;
  waiting_raw_bytes_ = 0;
  return buckets->close();
}

void ResidualShare::raise_changed(std::span<const std::uint32_t> pieces,
                                  std::span<std::uint8_t> flags) const {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto found =
        std::lower_bound(states_.begin(), states_.end(), pieces[i],
                         [](const State& a, std::uint32_t wanted) { return a.piece < wanted; });
    if (found != states_.end() && found->piece == pieces[i] && found->changed) flags[i] = 1;
  }
}

}  // namespace dcr
