#include "python_loader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "errors.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

constexpr std::size_t kRankMax = 64;

// What Python holds of a hook during one load. The hook itself is gone afterwards, whoever kept
// this.
template <typename Hook>
struct HookHandle {
  Hook* hook = nullptr;
  Status failure;  // the first; the loader may swallow the exception that it became

  template <typename... Event>
  bool on_event(const Event&... event) {
    if (hook == nullptr) {
      throw nb::value_error("a hook is for one load only, and that has ended");
    }
    if (!failure.ok()) raise(failure);
    const Result<LoaderVerdict> verdict = [&] {
      const nb::gil_scoped_release release;
      return hook->on_event(event...);
    }();
    if (!verdict.ok()) {
      failure = verdict.status();
      raise(failure);
    }
    return *verdict == LoaderVerdict::kPerform;
  }
};
using LoadHandle = HookHandle<LoaderHook>;
using BatchHandle = HookHandle<LoaderBatchHook>;

// Ends the handle with the scope.
template <typename Hook>
class HookScope {
 public:
  explicit HookScope(Hook& hook) : object_(nb::cast(HookHandle<Hook>{&hook, {}})) {
    handle_ = nb::inst_ptr<HookHandle<Hook>>(object_);
  }
  ~HookScope() { handle_->hook = nullptr; }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

  const nb::object& object() const { return object_; }
  const Status& failure() const { return handle_->failure; }

 private:
  nb::object object_;
  HookHandle<Hook>* handle_;
};

LoaderEventKind kind_of(const std::string& name) {
  if (name == "copy") return LoaderEventKind::kCopy;
  if (name == "fill") return LoaderEventKind::kFill;
  if (name == "other") return LoaderEventKind::kOther;
  if (name == "replace") return LoaderEventKind::kReplace;
  if (name == "collective") return LoaderEventKind::kCollective;
  throw nb::value_error(("there is no kind of event \"" + name + "\"").c_str());
}

TensorView make_view(std::uint64_t storage, const std::string& dtype, std::uint64_t offset,
                     Shape sizes, Shape strides) {
  if (sizes.size() != strides.size() || sizes.size() > kRankMax) {
    throw nb::value_error("a view has as many strides as sizes, and at most 64");
  }
  return {storage, take(dtype_from_name(dtype)), offset, std::move(sizes), std::move(strides)};
}

std::string view_text(const TensorView& view) {
  return "TensorView(storage=" + std::to_string(view.storage) + ", dtype='" +
         std::string(dtype_name(view.dtype)) + "', offset=" + std::to_string(view.offset) +
         ", sizes=" + shape_text(view.sizes) + ", strides=" + shape_text(view.strides) + ")";
}

}  // namespace

PythonLoader::PythonLoader(nb::object loader) : loader_(std::move(loader)) {
  batch_entries_max_ = nb::cast<std::uint32_t>(loader_.attr("batch_entries_max"));
}

Status PythonLoader::keep(nb::python_error& error) {
  if (!kept_) kept_.emplace(error);
  return {Code::kCancelled, "stopped by an exception"};
}

void PythonLoader::raise_kept() {
  if (!kept_) return;
  nb::python_error error = std::move(*kept_);
  kept_.reset();
  throw error;
}

Status PythonLoader::look_for_signals() {
  if (!signals_due_()) return {};
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return {};
  nb::python_error error;
  return keep(error);
}

Status PythonLoader::refusal(nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) return keep(error);
  const nb::handle value = error.value();
  const std::string type = nb::cast<std::string>(error.type().attr("__name__"));
  return {Code::kUnsupported, type + ": " + nb::cast<std::string>(nb::str(value))};
}

std::vector<LoaderTarget> PythonLoader::targets() {
  const nb::gil_scoped_acquire acquire;
  try {
    std::vector<LoaderTarget> targets;
    for (const nb::handle one : loader_.attr("targets")()) {
      targets.push_back({nb::cast<std::string>(one[0]), nb::cast<TensorView>(one[1])});
    }
    return targets;
  } catch (nb::python_error& error) {
    static_cast<void>(keep(error).ok());
  } catch (const nb::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "targets() returns pairs of a name and a TensorView");
    nb::python_error error;
    static_cast<void>(keep(error).ok());
  }
  return {};
}

