// The receiver of a serving rank, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "dcr/receiver.h"

namespace dcr::python {

void bind_receiver(nanobind::module_& module);

// The receiver of an EmbeddedReceiver object, which must outlive its use. Throws if it is none, or
// of another process.
EmbeddedReceiver& embedded_receiver(nanobind::handle object);

}  // namespace dcr::python
