#include "run/run_peers.h"

#include <utility>
#include <vector>

#include "base/endpoint_name.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kPeerFileBytesMax = 256;
constexpr std::uint32_t kPeerFilePermissions = 0600;
constexpr std::string_view kOperator = "operator";
constexpr Role kRoles[] = {Role::kCoordinator, Role::kOwner, Role::kNode, Role::kReceiver,
                           Role::kGate};

std::string role_text(const SenderRole& role) {
  return std::string(role.is_operator ? kOperator : role_name(role.role));
}

std::optional<SenderRole> role_of(std::string_view text) {
  if (text == kOperator) return SenderRole{Role::kCoordinator, true};
  for (const Role role : kRoles) {
    if (text == role_name(role)) return SenderRole{role, false};
  }
  return std::nullopt;
}

std::string peer_line(const std::string& name, const SenderRole& role, const PublicKey& key) {
  return name + " " + role_text(role) + " " + key_text(key) + "\n";
}

// What a peer's file says, or nothing if it is no peer's.
std::optional<RunPeer> parse_peer(std::string_view line, const std::string& name) {
  const std::size_t first = line.find(' ');
  const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || !line.ends_with('\n')) return std::nullopt;
  const std::optional<SenderRole> role = role_of(line.substr(first + 1, second - first - 1));
  const Result<PublicKey> key = parse_key(line.substr(second + 1, line.size() - second - 2));
  if (line.substr(0, first) != name || !role || !key.ok()) return std::nullopt;
  return RunPeer{{}, *role, *key};
}

}  // namespace

Status ListedPeers::add(const std::string& name, RunPeer peer) {
  DCR_TRY(keys_.add(name, peer.key));
  peers_.emplace(name, std::move(peer));
  return {};
}

std::optional<RunPeer> ListedPeers::find(const std::string& name) const {
  const auto found = peers_.find(name);
  return found == peers_.end() ? std::nullopt : std::optional(found->second);
}

Result<std::shared_ptr<const RunPeers>> listed_peers(const RunConfig& config) {
  auto peers = std::make_shared<ListedPeers>();
  const auto add = [&](const PeerConfig& peer, const SenderRole& role) -> Status {
    const Result<PublicKey> key = parse_key(peer.public_key);
    if (!key.ok()) return key.status().with_context(peer.name);
    return peers->add(peer.name, {peer.address, role, *key});
  };
  const auto add_all = [&](const std::vector<PeerConfig>& all, const SenderRole& role) -> Status {
    for (const PeerConfig& peer : all) DCR_TRY(add(peer, role));
    return {};
  };
  DCR_TRY(add_all(config.coordinators, {Role::kCoordinator}));
  DCR_TRY(add_all(config.owner_peers, {Role::kOwner}));
  DCR_TRY(add_all(config.nodes, {Role::kNode}));
  for (const EngineConfig& engine : config.engines) {
    DCR_TRY(add(engine.gate, {Role::kGate}));
    DCR_TRY(add_all(engine.receivers, {Role::kReceiver}));
  }
  DCR_TRY(add_all(config.operators, {Role::kCoordinator, true}));
  return std::shared_ptr<const RunPeers>(std::move(peers));
}

std::string DirectoryPeers::address_of(const std::string& name) const {
  return "ipc://" + join_path(sockets_, name + ".socket");
}

Status DirectoryPeers::publish(const std::string& name, const SenderRole& role,
                               const PublicKey& key) {
  if (const std::optional<RunPeer> known = find(name)) {
    if (known->key == key && role_text(known->role) == role_text(role)) return {};
    return {Code::kMismatch, name + " is known in this run as " + role_text(known->role) +
                                 (known->key == key ? "" : " and under another key") +
                                 ": name this endpoint otherwise"};
  }
  if (name.ends_with(".partial")) {
    return {Code::kInvalidArgument, name +
                                        ": a name that ends so is what files are called while "
                                        "they are written; take another"};
  }
  const std::string line = peer_line(name, role, key);
  return replace_file(posix_file_system(), join_path(directory_, name),
                      {reinterpret_cast<const std::uint8_t*>(line.data()), line.size()},
                      kPeerFilePermissions);
}

std::optional<RunPeer> DirectoryPeers::find(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return find_locked(name);
}

std::optional<RunPeer> DirectoryPeers::find_locked(const std::string& name) const {
  const auto known = read_.find(name);
  if (known != read_.end()) return known->second;
  if (!check_endpoint_name(name).ok()) return std::nullopt;
  const Result<Bytes> bytes =
      read_file(posix_file_system(), join_path(directory_, name), kPeerFileBytesMax);
  if (!bytes.ok()) return std::nullopt;
  std::optional<RunPeer> peer =
      parse_peer({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, name);
  if (!peer || !names_.emplace(peer->key, name).second) return std::nullopt;
  peer->address = address_of(name);
  return read_.emplace(name, std::move(*peer)).first->second;
}

std::optional<std::string> DirectoryPeers::name_of(const PublicKey& key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = names_.find(key);
  if (known != names_.end()) return known->second;
  // Somebody who came since.
  const auto entries = posix_file_system().list(directory_);
  if (!entries.ok()) return std::nullopt;
  for (const DirectoryEntry& entry : *entries) {
    const std::optional<RunPeer> peer = find_locked(entry.name);
    if (peer && peer->key == key) return entry.name;
  }
  return std::nullopt;
}

}  // namespace dcr
