// The owner of a trainer rank, in Python.
#pragma once

#include <nanobind/nanobind.h>

#include "dcr/owner.h"

namespace dcr::python {

void bind_owner(nanobind::module_& module);

// OwnerResult as an object of the module.
nanobind::object prepared_object(const OwnerResult& result);

// The owner of an EmbeddedOwner object, which must outlive its use. Throws if it is none, or of
// another process.
EmbeddedOwner& embedded_owner(nanobind::handle object);

}  // namespace dcr::python
