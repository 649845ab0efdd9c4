#include "run/node_work.h"

#include <algorithm>
#include <utility>

#include "codec/container.h"
#include "codec/payload.h"
#include "receiver/decoded_memory.h"
#include "runtime/long_turns.h"

namespace dcr {
namespace {

constexpr unsigned kFetchers = 2;
constexpr std::uint64_t kHandOverMs = 1000;  // a receiver that takes longer is asked for again
// Of the memory of a node, what payloads may take that were validated and are not decoded yet: one
// that is larger is decompressed a second time.
constexpr std::uint64_t kReadShare = 8;
constexpr PayloadLimits kLimits = {kPayloadStoredBytesMax, kPayloadRawBytesMax};

// What every receiver can take: what a tensor's class allows, receivers check by themselves.
std::vector<TensorSpec> specs_of(const Catalogue& catalogue) {
  std::vector<TensorSpec> specs;
  specs.reserve(catalogue.size());
  for (const CanonicalTensor& tensor : catalogue.tensors()) {
    specs.push_back({tensor.words, static_cast<std::uint8_t>(word_bytes(tensor.dtype)), false});
  }
  return specs;
}

// What an owner's end says of these bytes. REQUIRES: a payload that was read.
PayloadEntry entry_of(ByteSpan stored) {
  PayloadEntry entry;
  entry.bytes = stored.size();
  entry.digest = stored_digest(stored);
  return entry;
}

Result<OwnedDescriptor> decoded_memory(const Payload& payload, const Digest& digest) {
  DCR_ASSIGN(WritableMemory memory, WritableMemory::make(decoded_memory_bytes(payload)));
  DCR_TRY(write_decoded(payload, digest, [&memory](std::uint64_t at, ByteSpan part) {
    return memory.write(at, part);
  }));
  return std::move(memory).seal();
}

}  // namespace

NodeWork::NodeWork(ProcessContext& context, const PublishedSource& source)
    : context_(context),
      source_(source),
      specs_(specs_of(source.catalogue)),
      payloads_(context.objects(), {context.run(), source.owners(), {}}),
      restores_(context.objects(), {restore_run(context.run()), source.owners(), {}}),
      fetchers_(make_executor(1 + kFetchers)),
      decoder_(make_executor(2)) {
  decoder_->submit(take_long_turns);
}

NodeWork::~NodeWork() {
  fetchers_.reset();
  decoder_.reset();
}

NodeTransport& NodeWork::transport(const StreamId& stream) {
  if (stream.restore) return restores_;
  return payloads_;
}

EndFetched NodeWork::fetch_end(const FetchEnd& work) {
  EndFetched fetched;
  fetched.stream = work.stream;
  fetched.owner = work.owner;
  auto end = transport(work.stream).receive_end(work.stream.number, work.owner);
  fetched.status = end.status();
  if (end.ok()) fetched.end = std::move(end).value();
  return fetched;
}

PayloadFetched NodeWork::fetch(const FetchPayload& work) {
  PayloadFetched fetched;
  fetched.stream = work.stream;
  fetched.owner = work.owner;
  fetched.number = work.number;
  const SpanTimer timer(&context_.spans(), "receive", work.owner);
  const auto carry_out = [&]() -> Status {
    const std::uint64_t bytes_max = work.entry ? work.entry->bytes : kPayloadStoredBytesMax;
    DCR_ASSIGN(
        std::optional<Bytes> stored,
        transport(work.stream).receive(work.stream.number, work.owner, work.number, bytes_max));
    if (!stored) return {};
    DCR_ASSIGN(Payload payload,
               Payload::read(*stored, source_.catalogue.schema(), specs_, kLimits));
    fetched.entry = entry_of(*stored);
    if (work.entry && fetched.entry != *work.entry) {
      return {Code::kMismatch, "the owner's end says that it has another size or digest"};
    }
    fetched.there = true;
    fetched.stored_bytes = stored->size();
    for (const ItemView& item : payload.items()) {
      fetched.decoded_bytes += decoded_bytes(item.header);
    }
    keep(Key(work.stream, work.owner, work.number), std::move(*stored), std::move(payload));
    return {};
  };
  fetched.status = carry_out().with_context("payload " + std::to_string(work.number) +
                                            " of owner " + std::to_string(work.owner));
  return fetched;
}

void NodeWork::forget_read(Held* held) {
  if (held->read) read_bytes_ -= held->read->memory_bytes();
  held->read.reset();
}

void NodeWork::keep(const Key& key, Bytes stored, Payload read) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Held& held = held_[key];
  forget_read(&held);
  held = {std::move(stored), std::nullopt, nullptr};
  const std::uint64_t bytes = read.memory_bytes();
  if (read_bytes_ + bytes > context_.config().memory_bytes_max / kReadShare) return;
  read_bytes_ += bytes;
  held.read = std::move(read);
}

