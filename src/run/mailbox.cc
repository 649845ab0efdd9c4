#include "run/mailbox.h"

#include <utility>

#include "base/envelope.h"
#include "channel/keys.h"
#include "run/process_context.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kReceiveMs = 100;

}  // namespace

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
  DCR_ASSIGN(NamedKeys keys,
             read_key_file(posix_file_system(), join_path(keys_path(config), name + ".key")));
  options.keys = std::move(keys.keys);
  if (key_text(options.keys.public_key) != own.public_key) {
    return Status(Code::kMismatch, "the key of " + name +
                                       " is another than the configuration's: make it again with "
                                       "dcr keygen, or correct its public_key");
  }
  std::map<std::string, std::string> addresses;
  for (const PeerConfig& peer : all_peers(config)) {
    DCR_ASSIGN(const PublicKey key, parse_key(peer.public_key));
    DCR_TRY(options.peers.add(peer.name, key));
    addresses[peer.name] = peer.address;
  }
  DCR_ASSIGN(std::unique_ptr<Channel> channel, Channel::open(std::move(options)));
  return std::make_unique<Mailbox>(context.run(), name, std::move(addresses), std::move(channel));
}

Mailbox::Mailbox(const RunId& run, std::string name, std::map<std::string, std::string> addresses,
                 std::unique_ptr<Channel> channel)
    : run_(run),
      name_(std::move(name)),
      addresses_(std::move(addresses)),
      channel_(std::move(channel)) {}

Mailbox::~Mailbox() {
  stopping_ = true;
  thread_.reset();
}

void Mailbox::start(Deliver deliver) {
  thread_ = make_executor(2);
  thread_->submit([this, deliver = std::move(deliver)] { receive(deliver); });
}

void Mailbox::send(const std::string& to, std::uint64_t incarnation, const Message& message) {
  const auto address = addresses_.find(to);
  const std::uint64_t own = incarnation_;
  if (own == 0 || address == addresses_.end()) return;
  const Envelope envelope{run_, {name_, own}, {to, incarnation}};
  // Lost, as messages may be; the channel says why.
  static_cast<void>(channel_->send(address->second, envelope, encode_message(message)));
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
    if (!message.ok()) continue;
    deliver(envelope.sender, std::move(message).value());
  }
}

}  // namespace dcr
