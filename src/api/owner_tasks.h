// What all ranks' declarations come to (dcr/owner.h): one catalogue, and tasks that know their
// replicas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dcr/cancel.h"
#include "dcr/owner.h"
#include "dcr/status.h"
#include "tensor/box.h"
#include "tensor/catalogue.h"
#include "tensor/task.h"

namespace dcr {

Box box_of(const DeclaredBox& declared);
DeclaredBox declared_of(const Box& box);

// Of all ranks' canonical tensors: what is kept of their pieces stays below 1 GiB.
inline constexpr std::uint64_t kDeclaredTensorBytesMax = std::uint64_t{1} << 46;

struct AgreedTasks {
  Catalogue catalogue;
  std::vector<std::vector<ConversionTask>> tasks;  // by rank, in declared order
};

// `declarations` are those of ranks 0, 1, 2, … in order. Checked as check_tasks does. Errors:
// kMismatch and kInvalidArgument naming tensor and ranks; kCancelled once `cancel`, which may be
// null, is.
Result<AgreedTasks> agree_on_tasks(std::span<const RankDeclaration> declarations,
                                   const CancelToken* cancel = nullptr);

}  // namespace dcr
