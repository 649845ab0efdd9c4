// The interfaces through which the outside reaches the core: where payloads go, where weights are
// read from and written to, how a serving runtime loads, how a trainer converts.
//
// Weights reach the core through SourceMemory and TargetMemory only. Both name memory by storage
// ids and views, so that it may lie on a device or in another process; the host buffers here are
// the callee's or the caller's own copies, never the weights themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/options.h"
#include "dcr/status.h"
#include "dcr/tensor.h"

namespace dcr {

// Where finished payloads go: a delta file, a transport.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;

  // Takes payload `number` (0, 1, 2, … in this order, called from one thread). `bytes` is valid
  // during the call. An error ends the construction and is returned from it.
  virtual Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) = 0;
};

// Where the elements of a tensor, or of a slice of it, lie: element (i0, i1, …) at word offset +
// Σ i_d · strides_d of a storage. Offset and strides count words of the dtype (word_bytes), sizes
// elements; a dtype of several elements to a word is viewed as kU8. No dimensions: one element.
struct TensorView {
  std::uint64_t storage = 0;  // an allocation, not a tensor; ids are the memory's
  Dtype dtype = Dtype::kU8;
  std::uint64_t offset = 0;
  Shape sizes;
  Shape strides;
  bool operator==(const TensorView&) const = default;
};

// A read that was begun. Ends with it, whether its words were taken or not; until then the memory
// that began it, and what is read, must stay.
class PendingRead {
 public:
  virtual ~PendingRead() = default;

  // Waits for the words and copies them to `out`, whose size is exactly theirs. Called once.
  virtual Status finish(std::span<std::uint8_t> out) = 0;
};

// A trainer rank's weights, to read.
class SourceMemory {
 public:
  virtual ~SourceMemory() = default;

  // Copies the view's words, in the order of its indices (last dimension fastest), to `out`, whose
  // size is exactly theirs. Concurrent calls are allowed. Errors: kInvalidArgument for a view that
  // leaves its storage or an `out` of another size; kIo.
  virtual Status read(const TensorView& view, std::span<std::uint8_t> out) = 0;

  // Begins to read, so that words which come from far are on their way while the caller does
  // something else. Null where nothing is gained by it, or for now nothing can be begun: then
  // read() has the words, or the error. A thread that has begun a read reads nothing else before
  // that has ended.
  virtual std::unique_ptr<PendingRead> begin_read(const TensorView& /*view*/) { return nullptr; }
};

// Some changes of one item, in the box's own order, and where the item's words lie in a storage.
struct TargetChanges {
  std::uint64_t storage = 0;
  std::uint8_t width = 1;  // bytes of a word
  Encoding encoding = Encoding::kOverwrite;
  // Where the words of the item's box lie. Position p of the box stands for grid index p + `first`;
  // index_d are its digits, row major over the sizes. It lies at word `offset` + Σ (index_d −
  // begin_d) · stride_d if every index is in [begin, end), else with another receiver: passed over.
  struct Dimension {
    std::uint64_t size = 1;
    std::uint64_t stride = 1;  // words of the storage
    std::uint64_t begin = 0, end = 1;
    bool operator==(const Dimension&) const = default;
  };
  std::uint64_t first = 0;
  std::uint64_t offset = 0;     // of the word with index `begin` in every dimension
  std::vector<Dimension> dims;  // the product of the sizes is below kGridSizeMax
};

inline constexpr std::uint64_t kGridSizeMax = std::uint64_t{1} << 31;

// What an application does with a change.
enum class ApplyMode : std::uint8_t {
  kWrite,
  kVerify,  // writes nothing; counts the words whose bits differ from the change's. Overwrite only
};

struct ApplyCounts {
  std::uint64_t words = 0;      // that changes reached
  std::uint64_t different = 0;  // kVerify: of those, the ones whose resident bits differ
};

// Arguments of TargetMemory::apply, where there are several at once.
struct TargetApplication {
  const TargetChanges* target = nullptr;
  std::span<const std::uint32_t> positions;
  const void* values = nullptr;
  ApplyCounts counts;  // added to
};

