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

Result<KeyPair> endpoint_keys(const RunConfig& config, const std::string& name,
                              const PublicKey& known) {
  DCR_ASSIGN(NamedKeys keys,
             read_key_file(posix_file_system(), join_path(keys_path(config), name + ".key")));
  if (keys.keys.public_key != known) {
    return Status(Code::kMismatch, "the key of " + name +
                                       " is another than the configuration's: make it again with "
                                       "dcr keygen, or correct its public_key");
  }
  return std::move(keys.keys);
}

Result<std::unique_ptr<Mailbox>> Mailbox::open(ProcessContext& context, const std::string& name) {
  const std::optional<RunPeer> own = context.peers()->find(name);
  // A configuration knows which name was meant.
  if (!own) return find_peer(context.config(), name).status();
  ChannelOptions options;
  options.name = name;
  options.listen = own->address;
  options.clock = context.options().clock;
  options.report = [log = context.options().log, name](const Status& status) {
    log(name, status.message());
  };
  DCR_ASSIGN(options.keys, endpoint_keys(context.config(), name, own->key));
  options.peers = context.peers();
  auto refused = [log = context.options().log, name](const std::string& text) { log(name, text); };
  DCR_ASSIGN(std::unique_ptr<Channel> channel, Channel::open(std::move(options)));
  return std::make_unique<Mailbox>(context.run(), name, context.peers(), std::move(channel),
                                   context.inboxes(), std::move(refused));
}

Inbox::Inbox(const RunId& run, std::shared_ptr<const RunPeers> senders,
             std::function<void(const std::string& text)> refused)
    : run_(run), senders_(std::move(senders)), refused_(std::move(refused)) {}

void Inbox::open(Deliver deliver) {
  const std::lock_guard<std::mutex> lock(mutex_);
  deliver_ = std::move(deliver);
}

void Inbox::close() { open(nullptr); }

bool Inbox::is_mine(const Envelope& envelope) const {
  const std::uint64_t addressee = envelope.addressee.incarnation;
  const std::uint64_t own = incarnation_;
  return envelope.run == run_ && own != 0 && (addressee == 0 || addressee == own);
}

// A key on the list is one endpoint's, and speaks in its role only.
bool Inbox::is_theirs(const std::string& sender, const Message& message) {
  const std::optional<RunPeer> peer = senders_->find(sender);
  if (peer && may_send(peer->role, message)) return true;
  const std::string text =
      "dropped what " + sender + " sent: " + message_name(message) + " is not its to say";
  if (told_.insert(text).second) refused_(text);
  return false;
}

void Inbox::take(const Envelope& envelope, Message message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!deliver_ || !is_mine(envelope) || !is_theirs(envelope.sender.name, message)) return;
  deliver_(envelope.sender, std::move(message));
}

std::shared_ptr<Inbox> Inboxes::find(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = inboxes_.find(name);
  return found == inboxes_.end() ? nullptr : found->second;
}

void Inboxes::add(const std::string& name, std::shared_ptr<Inbox> inbox) {
  const std::lock_guard<std::mutex> lock(mutex_);
  inboxes_[name] = std::move(inbox);
}

void Inboxes::remove(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  inboxes_.erase(name);
}

Mailbox::Mailbox(const RunId& run, std::string name, std::shared_ptr<const RunPeers> peers,
                 std::unique_ptr<Channel> channel, Inboxes& inboxes,
                 std::function<void(const std::string& text)> refused)
    : run_(run),
      name_(std::move(name)),
      peers_(std::move(peers)),
      channel_(std::move(channel)),
      inboxes_(inboxes),
      inbox_(std::make_shared<Inbox>(run, peers_, std::move(refused))) {
  inboxes_.add(name_, inbox_);
}

Mailbox::~Mailbox() {
  inboxes_.remove(name_);
  inbox_->close();
  stopping_ = true;
  thread_.reset();
}

void Mailbox::start(Deliver deliver) {
  inbox_->open(std::move(deliver));
  thread_ = make_executor(2);
  thread_->submit([this] { receive(); });
}

void Mailbox::send(const std::string& to, std::uint64_t incarnation, const Message& message) {
  const std::uint64_t own = inbox_->incarnation();
  if (own == 0) return;
  const Envelope envelope{run_, {name_, own}, {to, incarnation}};
  if (const std::shared_ptr<Inbox> inbox = inboxes_.find(to)) return inbox->take(envelope, message);
  const std::optional<RunPeer> peer = peers_->find(to);
  if (!peer) return;
  // Lost, as messages may be; the channel says why.
  static_cast<void>(channel_->send(peer->address, envelope, encode_message(message)));
}

void Mailbox::receive() {
  while (!stopping_) {
    auto received = channel_->receive(kReceiveMs);
    if (!received) continue;
    if (received->envelope.run != run_) take_foreign(received->envelope, received->body);
    if (!inbox_->is_mine(received->envelope)) continue;
    Result<Message> message = decode_message(received->body);
    // Only a peer with a changed or another version's program sends what cannot be decoded.
    if (message.ok()) inbox_->take(received->envelope, std::move(message).value());
  }
}

// A peer that shows its key and speaks of another run has another control plane than this process.
// Who asks how this endpoint stands is told, under this run's id, and knows then.
void Mailbox::take_foreign(const Envelope& envelope, ByteSpan body) {
  const std::optional<RunPeer> peer = peers_->find(envelope.sender.name);
  const std::uint64_t own = inbox_->incarnation();
  const Result<Message> message = decode_message(body);
  if (!peer || own == 0 || !message.ok()) return;
  if (std::holds_alternative<StatusReply>(*message) && foreign_) foreign_(envelope.sender.name);
  if (!std::holds_alternative<StatusRequest>(*message)) return;
  StatusReply reply;
  reply.state = "in another run";
  static_cast<void>(
      channel_->send(peer->address, {run_, {name_, own}, envelope.sender}, encode_message(reply)));
}

}  // namespace dcr
