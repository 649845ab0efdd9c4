// The owner of a trainer rank, in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace dcr::python {

void bind_owner(nanobind::module_& module);

}  // namespace dcr::python