Result<LoadReport> PythonLoader::load(std::string_view name, const TensorView& value,
                                      LoaderHook& hook) {
  const nb::gil_scoped_acquire acquire;
  const HookScope<LoaderHook> scope(hook);
  Status refused;
  try {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    loader_.attr("load")(nb::str(name.data(), name.size()), value, scope.object());
  } catch (nb::python_error& error) {
    refused = refusal(error);
  }
  // What went wrong first: the loader may have made something else of it, or nothing.
  DCR_TRY(scope.failure());
  DCR_TRY(refused);
  return LoadReport::kNothing;
}

Result<bool> PythonLoader::load_batch(std::span<const LoaderBatchEntry> entries,
                                      LoaderBatchHook& hook) {
  const nb::gil_scoped_acquire acquire;
  const HookScope<LoaderBatchHook> scope(hook);
  bool explained = false;
  try {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    nb::list list;
    for (const LoaderBatchEntry& entry : entries) {
      list.append(nb::make_tuple(nb::str(entry.name.data(), entry.name.size()), entry.value));
    }
    explained = nb::cast<bool>(loader_.attr("load_batch")(list, scope.object()));
  } catch (nb::python_error& error) {
    const Status refused = refusal(error);
    if (refused.code() == Code::kCancelled) return refused;
  } catch (const nb::cast_error&) {
    return Status(Code::kInvalidArgument, "load_batch() returns whether it could say all");
  }
  DCR_TRY(scope.failure());
  return explained;
}

void bind_loader(nb::module_& module) {
  nb::class_<TensorView>(module, "TensorView",
                         "Where elements lie: in a storage, in words of the dtype (its safetensors "
                         "name).")
      .def(
          "__init__",
          [](TensorView* self, std::uint64_t storage, const std::string& dtype,
             std::uint64_t offset, Shape sizes, Shape strides) {
            new (self)
                TensorView(make_view(storage, dtype, offset, std::move(sizes), std::move(strides)));
          },
          nb::arg("storage"), nb::arg("dtype"), nb::arg("offset"), nb::arg("sizes"),
          nb::arg("strides"))
      .def_ro("storage", &TensorView::storage, "The storage's id in its memory.")
      .def_prop_ro(
          "dtype", [](const TensorView& view) { return std::string(dtype_name(view.dtype)); },
          "The dtype's name.")
      .def_ro("offset", &TensorView::offset, "The first element's word.")
      .def_ro("sizes", &TensorView::sizes, "Elements along each dimension.")
      .def_ro("strides", &TensorView::strides, "Words from one element to the next.")
      .def("__repr__", view_text);
  nb::class_<LoadHandle>(module, "LoaderHook", "What a load tells of its writes.")
      .def(
          "on_event",
          [](LoadHandle& self, const std::string& kind, std::string operation,
             const TensorView& destination, std::optional<TensorView> source,
             std::uint64_t fill_word) {
            return self.on_event(LoaderEvent{kind_of(kind), std::move(operation), destination,
                                             std::move(source), fill_word});
          },
          nb::arg("kind"), nb::arg("operation"), nb::arg("destination"),
          nb::arg("source").none() = nb::none(), nb::arg("fill_word") = 0,
          "To be called before a write: whether the write is to happen. Kinds: copy, fill, other, "
          "replace, collective.");
  nb::class_<BatchHandle>(module, "LoaderBatchHook", "The same for a load of several tensors.")
      .def(
          "on_copy",
          [](BatchHandle& self, std::size_t entry, std::string operation,
             const TensorView& destination, const TensorView& source) {
            static_cast<void>(self.on_event(
                entry,
                LoaderEvent{LoaderEventKind::kCopy, std::move(operation), destination, source, 0}));
          },
          nb::arg("entry"), nb::arg("operation"), nb::arg("destination"), nb::arg("source"),
          "To be called instead of a copy from the value of an entry.");
}

}  // namespace dcr::python
