#include "receiver/trace.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "receiver/index_map.h"
#include "receiver/trace_recorder.h"
#include "receiver/views.h"
#include "simd/words.h"
#include "tensor/cast.h"
#include "tensor/text.h"

namespace dcr {

namespace {

// Dimensions along which a view repeats one element are unrolled into so many boxes.
constexpr std::uint64_t kRepeatsMax = 4096;

// Tensors of at most so many words are probed with every special word in every place.
constexpr std::uint64_t kTinyWords = 4096;

bool same_words(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.offset == b.offset && a.sizes == b.sizes && a.strides == b.strides;
}

// Boxes canonical word → element, from one box canonical word → source word in the order of the
// elements. Empty if elements repeat irregularly or too often.
std::vector<Box> element_boxes(const Box& source) {
  std::vector<Box> boxes = {{source.src_offset, 0, {}}};
  std::uint64_t elements = 1;
  for (std::size_t i = source.dims.size(); i-- > 0;) {
    const BoxDimension& dim = source.dims[i];
    const BoxDimension along = {dim.size, dim.src_stride, elements};
    elements *= dim.size;
    if (dim.size == 1) continue;
    if (dim.src_stride != 0) {
      for (Box& box : boxes) box.dims.insert(box.dims.begin(), along);
      continue;
    }
    if (dim.size > kRepeatsMax / boxes.size()) return {};
    std::vector<Box> repeated;
    for (std::uint64_t step = 0; step < dim.size; ++step) {
      for (Box box : boxes) {
        box.dst_offset += step * along.dst_stride;
        repeated.push_back(std::move(box));
      }
    }
    boxes = std::move(repeated);
  }
  for (Box& box : boxes) {
    box = normalize(std::move(box));
    if (!injective(box)) return {};
  }
  return boxes;
}

// A view of the given tensor: its words are the canonical ones.
Box given_box(const TensorView& source) {
  Box box = view_box(source);
  for (BoxDimension& dim : box.dims) dim.src_stride = dim.dst_stride;
  box.src_offset = source.offset;
  return box;
}

Result<Digest> content_digest(TargetMemory& memory, const TensorView& view) {
  std::vector<Digest> leaves;
  Bytes buffer;
  const Status status = for_each_block(view, [&](const ViewBlock& block) {
    buffer.resize(static_cast<std::size_t>(block.words) * word_bytes(view.dtype));
    DCR_TRY(memory.read(block.view, buffer));
    leaves.push_back(xxh3(buffer));
    return Status();
  });
  if (!status.ok()) return status;
  return combine_leaves(leaves);
}

// Calls `visit(element, word)` for every element.
template <typename Visit>
Status for_each_word(TargetMemory& memory, const TensorView& view, const Visit& visit) {
  Bytes buffer;
  const unsigned width = word_bytes(view.dtype);
  return for_each_block(view, [&](const ViewBlock& block) {
    buffer.resize(static_cast<std::size_t>(block.words) * width);
    DCR_TRY(memory.read(block.view, buffer));
    for_width(width, [&]<typename Word>(Word) {
      for (std::uint64_t i = 0; i < block.words; ++i) {
        visit(static_cast<std::size_t>(block.first + i), load_word<Word>(buffer.data(), i));
      }
    });
    return Status();
  });
}

}  // namespace

bool same_event(const LoaderEvent& event, std::uint64_t given, const TracedWrite& traced) {
  const LoaderEvent& known = traced.event;
  if (event.kind != known.kind || event.operation != known.operation) return false;
  if ((event.destination.storage == given) != traced.to_given) return false;
  if (!traced.to_given && event.destination.storage != known.destination.storage) return false;
  if (!same_words(event.destination, known.destination)) return false;
  if (event.source.has_value() != known.source.has_value()) return false;
  if (traced.kind == WriteKind::kConstant && event.fill_word != known.fill_word) return false;
  if (!event.source) return true;
  if ((event.source->storage == given) != traced.from_given) return false;
  if (traced.from_given) return same_words(*event.source, *known.source);
  return event.source->dtype == known.source->dtype && event.source->sizes == known.source->sizes;
}

Status Tracer::load(Work& work, const ProbePattern& pattern, const Inspect& inspect) {
  if (evidence_ == TraceEvidence::kValues) DCR_TRY(fill_probe(memory_, work.probe, pattern));
  const unsigned code = pattern.kind == ProbePattern::Kind::kCode ? pattern.number : 2;
  Recorder recorder(work, memory_, storages_, code, inspect);
  const Result<LoadReport> report = loader_.load(work.tensor.name, work.probe, recorder);
  if (!report.ok()) {
    const Code why = report.status().code();
    if (why != Code::kUnsupported && why != Code::kNotFound) return report.status();
    work.refuse("the loader refuses it: " + report.status().message());
  } else if (!work.first && recorder.count() != work.trace.writes.size()) {
    work.refuse("two loads of it wrote differently");
  }
  work.first = false;
  return {};
}

Status Tracer::inspect_code(Work& work, const ProbePattern& pattern, std::size_t at,
                            const LoaderEvent& event) {
  Seen& seen = work.seen[at];
  seen.geometry = work.trace.writes[at].from_given &&
                  word_bytes(event.source->dtype) == word_bytes(work.probe.dtype);
  if (evidence_ == TraceEvidence::kGeometry) {
    if (!seen.geometry) work.refuse("only values show what its loader copies");
    return {};
  }
  if (seen.geometry && seen.holds) {
    DCR_ASSIGN(seen.holds, holds_pattern(memory_, *event.source, given_box(*event.source), pattern,
                                         work.probe.dtype));
  }
  if (seen.geometry && seen.holds) return {};
  DCR_ASSIGN(seen.contents[pattern.number], content_digest(memory_, *event.source));
  return {};
}

// Two loads; a source that is a view of the given tensor must hold what its geometry says.
Status Tracer::load_codes(Work& work) {
  for (unsigned code = 0; code < 2 && !work.refused(); ++code) {
    const ProbePattern pattern = {ProbePattern::Kind::kCode, code};
    const Inspect inspect = [&](std::size_t at, const LoaderEvent& event) {
      return inspect_code(work, pattern, at, event);
    };
    DCR_TRY(load(work, pattern, inspect));
  }
  return {};
}

// Functions of a tensor may be the same for two codes: a maximum that is NaN or a type's largest
// number, a cast into a type of eight bits. Constants stay the same for other words too.
Status Tracer::check_constants(Work& work) {
  const bool any = std::any_of(work.seen.begin(), work.seen.end(), [&](const Seen& seen) {
    const TracedWrite& write = work.trace.writes[static_cast<std::size_t>(&seen - &work.seen[0])];
    return !write.to_given && may_be_constant(write.event, seen);
  });
  if (!any) return {};
  const Inspect inspect = [&](std::size_t at, const LoaderEvent& event) -> Status {
    Seen& seen = work.seen[at];
    if (!may_be_constant(event, seen)) return {};
    DCR_ASSIGN(const Digest contents, content_digest(memory_, *event.source));
    seen.varies = seen.varies || contents != seen.contents[0];
    return {};
  };
  // A tensor of many elements has all special words at once.
  const unsigned specials = work.tensor.words <= kTinyWords ? kSpecialWords : 1;
  for (unsigned number = 0; number < 2 + specials && !work.refused(); ++number) {
    const ProbePattern pattern = number < 2
                                     ? ProbePattern{ProbePattern::Kind::kOrdinary, number}
                                     : ProbePattern{ProbePattern::Kind::kSpecial, number - 2};
    DCR_TRY(load(work, pattern, inspect));
  }
  return {};
}

// Says of a copy what these loads have shown.
void Tracer::sort_copy(Work& work, std::size_t at) {
  TracedWrite& write = work.trace.writes[at];
  Seen& seen = work.seen[at];
  const TensorView& source = *write.event.source;
  const TensorView& destination = write.event.destination;
  for (std::size_t before = 0; before < at && write.follows < 0; ++before) {
    const TracedWrite& root = work.trace.writes[before];
    if (root.event.kind == LoaderEventKind::kCopy && !root.to_given && root.follows < 0 &&
        root.kind != WriteKind::kConstant && root.event.destination == destination) {
      write.follows = static_cast<std::int64_t>(before);
    }
  }
  const bool same_dtype = source.dtype == destination.dtype;
  const bool castable = cast_supported(source.dtype, destination.dtype).ok();
  if (seen.geometry && seen.holds) {
    write.kind = same_dtype ? WriteKind::kPlaced : WriteKind::kCast;
    write.elements = element_boxes(given_box(source));
    const bool none = view_words(source) == 0;
    if (none) write.elements.clear();
    // Elements that repeat too irregularly, or a cast that nobody here can do.
    if (!castable || (write.elements.empty() && !none)) write.kind = WriteKind::kOpaque;
  } else if (write.follows < 0 && may_be_constant(write.event, seen)) {
    write.kind = WriteKind::kConstant;
  } else {
    write.kind = WriteKind::kComputed;
    seen.unresolved = source.dtype == work.probe.dtype && castable;
  }
}

void Tracer::sort_writes(Work& work) {
  for (std::size_t at = 0; at < work.seen.size(); ++at) {
    TracedWrite& write = work.trace.writes[at];
    if (write.to_given) {
      write.kind = WriteKind::kGiven;
    } else if (write.event.kind == LoaderEventKind::kFill) {
      write.kind =
          may_be_constant(write.event, work.seen[at]) ? WriteKind::kConstant : WriteKind::kOpaque;
    } else if (write.event.kind == LoaderEventKind::kCopy) {
      sort_copy(work, at);
    }
  }
}

namespace {

unsigned digits_of(std::uint64_t words, unsigned width) {
  const auto bits = static_cast<unsigned>(std::bit_width(words - 1));
  return std::max(1u, (bits + 8 * width - 1) / (8 * width));
}

bool any_unresolved(const std::vector<Seen>& seen) {
  return std::any_of(seen.begin(), seen.end(), [](const Seen& one) { return one.unresolved; });
}

}  // namespace

// A copy of a permuted or cut tensor is regular along the dimensions of its source: one step along
// each shows the strides.
Status Tracer::guess_views(Work& work) {
  if (!any_unresolved(work.seen) || work.refused()) return {};
  const unsigned width = word_bytes(work.probe.dtype);
  for (unsigned digit = 0; digit < digits_of(work.tensor.words, width); ++digit) {
    const Inspect inspect = [&](std::size_t at, const LoaderEvent& event) -> Status {
      Seen& seen = work.seen[at];
      if (!seen.unresolved) return {};
      const TensorView& source = *event.source;
      seen.corners.resize(source.sizes.size() + 1);
      for (std::size_t i = 0; i < seen.corners.size(); ++i) {
        TensorView corner{source.storage, source.dtype, source.offset, {}, {}};
        if (i > 0 && source.sizes[i - 1] > 1) corner.offset += source.strides[i - 1];
        std::uint8_t word[8] = {};
        DCR_TRY(memory_.read(corner, std::span(word).first(width)));
        seen.corners[i] |= load_word<std::uint64_t>(word, 0) << (8 * width * digit);
      }
      return {};
    };
    DCR_TRY(load(work, {ProbePattern::Kind::kDigit, digit}, inspect));
  }
  for (std::size_t at = 0; at < work.seen.size(); ++at) {
    Seen& seen = work.seen[at];
    if (!seen.unresolved || seen.corners.empty()) continue;
    Box guess = view_box(*work.trace.writes[at].event.source);
    guess.src_offset = seen.corners[0];
    bool forward = true;
    for (std::size_t i = 0; i < guess.dims.size(); ++i) {
      forward = forward && seen.corners[i + 1] >= seen.corners[0];
      guess.dims[i].src_stride = seen.corners[i + 1] - seen.corners[0];
    }
    const std::uint64_t any = ~std::uint64_t{0};
    if (forward && validate_box(guess, work.tensor.words, any).ok()) seen.guess = guess;
  }
  return verify(work);
}

// Reads the canonical index of every element.
Status Tracer::list_indices(Work& work) {
  for (Seen& seen : work.seen) {
    const auto at = static_cast<std::size_t>(&seen - work.seen.data());
    const std::uint64_t words = view_words(work.trace.writes[at].event.destination);
    if (words > kListedWordsMax) seen.unresolved = false;
    if (seen.unresolved) seen.list.assign(static_cast<std::size_t>(words), 0);
  }
  if (!any_unresolved(work.seen) || work.refused()) return {};
  const unsigned width = word_bytes(work.probe.dtype);
  for (unsigned digit = 0; digit < digits_of(work.tensor.words, width); ++digit) {
    const Inspect inspect = [&](std::size_t at, const LoaderEvent& event) -> Status {
      std::vector<std::uint64_t>& list = work.seen[at].list;
      if (list.empty()) return {};
      return for_each_word(memory_, *event.source, [&](std::size_t element, std::uint64_t word) {
        list[element] |= word << (8 * width * digit);
      });
    };
    DCR_TRY(load(work, {ProbePattern::Kind::kDigit, digit}, inspect));
  }
  return verify(work);
}

// Checks guesses and lists against both codes, and that no special word becomes another. What holds
// is resolved.
Status Tracer::verify(Work& work) {
  for (Seen& seen : work.seen) {
    if (seen.unresolved) seen.holds = seen.guess || !seen.list.empty();
  }
  for (unsigned number = 0; number < 2 + kSpecialWords && !work.refused(); ++number) {
    const ProbePattern pattern = number < 2
                                     ? ProbePattern{ProbePattern::Kind::kCode, number}
                                     : ProbePattern{ProbePattern::Kind::kSpecial, number - 2};
    const bool any = std::any_of(work.seen.begin(), work.seen.end(),
                                 [](const Seen& one) { return one.unresolved && one.holds; });
    if (!any) break;
    const Inspect inspect = [&](std::size_t at, const LoaderEvent& event) -> Status {
      Seen& seen = work.seen[at];
      if (!seen.unresolved || !seen.holds) return {};
      if (seen.list.empty()) {
        Box box = view_box(*event.source);
        box.src_offset = seen.guess->src_offset;
        for (std::size_t i = 0; i < box.dims.size(); ++i) {
          box.dims[i].src_stride = seen.guess->dims[i].src_stride;
        }
        DCR_ASSIGN(seen.holds,
                   holds_pattern(memory_, *event.source, box, pattern, work.probe.dtype));
        return {};
      }
      return for_each_word(memory_, *event.source, [&](std::size_t element, std::uint64_t word) {
        const std::uint64_t index = seen.list[element];
        seen.holds = seen.holds && index < work.tensor.words &&
                     word == probe_word(pattern, work.probe.dtype, index);
      });
    };
    DCR_TRY(load(work, pattern, inspect));
  }
  for (std::size_t at = 0; at < work.seen.size() && !work.refused(); ++at) {
    Seen& seen = work.seen[at];
    TracedWrite& write = work.trace.writes[at];
    if (!seen.unresolved || !seen.holds) continue;
    std::vector<Box> boxes =
        seen.list.empty() ? element_boxes(*seen.guess) : boxes_of_indices(seen.list);
    seen.guess.reset();
    seen.list = {};
    if (boxes.empty()) continue;
    seen.unresolved = false;
    write.elements = std::move(boxes);
    write.kind = write.event.source->dtype == write.event.destination.dtype ? WriteKind::kPlaced
                                                                            : WriteKind::kCast;
  }
  return {};
}

// Chooses the writes of which list_active asks, and why others cannot be asked.
bool Tracer::begin_active(Work& work) {
  bool any = false;
  for (std::size_t at = 0; at < work.seen.size(); ++at) {
    TracedWrite& write = work.trace.writes[at];
    Seen& seen = work.seen[at];
    seen.list = {};
    if (write.kind != WriteKind::kComputed || write.follows >= 0) continue;
    const auto words = static_cast<std::size_t>(view_words(write.event.destination));
    const Dtype source = write.event.source->dtype;
    const bool castable = cast_supported(source, write.event.destination.dtype).ok();
    if (float_bits(work.probe.dtype).width == 0 || words > kListedWordsMax || !castable) {
      write.kind = WriteKind::kOpaque;
    } else if (float_bits(source).width == 0) {
      return work.refuse("the loader turns it into " + std::string(dtype_name(source)));
    } else {
      any = true;
      seen.list.assign(words, 0);
      seen.erased.assign(words, 0);
      seen.mixed.assign(words, 0);
    }
  }
  return any;
}

// Where values are computed, the bits of an element's canonical index show in which loads it is
// active: those where that bit's elements were. An element of two canonical ones is never active
// for some bit and its inverse; one whose placeholder is erased always.
Status Tracer::list_active(Work& work) {
  if (work.refused() || !begin_active(work)) return {};
  const auto bits = std::max(1u, static_cast<unsigned>(std::bit_width(work.tensor.words - 1)));
  for (unsigned number = 0; number < 2 * bits && !work.refused(); ++number) {
    const unsigned bit = number / 2;
    const bool inverted = number % 2 == 1;
    const Inspect inspect = [&](std::size_t at, const LoaderEvent& event) -> Status {
      Seen& seen = work.seen[at];
      if (seen.list.empty()) return {};
      const FloatBits fields = float_bits(event.source->dtype);
      const auto visit = [&](std::size_t element, std::uint64_t word) {
        const std::uint64_t active = is_nan(fields, word) ? 0 : 1;
        if (!inverted) {
          seen.list[element] |= active << bit;
        } else if ((seen.list[element] >> bit & 1) == active) {
          (active != 0 ? seen.erased : seen.mixed)[element] = 1;
        }
      };
      return for_each_word(memory_, *event.source, visit);
    };
    DCR_TRY(load(work, {ProbePattern::Kind::kActive, bit + (inverted ? 64 : 0)}, inspect));
  }
  for (std::size_t at = 0; at < work.seen.size() && !work.refused(); ++at) {
    const Seen& seen = work.seen[at];
    if (seen.list.empty()) continue;
    const auto one = [](const std::vector<std::uint8_t>& flags) {
      return std::find(flags.begin(), flags.end(), 1) != flags.end();
    };
    if (one(seen.mixed)) {
      work.refuse("an element of a parameter depends on several of the tensor's");
    } else if (one(seen.erased)) {
      work.refuse("the loader erases placeholders");
    } else if (*std::max_element(seen.list.begin(), seen.list.end()) >= work.tensor.words) {
      work.refuse("what the loader computes follows no element");
    } else {
      work.trace.writes[at].elements = boxes_of_indices(seen.list);
    }
  }
  return {};
}

Tracer::~Tracer() {
  // An id that is known cannot be refused.
  for (const Room& room : rooms_) static_cast<void>(memory_.release(room.storage).ok());
}

Result<std::uint64_t> Tracer::reserve(std::size_t number, std::uint64_t bytes) {
  if (number < rooms_.size() && bytes <= rooms_[number].bytes) return rooms_[number].storage;
  if (number < rooms_.size()) {
    // Those after it go too, rather than that one is missing among them.
    while (rooms_.size() > number) {
      DCR_TRY(memory_.release(rooms_.back().storage));
      rooms_.pop_back();
    }
  }
  DCR_ASSIGN(const std::uint64_t storage, memory_.allocate(bytes));
  rooms_.push_back({storage, bytes});
  return storage;
}

Result<LoadTrace> Tracer::trace(std::uint32_t tensor) {
  const CanonicalTensor& canonical = catalogue_[tensor];
  Work work{canonical, {}, {}, {}};
  const std::uint64_t bytes = canonical.words * word_bytes(canonical.dtype);
  const Result<std::uint64_t> room = reserve(0, bytes);
  if (!room.ok()) {
    if (room.status().code() != Code::kTooLarge) return room.status();
    work.refuse("no room for a probe: " + room.status().message());
    return std::move(work.trace);
  }
  work.probe = contiguous_view(*room, canonical);
  const auto steps = [this, &work]() -> Status {
    const bool values = evidence_ == TraceEvidence::kValues;
    DCR_TRY(load_codes(work));
    if (!work.refused() && values) DCR_TRY(check_constants(work));
    if (work.refused()) return {};
    sort_writes(work);
    if (work.tensor.words == 0 || !values) return {};
    DCR_TRY(guess_views(work));
    DCR_TRY(list_indices(work));
    return list_active(work);
  };
  DCR_TRY(steps());
  return std::move(work.trace);
}

}  // namespace dcr
