#include "run/mailbox.h"

#include <utility>

#include "base/envelope.h"
#include "channel/keys.h"
#include "run/process_context.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kReceiveMs = 100;

std::map<std::string, SenderRole> roles_of(const RunConfig& config) {
  std::map<std::string, SenderRole> roles;
  const auto add = [&roles](const std::vector<PeerConfig>& peers, SenderRole role) {
    for (const PeerConfig& peer : peers) roles[peer.name] = role;
  };
  add(config.coordinators, {Role::kCoordinator});
  add(config.owner_peers, {Role::kOwner});
  add(config.nodes, {Role::kNode});
  for (const EngineConfig& engine : config.engines) {
    add({engine.gate}, {Role::kGate});
    add(engine.receivers, {Role::kReceiver});
  }
  add(config.operators, {Role::kCoordinator, true});
  return roles;
}

}  // namespace

Result<KeyPair> endpoint_keys(const RunConfig& config, const PeerConfig& own) {
  DCR_ASSIGN(NamedKeys keys,
             read_key_file(posix_file_system(), join_path(keys_path(config), own.name + ".key")));
  if (key_text(keys.keys.public_key) != own.public_key) {
    return Status(Code::kMismatch, "the key of " + own.name +
                                       " is another than the configuration's: make it again with "
                                       "dcr keygen, or correct its public_key");
  }
  return std::move(keys.keys);
}

Result<std::unique_ptr<Mailbox>> Mailbox::open(ProcessContext& context, const std::string& name) {
  const RunConfig& config = context.config();
  DCR_ASSIGN(const PeerConfig own, find_peer(config, name));
  ChannelOptions options;
  options.name = name;
  options.listen = own.address;
  options.clock = context.options().clock;
  options.report = [log = context.options().log, name](const Status& status) {
    log(name, status.message());
  };
  DCR_ASSIGN(options.keys, endpoint_keys(config, own));
  const std::map<std::string, SenderRole> roles = roles_of(config);
  std::map<std::string, MailboxPeer> peers;
  for (const PeerConfig& peer : all_peers(config)) {
    DCR_ASSIGN(const PublicKey key, parse_key(peer.public_key));
    DCR_TRY(options.peers.add(peer.name, key));
    peers[peer.name] = {peer.address, roles.at(peer.name)};
  }
  auto refused = [log = context.options().log, name](const std::string& text) { log(name, text); };
  DCR_ASSIGN(std::unique_ptr<Channel> channel, Channel::open(std::move(options)));
  return std::make_unique<Mailbox>(context.run(), name, std::move(peers), std::move(channel),
                                   std::move(refused));
}

Mailbox::Mailbox(const RunId& run, std::string name, std::map<std::string, MailboxPeer> peers,
                 std::unique_ptr<Channel> channel,
                 std::function<void(const std::string& text)> refused)
    : run_(run),
      name_(std::move(name)),
      peers_(std::move(peers)),
      channel_(std::move(channel)),
      refused_(std::move(refused)) {}

Mailbox::~Mailbox() {
  stopping_ = true;
  thread_.reset();
}

void Mailbox::start(Deliver deliver) {
  thread_ = make_executor(2);
  thread_->submit([this, deliver = std::move(deliver)] { receive(deliver); });
}

void Mailbox::send(const std::string& to, std::uint64_t incarnation, const Message& message) {
  const auto peer = peers_.find(to);
  const std::uint64_t own = incarnation_;
  if (own == 0 || peer == peers_.end()) return;
  const Envelope envelope{run_, {name_, own}, {to, incarnation}};
  // Lost, as messages may be; the channel says why.
  static_cast<void>(channel_->send(peer->second.address, envelope, encode_message(message)));
}

// A key on the list is one endpoint's, and speaks in its role only.
bool Mailbox::is_theirs(const std::string& sender, const Message& message) {
  const auto peer = peers_.find(sender);
  if (peer != peers_.end() && may_send(peer->second.role, message)) return true;
  const std::string text =
      "dropped what " + sender + " sent: " + message_name(message) + " is not its to say";
  if (told_.insert(text).second) refused_(text);
  return false;
}

void Mailbox::receive(const Deliver& deliver) {
  while (!stopping_) {
    auto received = channel_->receive(kReceiveMs);
    if (!received) continue;
    const Envelope& envelope = received->envelope;
    const std::uint64_t addressee = envelope.addressee.incarnation;
    const std::uint64_t own = incarnation_;
    if (envelope.run != run_ || own == 0 || (addressee != 0 && addressee != own)) continue;
    Result<Message> message = decode_message(received->body);
    // Only a peer with a changed or another version's program sends such.
    if (!message.ok() || !is_theirs(envelope.sender.name, *message)) continue;
    deliver(envelope.sender, std::move(message).value());
  }
}

}  // namespace dcr
