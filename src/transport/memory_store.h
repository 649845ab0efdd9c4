// Objects in memory, for owners and nodes of one process.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "transport/object_store.h"

namespace dcr {

class MemoryObjectStore final : public ObjectStore {
 public:
  Status begin(const ObjectKey& key) override;
  Status put(const ObjectKey& key, ByteSpan bytes) override;
  Result<std::optional<Bytes>> get(const ObjectKey& key, std::uint64_t bytes_max) override;
  Status remove_attempts(const Digest& run, std::uint64_t attempt) override;

  // How many objects there are.
  std::size_t size();

 private:
  using Place = std::tuple<Digest, std::uint64_t, std::uint32_t>;  // run, attempt, owner
  static Place place(const ObjectKey& key) { return {key.run, key.attempt, key.owner}; }

  std::mutex mutex_;
  std::map<Place, std::map<std::string, Bytes>> places_;  // guarded by mutex_
};

}  // namespace dcr
