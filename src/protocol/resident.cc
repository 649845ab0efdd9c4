#include "protocol/resident.h"

#include <algorithm>

namespace dcr {
namespace {

const WrittenCandidate* find(const std::vector<WrittenCandidate>& written,
                             const std::string& owner) {
  for (const WrittenCandidate& each : written) {
    if (each.owner == owner) return &each;
  }
  return nullptr;
}

}  // namespace

std::string version_text(VersionId version) {
  return "version " + std::to_string(version.version) + " of attempt " +
         std::to_string(version.baseline);
}

bool brings_all(AttemptMode mode, const std::vector<OwnerBinding>& owners) {
  return mode == AttemptMode::kDense ||
         std::all_of(owners.begin(), owners.end(),
                     [](const OwnerBinding& owner) { return owner.dense; });
}

void Resident::set_whole(VersionId version) {
  *this = Resident();
  base_ = version;
}

void Resident::set_unknown() { *this = Resident(); }

void Resident::begin_writing(VersionId base, const std::vector<OwnerBinding>& owners) {
  // Whole, or mixed over another version: the attempt was dense, and if it ends early nobody knows
  // what is there.
  if (base_ != base) return set_unknown();
  const bool first = !mixed_;
  mixed_ = true;
  for (const OwnerBinding& owner : owners) {
    const auto place = std::find_if(
        written_.begin(), written_.end(),
        [&](const WrittenCandidate& each) { return each.owner >= owner.endpoint.name; });
    if (place == written_.end() || place->owner != owner.endpoint.name) {
      // An owner that earlier attempts did not have: what it owns was another's.
      written_.insert(place, {owner.endpoint.name, first ? owner.candidate : Candidate{}});
    } else if (place->candidate != owner.candidate) {
      place->candidate = {};
    }
  }
}

Status Resident::check(const Prepare& prepare) const {
  if (brings_all(prepare.mode, prepare.owners) || whole() == prepare.base) return {};
  if (base_ == prepare.base) return check_repair(prepare);
  return {Code::kMismatch, "the receiver holds " + text() + ", but attempt " +
                               std::to_string(prepare.attempt) + " changes " +
                               version_text(prepare.base) +
                               ": it needs a dense attempt, or a restore"};
}

// A mixture over the attempt's base: exact where each owner sends again all that may have changed.
Status Resident::check_repair(const Prepare& prepare) const {
  const std::string holds = "the receiver holds " + text() + ", which attempt " +
                            std::to_string(prepare.attempt) + " does not repair: ";
  if (prepare.mode == AttemptMode::kMixed) {
    return {Code::kMismatch, holds + "it is mixed, not overwrite or dense"};
  }
  const std::string* changed = nullptr;
  for (const OwnerBinding& owner : prepare.owners) {
    const WrittenCandidate* const earlier = find(written_, owner.endpoint.name);
    const bool same = earlier != nullptr && earlier->candidate.incarnation != 0 &&
                      earlier->candidate == owner.candidate;
    if (!same && !owner.dense) changed = &owner.endpoint.name;
  }
  for (const WrittenCandidate& earlier : written_) {
    const bool still = std::any_of(
        prepare.owners.begin(), prepare.owners.end(),
        [&](const OwnerBinding& owner) { return owner.endpoint.name == earlier.owner; });
    if (!still) changed = &earlier.owner;
  }
  if (changed == nullptr) return {};
  return {Code::kMismatch, holds + *changed + " wrote other weights and does not send all"};
}

std::string Resident::text() const {
  if (!base_) return "unknown bits";
  return (mixed_ ? "a mixture over " : "") + version_text(*base_);
}

}  // namespace dcr
