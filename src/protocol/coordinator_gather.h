// What an attempt is made of: the members, and what their owners ask for. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dcr/control.h"
#include "protocol/messages.h"

namespace dcr {

// The newest request of each owner, by name.
struct AskedRefit {
  Endpoint owner;
  RefitRequest request;
  bool operator==(const AskedRefit&) const = default;
};
using AskedRefits = std::map<std::string, AskedRefit>;

// The receivers that take no part, by name, and why.
struct RefusedMember {
  Endpoint receiver;
  Failure failure;
};
using RefusedMembers = std::map<std::string, RefusedMember>;

struct Gathered {
  // What is missing, or empty. `asked`: somebody waits for it.
  std::string waits_for;
  bool asked = false;
  // No receiver is there but of engines that cannot serve: what the refit ends with, if that stays.
  std::optional<Failure> no_engine;
  // Owners that ask for what is committed already: the word of it was lost.
  std::vector<std::string> ended;
  // Members that no attempt can bind, and why.
  std::vector<Endpoint> unfit;
  std::string unfit_why;
  // Receivers whose node is no member, and which.
  std::vector<Endpoint> unfed;
  std::string unfed_node;
  // What the owners ask for together cannot be.
  std::optional<Failure> refused;
  // Receivers that restore again, and how often commits have overtaken them.
  std::map<std::string, std::uint64_t> overtaken;
  // Where nothing is missing: all but the token, and all but what the transition record will say.
  PrepareRequest request;
  Prepare prepare;
};

// The members must have been read after the last attempt was over.
Gathered gather_refit(const Membership& members, const AskedRefits& asked,
                      const RefusedMembers& refused = {});

// `endpoints`, and with each receiver all others of its engine, which cannot serve without it.
std::vector<Endpoint> with_engines(const Membership& members, std::vector<Endpoint> endpoints);

// The row in which this incarnation is alive, or null.
const Member* living_member(const Membership& members, const Endpoint& endpoint);

}  // namespace dcr
