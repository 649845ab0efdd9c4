// The owners of a checkpoint pair in one process, without receivers: what is measured where only
// construction counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/refit_context.h"
#include "api/refit_owners.h"
#include "bench/checkpoint_files.h"
#include "dcr/ports.h"
#include "dcr/refit.h"
#include "dcr/status.h"
#include "source/attempt.h"
#include "tensor/catalogue.h"
#include "tensor/checkpoint.h"

namespace dcr {

// Both versions, opened.
struct OpenPair {
  Checkpoint before, after;
  Catalogue catalogue;

  static Result<std::unique_ptr<OpenPair>> open(const CheckpointPair& paths);
};

class CheckpointOwners {
 public:
  // Owners that hold NEW and whose baseline is OLD. `pair` must outlive them.
  static Result<std::unique_ptr<CheckpointOwners>> make(const OpenPair& pair, RefitOptions options);

  // Of make().
  CheckpointOwners(const OpenPair& pair, RefitOptions options);

  std::uint32_t ranks() const { return owners_->ranks(); }

  // Constructs the attempt's payloads as the options say; sinks[i] is owner i's. May be repeated.
  Result<std::vector<PrepareResult>> prepare(std::span<PayloadSink* const> sinks);

  // The same, payloads being dropped. Returns their bytes.
  Result<std::uint64_t> construct();

  const RefitOwners& owners() const { return *owners_; }
  const RefitContext& context() const { return context_; }

 private:
  RefitOptions options_;
  std::unique_ptr<Executor> executor_;
  SpanRecorder spans_;
  RefitContext context_;
  std::unique_ptr<RefitOwners> owners_;
};

}  // namespace dcr
