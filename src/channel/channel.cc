#include "channel/channel.h"

#include <utility>

#include "base/assert.h"
#include "base/endpoint_name.h"
#include "channel/address.h"
#include "channel/channel_loop.h"
#include "runtime/threads.h"

namespace dcr {
namespace {

Status check_options(const ChannelOptions& options) {
  DCR_ASSERT(options.clock != nullptr && options.peers != nullptr);
  DCR_ASSERT(options.queues.peer_bytes_max >=
             kControlMessageBytesMax + kQueuedMessageOverheadBytes);
  DCR_TRY(check_endpoint_name(options.name));
  const std::optional<PublicKey> key = options.peers->key_of(options.name);
  if (key && *key != options.keys.public_key) {
    return {Code::kInvalidArgument,
            "the allow-list has another key for " + options.name + " than its key file"};
  }
  return check_listen_address(options.listen);
}

}  // namespace

Channel::Channel(std::unique_ptr<ChannelShared> shared) : shared_(std::move(shared)) {}

Result<std::unique_ptr<Channel>> Channel::open(ChannelOptions options) {
  DCR_TRY(check_options(options));
  DCR_ASSIGN(Event wake, Event::make());
  DCR_ASSIGN(Event ready, Event::make());
  auto channel = std::make_unique<Channel>(
      std::make_unique<ChannelShared>(std::move(options), std::move(wake), std::move(ready)));
  DCR_ASSIGN(channel->loop_, ChannelLoop::open(*channel->shared_));
  channel->thread_ = make_executor(2);  // the second thread is the one that it starts
  channel->thread_->submit([loop = channel->loop_.get()] { loop->run(); });
  return channel;
}

Channel::~Channel() {
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->wake.set();
  thread_.reset();
  loop_.reset();
}

const std::string& Channel::address() const { return loop_->address(); }

Status Channel::send(const std::string& address, const Envelope& envelope, ByteSpan body) {
  const std::string& peer = envelope.addressee.name;
  if (!shared_->options.peers->key_of(peer)) {
    return {Code::kNotFound, "there is no key of " + peer + " on the allow-list"};
  }
  if (envelope.sender.name != shared_->options.name) {
    return {Code::kInvalidArgument,
            shared_->options.name + " cannot send as " + envelope.sender.name};
  }
  DCR_TRY(check_address(address));
  if (body.size() > kControlBodyBytesMax) {
    return {Code::kTooLarge, "a message of " + std::to_string(body.size()) + " bytes to " + peer +
                                 " is above the limit of " + std::to_string(kControlBodyBytesMax)};
  }
  Bytes message = encode_envelope(envelope, body);
  const std::uint64_t bytes = message.size();
  std::uint64_t dropped = 0;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->targets[peer] = {address, true};
    dropped = shared_->outgoing.push(peer, std::move(message), bytes);
    shared_->counts.dropped_outgoing += dropped;
  }
  shared_->wake.set();
  if (dropped != 0) {
    shared_->reporter.once("outgoing", {Code::kTooLarge,
                                        "messages are dropped: they are sent faster than peers "
                                        "take them, the last to " +
                                            peer});
  }
  return {};
}

std::optional<ReceivedMessage> Channel::receive(std::uint64_t timeout_ms) {
  for (const bool last : {false, true}) {
    {
      const std::lock_guard<std::mutex> lock(shared_->mutex);
      std::optional<ReceivedMessage> message = shared_->incoming.pop();
      if (shared_->incoming.empty()) shared_->ready.clear();
      if (message || last) return message;
    }
    shared_->ready.wait(timeout_ms);
  }
  return std::nullopt;
}

ChannelCounts Channel::counts() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->counts;
}

}  // namespace dcr
