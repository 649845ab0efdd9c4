#include "delta/in_place_batches.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/limits.h"
#include "codec/item_encoder.h"
#include "codec/item_reader.h"
#include "delta/compose.h"
#include "delta/journal.h"
#include "source/pipeline.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// The unit of writing: a page in which a word changes is written as a whole, as far as it lies in
// the item, so that many changes near each other cost one write.
constexpr std::uint64_t kPageBytes = 4096;

// An item's words on disk.
struct ItemRange {
  const CheckpointTensor* tensor = nullptr;
  std::uint64_t offset = 0;  // bytes from the tensor's start
  std::size_t bytes = 0;
};

ItemRange range_of(const DiskState& disk, const InPlacePlan& plan, const ItemHeader& item) {
  const std::int64_t base = plan.tensors[item.tensor].base;
  const std::uint64_t width = item.width;
  return {&disk.checkpoint.tensors[static_cast<std::size_t>(base)], item.box.offset * width,
          static_cast<std::size_t>(item.box.words() * width)};
}

// Calls `visit(begin, end)` with the runs of an item's bytes that lie in pages with a change.
// `start` is where the item's first byte lies in its file.
template <typename Visit>
Status for_each_dirty_run(const ItemView& item, std::uint64_t start, std::uint64_t bytes,
                          const Visit& visit) {
  const std::uint64_t width = item.header.width;
  std::uint64_t run_begin = 0, run_end = 0;  // in the file
  ItemReader reader(item);
  ChangeBlock block;
  while (reader.next(&block)) {
    for (std::size_t i = 0; i < block.count; ++i) {
      const std::uint64_t first = start + block.positions[i] * width;
      const std::uint64_t page = first - first % kPageBytes;
      if (run_end == 0 || page > run_end) {
        if (run_end > run_begin) DCR_TRY(visit(run_begin - start, run_end - start));
        run_begin = std::max(page, start);
      }
      // A word may reach into the next page: safetensors data need not be aligned.
      const std::uint64_t last_page = (first + width - 1) / kPageBytes;
      run_end = std::min((last_page + 1) * kPageBytes, start + bytes);
    }
  }
  return run_end > run_begin ? visit(run_begin - start, run_end - start) : Status();
}

// Re-encodes an item of the delta as the new bits themselves. `changes` is 0 if it has none.
Result<EncodedItem> absolute_item(const DiskState& disk, const ItemRange& range,
                                  const ItemView& item) {
  const unsigned width = item.header.width;
  const ItemBox& box = item.header.box;
  Bytes words(range.bytes);
  DCR_TRY(read_tensor(disk.checkpoint, *range.tensor, range.offset, words));
  apply_item(item, words);

  EncodedItem encoded;
  ItemEncoder encoder;
  // Above one change in two words, the words that did not change cost no more than telling which.
  if (item.header.changes * 2 >= box.words()) {
    const ScanBox part{nullptr, words.data(), 1, box.words(), 0, 0};
    encoder.encode_whole(item.header.tensor, width, box, {&part, 1}, &encoded);
    return encoded;
  }
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint64_t> values(
      static_cast<std::size_t>(divide_up(item.header.changes * width, sizeof(std::uint64_t))));
  gaps.reserve(static_cast<std::size_t>(item.header.changes));
  auto* value = reinterpret_cast<std::uint8_t*>(values.data());
  std::uint32_t next = 0;
  ItemReader reader(item);
  ChangeBlock block;
  while (reader.next(&block)) {
    for (std::size_t i = 0; i < block.count; ++i, value += width) {
      gaps.push_back(block.positions[i] - next);
      next = block.positions[i] + 1;
      std::memcpy(value, words.data() + std::size_t{block.positions[i]} * width, width);
    }
  }
  encoder.begin(item.header.tensor, width, box, EncodingChoice::kOverwrite);
  encoder.take(gaps, values.data());
  if (!encoder.finish({}, &encoded)) encoded.header.changes = 0;
  return encoded;
}

class BatchRunner {
 public:
  BatchRunner(const Work& work, const DiskState& disk, const DeltaReader& delta,
              std::span<const ItemPlace> places, const InPlacePlan& plan, std::uint64_t from,
              std::uint64_t batch_bytes, InPlaceCounts* counts)
      : work_(work),
        disk_(disk),
        delta_(delta),
        places_(places),
        plan_(plan),
        batch_bytes_(batch_bytes),
        counts_(counts),
        specs_(delta_specs(delta.footer().tensors)),
        progress_(work, "apply", bytes_from(from)),
        first_(from) {
    header_.schema = delta_schema(delta.footer().tensors);
  }

  Status run() {
    std::uint64_t at = first_;
    while (at < places_.size()) {
      // The needed items of one payload.
      const std::uint32_t payload = places_[static_cast<std::size_t>(at)].payload;
      std::vector<std::uint64_t> numbers;
      for (; at < places_.size(); ++at) {
        const ItemPlace& place = places_[static_cast<std::size_t>(at)];
        if (place.payload != payload) break;
        if (plan_.tensors[place.tensor].in_place()) numbers.push_back(at);
      }
      if (!numbers.empty()) DCR_TRY(run_payload(payload, numbers));
    }
    return flush();
  }

 private:
  std::uint64_t bytes_from(std::uint64_t from) const {
    std::uint64_t total = 0;
    for (std::size_t i = static_cast<std::size_t>(from); i < places_.size(); ++i) {
      if (plan_.tensors[places_[i].tensor].in_place()) total += item_bytes(places_[i]);
    }
    return total;
  }

  std::uint64_t item_bytes(const ItemPlace& place) const {
    const TensorSpec& spec = specs_[place.tensor];
    return std::min(piece_words(spec.width), spec.words - place.offset) * spec.width;
  }

