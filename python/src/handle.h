// What a handle (an object with threads, sockets or memory of its own) must not be used for.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <string>

namespace dcr::python {

// A member of every handle: in a forked child, threads and locks of the parent's are gone, so each
// method begins with check().
class ProcessBound {
 public:
  // Throws RuntimeError in another process than the one that made it.
  void check(const char* what) const {
    if (process_ == ::getpid()) return;
    const std::string text = std::string(what) +
                             " was made in another process: it cannot be used after a fork; "
                             "make one here";
    PyErr_SetString(PyExc_RuntimeError, text.c_str());
    throw nanobind::python_error();
  }

  bool here() const { return process_ == ::getpid(); }

 private:
  ::pid_t process_ = ::getpid();
};

// Makes pickling or copying a handle a TypeError that says why.
template <typename Class>
void forbid_pickling(Class& type) {
  type.def(
      "__reduce_ex__",
      [](nanobind::handle self, int) -> nanobind::object {
        const std::string name = nanobind::cast<std::string>(self.type().attr("__name__"));
        throw nanobind::type_error(
            (name + " cannot be pickled or copied: it belongs to the process that made it")
                .c_str());
      },
      nanobind::sig("def __reduce_ex__(self, protocol: object, /) -> str | tuple[object, ...]"));
}

}  // namespace dcr::python
