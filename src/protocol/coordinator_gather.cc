#include "protocol/coordinator_gather.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/digest.h"
#include "base/mutant.h"
#include "base/probe.h"
#include "protocol/message_text.h"

namespace dcr {
namespace {

std::string text_of(const Endpoint& endpoint) {
  return endpoint.name + " (incarnation " + std::to_string(endpoint.incarnation) + ")";
}

struct Owner {
  const Member* member = nullptr;
  OwnerDetails details;
  const RefitRequest* request = nullptr;  // or null: it does not ask
};

// What receivers need of a tensor all together is the most that any of them needs.
Need stronger(Need a, Need b) {
  const auto strength = [](Need need) { return need == Need::kSkip ? -1 : static_cast<int>(need); };
  return strength(a) < strength(b) ? b : a;
}

class Gathering {
 public:
  Gathering(const Membership& members, const AskedRefits& asked, const RefusedMembers& refused)
      : members_(members), asked_(asked), refused_(refused), records_(members.records) {}

  Gathered run() {
    bound_ = bound_members(members_.members, records_.commit.id);
    read_owners();
    if (!choose_owners()) return std::move(out_);
    // Owners that cannot agree need not wait for receivers.
    compare_requests();
    if (out_.refused) return std::move(out_);
    read_receivers();
    if (!out_.unfit.empty() || !out_.unfed.empty() || !out_.waits_for.empty()) {
      return std::move(out_);
    }
    for (const Member& member : members_.members) {
      if (member.role != Role::kReceiver || member.state != MemberState::kEnrolled) continue;
      if (member.overtaken > 0) out_.overtaken[member.endpoint.name] = member.overtaken;
    }
    finish();
    return std::move(out_);
  }

 private:
  void unfit(const Member& member, const std::string& why) {
    out_.unfit.push_back(member.endpoint);
    if (out_.unfit_why.empty()) out_.unfit_why = text_of(member.endpoint) + " " + why;
  }

  // That very refit is committed, and the owner has yet to hear it. (One that knows the commit and
  // asks for the same weights again gets another version of them.)
  bool is_committed(const Member& member, const RefitRequest& request) const {
    const TransitionRecord& last = records_.transition;
    if (last.state != AttemptState::kCommitted || request.baseline == records_.commit.id ||
        request.label != records_.commit.label) {
      return false;
    }
    return std::any_of(last.owners.begin(), last.owners.end(), [&](const OwnerBinding& owner) {
      return owner.endpoint == member.endpoint && owner.candidate == request.candidate;
    });
  }

  void read_owners() {
    for (const Member* member : bound_) {
      if (member->role != Role::kOwner) continue;
      const Result<OwnerDetails> details = decode_owner_details(member->needs);
      if (!details.ok()) {
        unfit(*member, "joined with what is no owner's: " + details.status().message());
        continue;
      }
      Owner owner{member, *details, nullptr};
      const auto asked = asked_.find(member->endpoint.name);
      const bool asks = asked != asked_.end() && asked->second.owner == member->endpoint;
      if (asks && is_committed(*member, asked->second.request)) {
        out_.ended.push_back(member->endpoint.name);
      } else if (asks) {
        owner.request = &asked->second.request;
        out_.asked = true;
        if (newest_ == nullptr || member->endpoint.incarnation > newest_->incarnation) {
          newest_ = &member->endpoint;
          source_ = *details;
        }
      }
      owners_.push_back(owner);
    }
  }

  // The source is that of the owner which began last; whoever is of another, or has been replaced
  // under another name, is left from a trainer that is gone.
  bool choose_owners() {
    if (!out_.asked) {
      out_.waits_for = "a refit";
      return false;
    }
    std::vector<const Owner*> ranks(source_.owners, nullptr);
    const auto of_source = [this](const Owner& owner) {
      return owner.details.owners == source_.owners && owner.details.catalogue == source_.catalogue;
    };
    for (const Owner& owner : owners_) {
      if (!of_source(owner)) continue;
      const Owner*& chosen = ranks[owner.details.rank];
      const auto better = [](const Owner* of) {
        return std::make_tuple(of->request != nullptr, of->member->endpoint.incarnation);
      };
      if (chosen == nullptr || better(chosen) < better(&owner)) chosen = &owner;
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank] == nullptr) {
        out_.waits_for = "an owner of rank " + std::to_string(rank) + " of " +
                         std::to_string(ranks.size()) + " to join";
        return false;
      }
      if (ranks[rank]->request == nullptr) {
        out_.waits_for = ranks[rank]->member->endpoint.name + " to ask for a refit";
        return false;
      }
      chosen_.push_back(ranks[rank]);
    }
    for (const Owner& owner : owners_) {
      if (ranks[owner.details.rank % ranks.size()] == &owner) continue;
      unfit(*owner.member, "is left from a trainer with other owners or another catalogue");
    }
    return true;
  }

  void read_receivers() {
    bool some = false;
    for (const Member* member : bound_) {
      if (member->role != Role::kReceiver) continue;
      some = some || !is_refused(member->engine);
      const Result<ReceiverDetails> details = decode_receiver_details(member->needs);
      if (!details.ok()) {
        unfit(*member, "joined with what is no receiver's: " + details.status().message());
      } else if (details->catalogue != source_.catalogue) {
        unfit(*member,
              "was prewarmed for another catalogue than the owners'; restart it with theirs");
      } else if (!add_needs(details->needs)) {
        unfit(*member, "counts other canonical tensors than receivers before it");
      } else {
        add_receiver(*member, details->node);
      }
    }
    if (some) return;
    out_.waits_for = "a receiver to join";
    for (const auto& [name, of] : refused_) {
      if (living_member(members_, of.receiver) == nullptr) continue;
      const std::string why = name + " takes no part: " + of.failure.message;
      out_.waits_for += "; " + why;
      out_.no_engine =
          failure_of({of.failure.code, "no engine can take the refit: " + why, of.failure.tensor});
      return;
    }
  }