Status NodeWork::take(const Key& key, Bytes* stored, std::optional<Payload>* read) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = held_.find(key);
    if (found == held_.end()) return {Code::kNotFound, "it was let go"};
    Held& held = found->second;
    *stored = std::move(held.stored);
    if (held.read) read_bytes_ -= held.read->memory_bytes();
    *read = std::exchange(held.read, std::nullopt);
  }
  if (*read) return {};
  DCR_ASSIGN(*read, Payload::read(*stored, source_.catalogue.schema(), specs_, kLimits));
  return {};
}

PayloadDecoded NodeWork::decode(const DecodePayload& work) {
  PayloadDecoded decoded;
  decoded.stream = work.stream;
  decoded.owner = work.owner;
  decoded.number = work.number;
  const Key key(work.stream, work.owner, work.number);
  const SpanTimer timer(&context_.spans(), "decode", work.owner);
  const auto carry_out = [&]() -> Status {
    Bytes stored;
    std::optional<Payload> read;
    DCR_TRY(take(key, &stored, &read));
    DCR_TRY(decoded_bytes(*read, context_.config().memory_bytes_max).status());
    DCR_ASSIGN(OwnedDescriptor sealed, decoded_memory(*read, stored_digest(stored)));
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = held_.find(key);
    if (found != held_.end()) {
      found->second.decoded = std::make_shared<const OwnedDescriptor>(std::move(sealed));
    }
    return {};
  };
  decoded.status = carry_out().with_context("payload " + std::to_string(work.number) +
                                            " of owner " + std::to_string(work.owner));
  return decoded;
}

void NodeWork::hand_over(const HandOver& work) {
  std::shared_ptr<const OwnedDescriptor> memory;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = held_.find(Key(work.stream, work.owner, work.number));
    if (found == held_.end() || found->second.decoded == nullptr) return;
    memory = found->second.decoded;
  }
  const auto send = [&]() -> Status {
    DCR_ASSIGN(const DescriptorSocket socket, DescriptorSocket::connect(payload_socket_path(
                                                  context_.config(), work.receiver.name)));
    return socket.send(*memory, encode_message(PayloadReady{work.stream, work.owner, work.number}),
                       kHandOverMs);
  };
  const Status sent = send();
  // Lost, as messages may be: the receiver's credit asks for it again.
  if (!sent.ok()) context_.options().log(work.receiver.name, sent.message());
  context_.points().after("hand_over");
}

// At once: what is fetched again after this is not what is dropped.
void NodeWork::drop(const DropPayloads& work) {
  const std::uint64_t owners = source_.owners();
  auto dropped = std::make_shared<std::vector<Held>>();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = held_.begin(); at != held_.end();) {
    const auto& [stream, owner, number] = at->first;
    const bool below = work.below == kOrderAll || number * owners + owner < work.below;
    if (stream == work.stream && below) {
      if (at->second.read) read_bytes_ -= at->second.read->memory_bytes();
      dropped->push_back(std::move(at->second));
      at = held_.erase(at);
    } else {
      ++at;
    }
  }
  // To give memory back takes a while.
  decoder_->submit([dropped] { dropped->clear(); });
}

void NodeWork::begin(const NodeEffect& effect, const Post& post) {
  if (const auto* const end = std::get_if<FetchEnd>(&effect)) {
    fetchers_->submit([this, work = *end, post] { post(fetch_end(work)); });
  } else if (const auto* const payload = std::get_if<FetchPayload>(&effect)) {
    fetchers_->submit([this, work = *payload, post] { post(fetch(work)); });
  } else if (const auto* const decoding = std::get_if<DecodePayload>(&effect)) {
    decoder_->submit([this, work = *decoding, post] { post(decode(work)); });
  } else if (const auto* const over = std::get_if<HandOver>(&effect)) {
    decoder_->submit([this, work = *over] { hand_over(work); });
  } else if (const auto* const dropped = std::get_if<DropPayloads>(&effect)) {
    drop(*dropped);
  }
}

}  // namespace dcr
