#include "device/load_device.h"

#include <dlfcn.h>

#include "device/open_device.h"

namespace dcr {

Result<std::unique_ptr<Device>> load_device(const std::string& path, int index) {
  // Kept for good: streams and memory of the device may outlive any object here.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  // The text is the calling thread's own.
  if (library == nullptr) {
    const std::string reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe)
    return Status(Code::kNotFound, reason +
                                       ": DCR's library of CUDA devices is built where nvcc (CUDA "
                                       "12.8 or later) is found: install DCR again there");
  }
  auto* const open =
      reinterpret_cast<decltype(&dcr_open_device)>(::dlsym(library, "dcr_open_device"));
  if (open == nullptr) return Status(Code::kNotFound, path + " is no library of DCR's devices");
  Status status;
  std::unique_ptr<Device> device(open(kDeviceLayout, index, &status));
  if (device == nullptr) return status;
  return device;
}

}  // namespace dcr
