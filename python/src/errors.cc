#include "errors.h"

#include <string>

namespace dcr::python {

namespace nb = nanobind;

void raise(const Status& status) {
  const std::string_view code = code_name(status.code());
  // Imported here, not when the module is loaded: the stub generator loads it alone.
  const nb::object classes = nb::module_::import_("dcr.errors").attr("_classes")();
  const nb::object type = classes[nb::str(code.data(), code.size())];
  const nb::object error = type(nb::str(status.message().data(), status.message().size()),
                                nb::str(status.tensor().data(), status.tensor().size()));
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace dcr::python
