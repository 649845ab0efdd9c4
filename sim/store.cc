#include "sim/store.h"

#include <utility>

#include "sim/world.h"

namespace dcr {
namespace {

Status refused() { return {Code::kIo, "the store failed"}; }

}  // namespace

Status SimStore::begin(const ObjectKey& key) {
  if (world_.fault(world_.swarm().store_refuses, "store refuses to begin")) return refused();
  return memory_.begin(key);
}

Status SimStore::put(const ObjectKey& key, ByteSpan bytes) {
  const bool refuses = world_.fault(world_.swarm().store_refuses, "store refuses an object");
  if (refuses && world_.prng().below(2) == 0) return refused();
  if (world_.fault(world_.swarm().store_late, "object seen late")) {
    late_[key.text()] = world_.schedule().now() + world_.prng().below(500'000);
  }
  if (world_.fault(world_.swarm().store_corrupts / 2, "object damaged for good")) {
    damaged_.insert(key.text());
  }
  const Status status = memory_.put(key, bytes);
  return refuses && status.ok() ? refused() : status;
}

void SimStore::damage(const ObjectKey& key, Bytes* bytes) {
  const bool for_good = !damaged_.empty() && damaged_.contains(key.text());
  if (bytes->empty()) return;
  if (for_good || world_.fault(world_.swarm().store_corrupts, "object damaged on its way")) {
    // Damage for good is the same every time.
    const std::uint64_t where = for_good ? bytes->size() / 2 : world_.prng().below(bytes->size());
    (*bytes)[static_cast<std::size_t>(where)] ^= std::uint8_t{1} << (where % 8);
  }
  if (world_.fault(world_.swarm().store_tears, "object torn on its way")) {
    bytes->resize(static_cast<std::size_t>(world_.prng().below(bytes->size())));
  }
}

Result<std::optional<Bytes>> SimStore::get(const ObjectKey& key, std::uint64_t bytes_max) {
  if (world_.fault(world_.swarm().store_refuses, "store refuses to give")) return refused();
  if (!late_.empty()) {
    const auto late = late_.find(key.text());
    if (late != late_.end() && world_.schedule().now() < late->second) {
      return std::optional<Bytes>();
    }
  }
  Result<std::optional<Bytes>> got = memory_.get(key, bytes_max);
  if (got.ok() && *got) damage(key, &**got);
  if (got.ok() && world_.hooks().object) world_.hooks().object(key, &*got);
  return got;
}

Status SimStore::remove_attempts(const Digest& run, std::uint64_t attempt) {
  const bool refuses = world_.fault(world_.swarm().store_refuses, "store refuses to remove");
  if (refuses && world_.prng().below(2) == 0) return refused();
  const Status status = memory_.remove_attempts(run, attempt);
  return refuses && status.ok() ? refused() : status;
}

}  // namespace dcr
