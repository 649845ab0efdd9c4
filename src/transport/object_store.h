// Objects under exact keys, written once: what object transports work on. A directory, memory, and
// later S3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/status.h"

namespace dcr {

// "<run>/<attempt>/<owner>/<number>", and "…/end" for an owner's end.
struct ObjectKey {
  Digest run{};
  std::uint64_t attempt = 0;
  std::uint32_t owner = 0;
  std::optional<std::uint64_t> number;  // nothing: the end

  std::string name() const { return number ? std::to_string(*number) : "end"; }
  std::string text() const {
    return digest_text(run) + "/" + std::to_string(attempt) + "/" + std::to_string(owner) + "/" +
           name();
  }
};

// Thread-safe, and safe between processes.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Makes room for the objects of key's attempt and owner. May be repeated.
  virtual Status begin(const ObjectKey& key) = 0;

  // Makes the object, whole and lasting, or not at all. One that is there with these bytes is as
  // good. Errors: kExists, it is there with other bytes; kNotFound, begin was not called or the
  // attempt was removed; kIo. REQUIRES: one writer of a key at a time.
  virtual Status put(const ObjectKey& key, ByteSpan bytes) = 0;

  // The object's bytes, or nothing if there is none. Errors: kTooLarge, kIo.
  virtual Result<std::optional<Bytes>> get(const ObjectKey& key, std::uint64_t bytes_max) = 0;

  // Removes all that attempts up to `attempt` of the run have left, unfinished objects too.
  virtual Status remove_attempts(const Digest& run, std::uint64_t attempt) = 0;
};

}  // namespace dcr
