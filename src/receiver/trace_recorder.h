// How a Tracer records a load: for trace.cc and trace_batch.cc only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "receiver/trace.h"
#include "receiver/views.h"
#include "tensor/text.h"

namespace dcr {

// What is known of one write on the way.
struct Seen {
  std::uint64_t fill = 0;            // of the first load
  std::array<Digest, 2> contents{};  // by code
  bool holds = true;                 // the source is what its geometry, the guess or the list says
  bool geometry = false;             // there is a geometry: a view of the given tensor
  bool unresolved = false;           // a copy from a temporary that may hold canonical elements
  bool varies = false;               // some load wrote other words than the first
  std::vector<std::uint64_t> corners;  // canonical index at the first element, then one step along
                                       // each dimension
  std::optional<Box> guess;            // canonical word → source word
  std::vector<std::uint64_t> list;     // canonical word of each element
  std::vector<std::uint8_t> erased, mixed;  // one byte an element: seen so in some load
};

// Whether no load has shown that the write depends on the given tensor.
inline bool may_be_constant(const LoaderEvent& event, const Seen& seen) {
  if (seen.varies) return false;
  if (event.kind == LoaderEventKind::kFill) return true;
  return event.kind == LoaderEventKind::kCopy && !(seen.geometry && seen.holds) &&
         seen.contents[0] == seen.contents[1];
}

struct Tracer::Work {
  const CanonicalTensor& tensor;
  TensorView probe;
  LoadTrace trace;
  std::vector<Seen> seen;
  bool first = true;

  bool refuse(std::string reason) {
    if (trace.refusal.empty()) trace.refusal = std::move(reason);
    return false;
  }
  bool refused() const { return !trace.refusal.empty(); }
};

class Tracer::Recorder final : public LoaderHook {
 public:
  Recorder(Work& work, const TargetMemory& memory, const std::set<std::uint64_t>& storages,
           unsigned code, const Inspect& inspect)
      : work_(work), memory_(memory), storages_(storages), code_(code), inspect_(inspect) {}

  Result<LoaderVerdict> on_event(const LoaderEvent& event) override {
    if (event.kind == LoaderEventKind::kCollective) {
      work_.trace.collective = true;
      return LoaderVerdict::kPerform;
    }
    if (event.kind == LoaderEventKind::kReplace) {
      work_.refuse("the loader gives a parameter another storage");
      return LoaderVerdict::kSuppress;
    }
    const bool to_given = event.destination.storage == work_.probe.storage;
    if (!to_given && !storages_.contains(event.destination.storage)) {
      return invalid("writes to storage " + std::to_string(event.destination.storage) +
                     ", which is no target's");
    }
    if (event.kind == LoaderEventKind::kCopy &&
        (!event.source || view_words(*event.source) != view_words(event.destination))) {
      return invalid("copies another number of elements than it writes");
    }
    const std::uint64_t given_bytes = work_.tensor.words * word_bytes(work_.probe.dtype);
    std::uint64_t bytes = given_bytes;
    if (!to_given) {
      DCR_ASSIGN(bytes, memory_.storage_bytes(event.destination.storage));
    }
    if (!view_fits(event.destination, bytes)) return invalid("writes past the end of a storage");
    // The probe's storage may be larger than the tensor.
    const bool from_given = event.source && event.source->storage == work_.probe.storage;
    if (from_given && !view_fits(*event.source, given_bytes)) {
      return invalid("reads past the end of the given tensor");
    }
    if (event.source && storages_.contains(event.source->storage)) {
      work_.refuse("the loader copies from a parameter, whatever is loaded there later");
    }
    DCR_TRY(record(event, to_given));
    return to_given ? LoaderVerdict::kPerform : LoaderVerdict::kSuppress;
  }

  std::size_t count() const { return count_; }

 private:
  Status invalid(const std::string& what) const {
    return Status(Code::kMismatch,
                  "tensor " + quoted_name(work_.tensor.name) + ": the loader " + what,
                  work_.tensor.name);
  }

  Status record(const LoaderEvent& event, bool to_given) {
    const std::size_t at = count_++;
    if (work_.first) {
      TracedWrite write;
      write.event = event;
      write.to_given = to_given;
      write.from_given = event.source && event.source->storage == work_.probe.storage;
      work_.trace.writes.push_back(std::move(write));
      work_.seen.emplace_back();
    } else if (at >= work_.seen.size() ||
               !same_event(event, work_.probe.storage, work_.trace.writes[at])) {
      work_.refuse("two loads of it wrote differently");
      return {};
    }
    Seen& seen = work_.seen[at];
    if (event.kind == LoaderEventKind::kFill) {
      if (code_ == 0) seen.fill = event.fill_word;
      seen.varies = seen.varies || event.fill_word != seen.fill;
    }
    if (event.kind == LoaderEventKind::kCopy && !to_given) return inspect_(at, event);
    return {};
  }

  Work& work_;
  const TargetMemory& memory_;
  const std::set<std::uint64_t>& storages_;
  unsigned code_;
  const Inspect& inspect_;
  std::size_t count_ = 0;
};

}  // namespace dcr
