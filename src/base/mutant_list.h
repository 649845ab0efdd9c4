// All mutants: the name, and what it breaks. Add the line here, and DCR_MUTANT(name) at the place.
#pragma once

#include <string_view>

namespace dcr {

struct Mutant {
  std::string_view name;
  std::string_view breaks;
};

inline constexpr Mutant kMutants[] = {
    {"canary", "a receiver's last written word is another: every campaign must see that"},
    {"owner_without_fence", "an owner takes a prepare of an attempt that was stopped"},
    {"owner_stops_without_waiting", "an owner says stopped while payloads still go out"},
    {"owner_restores_any_version", "an owner sends a baseline that is not the committed one"},
    {"early_open", "receivers may write before gates are closed"},
    {"early_commit", "an attempt is committed before every receiver has completed"},
    {"no_stop_and_wait", "a retry begins before the failed attempt was stopped"},
    {"node_without_fence", "a node takes a prepare of an attempt that was stopped"},
    {"node_goes_on_after_stop", "a node hands payloads of a stopped attempt over"},
    {"receiver_takes_any_base", "a receiver accepts every attempt, whatever its storage holds"},
    {"gate_keeps_proofs", "a gate that closes believes still what was proven before"},
    {"gate_takes_old_proofs", "a gate believes proofs that come late"},
    {"receiver_without_fence", "a receiver accepts prepares of attempts that it was stopped in"},
};

}  // namespace dcr
