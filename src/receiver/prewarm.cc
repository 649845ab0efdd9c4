#include "receiver/prewarm.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/limits.h"
#include "receiver/coverage.h"
#include "receiver/scratch.h"
#include "receiver/trial.h"
#include "receiver/views.h"
#include "receiver/words_of.h"
#include "tensor/text.h"

namespace dcr {

namespace {

TensorClass refused(const LoadTrace& trace, std::string reason) {
  return {TensorPath::kRefused, Need::kSkip, trace.collective, std::move(reason)};
}

// The digest of every byte of a storage.
Result<Digest> storage_digest(TargetMemory& memory, std::uint64_t storage) {
  DCR_ASSIGN(const std::uint64_t bytes, memory.storage_bytes(storage));
  std::vector<Digest> leaves;
  Bytes buffer;
  const auto visit = [&](const ViewBlock& block) {
    buffer.resize(static_cast<std::size_t>(block.words));
    DCR_TRY(memory.read(block.view, buffer));
    leaves.push_back(xxh3(buffer));
    return Status();
  };
  DCR_TRY(for_each_block({storage, Dtype::kU8, 0, {bytes}, {1}}, visit));
  return combine_leaves(leaves);
}

// What the writes of a trace are made of.
struct Makeup {
  bool any = false;     // something that depends on the tensor is written
  bool opaque = false;  // by an operation that no mask can be put to
  bool values = false;  // through a cast or computation
  bool given = false;   // the loader writes to the given tensor
  bool copies = false;  // constants that come as copies
};

Makeup makeup_of(const LoadTrace& trace) {
  Makeup makeup;
  for (const TracedWrite& write : trace.writes) {
    const bool empty = view_words(write.event.destination) == 0;
    switch (write.kind) {
      case WriteKind::kGiven:
        makeup.given = true;
        break;
      case WriteKind::kConstant:
        makeup.copies = makeup.copies || write.event.kind == LoaderEventKind::kCopy;
        break;
      case WriteKind::kOpaque:
        makeup.opaque = makeup.any = true;
        break;
      case WriteKind::kCast:
      case WriteKind::kComputed:
        makeup.values = true;
        [[fallthrough]];
      case WriteKind::kPlaced:
        makeup.any = makeup.any || !empty;
        break;
    }
  }
  return makeup;
}

// Whether a view is written again from other elements than those that are applied: the first ones.
bool rewrites(const LoadTrace& trace) {
  return std::any_of(trace.writes.begin(), trace.writes.end(), [&](const TracedWrite& write) {
    if (write.follows < 0 || write.kind == WriteKind::kComputed) return false;
    const TracedWrite& root = trace.writes[static_cast<std::size_t>(write.follows)];
    return write.kind != root.kind || write.elements != root.elements;
  });
}

// Where all elements go; nothing if those are more than kPlacesMax places.
std::optional<std::vector<Place>> find_places(const LoadTrace& trace) {
  std::vector<Place> places;
  for (const TracedWrite& write : trace.writes) {
    if (write.kind != WriteKind::kPlaced || write.follows >= 0) continue;
    const TensorView& view = write.event.destination;
    const Box words = view_box(view);
    for (const Box& elements : write.elements) {
      const Result<std::vector<Box>> boxes = compose(elements, words, kPlacesMax);
      if (!boxes.ok() || places.size() + boxes->size() > kPlacesMax) return std::nullopt;
      for (const Box& box : *boxes) {
        places.push_back({view.storage, static_cast<std::uint8_t>(word_bytes(view.dtype)), box});
      }
    }
  }
  return places;
}

class Prewarm {
 public:
  Prewarm(const Catalogue& catalogue, Loader& loader, TargetMemory& memory,
          const PrewarmOptions& options)
      : catalogue_(catalogue),
        loader_(loader),
        memory_(memory),
        options_(options),
        scratch_(catalogue, loader, memory) {}

  Result<PrewarmResult> run() {
    DCR_TRY(begin());
    begin_stage("digests");
    DCR_ASSIGN(const std::vector<Digest> before, digests(Asking::kYes));
    DCR_TRY(trace_all(TraceEvidence::kValues));
    begin_stage("digests");
    // Uninterrupted until it is known whose loads wrote past the hook: another prewarm could not
    // see it, for its traces end with the same probes.
    DCR_ASSIGN(const std::vector<Digest> traced, digests());
    std::vector<Digest> settled = traced;
    if (traced != before) {
      DCR_TRY(find_escapes(before, traced));
      DCR_ASSIGN(settled, digests());
    }
    begin_stage("classify");
    for (std::uint32_t tensor = 0; tensor < catalogue_.size(); ++tensor) {
      DCR_TRY(ask());
      if (result_.classes[tensor].reason.empty()) DCR_TRY(classify(tensor));
    }
    begin_stage("coverage");
    DCR_TRY(check_coverage(catalogue_, targets_, options_.never_loaded, &result_));
    begin_stage("digests");
    DCR_ASSIGN(const std::vector<Digest> after, digests(Asking::kYes));
    if (after != settled) {
      return Status(Code::kInternal, "prewarm did not restore what it tried paths on");
    }
    return end();
  }

