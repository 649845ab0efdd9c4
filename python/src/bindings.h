// The parts of the module, each bound by its own file.
#pragma once

#include <nanobind/nanobind.h>

namespace dcr::python {

void bind_progress(nanobind::module_& module);
void bind_delta(nanobind::module_& module);

}  // namespace dcr::python
