#include "receiver/scratch.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "receiver/checked.h"
#include "receiver/grid.h"
#include "receiver/plan.h"
#include "receiver/regions.h"
#include "receiver/views.h"
#include "simd/words.h"
#include "tensor/cast.h"

namespace dcr {

namespace {

Status about(const CanonicalTensor& tensor, Code code, const std::string& what) {
  return about_tensor(tensor, Status(code, what));
}

Status other_write(const CanonicalTensor& tensor, std::size_t number) {
  return about(tensor, Code::kMismatch,
               "write " + std::to_string(number) +
                   " of the loader is another than the one that prewarm traced; prewarm again");
}

// Words in the order of elements, and which elements they are.
struct Values {
  const std::vector<std::uint64_t>* elements;
  Bytes words;
};

}  // namespace

bool reads_back(const LoadTrace& trace) {
  return std::any_of(trace.writes.begin(), trace.writes.end(), [](const TracedWrite& write) {
    return write.follows >= 0 && write.kind == WriteKind::kComputed;
  });
}

class ScratchPath::EntryHook final : public LoaderHook {
 public:
  struct Entries {
    const CanonicalTensor& tensor;
    const LoadTrace& trace;
    std::span<const DecodedItem* const> items;
    TensorView value;
    std::uint64_t placeholder = 0;
    ApplyMode mode = ApplyMode::kWrite;
    bool checks = false;
  };

  EntryHook(TargetMemory& memory, Entries entries, ScratchCounts* counts)
      : memory_(memory), entries_(std::move(entries)), counts_(counts) {}

  const std::size_t& seen() const { return seen_; }

  Result<LoaderVerdict> on_event(const LoaderEvent& event) override {
    if (event.kind == LoaderEventKind::kCollective) return LoaderVerdict::kPerform;
    const std::size_t at = seen_++;
    if (at >= entries_.trace.writes.size()) return other_write(entries_.tensor, at);
    const TracedWrite& write = entries_.trace.writes[at];
    if (!same_event(event, entries_.value.storage, write)) return other_write(entries_.tensor, at);
    if (write.kind == WriteKind::kGiven) return LoaderVerdict::kPerform;
    DCR_ASSERT(write.kind != WriteKind::kOpaque);
    const bool again = write.follows >= 0 && write.kind != WriteKind::kComputed;
    if (write.kind != WriteKind::kConstant && !again) DCR_TRY(write_active(at, event));
    return LoaderVerdict::kSuppress;
  }

 private:
  // The active mask: elements of the write's view that have an entry, ascending.
  Result<std::vector<std::uint64_t>> find_active(const TracedWrite& write) const {
    std::vector<Place> places;
    const unsigned width = word_bytes(entries_.value.dtype);
    for (const Box& box : write.elements) {
      places.push_back({0, static_cast<std::uint8_t>(width), box});
    }
    std::vector<std::uint64_t> active;
    GridHits hits;
    for (const DecodedItem* item : entries_.items) {
      DCR_ASSIGN(const std::vector<TargetChanges> targets, plan_item(item->header.box, places));
      for (const TargetChanges& target : targets) {
        const Grid grid(target);
        std::size_t from = 0;
        std::size_t to = 0;
        grid.clip(item->positions, &from, &to);
        const auto positions = std::span(item->positions).subspan(from, to - from);
        for (std::size_t done = 0; done < positions.size(); done += kGridBlock) {
          grid.map(positions.subspan(done, std::min(kGridBlock, positions.size() - done)), &hits);
          active.insert(active.end(), hits.words, hits.words + hits.count);
        }
      }
    }
    std::sort(active.begin(), active.end());
    return active;
  }

  Status write_active(std::size_t at, const LoaderEvent& event) {
    const TracedWrite& write = entries_.trace.writes[at];
    const bool first = write.follows < 0;
    const std::size_t root = first ? at : static_cast<std::size_t>(write.follows);
    if (first) {
      DCR_ASSIGN(active_[root], find_active(write));
    }
    Values values{&active_[root], {}};
    DCR_TRY(gather(*event.source, write, &values));
    if (event.source->dtype != event.destination.dtype) {
      Bytes cast(values.elements->size() * word_bytes(event.destination.dtype));
      cast_words(event.source->dtype, event.destination.dtype, values.words, cast);
      values.words = std::move(cast);
    }
    ApplyCounts again;
    return put(event.destination, values, first ? &counts_->applied : &again);
  }

