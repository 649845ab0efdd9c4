// The module `dcr._core`.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "dcr/options.h"
#include "device.h"
#include "owner.h"
#include "receiver.h"
#include "run.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ core of DCR. Use the package `dcr`, which documents it.";
  module.attr("format_version") = dcr::kFormatVersion;
  dcr::python::bind_progress(module);
  dcr::python::bind_delta(module);
  dcr::python::bind_device(module);
  dcr::python::bind_owner(module);
  dcr::python::bind_receiver(module);
  dcr::python::bind_run(module);
}
