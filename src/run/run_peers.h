// Who takes part in a run: names with addresses, roles and keys. A configuration lists them all; in
// a run directory they come and go.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "channel/keys.h"
#include "dcr/status.h"
#include "protocol/senders.h"
#include "run/run_config.h"

namespace dcr {

// Somebody whom an endpoint may hear from.
struct RunPeer {
  std::string address;
  SenderRole role;
  PublicKey key{};
};

class RunPeers : public PeerKeys {
 public:
  virtual std::optional<RunPeer> find(const std::string& name) const = 0;

  std::optional<PublicKey> key_of(const std::string& name) const override {
    const std::optional<RunPeer> peer = find(name);
    return peer ? std::optional(peer->key) : std::nullopt;
  }
};

// Changed by nobody once it is shared.
class ListedPeers final : public RunPeers {
 public:
  // Errors: AllowList's.
  Status add(const std::string& name, RunPeer peer);

  std::optional<RunPeer> find(const std::string& name) const override;
  std::optional<std::string> name_of(const PublicKey& key) const override {
    return keys_.name_of(key);
  }
  std::size_t size() const override { return keys_.size(); }

 private:
  AllowList keys_;
  std::map<std::string, RunPeer> peers_;
};

// Those of a configuration. Error kInvalidArgument: keys that are none, or of two endpoints.
Result<std::shared_ptr<const RunPeers>> listed_peers(const RunConfig& config);

// Those whose files lie in a folder that only the run's user may write to: "NAME ROLE KEY" in a
// line, ROLE as role_name() or "operator". Names keep their keys for as long as the run lasts, so
// that what was read once holds.
class DirectoryPeers final : public RunPeers {
 public:
  // `directory` exists; sockets lie in `sockets`.
  DirectoryPeers(std::string directory, std::string sockets)
      : directory_(std::move(directory)), sockets_(std::move(sockets)) {}

  // Makes a peer known to all who look. Errors: kIo; kMismatch, the name has another key or role.
  Status publish(const std::string& name, const SenderRole& role, const PublicKey& key);
  // Where an endpoint of this name listens.
  std::string address_of(const std::string& name) const;

  std::optional<RunPeer> find(const std::string& name) const override;
  std::optional<std::string> name_of(const PublicKey& key) const override;
  std::size_t size() const override { return kPeersMax; }

 private:
  // Connections that one endpoint may have at a time.
  static constexpr std::size_t kPeersMax = 1024;

  std::optional<RunPeer> find_locked(const std::string& name) const;

  const std::string directory_, sockets_;
  mutable std::mutex mutex_;
  // What was read, and which name a key is of. Guarded by mutex_.
  mutable std::map<std::string, RunPeer> read_;
  mutable std::map<PublicKey, std::string> names_;
};

}  // namespace dcr
