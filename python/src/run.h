// Taking part in a run, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace dcr::python {

void bind_run(nanobind::module_& module);

}  // namespace dcr::python