  // Reads the active elements of a copy's input; all others must still be placeholders, unless the
  // loader made the input from what it wrote.
  Status gather(const TensorView& source, const TracedWrite& write, Values* values) const {
    const std::vector<std::uint64_t>& active = *values->elements;
    const unsigned width = word_bytes(source.dtype);
    values->words.resize(active.size() * width);
    const bool check = write.follows < 0;
    const bool exact = write.kind != WriteKind::kComputed;
    const FloatBits fields = float_bits(source.dtype);
    std::size_t next = 0;
    Bytes buffer;
    bool erased = false;
    const auto visit = [&](const ViewBlock& block) -> Status {
      const std::uint64_t end = block.first + block.words;
      if (!check && (next == active.size() || active[next] >= end)) return {};
      buffer.resize(static_cast<std::size_t>(block.words) * width);
      DCR_TRY(memory_.read(block.view, buffer));
      for_width(width, [&]<typename Word>(Word) {
        const auto placeholder = static_cast<Word>(entries_.placeholder);
        for (std::uint64_t element = block.first; check && element < end; ++element) {
          const Word word = load_word<Word>(buffer.data(), element - block.first);
          const bool held = exact ? word == placeholder : is_nan(fields, word);
          erased = erased || (!held && !std::binary_search(active.begin(), active.end(), element));
        }
        for (; next < active.size() && active[next] < end; ++next) {
          store_word(values->words.data(), next,
                     load_word<Word>(buffer.data(), active[next] - block.first));
        }
      });
      return {};
    };
    DCR_TRY(for_each_block(source, visit));
    if (!erased) return {};
    return about(entries_.tensor, Code::kMismatch,
                 "the loader changed placeholders on their way to a parameter");
  }

  // The masked write.
  Status put(const TensorView& destination, const Values& values, ApplyCounts* counts) {
    TargetChanges target;
    target.storage = destination.storage;
    target.width = static_cast<std::uint8_t>(word_bytes(destination.dtype));
    target.encoding =
        entries_.items.empty() ? Encoding::kOverwrite : entries_.items[0]->header.encoding;
    Bytes words = values.words;
    for_width(target.width, [&]<typename Word>(Word) {
      for (std::size_t i = 0; i < values.elements->size(); ++i) {
        const Word mask = load_word<Word>(words.data(), i);
        store_word(words.data(), i, encode_word(target.encoding, Word{0}, mask));
      }
    });
    const std::vector<std::uint64_t>& active = *values.elements;
    std::vector<std::uint32_t> positions;
    std::size_t from = 0;
    for (const Box& piece : split(view_box(destination), kGridSizeMax / 2)) {
      const std::uint64_t end = piece.src_offset + piece.elements();
      positions.clear();
      const std::size_t begin = from;
      for (; from < active.size() && active[from] < end; ++from) {
        positions.push_back(static_cast<std::uint32_t>(active[from] - piece.src_offset));
      }
      if (positions.empty()) continue;
      target.offset = piece.dst_offset;
      target.dims.clear();
      for (const BoxDimension& dim : piece.dims) {
        target.dims.push_back({dim.size, dim.dst_stride, 0, dim.size});
      }
      const std::uint8_t* at = words.data() + begin * target.width;
      DCR_TRY(entries_.checks && entries_.mode == ApplyMode::kWrite
                  ? apply_checked(memory_, target, positions, at, counts, &counts_->checked)
                  : memory_.apply(target, positions, at, entries_.mode, counts));
    }
    // What the loader reads next must be there.
    return memory_.synchronize();
  }

  TargetMemory& memory_;
  Entries entries_;
  ScratchCounts* counts_;
  std::size_t seen_ = 0;
  std::map<std::size_t, std::vector<std::uint64_t>> active_;  // by first write to a view
};

class ScratchPath::WholeHook final : public LoaderHook {
 public:
  WholeHook(const CanonicalTensor& tensor, const LoadTrace& trace, std::uint64_t given)
      : tensor_(tensor), trace_(trace), given_(given) {}

  const std::size_t& seen() const { return seen_; }

  Result<LoaderVerdict> on_event(const LoaderEvent& event) override {
    if (event.kind == LoaderEventKind::kCollective) return LoaderVerdict::kPerform;
    const std::size_t at = seen_++;
    if (at < trace_.writes.size() && same_event(event, given_, trace_.writes[at])) {
      return LoaderVerdict::kPerform;
    }
    return other_write(tensor_, at);
  }

