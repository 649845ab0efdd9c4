// The receiver of a serving rank, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace dcr::python {

void bind_receiver(nanobind::module_& module);

}  // namespace dcr::python
