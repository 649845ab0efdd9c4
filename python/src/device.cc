#include "device.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <string>
#include <utility>

#include "errors.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

// Waits may be long, for other threads' turns.
template <typename Call>
void waiting(const Call& call) {
  const Status status = [&] {
    const nb::gil_scoped_release release;
    return call();
  }();
  check(status);
}

std::unique_ptr<PythonDevice> open_device(const std::string& library, int index,
                                          std::uint64_t staging_bytes) {
  auto device = [&] {
    const nb::gil_scoped_release release;
    return StagedDevice::open(library, index, staging_bytes);
  }();
  return std::make_unique<PythonDevice>(take(std::move(device)));
}

void bind_targets(nb::module_& module) {
  nb::class_<PythonDeviceTargets> targets(
      module, "DeviceTargets", "Parameters on a device, others in host memory, and scratch there.");
  targets
      .def(nb::init<const PythonDevice&, std::uint64_t>(), nb::arg("device"),
           nb::arg("scratch_bytes_max"))
      .def(
          "add_host",
          [](const PythonDeviceTargets& self, std::uintptr_t address, std::uint64_t bytes) {
            return self.core()->add_host(
                {reinterpret_cast<std::uint8_t*>(address), static_cast<std::size_t>(bytes)});
          },
          nb::arg("address"), nb::arg("bytes"),
          "Adds a storage in host memory, which the caller keeps alive until it is removed. "
          "Returns "
          "its id.")
      .def(
          "add_device",
          [](const PythonDeviceTargets& self, std::uintptr_t address, std::uint64_t bytes) {
            DeviceTargets& core = *self.core();
            auto id = [&] {
              const nb::gil_scoped_release release;
              return core.add_device({address, bytes});
            }();
            return take(std::move(id));
          },
          nb::arg("address"), nb::arg("bytes"), "The same for one on the device.")
      .def(
          "remove",
          [](const PythonDeviceTargets& self, std::uint64_t storage) {
            DeviceTargets& core = *self.core();
            waiting([&] { return core.remove(storage); });
          },
          nb::arg("storage"), "Forgets a storage.")
      .def(
          "address",
          [](const PythonDeviceTargets& self, std::uint64_t storage) {
            const std::span<std::uint8_t> bytes = take(self.core()->find_host(storage));
            return std::pair(reinterpret_cast<std::uintptr_t>(bytes.data()),
                             static_cast<std::uint64_t>(bytes.size()));
          },
          nb::arg("storage"), "Address and bytes of a storage in host memory.")
      .def(
          "settle",
          [](const PythonDeviceTargets& self) {
            DeviceTargets& core = *self.core();
            const nb::gil_scoped_release release;
            core.settle();
          },
          "The device has been used by others: what follows begins when it is idle.");
  forbid_pickling(targets);
}

}  // namespace

void bind_device(nb::module_& module) {
  nb::class_<PythonDevice> device(module, "StagedDevice", nb::is_weak_referenceable(),
                                  "A device that is reached through two pinned buffers.");
  device.def(
      nb::new_(&open_device), nb::arg("library"), nb::arg("index"), nb::kw_only(),
      nb::arg("staging_bytes") = StagedDevice::kStagingBytes,
      "Opens a device of DCR's shared object at `library`, and allocates all that it needs.");
  device.def_prop_ro(
      "name", [](const PythonDevice& self) { return self.core()->name(); },
      "As its maker calls it.");
  device.def_prop_ro(
      "staging_bytes", [](const PythonDevice& self) { return self.core()->staging_bytes(); },
      "Of each buffer, and of its twin on the device.");
  device.def(
      "follow",
      [](const PythonDevice& self, std::uintptr_t stream) {
        StagedDevice& core = *self.core();
        waiting([&] { return core.follow(reinterpret_cast<void*>(stream)); });
      },
      nb::arg("stream"),
      "What is read from now on is read when the stream has done what it was given so far.");
  forbid_pickling(device);
  nb::class_<DeviceBytes>(module, "DeviceBytes", "Memory on a device, and what keeps it there.")
      .def(
          "__init__",
          [](DeviceBytes* self, const PythonDevice& of, std::uintptr_t address, std::uint64_t bytes,
             nb::object keeps) {
            new (self) DeviceBytes{of.core(), {address, bytes}, std::move(keeps)};
          },
          nb::arg("device"), nb::arg("address"), nb::arg("bytes"), nb::arg("keeps"));
  bind_targets(module);
}

}  // namespace dcr::python
