// What the processes of a run know of the model without loading its weights: names, layouts, and
// who sends what to whom. All of them make it from the run's configuration and compare its digest.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "dcr/status.h"
#include "layout/checkpoint_reader.h"
#include "layout/owner_plan.h"
#include "layout/receiver_plan.h"
#include "run/published_source.h"
#include "run/run_config.h"
#include "source/geometry.h"
#include "tensor/catalogue.h"
#include "tensor/checkpoint.h"

namespace dcr {

struct RunModel : PublishedSource {
  Checkpoint base;
  OwnerPlan owner_plan;
  ReceiverPlan receiver_plan;
  std::vector<std::string> never_loaded;     // receivers' buffers that no canonical tensor reaches
  std::shared_ptr<const Geometry> geometry;  // of the owners
};

// Errors: of the checkpoint, the layouts and the geometry; kInvalidArgument if the configuration
// has not one owner per rank of the owners' layout, or an engine not one receiver per rank.
Result<std::unique_ptr<const RunModel>> make_run_model(const RunConfig& config);

// A checkpoint that may replace the base: the same names, dtypes and shapes. Errors: of the
// checkpoint; kMismatch naming a tensor.
Result<Checkpoint> open_candidate(const RunModel& model, const std::string& path);

}  // namespace dcr
