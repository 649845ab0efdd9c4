// The functions of dcr/delta.h. `dcr/_delta.py` documents them and gives them their types.
#include "dcr/delta.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "blocking.h"
#include "errors.h"
#include "records.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

// What every function takes by keyword: {"memory_bytes_max", "threads", "force"} and the callback.
struct Keywords {
  std::int64_t memory_bytes_max = 0;
  std::int64_t threads = 0;
  bool force = false;
  nb::object progress;
};

DeltaOptions options_of(const Keywords& keywords) {
  if (keywords.memory_bytes_max < 0 || keywords.threads < 0 ||
      keywords.threads > std::int64_t{0xffff'ffff}) {
    raise(Status(Code::kInvalidArgument,
                 "memory_bytes_max and threads cannot be below 0, nor "
                 "threads that many"));
  }
  DeltaOptions options;
  options.memory_bytes_max = static_cast<std::uint64_t>(keywords.memory_bytes_max);
  options.threads = static_cast<unsigned>(keywords.threads);
  options.force = keywords.force;
  return options;
}

// Runs one of the functions with the keywords' options.
template <typename T>
T call(const Keywords& keywords, const std::function<Result<T>(const DeltaOptions&)>& function) {
  DeltaOptions options = options_of(keywords);
  return run_blocking<T>(
      [&](const Blocking& blocking) {
        options.cancel = blocking.cancel;
        options.progress = blocking.progress;
        return function(options);
      },
      keywords.progress);
}

// A checkpoint as Python names it: a path, or a dictionary of arrays.
class Source {
 public:
  // `dtypes`: None, or names of dtypes by names of tensors. `writable`: arrays are written to, so
  // none is copied. Throws as arrays.h does, and InvalidArgument for one that cannot be written to.
  Source(nb::handle source, nb::handle dtypes, bool writable = false) {
    if (nb::isinstance<nb::str>(source)) {
      path_ = nb::cast<std::string>(source);
      return;
    }
    in_memory_ = true;
    const nb::dict names = dtypes.is_none() ? nb::dict() : nb::cast<nb::dict>(dtypes);
    for (const auto& [key, value] : nb::cast<nb::dict>(source)) {
      const auto name = nb::cast<std::string>(key);
      std::string dtype;
      if (names.contains(key)) dtype = nb::cast<std::string>(names[key]);
      Array array = writable ? array_of(value, name, dtype) : contiguous_array(value, name, dtype);
      if (writable) check_writable(name, array);
      tensors_.push_back({name, array.dtype, array.shape, array.span()});
      arrays_.push_back(std::move(array));
    }
  }

  CheckpointSource get() const {
    if (in_memory_) return std::span<const MemoryTensor>(tensors_);
    return path_;
  }
  const std::vector<MemoryTensor>& tensors() const { return tensors_; }

 private:
  static void check_writable(const std::string& name, const Array& array) {
    const char* why = !array.writable       ? "is read-only"
                      : !array.contiguous() ? "is not contiguous"
                                            : nullptr;
    if (why == nullptr) return;
    raise(Status(Code::kInvalidArgument,
                 "tensor \"" + name + "\" " + why + ": it cannot be changed in place", name));
  }

  std::string path_;
  bool in_memory_ = false;
  std::vector<Array> arrays_;  // which keep the memory
  std::vector<MemoryTensor> tensors_;
};

// A tensor that a call made.
struct Made {
  CanonicalTensor tensor;
  std::unique_ptr<std::uint8_t[]> memory;
  std::size_t bytes = 0;
};

// Its words as a NumPy array, which then owns the memory.
template <typename Word>
nb::object words_of(Made made) {
  std::vector<std::size_t> shape(made.tensor.shape.begin(), made.tensor.shape.end());
  // Of several elements a byte, the array counts bytes, as array_of has it.
  const unsigned bits = dtype_bits(made.tensor.dtype);
  if (bits != 8 * sizeof(Word)) shape.back() = shape.back() * bits / 8;
  std::uint8_t* data = made.memory.release();
  const nb::capsule owner(data, [](void* memory) noexcept {
    const std::unique_ptr<std::uint8_t[]> freed(static_cast<std::uint8_t*>(memory));
  });
  return nb::cast(nb::ndarray<nb::numpy, Word>(data, shape.size(), shape.data(), owner));
}

nb::object array_made(Made made) {
  switch (word_bytes(made.tensor.dtype)) {
    case 1:
      return words_of<std::uint8_t>(std::move(made));
    case 2:
      return words_of<std::uint16_t>(std::move(made));
    case 4:
      return words_of<std::uint32_t>(std::move(made));
    default:
      return words_of<std::uint64_t>(std::move(made));
  }
}

// {name: (words, dtype name)} of the target.
nb::dict apply_to_arrays(const std::vector<std::string>& deltas, nb::handle base, nb::handle dtypes,
                         const Keywords& keywords) {
  const Source source(base, dtypes);
  std::vector<Made> made;
  const TensorMemory memory = [&made](const CanonicalTensor& tensor) {
    const auto bytes = static_cast<std::size_t>(tensor_bytes(tensor.dtype, tensor.shape).value());
    // At least one byte, so that there is something to own.
    made.push_back({tensor, std::make_unique_for_overwrite<std::uint8_t[]>(bytes + 1), bytes});
    return std::span<std::uint8_t>(made.back().memory.get(), bytes);
  };
  call<ApplyResult>(keywords, [&](const DeltaOptions& options) {
    return apply_to_memory(deltas, source.get(), memory, options);
  });
  nb::dict arrays;
  for (Made& one : made) {
    const nb::str name(one.tensor.name.data(), one.tensor.name.size());
    const std::string_view dtype = dtype_name(one.tensor.dtype);
    const nb::str dtype_word(dtype.data(), dtype.size());
    arrays[name] = nb::make_tuple(array_made(std::move(one)), dtype_word);
  }
  return arrays;
}

void bind_results(nb::module_& module) {
  Record<LeftOut>(module, "LeftOut", "A file of the new checkpoint that a delta does not carry.")
      .field("name", &LeftOut::name, "its name in the checkpoint")
      .field("reason", &LeftOut::reason, "why, for people");
  Record<DiffResult>(module, "DiffResult", "What `diff` made.")
      .field("tensors", &DiffResult::tensors, "common ones: same name, dtype and shape")
      .field("elements", &DiffResult::elements, "elements of the common tensors")
      .field("changed", &DiffResult::changed,
             "of those; of dtypes of several elements a byte, bytes")
      .field("delta_bytes", &DiffResult::delta_bytes, "size of the delta file")
      .field("payload_bytes", &DiffResult::payload_bytes, "of the payloads within it")
      .field("encodings", &DiffResult::encodings, "number of items by name of encoding")
      .field("added", &DiffResult::added, "names of tensors that only the new checkpoint has")
      .field("removed", &DiffResult::removed, "names of tensors that only the old one has")
      .field("replaced", &DiffResult::replaced, "names of tensors of another dtype or shape")
      .field("carried_files", &DiffResult::carried_files, "other files that the delta carries")
      .field("left_out", &DiffResult::left_out, "files that it does not carry");
  Record<ApplyResult>(module, "ApplyResult", "What an application did.")
      .field("tensors", &ApplyResult::tensors, "of the result")
      .field("changed", &ApplyResult::changed, "elements that were changed, of all deltas")
      .field("bytes_written", &ApplyResult::bytes_written, "in all")
      .field("already_target", &ApplyResult::already_target,
             "in place: the checkpoint was the target before")
      .field("replayed_journal", &ApplyResult::replayed_journal,
             "in place: an interrupted run was completed")
      .field("files", &ApplyResult::files, "names of the result's files");
  Record<Difference>(module, "Difference", "One difference of two checkpoints.")
      .field("kind", &Difference::kind,
             "\"missing\", \"extra\", \"dtype\", \"shape\", \"bits\", \"metadata\" or \"file\"")
      .field("tensor", &Difference::tensor, "or the file's name, or the metadata's key")
      .field("detail", &Difference::detail, "for people");
  Record<VerifyResult>(module, "VerifyResult", "What `verify` found.")
      .field("tensors", &VerifyResult::tensors, "compared")
      .field("elements", &VerifyResult::elements, "compared")
      .field("bytes", &VerifyResult::bytes, "compared")
      .field("files", &VerifyResult::files, "compared, if files were asked for")
      .field("differing", &VerifyResult::differing, "differences in all; 0: equal bit for bit")
      .field("differences", &VerifyResult::differences, "the first 100");
}

void bind_inspection(nb::module_& module) {
  Record<StreamInfo>(module, "StreamInfo", "One kind of stream in a delta's payloads.")
      .field("kind", &StreamInfo::kind, "its name in the format")
      .field("width", &StreamInfo::width, "bytes of the words it belongs to, or 0")
      .field("raw_bytes", &StreamInfo::raw_bytes, "before compression")
      .field("stored_bytes", &StreamInfo::stored_bytes, "in the delta");
  Record<GroupInfo>(module, "GroupInfo", "Tensors whose names differ only in numbers.")
      .field("name", &GroupInfo::name, "\"model.layers.*.mlp.up_proj.weight\"")
      .field("tensors", &GroupInfo::tensors, "in the group")
      .field("elements", &GroupInfo::elements, "of its tensors")
      .field("changed", &GroupInfo::changed, "of the elements")
      .field("raw_bytes", &GroupInfo::raw_bytes, "of its items, before compression");
  Record<InspectResult::Carried>(module, "TargetFile", "A file of a delta's target.")
      .field("name", &InspectResult::Carried::name, "its name in the checkpoint")
      .field("bytes", &InspectResult::Carried::bytes, "of its content without tensor data")
      .field("stored_bytes", &InspectResult::Carried::stored_bytes, "in the delta")
      .field("source", &InspectResult::Carried::source, "\"carried\" or \"base\"");
  Record<InspectResult>(module, "InspectResult", "What is in a delta.")
      .field("format_version", &InspectResult::format_version, "of the file")
      .field("delta_bytes", &InspectResult::delta_bytes, "size of the file")
      .field("payloads", &InspectResult::payloads, "number of payloads")
      .field("items", &InspectResult::items, "number of items in them")
      .field("tensors", &InspectResult::tensors, "common ones")
      .field("elements", &InspectResult::elements, "of the common tensors")
      .field("changed", &InspectResult::changed, "of those elements")
      .field("base_identity", &InspectResult::base_identity, "hexadecimal")
      .field("target_identity", &InspectResult::target_identity, "hexadecimal")
      .field("encodings", &InspectResult::encodings, "number of items by name of encoding")
      .field("streams", &InspectResult::streams, "by kind and width")
      .field("groups", &InspectResult::groups, "by name")
      .field("added", &InspectResult::added, "names of tensors that only the target has")
      .field("removed", &InspectResult::removed, "names of tensors that only the base has")
      .field("replaced", &InspectResult::replaced, "names of tensors of another dtype or shape")
      .field("files", &InspectResult::files, "the target's")
      .field("left_out", &InspectResult::left_out, "files that it does not carry");
}

}  // namespace

