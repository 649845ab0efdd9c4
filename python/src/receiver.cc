#include "receiver.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "dcr/receiver.h"
#include "device.h"
#include "errors.h"
#include "handle.h"
#include "operation_targets.h"
#include "python_loader.h"
#include "records.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

using TensorTuple = std::tuple<std::string, std::string, Shape>;  // name, dtype, shape

// A buffer (bytes, memoryview, an array) as it is, while the scope lasts.
class BufferView {
 public:
  explicit BufferView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BufferView() { PyBuffer_Release(&buffer_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  std::span<const std::uint8_t> bytes() const {
    return {static_cast<const std::uint8_t*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

std::vector<CanonicalTensor> canonical_tensors(const std::vector<TensorTuple>& tuples) {
  std::vector<CanonicalTensor> tensors;
  tensors.reserve(tuples.size());
  for (const auto& [name, dtype, shape] : tuples) {
    tensors.push_back({name, take(dtype_from_name(dtype)), shape, 0});
  }
  return tensors;
}

TargetMemory& memory_of(nb::handle targets) {
  if (nb::isinstance<HostTargets>(targets)) return nb::cast<HostTargets&>(targets);
  if (nb::isinstance<PythonDeviceTargets>(targets)) {
    return *nb::cast<const PythonDeviceTargets&>(targets).core();
  }
  if (nb::isinstance<OperationTargets>(targets)) return nb::cast<OperationTargets&>(targets);
  return nb::cast<SizedTargets&>(targets);
}

// Throws what operations on a device raised meanwhile.
void raise_kept(nb::handle targets) {
  if (nb::isinstance<OperationTargets>(targets)) nb::cast<OperationTargets&>(targets).raise_kept();
}

// `stage` outlives the callback: the core copies it without the GIL.
std::function<void(std::string_view)> stage_callback(const nb::object* stage) {
  if (stage->is_none()) return {};
  return [stage](std::string_view name) {
    const nb::gil_scoped_acquire acquire;
    try {
      (*stage)(nb::str(name.data(), name.size()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a callback for stages of prewarm");
    }
  };
}

// EmbeddedReceiver with its loader, one call at a time.
class PythonReceiver {
 public:
  PythonReceiver(const std::vector<TensorTuple>& tensors, nb::object loader, nb::object targets,
                 nb::object stage, EmbeddedReceiverOptions options)
      : loader_(std::move(loader)), targets_(std::move(targets)), stage_(std::move(stage)) {
    options.prewarm_stage = stage_callback(&stage_);
    // A run's thread calls the core itself; signals come to the thread of a call from Python.
    options.interruption = [this] { return busy_ ? loader_.look_for_signals() : Status(); };
    receiver_ = take(EmbeddedReceiver::create(canonical_tensors(tensors), loader_,
                                              memory_of(targets_), std::move(options)));
  }

  EmbeddedReceiver& core() {
    process_.check("a receiver");
    return *receiver_;
  }

  // Runs `call(core)` without the GIL and throws what went wrong.
  template <typename Call>
  auto run(const Call& call) {
    process_.check("a receiver");
    if (busy_.exchange(true)) {
      raise(Status(Code::kInvalidArgument, "the receiver is in another call; one at a time"));
    }
    auto result = [&] {
      const Turn turn(busy_);
      const nb::gil_scoped_release release;
      return call(*receiver_);
    }();
    loader_.raise_kept();
    raise_kept(targets_);
    if constexpr (std::is_same_v<decltype(result), Status>) {
      check(result);
    } else {
      return take(std::move(result));
    }
  }

  // Of all tensors, or of these by their order.
  void audit(const nb::object& read, const std::optional<std::vector<std::uint32_t>>& tensors);

  // For the garbage collector: a module's loader may well hold the receiver.
  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(loader_.object().ptr());
    Py_VISIT(targets_.ptr());
    Py_VISIT(stage_.ptr());
    return 0;
  }
  void clear() {
    loader_.clear();
    stage_ = nb::none();
  }

 private:
  // Whatever ends the call, the next may begin.
  class Turn {
   public:
    explicit Turn(std::atomic<bool>& busy) : busy_(busy) {}
    ~Turn() { busy_ = false; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    std::atomic<bool>& busy_;
  };

  ProcessBound process_;
  PythonLoader loader_;
  nb::object targets_;
  nb::object stage_;
  std::unique_ptr<EmbeddedReceiver> receiver_;
  std::atomic<bool> busy_{false};
};

// Calls Python once for each tensor that is needed.
void PythonReceiver::audit(const nb::object& read,
                           const std::optional<std::vector<std::uint32_t>>& tensors) {
  for (const std::uint32_t tensor : tensors.value_or(std::vector<std::uint32_t>())) {
    if (tensor >= core().tensors().size()) throw nb::index_error("no such tensor");
  }
  std::int64_t held = -1;
  Array array;
  const auto fetch = [&](std::uint32_t tensor) -> Status {
    const CanonicalTensor& of = receiver_->tensors()[tensor];
    try {
      array = contiguous_array(read(nb::str(of.name.data(), of.name.size())), of.name,
                               std::string(dtype_name(of.dtype)));
    } catch (nb::python_error& error) {
      return loader_.keep(error);
    }
    held = -1;
    if (array.bytes() != of.words * word_bytes(of.dtype)) {
      return Status(Code::kMismatch,
                    "tensor \"" + of.name + "\": the base has " + std::to_string(array.bytes()) +
                        " bytes of it, the catalogue " +
                        std::to_string(of.words * word_bytes(of.dtype)),
                    of.name);
    }
    held = tensor;
    return {};
  };
  run([&](EmbeddedReceiver& core) {
    const ReadCanonical words = [&](std::uint32_t tensor, std::uint64_t first,
                                    std::span<std::uint8_t> out) -> Status {
      if (held != tensor) {
        const nb::gil_scoped_acquire acquire;
        DCR_TRY(fetch(tensor));
      }
      const unsigned width = word_bytes(receiver_->tensors()[tensor].dtype);
      std::memcpy(out.data(), array.span().data() + first * width, out.size());
      return {};
    };
    return tensors ? core.audit(*tensors, words) : core.audit(words);
  });
}

const char* ingested_name(Ingested ingested) {
  switch (ingested) {
    case Ingested::kQueued:
      return "queued";
    case Ingested::kDuplicate:
      return "duplicate";
    case Ingested::kOtherAttempt:
      return "other_attempt";
    case Ingested::kFull:
      return "full";
  }
  return "unknown";
}

ReceiverAttempt make_attempt(nb::handle run, std::uint64_t attempt, std::uint64_t base_version,
                             std::uint64_t target_version, bool verify, bool overwrite_only) {
  ReceiverAttempt made{{},
                       attempt,
                       base_version,
                       target_version,
                       verify ? ApplyMode::kVerify : ApplyMode::kWrite,
                       overwrite_only};
  const BufferView id(run);
  if (id.bytes().size() != made.run.size()) {
    raise(Status(Code::kInvalidArgument, "a run's id has 16 bytes"));
  }
  std::copy(id.bytes().begin(), id.bytes().end(), made.run.begin());
  return made;
}

void bind_receiver_targets(nb::module_& module) {
  nb::class_<HostTargets>(module, "HostTargets",
                          "Parameters in host memory, by their addresses, and scratch beside them.")
      .def(nb::new_([](std::uint64_t scratch_bytes_max) {
             return HostTargets::create(scratch_bytes_max);
           }),
           nb::arg("scratch_bytes_max"))
      .def(
          "add",
          [](HostTargets& self, std::uintptr_t address, std::uint64_t bytes) {
            return self.add(
                {reinterpret_cast<std::uint8_t*>(address), static_cast<std::size_t>(bytes)});
          },
          nb::arg("address"), nb::arg("bytes"),
          "Adds a storage, which the caller keeps alive until it is removed. Returns its id.")
      .def(
          "remove", [](HostTargets& self, std::uint64_t storage) { check(self.remove(storage)); },
          nb::arg("storage"), "Forgets a storage.")
      .def(
          "address",
          [](HostTargets& self, std::uint64_t storage) {
            const std::span<std::uint8_t> bytes = take(self.find(storage));
            return std::pair(reinterpret_cast<std::uintptr_t>(bytes.data()),
                             static_cast<std::uint64_t>(bytes.size()));
          },
          nb::arg("storage"), "Address and bytes of a storage.");
  nb::class_<SizedTargets>(module, "SizedTargets",
                           "Storages of which only sizes are known, as on a meta device.")
      .def(nb::new_([] { return SizedTargets::create(); }))
      .def("add", &SizedTargets::add, nb::arg("bytes"), "Adds a storage. Returns its id.");
}

void bind_receiver_results(nb::module_& module) {
  nb::class_<TensorClass>(module, "TensorClass", "What prewarm found out about a tensor.")
      .def_prop_ro(
          "path", [](const TensorClass& one) { return std::string(path_name(one.path)); },
          "traced, scratch, dense, skip or refused.")
      .def_prop_ro(
          "need", [](const TensorClass& one) { return std::string(need_name(one.need)); },
          "What is asked of owners: any, overwrite, dense or skip.")
      .def_ro("reason", &TensorClass::reason, "Of any other path than traced.")
      .def_ro("collective", &TensorClass::collective, "Its loader talks to other ranks.")
      .def_ro("tied", &TensorClass::tied, "A tensor that is loaded later has the same bytes.")
      .def_ro("bytes", &TensorClass::bytes, "Of parameters, that its elements reach.")
      .def("__repr__", [](const TensorClass& one) {
        return "TensorClass(path='" + std::string(path_name(one.path)) + "', need='" +
               std::string(need_name(one.need)) + "', bytes=" + std::to_string(one.bytes) +
               (one.reason.empty() ? "" : ", reason='" + one.reason + "'") + ")";
      });
  nb::class_<ReceiverCounts>(module, "ReceiverCounts", "What an attempt did at a receiver.")
      .def_ro("payloads", &ReceiverCounts::payloads, "Payloads that were applied.")
      .def_ro("entries", &ReceiverCounts::entries, "Canonical elements that came.")
      .def_ro("destinations", &ReceiverCounts::destinations, "Words that they reached here.")
      .def_ro("different", &ReceiverCounts::different,
              "In verify mode: of those, the ones that differed.")
      .def_ro("checked", &ReceiverCounts::checked, "Words that post-apply checks compared.");
}

// A box as Python has it.
struct PlacedRow {
  std::uint64_t storage = 0, word_bytes = 1, tensor_offset = 0, storage_offset = 0;
  Shape sizes, tensor_strides, storage_strides;
};

std::vector<PlacedRow> rows_of(const std::vector<PlacedBox>& boxes) {
  std::vector<PlacedRow> rows;
  for (const PlacedBox& box : boxes) {
    PlacedRow& row = rows.emplace_back();
    row.storage = box.storage;
    row.word_bytes = box.word_bytes;
    row.tensor_offset = box.tensor_offset;
    row.storage_offset = box.storage_offset;
    for (const PlacedBox::Dimension& dim : box.dimensions) {
      row.sizes.push_back(dim.size);
      row.tensor_strides.push_back(dim.tensor_stride);
      row.storage_strides.push_back(dim.storage_stride);
    }
  }
  return rows;
}

void bind_placements(nb::module_& module) {
  Record<PlacedRow>(module, "PlacedBox",
                    "Where some of a tensor's elements lie: a strided rectangle on both sides.")
      .field("storage", &PlacedRow::storage, "Its id.")
      .field("word_bytes", &PlacedRow::word_bytes, "Of what offsets and strides count.")
      .field("tensor_offset", &PlacedRow::tensor_offset, "In the canonical tensor.")
      .field("storage_offset", &PlacedRow::storage_offset, "In the storage.")
      .field("sizes", &PlacedRow::sizes, "Of the rectangle.")
      .field("tensor_strides", &PlacedRow::tensor_strides, "In the canonical tensor.")
      .field("storage_strides", &PlacedRow::storage_strides, "In the storage.");
}

// Path, whether it is tied, and boxes: offset, sizes and strides in the tensor.
using ShareTuple =
    std::tuple<std::string, bool, std::vector<std::tuple<std::uint64_t, Shape, Shape>>>;

RankShare rank_share(const ShareTuple& share) {
  const auto& [path, tied, boxes] = share;
  RankShare made;
  made.tied = tied;
  const TensorPath paths[] = {TensorPath::kTraced, TensorPath::kScratch, TensorPath::kDense,
                              TensorPath::kSkip, TensorPath::kRefused};
  const auto* const found =
      std::find_if(std::begin(paths), std::end(paths),
                   [&of = path](TensorPath one) { return path_name(one) == of; });
  if (found == std::end(paths)) {
    raise(Status(Code::kInvalidArgument, "there is no path \"" + path + "\""));
  }
  made.path = *found;
  for (const auto& [offset, sizes, strides] : boxes) {
    if (sizes.size() != strides.size()) {
      raise(Status(Code::kInvalidArgument, "a box has another number of sizes than of strides"));
    }
    PlacedBox& box = made.boxes.emplace_back();
    box.tensor_offset = offset;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      box.dimensions.push_back({sizes[i], strides[i], 0});
    }
  }
  return made;
}

std::vector<std::tuple<std::string, std::string, bool>> uneven(
    std::vector<std::pair<std::string, std::uint64_t>> tensors,
    const std::vector<std::vector<ShareTuple>>& ranks) {
  std::vector<CanonicalTensor> canonical;
  canonical.reserve(tensors.size());
  for (const auto& [name, elements] : tensors) {
    canonical.push_back({name, Dtype::kU8, {elements}, 0});
  }
  std::vector<std::vector<RankShare>> shares;
  for (const std::vector<ShareTuple>& rank : ranks) {
    std::vector<RankShare>& made = shares.emplace_back();
    made.reserve(rank.size());
    for (const ShareTuple& share : rank) made.push_back(rank_share(share));
  }
  std::sort(tensors.begin(), tensors.end());
  auto found = [&] {
    const nb::gil_scoped_release release;
    return uneven_tensors(std::move(canonical), shares);
  }();
  std::vector<std::tuple<std::string, std::string, bool>> said;
  for (const UnevenTensor& one : take(std::move(found))) {
    said.emplace_back(tensors[one.tensor].first, one.reason, one.missing);
  }
  return said;
}

void bind_uneven(nb::module_& module) {
  module.def("uneven_tensors", &uneven, nb::arg("tensors"), nb::arg("ranks"),
             "Of tensors (name, elements), those that do not lie evenly on an engine's ranks, how, "
             "and whether ranks take elements of it and none takes another. Of each rank, by "
             "tensor in the order of names: path, whether it is tied, and boxes (offset, sizes and "
             "strides in the tensor).");
}

using ReceiverClass = nb::class_<PythonReceiver>;

int traverse_receiver(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<PythonReceiver>(self)->traverse(visit, arg) : 0;
}

int clear_receiver(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<PythonReceiver>(self)->clear();
  return 0;
}

PyType_Slot receiver_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_receiver)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_receiver)},
    {0, nullptr},
};

void bind_create(ReceiverClass& type) {
  type.def(
      "__init__",
      [](PythonReceiver* self, const std::vector<TensorTuple>& tensors, nb::object loader,
         nb::object targets,
         const std::vector<std::vector<std::tuple<std::uint32_t, std::uint64_t, Shape, Shape>>>&
             owners,
         std::vector<std::string> never_loaded, std::uint64_t decoded_bytes_max,
         const nb::bytes& key, bool post_apply_checks, bool prefer_scratch, unsigned threads,
         const nb::object& stage) {
        EmbeddedReceiverOptions options;
        for (const auto& boxes : owners) {
          std::vector<CanonicalBox>& of = options.owners.emplace_back();
          for (const auto& [tensor, offset, sizes, strides] : boxes) {
            of.push_back({tensor, offset, sizes, strides});
          }
        }
        options.never_loaded = std::move(never_loaded);
        options.decoded_bytes_max = decoded_bytes_max;
        const BufferView bytes(key);
        options.key.assign(bytes.bytes().begin(), bytes.bytes().end());
        options.post_apply_checks = post_apply_checks;
        options.prefer_scratch = prefer_scratch;
        options.threads = threads;
        new (self) PythonReceiver(tensors, std::move(loader), std::move(targets), stage,
                                  std::move(options));
      },
      nb::arg("tensors"), nb::arg("loader"), nb::arg("targets"), nb::kw_only(),
      nb::arg("owners") = nb::list(), nb::arg("never_loaded") = nb::list(),
      nb::arg("decoded_bytes_max") = std::uint64_t{4} << 30, nb::arg("key") = nb::bytes("", 0),
      nb::arg("post_apply_checks") = false, nb::arg("prefer_scratch") = false,
      nb::arg("threads") = 0, nb::arg("stage").none() = nb::none());
}

void bind_prewarm(ReceiverClass& type) {
  type.def(
          "prewarm",
          [](PythonReceiver& self) {
            self.run([](EmbeddedReceiver& core) { return core.prewarm(); });
          },
          "Traces the loader over all names.")
      .def_prop_ro(
          "names",
          [](PythonReceiver& self) {
            std::vector<std::string> names;
            for (const CanonicalTensor& tensor : self.core().tensors()) {
              names.push_back(tensor.name);
            }
            return names;
          },
          "The canonical tensors, ascending: what indices mean.")
      .def_prop_ro(
          "elements",
          [](PythonReceiver& self) {
            std::vector<std::uint64_t> elements;
            for (const CanonicalTensor& tensor : self.core().tensors()) {
              elements.push_back(tensor.words);
            }
            return elements;
          },
          "How many each of them has.")
      .def_prop_ro(
          "classes",
          [](PythonReceiver& self) {
            const std::span<const TensorClass> classes = self.core().classes();
            return std::vector<TensorClass>(classes.begin(), classes.end());
          },
          "What prewarm found, in the order of names.")
      .def(
          "placement",
          [](PythonReceiver& self, std::uint32_t tensor) {
            if (tensor >= self.core().tensors().size()) throw nb::index_error("no such tensor");
            return rows_of(self.core().placement(tensor));
          },
          nb::arg("tensor"), "Where a traced tensor's elements go; nothing for others.")
      .def(
          "require_scratch",
          [](PythonReceiver& self, std::uint32_t tensor) {
            self.run([&](EmbeddedReceiver& core) { return core.require_scratch(tensor); });
          },
          nb::arg("tensor"), "Puts a tensor on the scratch path: its loader talks to other ranks.")
      .def(
          "fingerprint",
          [](PythonReceiver& self) {
            const auto digest = self.core().fingerprint();
            return nb::bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
          },
          "Binds catalogue, layout and classes.")
      .def("audit", &PythonReceiver::audit, nb::arg("read"), nb::arg("tensors").none() = nb::none(),
           "Compares parameters with what the loader makes of the base, whose tensors `read(name)` "
           "returns: of all tensors, or of these by their order.");
}

void bind_attempt(ReceiverClass& type) {
  type.def(
          "begin_attempt",
          [](PythonReceiver& self, nb::handle run, std::uint64_t attempt,
             std::uint64_t base_version, std::uint64_t target_version, bool verify,
             bool overwrite_only) {
            const ReceiverAttempt made =
                make_attempt(run, attempt, base_version, target_version, verify, overwrite_only);
            self.run([&](EmbeddedReceiver& core) { return core.begin_attempt(made); });
          },
          nb::kw_only(), nb::arg("run"), nb::arg("attempt"), nb::arg("base_version"),
          nb::arg("target_version"), nb::arg("verify") = false, nb::arg("overwrite_only") = false,
          "Starts an attempt, which ends any other.")
      .def(
          "ingest",
          [](PythonReceiver& self, nb::handle payload) {
            const BufferView bytes(payload);
            return std::string(ingested_name(
                self.run([&](EmbeddedReceiver& core) { return core.ingest(bytes.bytes()); })));
          },
          nb::arg("payload"),
          "Validates and queues a payload: queued, duplicate, other_attempt or full.")
      .def(
          "end_of_owner",
          [](PythonReceiver& self, std::uint32_t owner, std::uint64_t payloads) {
            self.run([&](EmbeddedReceiver& core) { return core.end_of_owner(owner, payloads); });
          },
          nb::arg("owner"), nb::arg("payloads"), "How many payloads an owner sends.")
      .def(
          "apply",
          [](PythonReceiver& self) {
            return self.run([](EmbeddedReceiver& core) { return core.apply(); });
          },
          "Applies what has its turn; returns how many payloads.")
      .def(
          "finish",
          [](PythonReceiver& self) {
            return self.run([](EmbeddedReceiver& core) { return core.finish(); });
          },
          "Everything that was announced is applied.")
      .def_prop_ro(
          "memory_bytes", [](PythonReceiver& self) { return self.core().memory_bytes(); },
          "Host memory that the receiver holds now.");
}

void bind_geometry(nb::module_& module) {
  module.def(
      "trace_geometry",
      [](const std::vector<TensorTuple>& tensors, nb::object loader, const nb::object& targets,
         std::vector<std::string> never_loaded, const nb::object& stage) {
        PythonLoader port(std::move(loader));
        EmbeddedReceiverOptions options;
        options.never_loaded = std::move(never_loaded);
        options.prewarm_stage = stage_callback(&stage);
        options.interruption = [&port] { return port.look_for_signals(); };
        TargetMemory& memory = memory_of(targets);
        std::vector<CanonicalTensor> canonical = canonical_tensors(tensors);
        auto result = [&] {
          const nb::gil_scoped_release release;
          return trace_geometry(std::move(canonical), port, memory, options);
        }();
        port.raise_kept();
        raise_kept(targets);
        return take(std::move(result));
      },
      nb::arg("tensors"), nb::arg("loader"), nb::arg("targets"), nb::kw_only(),
      nb::arg("never_loaded") = nb::list(), nb::arg("stage").none() = nb::none(),
      "What prewarm finds by geometry alone, by tensor in the order of names.");
}

}  // namespace

EmbeddedReceiver& embedded_receiver(nb::handle object) {
  return nb::cast<PythonReceiver&>(object).core();
}

void bind_receiver(nb::module_& module) {
  bind_loader(module);
  bind_receiver_targets(module);
  bind_operation_targets(module);
  bind_receiver_results(module);
  bind_placements(module);
  bind_uneven(module);
  ReceiverClass type(module, "EmbeddedReceiver", "The receiver of one serving rank.",
                     nb::type_slots(receiver_slots));
  forbid_pickling(type);
  bind_create(type);
  bind_prewarm(type);
  bind_attempt(type);
  bind_geometry(module);
}

}  // namespace dcr::python
