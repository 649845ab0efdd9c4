// Tracing many tensors in one call of the loader.
#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "receiver/trace.h"
#include "receiver/trace_recorder.h"
#include "receiver/views.h"

namespace dcr {

namespace {

// Of the probes of one batch, where there is more than one.
constexpr std::uint64_t kBatchBytes = std::uint64_t{256} << 20;

std::uint64_t bytes_of(const CanonicalTensor& tensor) {
  return tensor.words * word_bytes(tensor.dtype);
}

}  // namespace

class Tracer::BatchRecorder final : public LoaderBatchHook {
 public:
  BatchRecorder(Tracer& tracer, std::vector<Work>& works, const ProbePattern& pattern) {
    for (Work& work : works) {
      inspects_.emplace_back([&tracer, &work, pattern](std::size_t at, const LoaderEvent& event) {
        return tracer.inspect_code(work, pattern, at, event);
      });
      recorders_.emplace_back(work, tracer.memory_, tracer.storages_, pattern.number,
                              inspects_.back());
    }
  }

  Result<LoaderVerdict> on_event(std::size_t entry, const LoaderEvent& event) override {
    if (entry < recorders_.size()) return recorders_[entry].on_event(event);
    return Status(Code::kMismatch, "a write of entry " + std::to_string(entry) + " of a batch of " +
                                       std::to_string(recorders_.size()));
  }

  std::size_t count(std::size_t entry) const { return recorders_[entry].count(); }

 private:
  std::deque<Inspect> inspects_;
  std::deque<Recorder> recorders_;
};

std::uint32_t Tracer::batch_end(std::uint32_t first, std::uint32_t last) const {
  const std::uint32_t most = std::max<std::uint32_t>(1, loader_.batch_entries_max());
  const std::uint32_t end = first + std::min(most, last - first);
  std::uint64_t bytes = 0;
  for (std::uint32_t tensor = first; tensor < end; ++tensor) {
    bytes += bytes_of(catalogue_[tensor]);
    const bool costly = evidence_ == TraceEvidence::kValues && bytes > kBatchBytes;
    if (costly) return std::max(tensor, first + 1);
  }
  return end;
}

Result<bool> Tracer::load_batch(std::vector<Work>& works) {
  std::vector<LoaderBatchEntry> entries;
  for (std::size_t i = 0; i < works.size(); ++i) {
    const Result<std::uint64_t> room = reserve(i, bytes_of(works[i].tensor));
    if (!room.ok() && room.status().code() == Code::kTooLarge) return false;
    if (!room.ok()) return room.status();
    works[i].probe = contiguous_view(*room, works[i].tensor);
    entries.push_back({works[i].tensor.name, works[i].probe});
  }
  for (unsigned code = 0; code < 2; ++code) {
    const ProbePattern pattern = {ProbePattern::Kind::kCode, code};
    if (evidence_ == TraceEvidence::kValues) {
      for (const Work& work : works) DCR_TRY(fill_probe(memory_, work.probe, pattern));
    }
    BatchRecorder recorder(*this, works, pattern);
    DCR_ASSIGN(const bool explained, loader_.load_batch(entries, recorder));
    if (!explained) return false;
    for (std::size_t i = 0; i < works.size(); ++i) {
      Work& work = works[i];
      if (!work.first && recorder.count(i) != work.trace.writes.size()) {
        work.refuse("two loads of it wrote differently");
      }
      work.first = false;
    }
  }
  return true;
}

Status Tracer::trace_batch(std::uint32_t first, std::uint32_t last,
                           std::vector<LoadTrace>* traces) {
  if (last - first == 1) {
    DCR_ASSIGN(LoadTrace alone, trace(first));
    traces->push_back(std::move(alone));
    return {};
  }
  std::vector<Work> works;
  for (std::uint32_t tensor = first; tensor < last; ++tensor) {
    works.push_back({catalogue_[tensor], {}, {}, {}});
  }
  DCR_ASSIGN(const bool explained, load_batch(works));
  if (!explained) {
    const std::uint32_t middle = first + (last - first) / 2;
    DCR_TRY(trace_batch(first, middle, traces));
    return trace_batch(middle, last, traces);
  }
  for (Work& work : works) {
    const bool plain = !work.refused() &&
                       std::all_of(work.seen.begin(), work.seen.end(),
                                   [](const Seen& seen) { return seen.geometry && seen.holds; });
    if (!plain) {
      DCR_TRY(trace_batch(first, first + 1, traces));
    } else {
      sort_writes(work);
      traces->push_back(std::move(work.trace));
    }
    ++first;
  }
  return {};
}

Result<std::vector<LoadTrace>> Tracer::trace_range(std::uint32_t first, std::uint32_t last) {
  std::vector<LoadTrace> traces;
  while (first < last) {
    const std::uint32_t end = batch_end(first, last);
    DCR_TRY(trace_batch(first, end, &traces));
    first = end;
  }
  return traces;
}

}  // namespace dcr