void bind_delta(nb::module_& module) {
  bind_results(module);
  bind_inspection(module);
  nb::class_<Keywords>(module, "Keywords", "What all functions on deltas take.")
      .def(nb::init<std::int64_t, std::int64_t, bool, nb::object>(), nb::arg("memory_bytes_max"),
           nb::arg("threads"), nb::arg("force"), nb::arg("progress").none());
  module.attr("memory_bytes_min") = kMemoryBytesMin;
  module.def(
      "diff",
      [](nb::handle before, nb::handle after, const std::string& output, nb::handle dtypes,
         const Keywords& keywords) {
        const Source from(before, dtypes), to(after, dtypes);
        return call<DiffResult>(keywords, [&](const DeltaOptions& options) {
          return diff(from.get(), to.get(), output, options);
        });
      },
      nb::arg("before"), nb::arg("after"), nb::arg("output"), nb::arg("dtypes").none(),
      nb::arg("keywords"));
  module.def(
      "apply",
      [](const std::vector<std::string>& deltas, const std::string& base, const std::string& output,
         const Keywords& keywords) {
        return call<ApplyResult>(keywords, [&](const DeltaOptions& options) {
          return apply(deltas, base, output, options);
        });
      },
      nb::arg("deltas"), nb::arg("base"), nb::arg("output"), nb::arg("keywords"));
  module.def("apply_to_arrays", &apply_to_arrays, nb::arg("deltas"), nb::arg("base"),
             nb::arg("dtypes").none(), nb::arg("keywords"),
             nb::sig("def apply_to_arrays(deltas: Sequence[str], base: object, dtypes: object | "
                     "None, keywords: Keywords) -> dict[str, tuple[object, str]]"));
  module.def(
      "apply_in_place",
      [](const std::vector<std::string>& deltas, nb::handle base, nb::handle dtypes,
         const Keywords& keywords) {
        const Source source(base, dtypes, true);
        return call<ApplyResult>(keywords, [&](const DeltaOptions& options) {
          const CheckpointSource from = source.get();
          return from.in_memory ? apply_in_place(deltas, from.tensors, options)
                                : apply_in_place(deltas, from.path, options);
        });
      },
      nb::arg("deltas"), nb::arg("base"), nb::arg("dtypes").none(), nb::arg("keywords"));
  module.def(
      "verify",
      [](nb::handle a, nb::handle b, bool files, nb::handle dtypes, const Keywords& keywords) {
        const Source first(a, dtypes), second(b, dtypes);
        return call<VerifyResult>(keywords, [&](const DeltaOptions& options) {
          return verify(first.get(), second.get(), {.files = files}, options);
        });
      },
      nb::arg("a"), nb::arg("b"), nb::arg("files"), nb::arg("dtypes").none(), nb::arg("keywords"));
  module.def(
      "inspect",
      [](const std::string& delta, const Keywords& keywords) {
        return call<InspectResult>(
            keywords, [&](const DeltaOptions& options) { return inspect(delta, options); });
      },
      nb::arg("delta"), nb::arg("keywords"));
}

}  // namespace dcr::python
