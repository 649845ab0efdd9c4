#include "run/receiver_host.h"

#include <utility>

#include "receiver/decoded_memory.h"

namespace dcr {
namespace {

constexpr std::uint64_t kTakePayloadMs = 200;

}  // namespace

Result<std::unique_ptr<ReceiverHost>> ReceiverHost::open(ProcessContext& context,
                                                         ReceiverHostOptions options,
                                                         ReceiverWork& work) {
  DCR_ASSIGN(std::unique_ptr<Mailbox> mailbox, Mailbox::open(context, options.name));
  DCR_ASSIGN(DescriptorListener listener,
             DescriptorListener::open(payload_socket_path(context.config(), options.name)));
  return std::make_unique<ReceiverHost>(context, std::move(options), work, std::move(mailbox),
                                        std::move(listener));
}

ReceiverHost::ReceiverHost(ProcessContext& context, ReceiverHostOptions options, ReceiverWork& work,
                           std::unique_ptr<Mailbox> mailbox, DescriptorListener listener)
    : context_(context),
      options_(std::move(options)),
      work_(work),
      mailbox_(std::move(mailbox)),
      listener_(std::move(listener)),
      loop_(options_.name, parts_of(context, options_), *mailbox_) {}

LoopParts ReceiverHost::parts_of(ProcessContext& context, const ReceiverHostOptions& options) {
  LoopParts parts = context.parts();
  parts.cancelled = [&options] {
    return options.cancelled() || (options.ended && options.ended());
  };
  return parts;
}

Status ReceiverHost::run() {
  const auto make = [this] {
    ReceiverEndpointOptions options;
    options.name = options_.name;
    options.engine = options_.engine;
    options.engine_instance = options_.engine_instance;
    options.details = options_.details;
    options.owners = options_.owners;
    options.base_loaded = options_.base_loaded && !started_;
    options.base_exists = options_.base_exists;
    options.audit = options_.audit;
    options.credit_bytes = context_.config().memory_bytes_max;
    options.waits = context_.config().waits;
    started_ = true;
    return ReceiverEndpoint(std::move(options));
  };
  return loop_.run(make, [this](const ReceiverEffect& effect, const Loop::Post& post) {
    work_.begin(effect, post);
  });
}

void ReceiverHost::take_payloads() {
  while (!options_.cancelled()) {
    const Result<DescriptorSocket> socket = listener_.accept(kTakePayloadMs);
    if (socket.status().code() == Code::kUnavailable) continue;  // none came
    const Status taken = socket.ok() ? take_payload(*socket) : socket.status();
    if (!taken.ok()) context_.options().log(options_.name, taken.message());
  }
}

Status ReceiverHost::take_payload(const DescriptorSocket& socket) {
  const std::uint64_t bytes_max = context_.config().memory_bytes_max;
  DCR_ASSIGN(const ReceivedDescriptor received, socket.receive(kTakePayloadMs));
  DCR_ASSIGN(const Message message, decode_message(received.message));
  const auto* const ready = std::get_if<PayloadReady>(&message);
  if (ready == nullptr) return {Code::kCorrupt, "a descriptor came with another message"};
  // What is known is not read again: that may take longer than until it is handed over again.
  const ReceiverWork::Known known = work_.known(*ready);
  if (known.kept) {
    loop_.post(PayloadHandedOver{ready->stream, ready->owner, ready->number, *known.kept});
  }
  if (known.taken || known.kept) return {};
  DCR_ASSIGN(SealedMemory mapped,
             SealedMemory::map(received.descriptor, bytes_max + kDecodedMemoryHeadBytesMax));
  const auto memory = std::make_shared<const SealedMemory>(std::move(mapped));
  DCR_ASSIGN(std::shared_ptr<const DecodedPayload> payload,
             parse_decoded(memory->bytes(), memory, bytes_max));
  if (payload->header.owner != ready->owner || payload->header.number != ready->number) {
    return {Code::kCorrupt, "a descriptor came with the message of another payload"};
  }
  const std::uint64_t bytes = payload->bytes;
  if (!work_.keep(ready->stream, std::move(payload))) return {};
  loop_.post(PayloadHandedOver{ready->stream, ready->owner, ready->number, bytes});
  return {};
}

}  // namespace dcr
