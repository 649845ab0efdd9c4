// Parameters that only somebody else's operations reach, torch's as a rule, as a TargetMemory.
// Internal to the bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dcr/ports.h"
#include "dcr/receiver.h"
#include "dcr/status.h"

namespace dcr::python {

// Scratch lies in host memory, everything that was added with the object that has
//
//   apply(storage, width, encoding, first, offset, dims, positions, values, verify) -> (int, int)
//   read(storage, width, offset, sizes, strides, out) -> None
//   write(storage, width, offset, sizes, strides, words) -> None
//   synchronize() -> None
//
// with the arguments of the port; dims are tuples (size, stride, begin, end); positions (int32),
// values, out and words are buffers that are there during the call, and none is empty. Bounds are
// the object's to check. What it raises is kept, and raised when the core has returned; until then
// it is kUnavailable, with its words.
//
// Thread safety: the GIL's. Each call takes it, so a receiver of these has one thread.
class OperationTargets final : public TargetMemory {
 public:
  // REQUIRES: the GIL is held, as in all but the port's functions.
  OperationTargets(std::uint64_t scratch_bytes_max, nanobind::object operations)
      : scratch_(HostTargets::create(scratch_bytes_max)), operations_(std::move(operations)) {}

  // A storage of the object's; returns its id.
  std::uint64_t add(std::uint64_t bytes);
  Status remove(std::uint64_t storage);
  const HostTargets& scratch() const { return *scratch_; }
  // Throws what was kept, once.
  void raise_kept();

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override;
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override;
  Status read(const TensorView& view, std::span<std::uint8_t> out) override;
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override;
  Result<std::uint64_t> allocate(std::uint64_t bytes) override { return scratch_->allocate(bytes); }
  Status release(std::uint64_t storage) override { return scratch_->release(storage); }
  Status synchronize() override;

 private:
  template <typename Call>
  Status call(const Call& call);

  std::unique_ptr<HostTargets> scratch_;
  nanobind::object operations_;
  std::map<std::uint64_t, std::uint64_t> bytes_;  // by id
  std::uint64_t next_ = 0;
  std::optional<nanobind::python_error> kept_;
};

void bind_operation_targets(nanobind::module_& module);

}  // namespace dcr::python
