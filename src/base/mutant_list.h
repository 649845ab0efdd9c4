// All mutants: the name, and what it breaks. Add the line here, and DCR_MUTANT(name) at the place.
#pragma once

#include <string_view>

namespace dcr {

struct Mutant {
  std::string_view name;
  std::string_view breaks;
};

inline constexpr Mutant kMutants[] = {
    {"canary", "receivers forget the last change of each item: every campaign must see that"},
    // Control plane: records, leadership, membership.
    {"commit_unfenced", "an attempt that is obsolete can be committed"},
    {"open_notes_nothing", "nobody knows that an attempt may have written"},
    {"retry_is_mixed", "a retry sends xor and add over what a failed attempt left"},
    {"other_weights_are_not_dense",
     "other weights than those of a failed attempt send only their own changes"},
    {"join_takes_any_version", "a receiver joins with a version that is no longer committed"},
    {"join_in_attempt", "a receiver becomes a member while an attempt runs without it"},
    {"enrol_keeps_incarnation", "a process that starts anew is taken for the one that died"},
    // Coordinator.
    {"early_open", "receivers may write before gates are closed"},
    {"early_commit", "an attempt is committed before every receiver has completed"},
    // Owners, as endpoints and as sources.
    {"owner_without_fence", "an owner takes a prepare of an attempt that was stopped"},
    {"owner_stops_without_waiting", "an owner says stopped while payloads still go out"},
    {"retry_encodes_mixed", "an owner ignores that an attempt is a retry, and receivers do too"},
    {"owner_updates_early", "an owner's baseline moves before the commit"},
    {"owner_forgets_piece", "an owner does not send one of its pieces"},
    {"baseline_forgets_piece", "a baseline update misses a piece"},
    {"restore_forgets_piece", "a restore misses a piece"},
    {"owner_hides_changes", "an owner does not say what changed to those who convert it"},
    {"dense_owner_says_nothing", "an owner that sends everything does not say so to the others"},
    {"converted_baseline_stays", "a baseline update misses what is converted"},
    // Codec and transport.
    {"payload_digest_unchecked", "bytes that were damaged on their way are decoded"},
    {"end_forgets_payload", "an owner's end counts a payload less than it sent"},
    {"cleanup_leaves_attempt", "payloads of a finished attempt stay in the store"},
    // Nodes.
    {"node_without_fence", "a node takes a prepare of an attempt that was stopped"},
    {"node_goes_on_after_stop", "a node hands payloads of a stopped attempt over"},
    // Receivers.
    {"receiver_without_fence", "a receiver takes a prepare of an attempt that was stopped"},
    {"receiver_applies_unopened", "a receiver writes before the control plane knows"},
    {"receiver_finishes_early", "a receiver completes without payloads that owners announced"},
    {"receiver_forgets_writing", "a receiver calls its storage a version while it writes to it"},
    {"receiver_stops_without_draining", "a receiver says stopped while it writes"},
    {"receiver_proves_anything", "a receiver proves the committed version, whatever it holds"},
    {"receiver_restores_nothing", "a receiver joins without restoring"},
    {"receiver_applies_twice", "xor and add are applied twice"},
    {"retry_skips_payload", "the first payload of a retry overwrites nothing"},
    {"staging_keeps_payloads", "payloads of a failed attempt are applied in the next one"},
    // Gates.
    {"gate_takes_old_proofs", "a gate believes proofs that come late"},
    {"gate_opens_on_one_proof",
     "a gate opens when one receiver of its engine has proven its version"},
    {"gate_ignores_record", "a gate opens whatever version its receivers hold, members or not"},
    {"gate_answers_before_drain", "a gate calls itself closed while requests run"},
    {"gate_hears_strangers", "a gate believes receivers of another engine of its name"},
};

}  // namespace dcr
