// Who may say what: the column "from → to" of the table of messages (docs/PROTOCOL.md). An endpoint
// whose key is on the list may still not speak as one of another role.
#pragma once

#include <cstdint>

#include "dcr/control.h"
#include "protocol/messages.h"

namespace dcr {

// What an endpoint speaks as. An operator may claim leadership, and is a coordinator then.
struct SenderRole {
  Role role = Role::kCoordinator;
  bool is_operator = false;
};

bool may_send(const SenderRole& sender, const Message& message);

}  // namespace dcr
