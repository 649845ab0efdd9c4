// What one load writes, recorded through the hook while no parameter is written (paper Appendix
// A.2; docs/ARCHITECTURE.md "One attempt, at a receiver").
//
// The given tensor is a probe, filled with codes of its own indices. Two loads with independent
// codes show whether the loader is the same each time and whether what it copies is what the
// source's geometry says; further loads find the places of elements that went through temporaries,
// from digits of their indices; and, where values are computed, which elements stay placeholders
// when only some of the tensor is active.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "receiver/probe.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"

namespace dcr {

enum class WriteKind : std::uint8_t {
  kPlaced,    // a copy: every element has the bits of one canonical element
  kCast,      // a copy of such elements into another dtype
  kComputed,  // a copy of something that the loader made of the tensor
  kConstant,  // the same bits whatever the given tensor holds
  kGiven,     // a write to the given tensor itself
  kOpaque,    // an operation that is no copy, or a constant taken from the given tensor
};

// One event of a load.
struct TracedWrite {
  WriteKind kind = WriteKind::kOpaque;
  LoaderEvent event;  // the given tensor's storage, and temporaries', are of no meaning
  bool to_given = false;
  bool from_given = false;
  // An earlier write to the same view: this one has the same elements, or is computed from it.
  std::int64_t follows = -1;
  // kPlaced, kCast, kComputed: canonical word → element of the destination view, in the order of
  // its indices. Each box is injective. Empty where it is computed from what it follows.
  std::vector<Box> elements;
};

struct LoadTrace {
  std::vector<TracedWrite> writes;
  bool collective = false;
  std::string refusal;  // why no path serves this loader; then `writes` may be incomplete
};

// Whether the event is the one that was traced. Temporaries may lie elsewhere.
bool same_event(const LoaderEvent& event, std::uint64_t given, const TracedWrite& traced);

// An explicit list of indices is kept for views of at most so many words.
inline constexpr std::uint64_t kListedWordsMax = std::uint64_t{1} << 22;

// What a trace goes by.
enum class TraceEvidence : std::uint8_t {
  kValues,    // geometry and what probes hold
  kGeometry,  // geometry alone: memory need not be there. A copy from a temporary is refused
};

class Tracer {
 public:
  // `storages`: those of the targets.
  Tracer(const Catalogue& catalogue, Loader& loader, TargetMemory& memory,
         std::set<std::uint64_t> storages, TraceEvidence evidence = TraceEvidence::kValues)
      : catalogue_(catalogue),
        loader_(loader),
        memory_(memory),
        storages_(std::move(storages)),
        evidence_(evidence) {}
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Leaves targets as they are, if the loader writes through the hook only. Errors: the memory's;
  // those that the loader has for its own reasons; kMismatch for events that make no sense.
  Result<LoadTrace> trace(std::uint32_t tensor);

  // The same for tensors [first, last), which are loaded together where the loader can do that and
  // all that they write are views of what they were given. Others are traced alone.
  Result<std::vector<LoadTrace>> trace_range(std::uint32_t first, std::uint32_t last);

 private:
  class Recorder;
  class BatchRecorder;
  struct Work;  // of one tensor

  // A probe's storage of at least so many bytes, by its number; the first is used for one tensor.
  // REQUIRES: those before it were asked for.
  Result<std::uint64_t> reserve(std::size_t number, std::uint64_t bytes);

  // Tensors of one call from `first` on, before `last`: at least one.
  std::uint32_t batch_end(std::uint32_t first, std::uint32_t last) const;
  // Halves a batch until what is left of it explains itself.
  Status trace_batch(std::uint32_t first, std::uint32_t last, std::vector<LoadTrace>* traces);
  // false: some write is nobody's, or there is no room.
  Result<bool> load_batch(std::vector<Work>& works);

  using Inspect = std::function<Status(std::size_t write, const LoaderEvent& event)>;

  Status load(Work& work, const ProbePattern& pattern, const Inspect& inspect);
  Status load_codes(Work& work);
  Status inspect_code(Work& work, const ProbePattern& pattern, std::size_t at,
                      const LoaderEvent& event);
  Status check_constants(Work& work);
  static void sort_writes(Work& work);
  static void sort_copy(Work& work, std::size_t at);
  Status guess_views(Work& work);
  Status list_indices(Work& work);
  static bool begin_active(Work& work);
  Status list_active(Work& work);
  Status verify(Work& work);

  const Catalogue& catalogue_;
  Loader& loader_;
  TargetMemory& memory_;
  std::set<std::uint64_t> storages_;
  const TraceEvidence evidence_;
  struct Room {
    std::uint64_t storage = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Room> rooms_;  // of probes, one after another
};

}  // namespace dcr