  Result<PrewarmResult> run_geometry() {
    DCR_TRY(begin());
    DCR_TRY(trace_all(TraceEvidence::kGeometry));
    begin_stage("classify");
    for (std::uint32_t tensor = 0; tensor < catalogue_.size(); ++tensor) {
      DCR_TRY(ask());
      DCR_TRY(classify_geometry(tensor));
    }
    begin_stage("coverage");
    DCR_TRY(check_coverage(catalogue_, targets_, options_.never_loaded, &result_));
    return end();
  }

 private:
  void begin_stage(std::string_view stage) const {
    if (options_.stage) options_.stage(stage);
  }

  Status ask() const { return options_.interruption ? options_.interruption() : Status(); }

  Status begin() {
    DCR_ASSIGN(result_.layout, layout_fingerprint(loader_, memory_));
    targets_ = loader_.targets();
    DCR_TRY(check_targets());
    for (const LoaderTarget& target : targets_) storages_.insert(target.view.storage);
    result_.classes.resize(catalogue_.size());
    return {};
  }

  // What elements of each tensor that is applied reach.
  void count_bytes() {
    for (std::uint32_t tensor = 0; tensor < catalogue_.size(); ++tensor) {
      TensorClass& one = result_.classes[tensor];
      if (one.path == TensorPath::kSkip || one.path == TensorPath::kRefused) continue;
      for (const TracedWrite& write : result_.traces[tensor].writes) {
        if (write.to_given || write.follows >= 0 || write.kind == WriteKind::kConstant) continue;
        const TensorView& view = write.event.destination;
        one.bytes += view_words(view) * word_bytes(view.dtype);
      }
    }
  }

  Result<PrewarmResult> end() {
    count_bytes();
    DCR_ASSIGN(const Digest layout, layout_fingerprint(loader_, memory_));
    if (digest_equal(layout, result_.layout)) return std::move(result_);
    return Status(Code::kMismatch,
                  "loading moved parameters to other storage; the runtime must keep them in place");
  }

  Status check_targets() const {
    std::set<std::string> names;
    for (const LoaderTarget& target : targets_) {
      names.insert(target.name);
      DCR_ASSIGN(const std::uint64_t bytes, memory_.storage_bytes(target.view.storage));
      if (view_fits(target.view, bytes)) continue;
      return Status(Code::kInvalidArgument,
                    "target " + quoted_name(target.name) + " leaves its storage");
    }
    for (const std::string& name : options_.never_loaded) {
      if (names.contains(name)) continue;
      return Status(Code::kInvalidArgument,
                    "never loaded: there is no target " + quoted_name(name));
    }
    return {};
  }

  enum class Asking : std::uint8_t { kNo, kYes };

  Result<std::vector<Digest>> digests(Asking asking = Asking::kNo) const {
    std::vector<Digest> all;
    for (const std::uint64_t storage : storages_) {
      if (asking == Asking::kYes) DCR_TRY(ask());
      DCR_ASSIGN(const Digest digest, storage_digest(memory_, storage));
      all.push_back(digest);
    }
    return all;
  }

  Status trace_all(TraceEvidence evidence) {
    begin_stage("trace");
    Tracer tracer(catalogue_, loader_, memory_, storages_, evidence);
    DCR_ASSIGN(result_.traces, tracer.trace_range(0, catalogue_.size()));
    result_.places.resize(catalogue_.size());
    return {};
  }

  // Parameters changed while every write that the hook saw was suppressed: finds whose loads do it.
  Status find_escapes(const std::vector<Digest>& before, const std::vector<Digest>& traced) {
    const std::set<std::uint64_t> all = storages_;
    std::set<std::uint64_t> damaged;
    std::size_t at = 0;
    for (const std::uint64_t storage : all) {
      if (before[at] != traced[at]) damaged.insert(storage);
      ++at;
    }
    Tracer tracer(catalogue_, loader_, memory_, all);
    storages_ = damaged;
    DCR_ASSIGN(const bool found, watch(tracer, 0, catalogue_.size()));
    // For the next prewarm: after its traces they would hold the same probes again.
    DCR_TRY(mark(catalogue_.size()));
    storages_ = all;
    if (found) return {};
    return Status(Code::kMismatch, storage_text(targets_, *damaged.begin()) +
                                       " changed while loads were traced, by no load; keep other "
                                       "writers away and load it again");
  }