// A receiver's parameters and buffers, and scratch beside them.
class TargetMemory {
 public:
  virtual ~TargetMemory() = default;

  // Bytes of a storage. Error: kNotFound.
  virtual Result<std::uint64_t> storage_bytes(std::uint64_t storage) const = 0;

  // Applies changes: `positions` ascending, `values` as many words of the width, coded as
  // Kernels::scan_changes gives them. May return before words are written (synchronize() waits),
  // but has taken positions and values, and added to `counts`. Concurrent calls are allowed where
  // they reach different words. Every word that the dims reach must lie in the storage, which is
  // checked (kInvalidArgument) before anything is written.
  virtual Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
                       const void* values, ApplyMode mode, ApplyCounts* counts) = 0;

  // Applies several, which reach different words or give a word the same bits, so that a memory
  // may do them together: a device with one kernel and one wait. An error is that of
  // applications[*failed], or of none of them where *failed is their number; any of the others may
  // have been applied then.
  virtual Status apply_all(std::span<TargetApplication> applications, ApplyMode mode,
                           std::size_t* failed) {
    for (*failed = 0; *failed < applications.size(); ++*failed) {
      TargetApplication& one = applications[*failed];
      DCR_TRY(apply(*one.target, one.positions, one.values, mode, &one.counts));
    }
    return {};
  }

  // Copies words out or in, in the order of the view's indices. Errors as SourceMemory::read.
  virtual Status read(const TensorView& view, std::span<std::uint8_t> out) = 0;
  virtual Status write(const TensorView& view, std::span<const std::uint8_t> in) = 0;

  // Scratch: a zeroed storage of so many bytes, under an id of its own. Error: kTooLarge.
  virtual Result<std::uint64_t> allocate(std::uint64_t bytes) = 0;
  virtual Status release(std::uint64_t storage) = 0;

  // Returns when everything before it has reached the memory.
  virtual Status synchronize() = 0;
};

// One operation of a native loader that the integration intercepted (paper §6.1, Table A.2;
// knowledge of real loaders: the operations that reach a dispatcher, not names of classes).
enum class LoaderEventKind : std::uint8_t {
  kCopy,        // destination[i] = cast(source[i]), same number of elements
  kFill,        // destination[i] = a constant of the loader's
  kOther,       // any other operation that writes to the destination, by name
  kReplace,     // the destination parameter got another storage
  kCollective,  // the loader talks to other ranks
};

struct LoaderEvent {
  LoaderEventKind kind = LoaderEventKind::kCopy;
  std::string operation;  // "copy_", "fill_", "index_put_", "all_reduce": for messages
  // A parameter's or buffer's storage, or the storage of the tensor that the loader was given.
  TensorView destination;
  // kCopy: what is copied. Its storage may be that of the given tensor, or a temporary of the
  // loader, readable through the TargetMemory until the hook returns.
  std::optional<TensorView> source;
  // kFill: the word that every element gets, zero-extended. The same for every given tensor, or the
  // loader took it from there.
  std::uint64_t fill_word = 0;
};

// What the receiver wants of an intercepted write.
enum class LoaderVerdict : std::uint8_t {
  kPerform,   // go on, as if nobody had looked
  kSuppress,  // skip the write (the hook may have done it in its own way); the loader goes on
};

class LoaderHook {
 public:
  virtual ~LoaderHook() = default;

  // Called before every write to the storage of a parameter, of a buffer or of the given tensor. An
  // error is returned from Loader::load.
  virtual Result<LoaderVerdict> on_event(const LoaderEvent& event) = 0;
};

// As LoaderHook, for several tensors that are loaded in one call.
class LoaderBatchHook {
 public:
  virtual ~LoaderBatchHook() = default;

  // `entry`: which of them the write belongs to, shown by the storage of its source.
  virtual Result<LoaderVerdict> on_event(std::size_t entry, const LoaderEvent& event) = 0;
};

// A parameter or buffer of the serving runtime; several may share storage.
struct LoaderTarget {
  std::string name;
  TensorView view;
  bool operator==(const LoaderTarget&) const = default;
};