  Status run_payload(std::uint32_t index, const std::vector<std::uint64_t>& numbers) {
    DCR_ASSIGN(const Payload payload, delta_.read_payload(index));
    const auto item_of = [&](std::uint64_t i) -> const ItemView& {
      const std::uint64_t number = numbers[static_cast<std::size_t>(i)];
      return payload.items()[places_[static_cast<std::size_t>(number)].item];
    };
    std::uint64_t cost_max = 1;
    for (std::uint64_t i = 0; i < numbers.size(); ++i) {
      cost_max = std::max(cost_max, encoding_cost(item_of(i)));
    }
    return ordered_map<EncodedItem>(
        *work_.executor, numbers.size(),
        pieces_in_flight(*work_.executor, work_.memory_bytes_max / 4, cost_max), work_.cancel,
        [&](std::uint64_t i) {
          const ItemView& item = item_of(i);
          return absolute_item(disk_, range_of(disk_, plan_, item.header), item);
        },
        [&](std::uint64_t i, EncodedItem&& item) {
          return add(numbers[static_cast<std::size_t>(i)], item);
        });
  }

  // Bytes that absolute_item works in: the words, and entries with what is encoded of them.
  static std::uint64_t encoding_cost(const ItemView& item) {
    const std::uint64_t width = item.header.width;
    const std::uint64_t words = item.header.box.words();
    const bool whole = item.header.changes * 2 >= words;
    return words * width + (whole ? 2 * words * width : item.header.changes * 2 * (4 + width));
  }

  Status add(std::uint64_t number, const EncodedItem& item) {
    // Entries may be far more than their streams; a reader's limit is on both.
    const std::uint64_t entry_bytes = item.header.changes * item.header.width;
    const bool full = std::max(writer_.raw_bytes() + item.raw_bytes(), entry_bytes_ + entry_bytes) >
                          batch_bytes_ ||
                      writer_.items() == kItemsPerPayloadMax;
    if (writer_.items() > 0 && full) DCR_TRY(flush());
    if (item.header.changes > 0) writer_.append(item);
    entry_bytes_ += entry_bytes;
    end_ = number + 1;
    progress_.add(item_bytes(places_[static_cast<std::size_t>(number)]));
    return {};
  }

  // Makes the journal of the gathered items durable, then writes them.
  Status flush() {
    if (writer_.items() == 0) return {};
    Journal journal;
    journal.delta = delta_.id();
    journal.first_item = first_;
    journal.end_item = end_;
    journal.payload = std::exchange(writer_, PayloadWriter()).seal(header_);
    DCR_TRY(write_journal(*work_.files, disk_.checkpoint.path, journal));
    // Read back as a later run would: what cannot be replayed is not written.
    DCR_ASSIGN(const Payload payload,
               Payload::read(journal.payload, header_.schema, specs_, kJournalPayloadLimits));
    journal.payload = Bytes();
    DCR_TRY(write_journalled(disk_, plan_, payload, counts_));
    first_ = end_;
    entry_bytes_ = 0;
    return {};
  }

  const Work& work_;
  const DiskState& disk_;
  const DeltaReader& delta_;
  const std::span<const ItemPlace> places_;
  const InPlacePlan& plan_;
  const std::uint64_t batch_bytes_;
  InPlaceCounts* const counts_;
  const std::vector<TensorSpec> specs_;
  PayloadHeader header_;
  ProgressCounter progress_;
  // The batch that is being gathered.
  PayloadWriter writer_;
  std::uint64_t entry_bytes_ = 0;
  std::uint64_t first_ = 0, end_ = 0;
};

}  // namespace

Status check_journalled(const DeltaReader& delta, const InPlacePlan& plan, const Payload& payload) {
  for (const ItemView& item : payload.items()) {
    const PlannedTensor& tensor = plan.tensors[item.header.tensor];
    if (tensor.kept && tensor.base >= 0 && item.header.box.is_range() &&
        item.header.encoding == Encoding::kOverwrite) {
      continue;
    }
    const std::string& name = delta.footer().tensors[item.header.tensor].name;
    return {
        Code::kCorrupt,
        "journal: its item of tensor " + quoted_name(name) + " is none that is applied in place",
        name};
  }
  return {};
}

Status write_journalled(const DiskState& disk, const InPlacePlan& plan, const Payload& payload,
                        InPlaceCounts* counts) {
  std::set<std::uint32_t> written;
  Bytes words;
  for (const ItemView& item : payload.items()) {
    const ItemRange range = range_of(disk, plan, item.header);
    words.resize(range.bytes);
    DCR_TRY(read_tensor(disk.checkpoint, *range.tensor, range.offset, words));
    counts->changed += apply_item(item, words);
    File& file = *disk.checkpoint.files[range.tensor->file].file;
    const std::uint64_t start = range.tensor->offset + range.offset;
    DCR_TRY(for_each_dirty_run(
        item, start, range.bytes, [&](std::uint64_t begin, std::uint64_t end) -> Status {
          counts->bytes_written += end - begin;
          return file.write(start + begin,
                            ByteSpan(words).subspan(static_cast<std::size_t>(begin),
                                                    static_cast<std::size_t>(end - begin)));
        }));
    written.insert(range.tensor->file);
  }
  for (const std::uint32_t file : written) DCR_TRY(disk.checkpoint.files[file].file->sync());
  return {};
}

Status run_batches(const Work& work, const DiskState& disk, const DeltaReader& delta,
                   std::span<const ItemPlace> places, const InPlacePlan& plan, std::uint64_t from,
                   std::uint64_t batch_bytes, InPlaceCounts* counts) {
  return BatchRunner(work, disk, delta, places, plan, from, batch_bytes, counts).run();
}

}  // namespace dcr
