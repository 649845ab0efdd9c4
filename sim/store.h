// The object store of a simulated world: refuses, forgets that it stored, shows objects late, and
// hands out other bytes than it was given.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "sim/schedule.h"
#include "transport/memory_store.h"
#include "transport/object_store.h"

namespace dcr {

class World;

class SimStore final : public ObjectStore {
 public:
  explicit SimStore(World& world) : world_(world) {}

  Status begin(const ObjectKey& key) override;
  Status put(const ObjectKey& key, ByteSpan bytes) override;
  Result<std::optional<Bytes>> get(const ObjectKey& key, std::uint64_t bytes_max) override;
  Status remove_attempts(const Digest& run, std::uint64_t attempt) override;

  std::size_t objects() { return memory_.size(); }
  // Whoever runs it has mended it.
  void heal() {
    late_.clear();
    damaged_.clear();
  }

 private:
  void damage(const ObjectKey& key, Bytes* bytes);

  World& world_;
  MemoryObjectStore memory_;
  std::map<std::string, Microseconds> late_;  // when they can be seen
  std::set<std::string> damaged_;             // for good
};

}  // namespace dcr
