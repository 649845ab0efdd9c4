#include "protocol/senders.h"

#include <gtest/gtest.h>

#include "protocol/test_messages.h"

namespace dcr {
namespace {

// docs/PROTOCOL.md "Messages": who sends each.
TEST(Senders, EveryKindHasItsSenders) {
  const SenderRole roles[] = {{Role::kCoordinator}, {Role::kOwner}, {Role::kNode},
                              {Role::kReceiver},    {Role::kGate},  {Role::kCoordinator, true}};
  const char letters[] = "conrgp";
  std::string table;
  for (const Message& message : sample_messages()) {
    std::string line = message_name(message);
    line += ' ';
    for (std::size_t i = 0; i < std::size(roles); ++i) {
      if (may_send(roles[i], message)) line += letters[i];
    }
    table += line + "\n";
  }
  EXPECT_EQ(table,
            "refit_request o\nsent o\nbaseline_updated o\ncleaned_up o\n"
            "prepare cp\nclose_gate cp\nopen_apply cp\nflush cp\nstop_and_wait cp\ncleanup cp\n"
            "look cp\nrefit_ended cp\n"
            "prepared onr\nattempt_failed onr\nstopped onr\n"
            "staged n\nstaging_full n\ngate_closed r\ncompleted r\n"
            "payloads_sent o\ncredit r\nowner_end n\npayload_ready n\nstream_failed n\n"
            "restore_request r\nrestore_sent o\nbase_digests_request r\nbase_digests o\n"
            "gate_close r\ngate_is_closed g\ngate_proof r\ngate_state g\n"
            "status_request conrgp\nstatus_reply conrgp\noperator_command p\noperator_reply "
            "og\nrefused r\napplying r\n"
            "sample_request r\nsample o\n");
}

}  // namespace
}  // namespace dcr
