#include "receiver/staging.h"

#include <algorithm>
#include <utility>

#include "base/mutant.h"

namespace dcr {

namespace {

std::string payload_text(std::uint64_t number, std::uint32_t owner) {
  return "payload " + std::to_string(number) + " of owner " + std::to_string(owner);
}

}  // namespace

void Staging::begin(std::uint32_t owners) {
  ends_.assign(owners, std::nullopt);
  beyond_.assign(owners, 0);
  seen_.clear();
  if (!DCR_MUTANT("staging_keeps_payloads")) waiting_.clear();
  bytes_ = 0;
  number_ = 0;
  owner_ = 0;
  complete_ = owners == 0;
}

bool Staging::has_room(std::uint64_t order, std::uint64_t bytes) const {
  if (order == next_order()) return true;
  return waiting_.size() + 1 < kStagingSlots && bytes <= bytes_max_ - std::min(bytes_, bytes_max_);
}

Result<Ingested> Staging::classify(const DecodedPayload& payload) const {
  const PayloadHeader& header = payload.header;
  const std::string name = payload_text(header.number, header.owner);
  const auto seen = seen_.find(header.order());
  if (seen != seen_.end()) {
    if (digest_equal(seen->second, payload.digest)) return Ingested::kDuplicate;
    return Status(Code::kMismatch, name + " came twice with other bytes: digests " +
                                       digest_text(seen->second) + " and " +
                                       digest_text(payload.digest));
  }
  const std::optional<std::uint64_t>& end = ends_[header.owner];
  if (end && header.number >= *end) {
    return Status(Code::kMismatch,
                  name + " is past the " + std::to_string(*end) + " that it announced");
  }
  return has_room(header.order(), payload.bytes) ? Ingested::kQueued : Ingested::kFull;
}

void Staging::push(std::shared_ptr<const DecodedPayload> payload) {
  const PayloadHeader& header = payload->header;
  seen_.emplace(header.order(), payload->digest);
  beyond_[header.owner] = std::max(beyond_[header.owner], header.number + 1);
  bytes_ += payload->bytes;
  waiting_.emplace(header.order(), std::move(payload));
}

Status Staging::end_of_owner(std::uint32_t owner, std::uint64_t payloads) {
  if (owner >= ends_.size()) {
    return Status(Code::kMismatch, "the end of owner " + std::to_string(owner) + " of " +
                                       std::to_string(ends_.size()));
  }
  if (ends_[owner] && *ends_[owner] != payloads) {
    return Status(Code::kMismatch, "owner " + std::to_string(owner) + " announced " +
                                       std::to_string(*ends_[owner]) + " payloads and then " +
                                       std::to_string(payloads));
  }
  if (beyond_[owner] > payloads) {
    return Status(Code::kMismatch, payload_text(beyond_[owner] - 1, owner) + " is past the " +
                                       std::to_string(payloads) + " that it announced");
  }
  ends_[owner] = payloads;
  advance();
  return {};
}

// Passes over the turns of owners that have no more payloads.
void Staging::advance() {
  const auto over = [this](std::size_t owner) { return ends_[owner] && number_ >= *ends_[owner]; };
  std::size_t passed = 0;
  while (!complete_ && over(owner_)) {
    if (++passed > ends_.size()) {  // all owners are over at this number or the one before it
      complete_ = true;
      return;
    }
    if (++owner_ == ends_.size()) {
      owner_ = 0;
      ++number_;
    }
  }
}

std::shared_ptr<const DecodedPayload> Staging::pop() {
  if (complete_ || waiting_.empty() || waiting_.begin()->first != next_order()) return nullptr;
  std::shared_ptr<const DecodedPayload> payload = std::move(waiting_.begin()->second);
  waiting_.erase(waiting_.begin());
  bytes_ -= payload->bytes;
  if (++owner_ == ends_.size()) {
    owner_ = 0;
    ++number_;
  }
  advance();
  return payload;
}

std::string Staging::missing() const {
  if (ends_[owner_]) return payload_text(number_, owner_);
  return payload_text(number_, owner_) + ", or its end";
}

}  // namespace dcr
