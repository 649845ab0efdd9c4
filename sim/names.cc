// The names of effects.
#include <type_traits>

#include "sim/process.h"

namespace dcr {
namespace {

// Names of what is neither a message nor a call.
const char* name_of(const Note&) { return "note"; }
const char* name_of(const Ended&) { return "ended"; }
const char* name_of(const OperatorNeeded&) { return "operator_needed"; }
const char* name_of(const CoordinatorProgress&) { return "progress"; }
const char* name_of(const ConstructAndSend&) { return "construct_and_send"; }
const char* name_of(const StopSending&) { return "stop_sending"; }
const char* name_of(const RemovePayloads&) { return "remove_payloads"; }
const char* name_of(const UpdateBaseline&) { return "update_baseline"; }
const char* name_of(const SendBaseline&) { return "send_baseline"; }
const char* name_of(const RemoveRestores&) { return "remove_restores"; }
const char* name_of(const DigestBase&) { return "digest_base"; }
const char* name_of(const SampleBaseline&) { return "sample_baseline"; }
const char* name_of(const RefitFinished&) { return "refit_finished"; }
const char* name_of(const FetchEnd&) { return "fetch_end"; }
const char* name_of(const FetchPayload&) { return "fetch_payload"; }
const char* name_of(const DecodePayload&) { return "decode_payload"; }
const char* name_of(const HandOver&) { return "hand_over"; }
const char* name_of(const DropPayloads&) { return "drop_payloads"; }
const char* name_of(const CheckBase&) { return "check_base"; }
const char* name_of(const BeginStream&) { return "begin_stream"; }
const char* name_of(const IngestPayload&) { return "ingest_payload"; }
const char* name_of(const EndOfOwner&) { return "end_of_owner"; }
const char* name_of(const CompareSample&) { return "compare_sample"; }
const char* name_of(const ApplyQueued&) { return "apply_queued"; }
const char* name_of(const FinishStream&) { return "finish_stream"; }
const char* name_of(const StopApplying&) { return "stop_applying"; }
const char* name_of(const CloseAndDrain&) { return "close_and_drain"; }
const char* name_of(const OpenFor&) { return "open_for"; }
const char* name_of(const SendMessage& sent) { return message_name(sent.message); }
const char* name_of(const CallControl& call) { return control_request_name(call.request); }

template <typename Effect>
const char* name_in(const Effect& effect) {
  return std::visit([](const auto& one) { return name_of(one); }, effect);
}

}  // namespace

const char* effect_name(const CoordinatorEffect& effect) { return name_in(effect); }
const char* effect_name(const OwnerEffect& effect) { return name_in(effect); }
const char* effect_name(const NodeEffect& effect) { return name_in(effect); }
const char* effect_name(const ReceiverEffect& effect) { return name_in(effect); }
const char* effect_name(const GateEffect& effect) { return name_in(effect); }

}  // namespace dcr
