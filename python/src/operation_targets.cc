#include "operation_targets.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "errors.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

// Ids of the object's storages; those of host memory count from 0 and stay far below.
constexpr std::uint64_t kObjectIds = std::uint64_t{1} << 62;

Status not_found(std::uint64_t storage) {
  return {Code::kNotFound, "there is no storage " + std::to_string(storage)};
}

// Somebody's memory as a buffer object, which must not outlive it.
nb::object buffer_over(const void* memory, std::size_t bytes) {
  auto* const at = static_cast<char*>(const_cast<void*>(memory));
  return nb::steal(PyMemoryView_FromMemory(at, static_cast<Py_ssize_t>(bytes), PyBUF_WRITE));
}

nb::list dims_of(const TargetChanges& target) {
  nb::list dims;
  for (const TargetChanges::Dimension& dim : target.dims) {
    dims.append(nb::make_tuple(dim.size, dim.stride, dim.begin, dim.end));
  }
  return dims;
}

}  // namespace

std::uint64_t OperationTargets::add(std::uint64_t bytes) {
  bytes_[kObjectIds + next_] = bytes;
  return kObjectIds + next_++;
}

Status OperationTargets::remove(std::uint64_t storage) {
  return bytes_.erase(storage) == 1 ? Status() : not_found(storage);
}

void OperationTargets::raise_kept() {
  if (!kept_) return;
  nb::python_error error = std::move(*kept_);
  kept_.reset();
  throw error;
}

template <typename Call>
Status OperationTargets::call(const Call& call) {
  const nb::gil_scoped_acquire acquire;
  try {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    call();
    return {};
  } catch (nb::python_error& error) {
    const std::string type = nb::cast<std::string>(error.type().attr("__name__"));
    const std::string text = nb::cast<std::string>(nb::str(error.value()));
    if (!kept_) kept_.emplace(error);
    return {Code::kUnavailable, type + ": " + text};
  } catch (const nb::cast_error&) {
    return {Code::kInvalidArgument, "apply() returns two numbers of words"};
  }
}

Result<std::uint64_t> OperationTargets::storage_bytes(std::uint64_t storage) const {
  if (storage < kObjectIds) return scratch_->storage_bytes(storage);
  const auto found = bytes_.find(storage);
  if (found == bytes_.end()) return not_found(storage);
  return found->second;
}

Status OperationTargets::apply(const TargetChanges& target,
                               std::span<const std::uint32_t> positions, const void* values,
                               ApplyMode mode, ApplyCounts* counts) {
  if (target.storage < kObjectIds) {
    return scratch_->apply(target, positions, values, mode, counts);
  }
  DCR_TRY(storage_bytes(target.storage).status());
  if (positions.empty()) return {};
  return call([&] {
    const nb::object counted = operations_.attr("apply")(
        target.storage, target.width, encoding_name(target.encoding), target.first, target.offset,
        dims_of(target), buffer_over(positions.data(), positions.size_bytes()),
        buffer_over(values, positions.size() * target.width), mode == ApplyMode::kVerify);
    const auto [words, different] = nb::cast<std::pair<std::uint64_t, std::uint64_t>>(counted);
    counts->words += words;
    counts->different += different;
  });
}

Status OperationTargets::read(const TensorView& view, std::span<std::uint8_t> out) {
  if (view.storage < kObjectIds) return scratch_->read(view, out);
  DCR_TRY(storage_bytes(view.storage).status());
  if (out.empty()) return {};
  return call([&] {
    operations_.attr("read")(view.storage, word_bytes(view.dtype), view.offset, view.sizes,
                             view.strides, buffer_over(out.data(), out.size()));
  });
}

Status OperationTargets::write(const TensorView& view, std::span<const std::uint8_t> in) {
  if (view.storage < kObjectIds) return scratch_->write(view, in);
  DCR_TRY(storage_bytes(view.storage).status());
  if (in.empty()) return {};
  return call([&] {
    operations_.attr("write")(view.storage, word_bytes(view.dtype), view.offset, view.sizes,
                              view.strides, buffer_over(in.data(), in.size()));
  });
}

Status OperationTargets::synchronize() {
  return call([&] { operations_.attr("synchronize")(); });
}

void bind_operation_targets(nb::module_& module) {
  nb::class_<OperationTargets>(
      module, "OperationTargets",
      "Parameters that an object's operations reach, wherever they lie; scratch in host memory.")
      .def(nb::init<std::uint64_t, nb::object>(), nb::arg("scratch_bytes_max"),
           nb::arg("operations"))
      .def("add", &OperationTargets::add, nb::arg("bytes"),
           "Adds a storage of the object's. Returns the id by which it is asked for it.")
      .def(
          "remove",
          [](OperationTargets& self, std::uint64_t storage) { check(self.remove(storage)); },
          nb::arg("storage"), "Forgets a storage.")
      .def(
          "address",
          [](const OperationTargets& self, std::uint64_t storage) {
            const std::span<std::uint8_t> bytes = take(self.scratch().find(storage));
            return std::pair(reinterpret_cast<std::uintptr_t>(bytes.data()),
                             static_cast<std::uint64_t>(bytes.size()));
          },
          nb::arg("storage"), "Address and bytes of a scratch storage.");
}

}  // namespace dcr::python
