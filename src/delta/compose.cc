#include "delta/compose.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "codec/item_reader.h"
#include "source/pipeline.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// The part of the memory bound that pieces in flight may take; the rest is for the payload and what
// the visitor keeps.
constexpr std::uint64_t kPiecesShare = 4;

struct ComposeStep {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0, bytes = 0;
  const ItemView* item = nullptr;  // null: the base's bytes as they are
};

class Composer {
 public:
  Composer(const Work& work, const ComposeInput& input,
           const std::function<Status(ComposedPiece&&)>& visit)
      : work_(work), in_(input), visit_(visit) {}

  Status run() {
    const std::vector<DeltaTensor>& tensors = in_.delta->footer().tensors;
    for (std::uint32_t index = 0; index < tensors.size(); ++index) {
      while (next_ < in_.places.size() && in_.places[next_].tensor < index) ++next_;
      if (in_.recipes[index].selected) DCR_TRY(add_tensor(index, tensors[index]));
    }
    return flush();
  }

 private:
  Status add_tensor(std::uint32_t index, const DeltaTensor& tensor) {
    const std::uint64_t width = word_bytes(tensor.target.dtype);
    const std::uint64_t piece_bytes = piece_words(static_cast<unsigned>(width)) * width;
    std::uint64_t offset = 0;
    do {
      ComposeStep step{index, offset, std::min(piece_bytes, tensor.target.bytes - offset), nullptr};
      if (next_ < in_.places.size() && in_.places[next_].tensor == index &&
          in_.places[next_].offset * width == offset) {
        DCR_TRY(find_item(next_++, &step));
      }
      if (step.item == nullptr && in_.recipes[index].base < 0 && step.bytes > 0) {
        return {Code::kCorrupt,
                "tensor " + quoted_name(tensor.name) +
                    " is carried whole but has no item at byte " + std::to_string(offset),
                tensor.name};
      }
      steps_.push_back(step);
      offset += step.bytes;
    } while (offset < tensor.target.bytes);
    return {};
  }

  // Item number `number`, if the step's tensor needs it.
  Status find_item(std::uint64_t number, ComposeStep* step) {
    const TensorRecipe& recipe = in_.recipes[step->tensor];
    if (number < recipe.items_from) return {};
    const ItemPlace& place = in_.places[static_cast<std::size_t>(number)];
    if (recipe.journalled && number >= in_.journal.first && number < in_.journal.end) {
      step->item = find_journalled(place);
      return {};
    }
    if (!payload_ || loaded_ != place.payload) {
      DCR_TRY(flush());
      payload_.reset();
      DCR_ASSIGN(payload_, in_.delta->read_payload(place.payload));
      loaded_ = place.payload;
    }
    step->item = &payload_->items()[place.item];
    return {};
  }

  const ItemView* find_journalled(const ItemPlace& place) const {
    const std::span<const ItemView> items = in_.journal.payload->items();
    const auto before = [](const ItemView& item, const ItemPlace& wanted) {
      if (item.header.tensor != wanted.tensor) return item.header.tensor < wanted.tensor;
      return item.header.box.offset < wanted.offset;
    };
    const auto found = std::lower_bound(items.begin(), items.end(), place, before);
    const bool same = found != items.end() && found->header.tensor == place.tensor &&
                      found->header.box.offset == place.offset;
    return same ? &*found : nullptr;
  }

  // Makes the pieces that were gathered; items of the loaded payload are needed no longer.
  Status flush() {
    std::uint64_t bytes_max = 1;
    for (const ComposeStep& step : steps_) bytes_max = std::max(bytes_max, step.bytes);
    const std::uint64_t window =
        pieces_in_flight(*work_.executor, work_.memory_bytes_max / kPiecesShare, bytes_max);
    Status status = ordered_map<ComposedPiece>(
        *work_.executor, steps_.size(), window, work_.cancel,
        [this](std::uint64_t index) { return make(steps_[static_cast<std::size_t>(index)]); },
        [this](std::uint64_t, ComposedPiece&& piece) { return visit_(std::move(piece)); });
    steps_.clear();
    return status;
  }

  Result<ComposedPiece> make(const ComposeStep& step) const {
    const TensorRecipe& recipe = in_.recipes[step.tensor];
    ComposedPiece piece{step.tensor, step.offset, Bytes(static_cast<std::size_t>(step.bytes)), {}};
    if (recipe.base >= 0 && step.bytes > 0) {
      const CheckpointTensor& base = in_.base->tensors[static_cast<std::size_t>(recipe.base)];
      DCR_TRY(read_tensor(*in_.base, base, step.offset, piece.bytes));
    }
    if (step.item != nullptr) apply_item(*step.item, piece.bytes);
    piece.leaves = digest_leaves(piece.bytes);
    return piece;
  }

  const Work& work_;
  const ComposeInput& in_;
  const std::function<Status(ComposedPiece&&)>& visit_;
  std::size_t next_ = 0;  // in places
  std::vector<ComposeStep> steps_;
  std::optional<Payload> payload_;
  std::uint32_t loaded_ = 0;
};

}  // namespace

Status compose(const Work& work, const ComposeInput& input,
               const std::function<Status(ComposedPiece&&)>& visit) {
  return Composer(work, input, visit).run();
}

std::vector<Digest> digest_leaves(ByteSpan piece) {
  std::vector<Digest> leaves;
  leaves.reserve(piece.size() / kDigestLeafBytes + 1);
  for (std::size_t at = 0; at < piece.size(); at += kDigestLeafBytes) {
    leaves.push_back(xxh3(piece.subspan(at, std::min(kDigestLeafBytes, piece.size() - at))));
  }
  return leaves;
}

std::uint64_t pieces_in_flight(const Executor& executor, std::uint64_t memory_bytes,
                               std::uint64_t piece_bytes) {
  const std::uint64_t wanted = 2 * std::uint64_t{executor.threads()};
  return std::clamp<std::uint64_t>(memory_bytes / piece_bytes, 1, wanted);
}

}  // namespace dcr
