#include "transport/memory_store.h"

#include <algorithm>

namespace dcr {

Status MemoryObjectStore::begin(const ObjectKey& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  places_.try_emplace(place(key));
  return {};
}

Status MemoryObjectStore::put(const ObjectKey& key, ByteSpan bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = places_.find(place(key));
  if (found == places_.end()) {
    return {Code::kNotFound, "cannot write object " + key.text() + ": its attempt is not there"};
  }
  const auto [object, made] = found->second.try_emplace(key.name(), bytes.begin(), bytes.end());
  if (made ||
      std::equal(bytes.begin(), bytes.end(), object->second.begin(), object->second.end())) {
    return {};
  }
  return {Code::kExists, "object " + key.text() + " is there with other bytes"};
}

Result<std::optional<Bytes>> MemoryObjectStore::get(const ObjectKey& key, std::uint64_t bytes_max) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = places_.find(place(key));
  if (found == places_.end()) return std::optional<Bytes>();
  const auto object = found->second.find(key.name());
  if (object == found->second.end()) return std::optional<Bytes>();
  if (object->second.size() > bytes_max) {
    return Status(Code::kTooLarge,
                  "object " + key.text() + " has " + std::to_string(object->second.size()) +
                      " bytes, more than the limit of " + std::to_string(bytes_max));
  }
  return std::optional<Bytes>(object->second);
}

Status MemoryObjectStore::remove_attempts(const Digest& run, std::uint64_t attempt) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(places_, [&](const auto& entry) {
    return std::get<0>(entry.first) == run && std::get<1>(entry.first) <= attempt;
  });
  return {};
}

std::size_t MemoryObjectStore::size() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t count = 0;
  for (const auto& [where, objects] : places_) count += objects.size();
  return count;
}

}  // namespace dcr
