// The operations of the paper's Table B.1 as the machines' effects and events are them: where an
// OperationPoint can be.
#pragma once

#include "protocol/coordinator.h"
#include "protocol/gate.h"
#include "protocol/node.h"
#include "protocol/owner.h"
#include "protocol/receiver.h"

namespace dcr {

// The operation that carrying out the effect begins, and the one that the event ends; empty: none.
const char* operation_of(const CoordinatorEffect& effect);
const char* operation_of(const OwnerEffect& effect);
const char* operation_of(const NodeEffect& effect);
const char* operation_of(const ReceiverEffect& effect);
const char* operation_of(const GateEffect& effect);
const char* operation_of(const CoordinatorEvent& event);
const char* operation_of(const OwnerEvent& event);
const char* operation_of(const NodeEvent& event);
const char* operation_of(const ReceiverEvent& event);
const char* operation_of(const GateEvent& event);

}  // namespace dcr
