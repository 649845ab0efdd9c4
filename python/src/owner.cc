// The owner of a trainer rank: dcr/owner.h.
#include "owner.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "blocking.h"
#include "dcr/device.h"
#include "dcr/owner.h"
#include "device.h"
#include "errors.h"
#include "handle.h"
#include "records.h"

namespace nb = nanobind;

namespace dcr::python {
namespace {

using Size = std::uint64_t;
// Plain data, which goes over any channel as it is: what each tuple means is in _core's docstrings.
using BoxTuple = std::tuple<Size, Size, std::vector<std::tuple<Size, Size, Size>>>;
using PartTuple = std::tuple<std::uint32_t, BoxTuple>;
using TensorTuple = std::tuple<std::string, std::string, std::vector<Size>>;
using TaskTuple = std::tuple<std::string, std::string, std::vector<Size>, std::vector<Size>,
                             std::vector<BoxTuple>, std::vector<PartTuple>>;
using CanonicalBoxTuple = std::tuple<std::uint32_t, Size, std::vector<Size>, std::vector<Size>>;

struct PreparedRecord {
  std::string mode;
  Size payloads = 0, payload_bytes = 0, items = 0, entries = 0;
  std::map<std::string, Size> encodings;
  Size changed_source_elements = 0, changed_canonical_words = 0;
  std::map<std::string, double> stages;
};

struct SizesRecord {
  Size source_elements = 0, canonical_words = 0, canonical_bytes = 0, baseline_bytes = 0;
};

Status invalid(const std::string& what) { return {Code::kInvalidArgument, what}; }

DeclaredBox box_of(const BoxTuple& from) {
  DeclaredBox box{std::get<0>(from), std::get<1>(from), {}};
  for (const auto& [size, source, destination] : std::get<2>(from)) {
    box.dims.push_back({size, source, destination});
  }
  return box;
}

Result<DeclaredTask> task_of(const TaskTuple& from, std::size_t tensors) {
  const auto& [name, dtype, sizes, strides, shard, parts] = from;
  DeclaredTask task{name, Dtype::kU8, sizes, strides, {}};
  DCR_ASSIGN(task.dtype, dtype_from_name(dtype));
  if (sizes.size() != strides.size()) return invalid("as many strides as sizes are needed");
  std::vector<DeclaredBox> boxes;
  for (const BoxTuple& one : shard) boxes.push_back(box_of(one));
  std::vector<DeclaredPart> whole;
  for (const auto& [tensor, one] : parts) {
    if (tensor >= tensors) return invalid("a part of tensor " + std::to_string(tensor));
    whole.push_back({tensor, box_of(one)});
  }
  DCR_ASSIGN(task.parts, parts_of_shard(boxes, whole));
  return task;
}

nb::bytes bytes_of(std::span<const std::uint8_t> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

nb::bytes encode(std::uint32_t rank, std::uint32_t ranks, const std::vector<TensorTuple>& tensors,
                 const std::vector<TaskTuple>& tasks) {
  RankDeclaration declaration{rank, ranks, {}, {}};
  for (const auto& [name, dtype, shape] : tensors) {
    declaration.tensors.push_back({name, take(dtype_from_name(dtype)), shape, 0});
  }
  for (const TaskTuple& from : tasks) {
    Result<DeclaredTask> task = task_of(from, tensors.size());
    if (!task.ok()) raise(task.status().with_context("task \"" + std::get<0>(from) + "\""));
    declaration.tasks.push_back(std::move(task).value());
  }
  return bytes_of(encode_declaration(declaration));
}

std::vector<std::span<const std::uint8_t>> spans_of(const std::vector<nb::bytes>& from) {
  std::vector<std::span<const std::uint8_t>> spans;
  spans.reserve(from.size());
  for (const nb::bytes& bytes : from) {
    spans.emplace_back(reinterpret_cast<const std::uint8_t*>(bytes.c_str()), bytes.size());
  }
  return spans;
}

template <typename Enum>
Enum named(const std::string& word, std::initializer_list<std::pair<const char*, Enum>> known,
           const char* what) {
  std::string words;
  for (const auto& [name, value] : known) {
    if (word == name) return value;
    words += (words.empty() ? "\"" : "\", \"") + std::string(name);
  }
  raise(invalid(std::string(what) + " \"" + word + "\": it is one of " + words + "\""));
}

// Payloads as they come.
class Collected final : public PayloadSink {
 public:
  Status send(std::uint64_t /*number*/, std::span<const std::uint8_t> bytes) override {
    payloads_.emplace_back(bytes.begin(), bytes.end());
    return {};
  }

  nb::list take_bytes() {
    nb::list list;
    for (std::vector<std::uint8_t>& payload : payloads_) {
      list.append(bytes_of(payload));
      payload = {};
    }
    return list;
  }

 private:
  std::vector<std::vector<std::uint8_t>> payloads_;
};

PreparedRecord record_of(const OwnerResult& result) {
  PreparedRecord record;
  record.mode = attempt_mode_name(result.mode);
  record.payloads = result.payloads;
  record.payload_bytes = result.payload_bytes;
  record.items = result.items;
  record.entries = result.entries;
  for (std::size_t i = 0; i < result.items_by_encoding.size(); ++i) {
    if (result.items_by_encoding[i] == 0) continue;
    record.encodings[encoding_name(static_cast<Encoding>(i))] = result.items_by_encoding[i];
  }
  record.changed_source_elements = result.changed_source_elements;
  record.changed_canonical_words = result.changed_canonical_words;
  for (const RefitStage& stage : result.stages) record.stages[stage.name] = stage.wall;
  return record;
}

// While one lives no other call may begin: the GIL is free meanwhile, and a progress callback, a
// signal's handler or another thread may come back to the same owner. REQUIRES: the GIL is held.
class Busy {
 public:
  explicit Busy(bool* busy) : busy_(busy) { *busy_ = true; }
  ~Busy() { *busy_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool* busy_;
};

class PythonOwner {
 public:
  PythonOwner(const std::vector<nb::bytes>& declarations, std::uint32_t rank, unsigned threads,
              Size chunk_bytes, Size bucket_bytes, Size memory_bytes_max,
              const std::string& baseline_file, const nb::bytes& key) {
    EmbeddedOwnerOptions options;
    options.threads = threads;
    options.chunk_bytes = chunk_bytes;
    options.bucket_bytes = bucket_bytes;
    options.memory_bytes_max = memory_bytes_max;
    options.baseline_file = baseline_file;
    const std::span<const std::uint8_t> secret = spans_of({key}).front();
    options.key.assign(secret.begin(), secret.end());
    const auto spans = spans_of(declarations);
    if (rank < spans.size()) {
      const RankDeclaration own = take(decode_declaration(spans[rank]));
      memory_ = std::make_unique<DeviceStorages>(own.tasks.size());
      for (const DeclaredTask& task : own.tasks) {
        names_.push_back(task.name);
        dtypes_.push_back(task.dtype);
      }
    } else {
      raise(invalid("rank " + std::to_string(rank) + " of " + std::to_string(spans.size()) +
                    " declarations"));
    }
    owner_ = run_blocking<std::unique_ptr<EmbeddedOwner>>([&](const Blocking& blocking) {
      return EmbeddedOwner::create(spans, rank, *memory_, std::move(options), blocking.cancel);
    });
  }
  // Threads of the process that made it are not there to be joined in another.
  ~PythonOwner() {
    if (bound_.here()) return;
    static_cast<void>(owner_.release());
    static_cast<void>(memory_.release());
  }
  PythonOwner(const PythonOwner&) = delete;
  PythonOwner& operator=(const PythonOwner&) = delete;

  EmbeddedOwner& checked() const {
    bound_.check("the owner");
    if (!busy_) return *owner_;
    PyErr_SetString(PyExc_RuntimeError, "another call of the owner is under way");
    throw nb::python_error();
  }

  void set_storages(const nb::sequence& arrays) {
    checked();
    const std::size_t count = nb::len(arrays);
    if (count != names_.size()) {
      raise(invalid(std::to_string(count) + " storages for " + std::to_string(names_.size()) +
                    " tasks"));
    }
    std::vector<Given> given(count);
    for (std::size_t i = 0; i < count; ++i) {
      const nb::object one = arrays[i];
      if (nb::isinstance<DeviceBytes>(one)) {
        given[i].on_device = nb::cast<DeviceBytes>(one);
        continue;
      }
      Array array = array_of(one, names_[i]);
      if (!array.contiguous()) raise(invalid("storage \"" + names_[i] + "\" is not contiguous"));
      if (array.dtype != Dtype::kU8 && array.dtype != dtypes_[i]) {
        raise(invalid("storage \"" + names_[i] + "\" is " + std::string(dtype_name(array.dtype)) +
                      "; " + std::string(dtype_name(dtypes_[i])) + " was declared"));
      }
      given[i].array = std::move(array);
    }
    clear_storages();
    for (std::size_t i = 0; i < count; ++i) {
      if (given[i].on_device) {
        DeviceBytes& there = *given[i].on_device;
        memory_->set_device(i, there.device, there.memory);
        held_.push_back(std::move(there.keeps));
      } else {
        memory_->set_host(i, given[i].array.span());
        held_.push_back(std::move(given[i].array.owner));
      }
    }
  }

  void clear_storages() {
    checked();
    memory_->clear();
    held_.clear();
  }

  nb::tuple prepare(const nb::bytes& run, Size attempt, Size candidate, Size base, Size target,
                    const std::string& mode, const std::optional<std::string>& encoding,
                    const std::vector<std::string>& needs, const nb::object& progress) {
    OwnerAttempt asked;
    asked.run = run_of(run);
    asked.attempt = attempt;
    asked.candidate = candidate;
    asked.base_version = base;
    asked.target_version = target;
    asked.mode = named<AttemptMode>(mode,
                                    {{"mixed", AttemptMode::kMixed},
                                     {"overwrite", AttemptMode::kOverwrite},
                                     {"dense", AttemptMode::kDense}},
                                    "mode");
    if (encoding) {
      asked.encoding = named<Encoding>(
          *encoding,
          {{"overwrite", Encoding::kOverwrite}, {"xor", Encoding::kXor}, {"add", Encoding::kAdd}},
          "encoding");
    }
    for (const std::string& need : needs) {
      asked.needs.push_back(named<Need>(need,
                                        {{"any", Need::kAny},
                                         {"overwrite", Need::kOverwrite},
                                         {"dense", Need::kDense},
                                         {"skip", Need::kSkip}},
                                        "need"));
    }
    EmbeddedOwner& owner = checked();
    const Busy busy(&busy_);
    Collected sink;
    const auto result = run_blocking<OwnerResult>(
        [&](const Blocking& call) {
          return owner.prepare(asked, sink, {call.cancel, call.progress});
        },
        progress);
    return nb::make_tuple(record_of(result), sink.take_bytes());
  }

  nb::tuple restore(const nb::bytes& run, Size attempt, Size version, const nb::object& progress) {
    EmbeddedOwner& owner = checked();
    const RunId id = run_of(run);
    const Busy busy(&busy_);
    Collected sink;
    const auto result = run_blocking<OwnerResult>(
        [&](const Blocking& call) {
          return owner.restore(id, attempt, version, sink, {call.cancel, call.progress});
        },
        progress);
    return nb::make_tuple(record_of(result), sink.take_bytes());
  }

  void initialize(Size version, const nb::object& progress) {
    EmbeddedOwner& owner = checked();
    const Busy busy(&busy_);
    run_blocking(
        [&](const Blocking& call) -> Status {
          return owner.initialize(version, {call.cancel, call.progress});
        },
        progress);
  }

  void commit(Size version, const nb::object& progress) {
    EmbeddedOwner& owner = checked();
    const Busy busy(&busy_);
    run_blocking(
        [&](const Blocking& call) -> Status {
          return owner.commit(version, {call.cancel, call.progress});
        },
        progress);
  }

  nb::bytes replica_digests(const nb::object& progress) {
    EmbeddedOwner& owner = checked();
    const Busy busy(&busy_);
    return bytes_of(run_blocking<std::vector<std::uint8_t>>(
        [&](const Blocking& call) {
          return owner.replica_digests({call.cancel, call.progress});
        },
        progress));
  }

  std::vector<std::vector<CanonicalBoxTuple>> boxes() const {
    std::vector<std::vector<CanonicalBoxTuple>> all;
    for (const std::vector<CanonicalBox>& owner : checked().boxes()) {
      std::vector<CanonicalBoxTuple>& of = all.emplace_back();
      for (const CanonicalBox& box : owner) {
        of.emplace_back(box.tensor, box.offset, box.sizes, box.strides);
      }
    }
    return all;
  }

 private:
  struct Given {
    std::optional<DeviceBytes> on_device;
    Array array;  // of what lies in host memory
  };

  static RunId run_of(const nb::bytes& bytes) {
    RunId run{};
    if (bytes.size() != run.size()) {
      raise(invalid("a run id of " + std::to_string(bytes.size()) + " bytes; 16 are needed"));
    }
    std::memcpy(run.data(), bytes.c_str(), run.size());
    return run;
  }

  ProcessBound bound_;
  bool busy_ = false;               // guarded by the GIL
  std::vector<std::string> names_;  // of the tasks
  std::vector<Dtype> dtypes_;       // likewise
  std::vector<nb::object> held_;    // what the storages lie in
  std::unique_ptr<DeviceStorages> memory_;
  std::unique_ptr<EmbeddedOwner> owner_;
};

void bind_records(nb::module_& module) {
  Record<PreparedRecord>(module, "Prepared", "What came of an owner's prepare or restore.")
      .field("mode", &PreparedRecord::mode,
             "\"mixed\", \"overwrite\" or \"dense\"; dense also where there was no baseline.")
      .field("payloads", &PreparedRecord::payloads, "Payloads that were made.")
      .field("payload_bytes", &PreparedRecord::payload_bytes, "Their bytes.")
      .field("items", &PreparedRecord::items, "Items in them.")
      .field("entries", &PreparedRecord::entries,
             "Words that they carry by location, dense ones not counted.")
      .field("encodings", &PreparedRecord::encodings, "Items by the name of their encoding.")
      .field("changed_source_elements", &PreparedRecord::changed_source_elements,
             "Elements of this rank's source tensors whose bits changed.")
      .field("changed_canonical_words", &PreparedRecord::changed_canonical_words,
             "Words of canonical tensors whose bits changed.")
      .field("stages", &PreparedRecord::stages, "Seconds by stage.");
  Record<SizesRecord>(module, "OwnedSizes", "What a rank owns.")
      .field("source_elements", &SizesRecord::source_elements, "Elements of source tensors.")
      .field("canonical_words", &SizesRecord::canonical_words, "Words of canonical tensors.")
      .field("canonical_bytes", &SizesRecord::canonical_bytes, "Their bytes.")
      .field("baseline_bytes", &SizesRecord::baseline_bytes, "Bytes that the baseline takes.");
}

void bind_construction(nb::class_<PythonOwner>& owner) {
  owner.def(nb::init<const std::vector<nb::bytes>&, std::uint32_t, unsigned, Size, Size, Size,
                     const std::string&, const nb::bytes&>(),
            nb::arg("declarations"), nb::arg("rank"), nb::kw_only(), nb::arg("threads") = 0,
            nb::arg("chunk_bytes") = EmbeddedOwnerOptions().chunk_bytes,
            nb::arg("bucket_bytes") = EmbeddedOwnerOptions().bucket_bytes,
            nb::arg("memory_bytes_max") = EmbeddedOwnerOptions().memory_bytes_max,
            nb::arg("baseline_file") = "", nb::arg("key") = nb::bytes("", 0));
  owner.def("set_storages", &PythonOwner::set_storages, nb::arg("storages"),
            nb::sig("def set_storages(self, storages: Sequence[object]) -> None"),
            "Where the tasks' tensors lie from now on: one contiguous host array or DeviceBytes a "
            "task, which is kept alive until the next call or clear_storages().");
  owner.def("clear_storages", &PythonOwner::clear_storages, "Lets go of the arrays.");
  owner.def_prop_ro("rank", [](const PythonOwner& self) { return self.checked().rank(); });
  owner.def_prop_ro("ranks", [](const PythonOwner& self) { return self.checked().ranks(); });
  owner.def_prop_ro(
      "sizes",
      [](const PythonOwner& self) {
        const OwnedSizes sizes = self.checked().sizes();
        return SizesRecord{sizes.source_elements, sizes.canonical_words, sizes.canonical_bytes,
                           sizes.baseline_bytes};
      },
      "What this rank owns.");
  owner.def_prop_ro(
      "tensors",
      [](const PythonOwner& self) {
        std::vector<TensorTuple> tensors;
        for (const CanonicalTensor& tensor : self.checked().tensors()) {
          tensors.emplace_back(tensor.name, std::string(dtype_name(tensor.dtype)), tensor.shape);
        }
        return tensors;
      },
      "(name, dtype, shape) of the canonical tensors of all ranks, ascending by name.");
  owner.def_prop_ro("boxes", &PythonOwner::boxes,
                    "By owner: (index of the canonical tensor, offset, sizes, strides) of what it "
                    "may send, in words.");
  owner.def_prop_ro(
      "baseline_version", [](const PythonOwner& self) { return self.checked().baseline_version(); },
      "The version that the baseline has, or None: then the next prepare sends everything.");
}

void bind_calls(nb::class_<PythonOwner>& owner) {
  owner.def("replica_digests", &PythonOwner::replica_digests,
            nb::arg("progress").none() = nb::none(),
            "A digest of each task's words as they are, for check_replicas on every rank.");
  owner.def(
      "check_replicas",
      [](const PythonOwner& self, const std::vector<nb::bytes>& digests) {
        check(self.checked().check_replicas(spans_of(digests)));
      },
      nb::arg("digests"), "Compares all ranks' replica_digests, in the order of ranks.");
  owner.def("initialize", &PythonOwner::initialize, nb::arg("version"), nb::kw_only(),
            nb::arg("progress").none() = nb::none(),
            "Takes the weights as they are for this version.");
  owner.def("prepare", &PythonOwner::prepare, nb::kw_only(), nb::arg("run"), nb::arg("attempt"),
            nb::arg("candidate"), nb::arg("base_version"), nb::arg("target_version"),
            nb::arg("mode") = "mixed", nb::arg("encoding").none() = nb::none(),
            nb::arg("needs") = std::vector<std::string>(), nb::arg("progress").none() = nb::none(),
            nb::sig("def prepare(self, *, run: bytes, attempt: int, candidate: int, "
                    "base_version: int, target_version: int, mode: str = 'mixed', "
                    "encoding: str | None = None, needs: Sequence[str] = (), "
                    "progress: object | None = None) -> tuple[Prepared, list[bytes]]"),
            "Payloads that make target_version of base_version. `needs`: \"any\", \"overwrite\", "
            "\"dense\" or \"skip\" of each canonical tensor, or nothing.");
  owner.def("commit", &PythonOwner::commit, nb::arg("version"), nb::kw_only(),
            nb::arg("progress").none() = nb::none(), "What was prepared becomes the baseline.");
  owner.def(
      "drop_attempt", [](const PythonOwner& self) { self.checked().drop_attempt(); },
      "The attempt will not be committed.");
  owner.def("restore", &PythonOwner::restore, nb::kw_only(), nb::arg("run"), nb::arg("attempt"),
            nb::arg("version"), nb::arg("progress").none() = nb::none(),
            nb::sig("def restore(self, *, run: bytes, attempt: int, version: int, "
                    "progress: object | None = None) -> tuple[Prepared, list[bytes]]"),
            "The baseline whole, for receivers that restore it.");
}

}  // namespace

nb::object prepared_object(const OwnerResult& result) { return nb::cast(record_of(result)); }

EmbeddedOwner& embedded_owner(nb::handle object) {
  return nb::cast<PythonOwner&>(object).checked();
}

void bind_owner(nb::module_& module) {
  bind_records(module);
  module.def("encode_declaration", &encode, nb::arg("rank"), nb::arg("ranks"), nb::arg("tensors"),
             nb::arg("tasks"),
             "A rank's word on what it holds, for EmbeddedOwner on every rank. `tensors`: (name, "
             "dtype, shape) of canonical tensors. `tasks`: (name, dtype, sizes, strides, shard, "
             "parts), where `shard` are boxes from the task's elements to those of a whole tensor, "
             "and `parts` (index in tensors, box) lead from there to canonical tensors. A box is "
             "(source offset, destination offset, [(size, source stride, destination stride)]).");
  nb::class_<PythonOwner> owner(
      module, "EmbeddedOwner",
      "One rank's owner, of the encoded declarations of all ranks in order. Not thread-safe.");
  bind_construction(owner);
  bind_calls(owner);
  forbid_pickling(owner);
}

}  // namespace dcr::python
