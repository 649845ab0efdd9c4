// What is behind an EmbeddedReceiver.
#pragma once

#include <memory>
#include <vector>

#include "dcr/owner.h"
#include "dcr/receiver.h"
#include "receiver/ownership.h"
#include "receiver/receiver.h"
#include "runtime/threads.h"
#include "tensor/catalogue.h"

namespace dcr {

struct EmbeddedReceiver::State {
  Catalogue catalogue;
  std::unique_ptr<Executor> executor;
  TargetMemory* memory = nullptr;
  std::unique_ptr<Receiver> receiver;  // uses all of the above
};

// REQUIRES: as many strides as sizes.
std::vector<std::vector<OwnerBox>> owner_boxes(
    const std::vector<std::vector<CanonicalBox>>& owners);

}  // namespace dcr