  // Whether loads of tensors [first, last) change the storages; halves them until one is left,
  // which is refused.
  Result<bool> watch(Tracer& tracer, std::uint32_t first, std::uint32_t last) {
    // Two traces end with the same probe; words of one's own show what it leaves.
    DCR_TRY(mark(first));
    DCR_ASSIGN(const std::vector<Digest> marked, digests());
    for (std::uint32_t tensor = first; tensor < last; ++tensor) {
      DCR_TRY(tracer.trace(tensor).status());
    }
    DCR_ASSIGN(const std::vector<Digest> now, digests());
    if (now == marked || first == last) return false;
    if (last - first == 1) {
      result_.classes[first] =
          refused(result_.traces[first],
                  "the loader writes to " +
                      storage_text(targets_, changed_storage(storages_, marked, now)) +
                      " past the hook; it no longer holds its weights: load it again");
      return true;
    }
    const std::uint32_t middle = first + (last - first) / 2;
    DCR_ASSIGN(const bool low, watch(tracer, first, middle));
    DCR_ASSIGN(const bool high, watch(tracer, middle, last));
    return low || high;
  }

  static std::uint64_t changed_storage(const std::set<std::uint64_t>& storages,
                                       const std::vector<Digest>& before,
                                       const std::vector<Digest>& after) {
    std::size_t at = 0;
    for (const std::uint64_t storage : storages) {
      if (before[at] != after[at]) return storage;
      ++at;
    }
    return *storages.begin();
  }

  // Their contents are lost already.
  Status mark(std::uint64_t seed) {
    for (const std::uint64_t storage : storages_) {
      DCR_ASSIGN(const std::uint64_t bytes, memory_.storage_bytes(storage));
      const auto visit = [&](const ViewBlock& block) {
        Bytes words(static_cast<std::size_t>(block.words));
        for (std::size_t i = 0; i < words.size(); ++i) {
          words[i] = static_cast<std::uint8_t>(mix(block.first + i, seed));
        }
        return memory_.write(block.view, words);
      };
      DCR_TRY(for_each_block({storage, Dtype::kU8, 0, {bytes}, {1}}, visit));
    }
    return {};
  }

  Status classify(std::uint32_t tensor) {
    const LoadTrace& trace = result_.traces[tensor];
    TensorClass* const out = &result_.classes[tensor];
    if (!trace.refusal.empty()) {
      *out = refused(trace, trace.refusal);
      return {};
    }
    const Makeup makeup = makeup_of(trace);
    if (!makeup.any && !makeup.copies) {
      *out = {TensorPath::kSkip, Need::kSkip, trace.collective,
              "the loader writes nothing of it here"};
      return {};
    }
    if (makeup.any && !makeup.opaque && !makeup.values && !makeup.given && !makeup.copies) {
      return classify_placed(tensor);
    }
    return classify_tried(tensor, makeup);
  }

  // As classify, of a trace by geometry.
  Status classify_geometry(std::uint32_t tensor) {
    const LoadTrace& trace = result_.traces[tensor];
    const Makeup makeup = makeup_of(trace);
    if (!trace.refusal.empty() || !(makeup.opaque || makeup.given || makeup.values)) {
      return classify(tensor);
    }
    TensorClass* const out = &result_.classes[tensor];
    if (makeup.opaque || makeup.given) {
      *out = refused(trace, "only values show what its loader writes");
    } else {
      *out = {TensorPath::kScratch, Need::kOverwrite, trace.collective,
              "the loader casts its values"};
    }
    return {};
  }

  // Every element is a canonical element's bits.
  Status classify_placed(std::uint32_t tensor) {
    const LoadTrace& trace = result_.traces[tensor];
    TensorClass* const out = &result_.classes[tensor];
    if (rewrites(trace)) {
      *out = refused(trace, kWritesTwice);
      return {};
    }
    std::optional<std::vector<Place>> places = find_places(trace);
    if (!places) return classify_irregular(tensor);
    if (trace.collective || options_.prefer_scratch) {
      const char* why = trace.collective ? "its loader talks to other ranks" : "as configured";
      *out = {TensorPath::kScratch, Need::kAny, trace.collective, why};
      return {};
    }
    result_.places[tensor] = std::move(*places);
    *out = {TensorPath::kTraced, Need::kAny, false, ""};
    return {};
  }