  // An engine serves with all of its receivers or not at all.
  bool is_refused(const std::string& engine) const {
    return std::any_of(refused_.begin(), refused_.end(), [&](const auto& refused) {
      const Member* const member = living_member(members_, refused.second.receiver);
      return member != nullptr && member->engine == engine;
    });
  }

  void add_receiver(const Member& member, const std::string& node) {
    const bool fed = std::any_of(bound_.begin(), bound_.end(), [&node](const Member* other) {
      return other->role == Role::kNode && other->endpoint.name == node;
    });
    if (!fed) {
      out_.unfed.push_back(member.endpoint);
      if (out_.unfed_node.empty()) out_.unfed_node = node;
    }
    out_.prepare.receivers.push_back({member.endpoint, member.engine, node});
  }

  // No needs at all are any need of each.
  bool add_needs(const std::vector<Need>& needs) {
    std::vector<Need>& all = out_.prepare.needs;
    if (needs.empty()) {
      some_any_ = true;
      return true;
    }
    if (all.empty()) all.assign(needs.size(), Need::kSkip);
    if (all.size() != needs.size()) return false;
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = stronger(all[i], needs[i]);
    return true;
  }

  void compare_requests() {
    const Owner& first = *chosen_.front();
    for (const Owner* owner : chosen_) {
      const std::string between =
          first.member->endpoint.name + " and " + owner->member->endpoint.name;
      if (owner->request->label != first.request->label) {
        out_.refused =
            failure_of({Code::kMismatch, "owners ask for different refits: " + between +
                                             " under the labels \"" + first.request->label +
                                             "\" and \"" + owner->request->label + "\""});
        return;
      }
      if (owner->request->asynchronous != first.request->asynchronous) {
        out_.refused = failure_of({Code::kMismatch, "owners ask for different refits: of " +
                                                        between + " only one asynchronous"});
        return;
      }
    }
  }

  void finish() {
    Prepare& prepare = out_.prepare;
    prepare.label = chosen_.front()->request->label;
    prepare.asynchronous = chosen_.front()->request->asynchronous;
    for (Need& need : prepare.needs) {
      if (some_any_) need = stronger(need, Need::kAny);
    }
    for (const Owner* owner : chosen_) {
      prepare.owners.push_back({owner->member->endpoint, owner->request->candidate, false});
      out_.request.candidates.push_back({owner->member->endpoint.name, owner->request->candidate});
    }
    std::sort(out_.request.candidates.begin(), out_.request.candidates.end(),
              [](const OwnerCandidate& a, const OwnerCandidate& b) { return a.owner < b.owner; });
    out_.request.after = records_.transition.attempt;
    out_.request.members_revision = records_.members_revision;
    out_.request.base = records_.commit.id;
    out_.request.label = prepare.label;
    const bool repairs = records_.transition.dirty() && !DCR_MUTANT("retry_is_mixed");
    const bool from_nothing = std::any_of(bound_.begin(), bound_.end(), [this](const Member* one) {
      return one->role == Role::kReceiver && !has_version(*one, records_.commit.id);
    });
    if (from_nothing) DCR_PROBE("an attempt is dense for receivers without a version");
    out_.request.mode = from_nothing ? AttemptMode::kDense
                        : repairs    ? AttemptMode::kOverwrite
                                     : AttemptMode::kMixed;
    out_.request.digest = transition_digest();
  }

  // Over catalogue, converters, classifications and layouts: all that joins said.
  Digest transition_digest() const {
    Blake2b digest;
    for (const Member* member : bound_) {
      Bytes head;
      ByteWriter out(&head);
      out.u8(static_cast<std::uint8_t>(member->role));
      for (const std::string* text : {&member->endpoint.name, &member->engine}) {
        out.varint(text->size());
        out.text(*text);
      }
      out.varint(member->needs.size());
      digest.update(head);
      digest.update(member->needs);
    }
    return digest.finish();
  }

  const Membership& members_;
  const AskedRefits& asked_;
  const RefusedMembers& refused_;
  const ControlRecords& records_;
  std::vector<const Member*> bound_;
  std::vector<Owner> owners_;
  const Endpoint* newest_ = nullptr;
  OwnerDetails source_;               // of the newest
  std::vector<const Owner*> chosen_;  // by rank
  bool some_any_ = false;
  Gathered out_;
};

}  // namespace

Gathered gather_refit(const Membership& members, const AskedRefits& asked,
                      const RefusedMembers& refused) {
  return Gathering(members, asked, refused).run();
}

const Member* living_member(const Membership& members, const Endpoint& endpoint) {
  const auto row = std::lower_bound(
      members.members.begin(), members.members.end(), endpoint.name,
      [](const Member& member, const std::string& name) { return member.endpoint.name < name; });
  return row != members.members.end() && row->endpoint == endpoint ? &*row : nullptr;
}

std::vector<Endpoint> with_engines(const Membership& members, std::vector<Endpoint> endpoints) {
  std::vector<std::string> engines;
  for (const Endpoint& endpoint : endpoints) {
    const Member* const member = living_member(members, endpoint);
    if (member != nullptr && member->role == Role::kReceiver) engines.push_back(member->engine);
  }
  for (const Member& member : members.members) {
    if (member.role == Role::kReceiver &&
        std::find(engines.begin(), engines.end(), member.engine) != engines.end() &&
        std::find(endpoints.begin(), endpoints.end(), member.endpoint) == endpoints.end()) {
      endpoints.push_back(member.endpoint);
    }
  }
  return endpoints;
}

}  // namespace dcr
