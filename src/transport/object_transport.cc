#include "transport/object_transport.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/mutant.h"
#include "transport/end_object.h"

namespace dcr {
namespace {

// Every failure of a store that a caller may repeat stays what it is; that the attempt is gone, or
// that another object is in the way, ends the attempt.
Status as_conflict(const Status& status) {
  if (status.code() != Code::kNotFound && status.code() != Code::kExists) return status;
  return {Code::kConflict, status.message()};
}

}  // namespace

ObjectOwnerTransport::ObjectOwnerTransport(ObjectStore& store, ObjectTransportOptions options,
                                           std::uint32_t owner)
    : store_(store), options_(std::move(options)), owner_(owner) {
  DCR_ASSERT(owner_ < options_.owners);
}

ObjectKey ObjectOwnerTransport::key(std::uint64_t attempt,
                                    std::optional<std::uint64_t> number) const {
  return {options_.run, attempt, owner_, number};
}

Status ObjectOwnerTransport::check_current(std::uint64_t attempt) const {
  if (attempt != 0 && attempt == current_) return {};
  return {Code::kConflict,
          "owner " + std::to_string(owner_) + " cannot send in attempt " + std::to_string(attempt) +
              (current_ == 0 ? ": no attempt is current"
                             : ": attempt " + std::to_string(current_) + " is the current one")};
}

Status ObjectOwnerTransport::begin(std::uint64_t attempt) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (attempt == 0 || attempt != current_) {
    if (attempt <= fence_) {
      return {Code::kConflict, "owner " + std::to_string(owner_) + " cannot begin attempt " +
                                   std::to_string(attempt) + ": attempt " + std::to_string(fence_) +
                                   " was begun or stopped"};
    }
    stop(attempt);
    current_ = attempt;
  }
  return as_conflict(store_.begin(key(attempt, std::nullopt)));
}

Status ObjectOwnerTransport::check_repeat(std::uint64_t number, ByteSpan bytes,
                                          const Digest& digest) const {
  const PayloadEntry& before = sent_.payloads[static_cast<std::size_t>(number)];
  if (before == PayloadEntry{bytes.size(), digest}) return {};
  return {Code::kConflict, "payload " + std::to_string(number) + " of owner " +
                               std::to_string(owner_) + " was sent with digest " +
                               digest_text(before.digest) + " and " + std::to_string(before.bytes) +
                               " bytes; now it has digest " + digest_text(digest) + " and " +
                               std::to_string(bytes.size()) + " bytes"};
}

Status ObjectOwnerTransport::send(std::uint64_t attempt, std::uint64_t number, ByteSpan bytes,
                                  const Digest& digest) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DCR_TRY(check_current(attempt));
  if (number < sent_.payloads.size()) return check_repeat(number, bytes, digest);
  if (ended_) {
    return {Code::kConflict, "owner " + std::to_string(owner_) + " has ended attempt " +
                                 std::to_string(attempt) + " and cannot send payload " +
                                 std::to_string(number)};
  }
  if (number != sent_.payloads.size() || number >= kPayloadsPerOwnerMax) {
    return {Code::kInvalidArgument,
            "payload " + std::to_string(number) + " of owner " + std::to_string(owner_) +
                " is not the next one, " + std::to_string(sent_.payloads.size()) +
                ", or more than the limit of " + std::to_string(kPayloadsPerOwnerMax)};
  }
  DCR_TRY(as_conflict(store_.put(key(attempt, number), bytes)));
  sent_.payloads.push_back({bytes.size(), digest});
  return {};
}

Status ObjectOwnerTransport::end(std::uint64_t attempt) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DCR_TRY(check_current(attempt));
  // No payload follows, also if this comes to nothing: it may have been written.
  ended_ = true;
  if (DCR_MUTANT("end_forgets_payload") && !sent_.payloads.empty()) sent_.payloads.pop_back();
  const EndPlace place{options_.run, attempt, owner_, options_.owners};
  return as_conflict(
      store_.put(key(attempt, std::nullopt), encode_end(place, sent_, options_.key)));
}

void ObjectOwnerTransport::stop(std::uint64_t attempt) {
  fence_ = std::max(fence_, attempt);
  if (current_ > attempt) return;
  current_ = 0;
  ended_ = false;
  sent_ = {};
}

Status ObjectOwnerTransport::stop_and_wait(std::uint64_t attempt) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stop(attempt);
  return {};
}

Status ObjectOwnerTransport::cleanup(std::uint64_t attempt) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stop(attempt);
  if (DCR_MUTANT("cleanup_leaves_attempt")) --attempt;
  return store_.remove_attempts(options_.run, attempt);
}

ObjectNodeTransport::ObjectNodeTransport(ObjectStore& store, ObjectTransportOptions options)
    : store_(store), options_(std::move(options)) {}

Status ObjectNodeTransport::check_owner(std::uint32_t owner) const {
  if (owner < options_.owners) return {};
  return {Code::kInvalidArgument, "there is no owner " + std::to_string(owner) + " among " +
                                      std::to_string(options_.owners)};
}

Result<std::optional<AttemptEnd>> ObjectNodeTransport::receive_end(std::uint64_t attempt,
                                                                   std::uint32_t owner) {
  DCR_TRY(check_owner(owner));
  DCR_ASSIGN(const std::optional<Bytes> bytes,
             store_.get({options_.run, attempt, owner, std::nullopt}, kEndBytesMax));
  if (!bytes) return std::optional<AttemptEnd>();
  DCR_ASSIGN(AttemptEnd end,
             decode_end({options_.run, attempt, owner, options_.owners}, *bytes, options_.key));
  return std::optional<AttemptEnd>(std::move(end));
}

Result<std::optional<Bytes>> ObjectNodeTransport::receive(std::uint64_t attempt,
                                                          std::uint32_t owner, std::uint64_t number,
                                                          std::uint64_t bytes_max) {
  DCR_TRY(check_owner(owner));
  return store_.get({options_.run, attempt, owner, number}, bytes_max);
}

}  // namespace dcr
