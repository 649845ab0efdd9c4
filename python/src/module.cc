// The module `dcr._core`.
#include <nanobind/nanobind.h>

#include "dcr/options.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ core of DCR.";
  module.attr("format_version") = dcr::kFormatVersion;
}
