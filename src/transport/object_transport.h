// Transport over an object store, both sides.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "dcr/transport.h"
#include "transport/object_store.h"

namespace dcr {

struct ObjectTransportOptions {
  Digest run{};
  std::uint32_t owners = 1;
  Bytes key;  // of the run, for digests: empty, or 16 to 64 bytes
};

class ObjectOwnerTransport final : public OwnerTransport {
 public:
  // `store` must outlive this. REQUIRES: owner < options.owners.
  ObjectOwnerTransport(ObjectStore& store, ObjectTransportOptions options, std::uint32_t owner);

  Status begin(std::uint64_t attempt) override;
  Status send(std::uint64_t attempt, std::uint64_t number, ByteSpan bytes,
              const Digest& digest) override;
  Status end(std::uint64_t attempt) override;
  Status stop_and_wait(std::uint64_t attempt) override;
  Status cleanup(std::uint64_t attempt) override;

 private:
  ObjectKey key(std::uint64_t attempt, std::optional<std::uint64_t> number) const;
  Status check_current(std::uint64_t attempt) const;
  Status check_repeat(std::uint64_t number, ByteSpan bytes, const Digest& digest) const;
  void stop(std::uint64_t attempt);

  ObjectStore& store_;
  const ObjectTransportOptions options_;
  const std::uint32_t owner_;

  std::mutex mutex_;  // held while something is sent: whoever stops an attempt waits for it
  // All below are guarded by mutex_.
  std::uint64_t current_ = 0;  // 0: none
  std::uint64_t fence_ = 0;    // the last attempt that was begun or stopped
  bool ended_ = false;
  AttemptEnd sent_;  // of the current attempt
};

class ObjectNodeTransport final : public NodeTransport {
 public:
  // `store` must outlive this.
  ObjectNodeTransport(ObjectStore& store, ObjectTransportOptions options);

  Result<std::optional<AttemptEnd>> receive_end(std::uint64_t attempt,
                                                std::uint32_t owner) override;
  Result<std::optional<Bytes>> receive(std::uint64_t attempt, std::uint32_t owner,
                                       std::uint64_t number, std::uint64_t bytes_max) override;

 private:
  Status check_owner(std::uint32_t owner) const;

  ObjectStore& store_;
  const ObjectTransportOptions options_;
};

}  // namespace dcr