// What a load says of itself. Evidence of nothing: real loaders report names that they skipped.
enum class LoadReport : std::uint8_t { kLoaded, kSkipped, kNothing };

// One tensor of a batch: as the arguments of Loader::load.
struct LoaderBatchEntry {
  std::string name;
  TensorView value;
};

// A serving runtime's own loader on one rank (paper §6.1). Not thread-safe.
class Loader {
 public:
  virtual ~Loader() = default;

  // Every parameter and buffer, in a fixed order: the layout that is fingerprinted.
  virtual std::vector<LoaderTarget> targets() = 0;

  // Loads canonical tensor `name` from `value`, a contiguous view that starts its storage, and
  // reports every write through `hook`. Errors: the hook's; kUnsupported or kNotFound for a name
  // that the runtime refuses.
  virtual Result<LoadReport> load(std::string_view name, const TensorView& value,
                                  LoaderHook& hook) = 0;

  // For runtimes where a call costs more than what it loads: how many tensors load_batch takes.
  virtual std::uint32_t batch_entries_max() const { return 1; }

  // Loads several tensors in one call while no write happens. Each value starts a storage of its
  // own; a copy from one of these belongs to that entry and is reported. Any other write (a fill, a
  // copy from a temporary, a write to a value, a replaced parameter) could be anybody's: it is
  // suppressed, not reported, and the answer is false, as it is for a call that the runtime
  // refuses; nothing that was reported counts then. true: all that the call wrote was reported.
  virtual Result<bool> load_batch(std::span<const LoaderBatchEntry> /*entries*/,
                                  LoaderBatchHook& /*hook*/) {
    return false;
  }
};

// The trainer's conversion of residual tensors (paper §4.3): what no placement describes because it
// computes with values. One converter makes one group of canonical tensors.
//
// A part is what one rank contributes to one canonical tensor: a box of it. All ranks call the
// converter for the same groups in the same order, so an implementation may use collectives.
struct ConverterPart {
  std::string canonical;  // the canonical tensor
  std::uint64_t offset = 0;
  Shape sizes;
  Shape strides;  // words of the canonical tensor; the part's words are counted row major
};

struct ConverterDeclaration {
  std::string name;                  // of the group
  std::vector<std::string> inputs;   // source tensors that it reads, of this rank or of all; or
                                     // canonical tensors that another converter makes
  bool inputs_unknown = false;       // then any change selects every residual tensor
  bool custom_export = false;        // direct projection is off for what it touches
  std::vector<std::string> outputs;  // canonical names, all of the group
  std::vector<ConverterPart> parts;  // of this rank
};

class Converter {
 public:
  virtual ~Converter() = default;

  virtual ConverterDeclaration declare() const = 0;

  // Words [first, first + count) of part `part` in its order, `out` having their bytes. Pure: the
  // same inputs give the same bits. Called from one thread at a time.
  virtual Status convert(std::uint64_t part, std::uint64_t first, std::uint64_t count,
                         std::span<std::uint8_t> out) = 0;
};

// A converted part on its way to the owner of its canonical tensor.
struct PartHeader {
  std::uint64_t attempt = 0;
  std::uint32_t from = 0;    // rank
  std::uint32_t tensor = 0;  // index in the catalogue
  std::uint64_t part = 0;    // of that rank's parts of the tensor, in declared order
  std::uint64_t first = 0;   // word of the part at which the bytes begin
};

class PartSink {
 public:
  virtual ~PartSink() = default;
  virtual Status receive(const PartHeader& header, std::span<const std::uint8_t> bytes) = 0;
};

// What owners say to each other, inside the training cluster only (paper §4.3).
class Collective {
 public:
  virtual ~Collective() = default;

  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;

  // flags[i] becomes the maximum over all ranks, in place. All ranks call it with as many flags.
  virtual Status all_reduce_flags(std::span<std::uint8_t> flags) = 0;

  // Hands a part to rank `to` (which may be this one); returns when that rank's PartSink took it.
  virtual Status send_part(std::uint32_t to, const PartHeader& header,
                           std::span<const std::uint8_t> bytes) = 0;
};

}  // namespace dcr