  // No items can be planned. What it is made of would take memory for nothing.
  Status classify_irregular(std::uint32_t tensor) {
    LoadTrace& trace = result_.traces[tensor];
    const char* why = "its placement is too irregular";
    result_.classes[tensor] =
        trace.collective
            ? refused(trace, "its loader talks to other ranks, and " + std::string(why))
            : TensorClass{TensorPath::kDense, Need::kDense, false, why};
    for (TracedWrite& write : trace.writes) {
      if (write.kind != WriteKind::kConstant) write.kind = WriteKind::kOpaque;
      write.elements = {};
    }
    return {};
  }

  Status classify_tried(std::uint32_t tensor, const Makeup& makeup) {
    const LoadTrace& trace = result_.traces[tensor];
    TensorClass* const out = &result_.classes[tensor];
    DCR_ASSIGN(std::string fault, Trial(catalogue_, memory_, scratch_).whole(tensor, trace));
    if (!fault.empty()) {
      *out = refused(trace, std::move(fault));
      return {};
    }
    if (!makeup.any) {
      *out = {TensorPath::kSkip, Need::kSkip, trace.collective,
              "the loader writes the same whatever it holds"};
      return {};
    }
    const bool placeholders = float_bits(catalogue_[tensor].dtype).width != 0;
    if (makeup.opaque || !placeholders) {
      *out = {
          TensorPath::kDense, Need::kDense, trace.collective,
          makeup.opaque ? "the loader writes it by no plain copy" : "its dtype has no placeholder"};
      return {};
    }
    if (rewrites(trace)) {
      fault = kWritesTwice;
    } else {
      DCR_ASSIGN(fault, Trial(catalogue_, memory_, scratch_).entries(tensor, trace));
    }
    if (!fault.empty()) {
      *out = refused(trace, std::move(fault));
      return {};
    }
    *out = {TensorPath::kScratch, Need::kOverwrite, trace.collective,
            makeup.values  ? "the loader computes or casts its values"
            : makeup.given ? "the loader writes to the given tensor"
                           : "the loader copies what it does not take from the given tensor"};
    return {};
  }

  const Catalogue& catalogue_;
  Loader& loader_;
  TargetMemory& memory_;
  const PrewarmOptions& options_;
  ScratchPath scratch_;
  std::vector<LoaderTarget> targets_;
  std::set<std::uint64_t> storages_;
  PrewarmResult result_;
};

}  // namespace

std::string_view path_name(TensorPath path) {
  switch (path) {
    case TensorPath::kTraced:
      return "traced";
    case TensorPath::kScratch:
      return "scratch";
    case TensorPath::kDense:
      return "dense";
    case TensorPath::kSkip:
      return "skip";
    case TensorPath::kRefused:
      return "refused";
  }
  return "unknown";
}

std::string_view need_name(Need need) {
  switch (need) {
    case Need::kAny:
      return "any";
    case Need::kOverwrite:
      return "overwrite";
    case Need::kDense:
      return "dense";
    case Need::kSkip:
      return "skip";
  }
  return "unknown";
}

Result<PrewarmResult> prewarm(const Catalogue& catalogue, Loader& loader, TargetMemory& memory,
                              const PrewarmOptions& options) {
  return Prewarm(catalogue, loader, memory, options).run();
}

Result<PrewarmResult> prewarm_geometry(const Catalogue& catalogue, Loader& loader,
                                       TargetMemory& memory, const PrewarmOptions& options) {
  return Prewarm(catalogue, loader, memory, options).run_geometry();
}

Result<Digest> layout_fingerprint(Loader& loader, const TargetMemory& memory) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text("dcr-layout");
  for (const LoaderTarget& target : loader.targets()) {
    DCR_ASSIGN(const std::uint64_t storage_bytes, memory.storage_bytes(target.view.storage));
    out.u64(target.name.size());
    out.text(target.name);
    out.u64(target.view.storage);
    out.u64(storage_bytes);
    out.u8(static_cast<std::uint8_t>(target.view.dtype));
    out.u64(target.view.offset);
    out.u64(target.view.sizes.size());
    for (const std::uint64_t size : target.view.sizes) out.u64(size);
    for (const std::uint64_t stride : target.view.strides) out.u64(stride);
  }
  return blake2b(bytes);
}

}  // namespace dcr
