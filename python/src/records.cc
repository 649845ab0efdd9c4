#include "records.h"

namespace dcr::python {

namespace nb = nanobind;

nb::str record_text(nb::handle record) {
  std::string text = nb::cast<std::string>(record.type().attr("__name__")) + "(";
  const char* separator = "";
  for (const nb::handle name : record.type().attr("_fields")) {
    text += separator + nb::cast<std::string>(name) + "=";
    text += nb::cast<std::string>(nb::repr(nb::getattr(record, name)));
    separator = ", ";
  }
  return nb::str((text + ")").c_str());
}

bool records_equal(nb::handle a, nb::handle b) {
  return a.type().is(b.type()) && record_state(a).equal(record_state(b));
}

nb::tuple record_state(nb::handle record) {
  nb::list values;
  for (const nb::handle name : record.type().attr("_fields")) {
    values.append(nb::getattr(record, name));
  }
  return nb::tuple(values);
}

}  // namespace dcr::python