 private:
  const CanonicalTensor& tensor_;
  const LoadTrace& trace_;
  std::uint64_t given_;
  std::size_t seen_ = 0;
};

ScratchPath::~ScratchPath() { release(); }

void ScratchPath::release() {
  // An id that is known cannot be refused.
  if (reserved_) static_cast<void>(memory_.release(storage_).ok());
  reserved_ = false;
  bytes_ = 0;
}

Status ScratchPath::reserve(std::uint64_t bytes) {
  if (reserved_ && bytes <= bytes_) return {};
  release();
  DCR_ASSIGN(storage_, memory_.allocate(bytes));
  reserved_ = true;
  bytes_ = bytes;
  return {};
}

Status ScratchPath::fill(const TensorView& value, std::uint64_t placeholder) {
  Bytes buffer;
  return for_each_block(value, [&](const ViewBlock& block) {
    for_width(word_bytes(value.dtype), [&]<typename Word>(Word) {
      const auto words = static_cast<std::size_t>(block.words);
      if (buffer.size() < words * sizeof(Word)) {
        buffer.resize(words * sizeof(Word));
        std::fill_n(reinterpret_cast<Word*>(buffer.data()), words, static_cast<Word>(placeholder));
      }
    });
    const auto bytes = static_cast<std::size_t>(block.words) * word_bytes(value.dtype);
    return memory_.write(block.view, ByteSpan(buffer).first(bytes));
  });
}

Status ScratchPath::scatter(const TensorView& value, const DecodedItem& item) {
  const TargetChanges target = whole_target(item.header, value.storage);
  ApplyCounts counts;
  if (item.header.encoding == Encoding::kOverwrite) {
    return memory_.apply(target, item.positions, item.values.data(), ApplyMode::kWrite, &counts);
  }
  Bytes masks(item.values.size());
  for_width(item.header.width, [&]<typename Word>(Word) {
    for (std::size_t i = 0; i < item.positions.size(); ++i) {
      const Word stored = load_word<Word>(item.values.data(), i);
      store_word(masks.data(), i, decode_word(item.header.encoding, Word{0}, stored));
    }
  });
  return memory_.apply(target, item.positions, masks.data(), ApplyMode::kWrite, &counts);
}

Status ScratchPath::load(std::uint32_t tensor, const LoadTrace& trace, const TensorView& value,
                         LoaderHook& hook, const std::size_t& seen) {
  DCR_TRY(memory_.synchronize());
  const Result<LoadReport> report = loader_.load(catalogue_[tensor].name, value, hook);
  if (!report.ok()) return report.status();
  if (seen == trace.writes.size()) return {};
  return about(catalogue_[tensor], Code::kMismatch,
               "the loader made " + std::to_string(seen) + " writes where prewarm traced " +
                   std::to_string(trace.writes.size()) + "; prewarm again");
}

Status ScratchPath::apply(std::uint32_t tensor, const LoadTrace& trace,
                          std::span<const DecodedItem* const> items, ApplyMode mode,
                          ScratchCounts* counts) {
  const CanonicalTensor& canonical = catalogue_[tensor];
  DCR_TRY(reserve(canonical.words * word_bytes(canonical.dtype)));
  const TensorView value = contiguous_view(storage_, canonical);
  const FloatBits fields = float_bits(canonical.dtype);
  const bool overwrite = items.empty() || items[0]->header.encoding == Encoding::kOverwrite;
  const std::uint64_t placeholder = overwrite && fields.width != 0 ? quiet_nan(fields, 0) : 0;
  DCR_TRY(fill(value, placeholder));
  for (const DecodedItem* item : items) DCR_TRY(scatter(value, *item));
  if (mode == ApplyMode::kWrite || !reads_back(trace)) {
    EntryHook hook(memory_, {canonical, trace, items, value, placeholder, mode, checks_}, counts);
    return load(tensor, trace, value, hook, hook.seen());
  }
  DCR_ASSIGN(const Regions resident, Regions::save(memory_, trace));
  EntryHook hook(memory_, {canonical, trace, items, value, placeholder, ApplyMode::kWrite, false},
                 counts);
  const Status status = load(tensor, trace, value, hook, hook.seen());
  const Result<std::uint64_t> different = resident.different(memory_);
  DCR_TRY(resident.restore(memory_));
  DCR_TRY(status);
  if (!different.ok()) return different.status();
  counts->applied.different += *different;
  return {};
}

Status ScratchPath::apply_whole(std::uint32_t tensor, const LoadTrace& trace,
                                const TensorView& value, ApplyMode mode, ScratchCounts* counts) {
  WholeHook hook(catalogue_[tensor], trace, value.storage);
  if (mode == ApplyMode::kWrite) {
    DCR_TRY(load(tensor, trace, value, hook, hook.seen()));
    counts->applied.words += region_words(trace);
    return memory_.synchronize();
  }
  DCR_ASSIGN(const Regions resident, Regions::save(memory_, trace));
  const Status status = load(tensor, trace, value, hook, hook.seen());
  const Result<std::uint64_t> different = resident.different(memory_);
  DCR_TRY(resident.restore(memory_));
  DCR_TRY(status);
  if (!different.ok()) return different.status();
  counts->applied.words += region_words(trace);
  counts->applied.different += *different;
  return {};
}

}  // namespace dcr
