// Plain structs of the core as immutable Python objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace dcr::python {

// "DiffResult(tensors=2, changed=1, …)", of an object whose class has `_fields`.
nanobind::str record_text(nanobind::handle record);

// Whether both are of one class and all fields are equal.
bool records_equal(nanobind::handle a, nanobind::handle b);

// The fields' values, in their order.
nanobind::tuple record_state(nanobind::handle record);

// Binds a struct `T`, field by field: read-only properties, a readable repr, equality, pickling.
template <typename T>
class Record {
 public:
  Record(nanobind::module_& module, const char* name, const char* doc) : type_(module, name, doc) {
    namespace nb = nanobind;
    type_.attr("_fields") = nb::tuple();
    type_.def("__repr__", [](nb::handle self) { return record_text(self); });
    type_.def(
        "__eq__", [](nb::handle self, nb::handle other) { return records_equal(self, other); },
        nb::sig("def __eq__(self, other: object, /) -> bool"), nb::arg("other").none());
    type_.def(
        "__getstate__", [](nb::handle self) { return record_state(self); },
        nb::sig("def __getstate__(self) -> tuple[object, ...]"));
    type_.def(
        "__setstate__",
        [setters = setters_](T& self, const nb::tuple& state) {
          if (state.size() != setters->size()) throw nb::value_error("fields are missing");
          new (&self) T{};
          for (std::size_t i = 0; i < setters->size(); ++i) (*setters)[i](self, state[i]);
        },
        nb::sig("def __setstate__(self, state: tuple[object, ...], /) -> None"));
  }

  template <typename Field>
  Record& field(const char* name, Field T::*member, const char* doc) {
    namespace nb = nanobind;
    type_.def_ro(name, member, doc);
    type_.attr("_fields") = type_.attr("_fields") + nb::make_tuple(name);
    setters_->push_back(
        [member](T& self, nb::handle value) { self.*member = nb::cast<Field>(value); });
    return *this;
  }

 private:
  using Setters = std::vector<std::function<void(T&, nanobind::handle)>>;

  std::shared_ptr<Setters> setters_ = std::make_shared<Setters>();
  nanobind::class_<T> type_;
};

}  // namespace dcr::python
