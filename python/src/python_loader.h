// A serving runtime's loader that is written in Python, as the core's port Loader. Internal to the
// bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "blocking.h"
#include "dcr/ports.h"
#include "dcr/status.h"

namespace dcr::python {

// The core calls it on the thread that called the core, without the GIL. The object has
//
//   targets() -> list[tuple[str, TensorView]]
//   load(name: str, value: TensorView, hook: LoaderHook) -> None
//   load_batch(entries: list[tuple[str, TensorView]], hook: LoaderBatchHook) -> bool
//   batch_entries_max: int
//
// An exception of its own is a refusal of the name; one that is no Exception (KeyboardInterrupt)
// and one of targets() is kept, and raised when the core has returned.
class PythonLoader final : public Loader {
 public:
  // REQUIRES: the GIL is held, as in all but the port's functions.
  explicit PythonLoader(nanobind::object loader);

  std::vector<LoaderTarget> targets() override;
  Result<LoadReport> load(std::string_view name, const TensorView& value,
                          LoaderHook& hook) override;
  std::uint32_t batch_entries_max() const override { return batch_entries_max_; }
  Result<bool> load_batch(std::span<const LoaderBatchEntry> entries,
                          LoaderBatchHook& hook) override;

  // Keeps an exception for raise_kept. Returns what the core is told meanwhile.
  Status keep(nanobind::python_error& error);
  // Throws what was kept, once.
  void raise_kept();

  // Looks for signals, on the thread that called the core, as often as calls without the loader do.
  // An error is what a handler raised, which is kept. Takes the GIL.
  Status look_for_signals();

  const nanobind::object& object() const { return loader_; }
  // Lets go of the object; loads fail from then on.
  void clear() { loader_ = nanobind::none(); }

 private:
  // The status that an exception of the loader's stands for.
  Status refusal(nanobind::python_error& error);

  nanobind::object loader_;
  std::uint32_t batch_entries_max_ = 1;
  std::optional<nanobind::python_error> kept_;
  SignalsDue signals_due_;
};

void bind_loader(nanobind::module_& module);

}  // namespace dcr::python
