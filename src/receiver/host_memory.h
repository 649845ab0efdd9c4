// A TargetMemory in host memory: a serving rank's parameters on CPUs, and every test's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "dcr/ports.h"
#include "dcr/receiver.h"

namespace dcr {

class HostMemory final : public HostTargets {
 public:
  // Scratch of all storages together stays within `scratch_bytes_max` (kTooLarge).
  explicit HostMemory(std::uint64_t scratch_bytes_max) : scratch_bytes_max_(scratch_bytes_max) {}

  // Adds a parameter's storage: zeroed memory of its own, or somebody's (a mapped region, say). Ids
  // count from 0 in the order of these calls and of allocate().
  std::uint64_t add(std::uint64_t bytes);
  std::uint64_t add(MutableByteSpan memory) override;
  Status remove(std::uint64_t storage) override;
  Result<MutableByteSpan> find(std::uint64_t storage) const override;

  // A storage's bytes, for tests and comparisons. REQUIRES: it exists.
  MutableByteSpan bytes(std::uint64_t storage);

  std::uint64_t scratch_bytes() const;
  std::uint64_t scratch_bytes_peak() const;

  Result<std::uint64_t> storage_bytes(std::uint64_t storage) const override;
  Status apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
               const void* values, ApplyMode mode, ApplyCounts* counts) override;
  Status read(const TensorView& view, std::span<std::uint8_t> out) override;
  Status write(const TensorView& view, std::span<const std::uint8_t> in) override;
  Result<std::uint64_t> allocate(std::uint64_t bytes) override;
  Status release(std::uint64_t storage) override;
  Status synchronize() override { return {}; }

 private:
  struct Storage {
    MutableByteSpan bytes;
    std::unique_ptr<std::uint8_t[]> owned;
    bool scratch = false;
  };

  std::uint64_t insert(Storage storage);

  const std::uint64_t scratch_bytes_max_;
  mutable std::mutex mutex_;  // guards what follows; the bytes themselves are the callers' matter
  std::map<std::uint64_t, Storage> storages_;
  std::uint64_t next_ = 0;
  std::uint64_t scratch_bytes_ = 0;
  std::uint64_t scratch_bytes_peak_ = 0;
};

}  // namespace dcr
