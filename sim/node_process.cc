#include "receiver/decoded.h"
#include "sim/processes.h"
#include "sim/world.h"

namespace dcr {
namespace {

constexpr PayloadLimits kLimits = {kPayloadStoredBytesMax, kPayloadRawBytesMax};

std::string text_of(std::uint32_t owner, std::uint64_t number) {
  return "payload " + std::to_string(number) + " of owner " + std::to_string(owner);
}

}  // namespace

NodeProcess::NodeProcess(World& world, std::uint32_t number)
    : MachineProcess(world, Role::kNode, "node-" + std::to_string(number)), number_(number) {}

void NodeProcess::begin() {
  const Swarm& swarm = world_.swarm();
  NodeEndpointOptions options;
  options.name = name();
  options.owners = world_.model().owners();
  options.staging_bytes_max = swarm.staging_bytes_max;
  options.decoded_bytes_max = swarm.decoded_bytes_max;
  options.window_payloads = swarm.window_payloads;
  options.waits = swarm.waits;
  make_machine(std::move(options));
}

void NodeProcess::lose() {
  drop_machine();
  held_.clear();
}

void NodeProcess::carry_out(NodeEffect& effect) {
  if (const auto* const end = std::get_if<FetchEnd>(&effect)) {
    later(world_.store_time(), [this, work = *end] { step(fetch_end(work)); });
  } else if (const auto* const payload = std::get_if<FetchPayload>(&effect)) {
    later(world_.store_time(), [this, work = *payload] { step(fetch(work)); });
  } else if (const auto* const decoding = std::get_if<DecodePayload>(&effect)) {
    later(world_.work_time(), [this, work = *decoding] { step(decode(work)); });
  } else if (const auto* const over = std::get_if<HandOver>(&effect)) {
    hand_over(*over);
  } else {
    drop(std::get<DropPayloads>(effect));
  }
}

ObjectNodeTransport NodeProcess::transport(const StreamId& stream) const {
  const std::uint32_t owners = world_.model().owners();
  if (stream.restore) return {world_.restores(), {world_.restore_run_id(), owners, {}}};
  return {world_.payloads(), {world_.run_id(), owners, {}}};
}

EndFetched NodeProcess::fetch_end(const FetchEnd& work) {
  EndFetched fetched;
  fetched.stream = work.stream;
  fetched.owner = work.owner;
  auto end = transport(work.stream).receive_end(work.stream.number, work.owner);
  fetched.status = end.status();
  if (end.ok()) fetched.end = std::move(end).value();
  return fetched;
}

PayloadFetched NodeProcess::fetch(const FetchPayload& work) {
  PayloadFetched fetched;
  fetched.stream = work.stream;
  fetched.owner = work.owner;
  fetched.number = work.number;
  const auto carry_out = [&]() -> Status {
    const std::uint64_t bytes_max = work.entry ? work.entry->bytes : kPayloadStoredBytesMax;
    DCR_ASSIGN(
        const std::optional<Bytes> stored,
        transport(work.stream).receive(work.stream.number, work.owner, work.number, bytes_max));
    if (!stored) return {};
    // Decoded only once, and kept until it is asked for.
    DCR_ASSIGN(const std::shared_ptr<const DecodedPayload> payload,
               decode_payload(*stored, world_.model().catalogue().schema(), world_.model().specs(),
                              kLimits, kMiB));
    fetched.entry = {stored->size(), payload->digest};
    if (work.entry && fetched.entry != *work.entry) {
      return {Code::kMismatch, "the owner's end says that it has another size or digest"};
    }
    fetched.there = true;
    fetched.stored_bytes = stored->size();
    fetched.decoded_bytes = payload->bytes;
    held_[Key(work.stream, work.owner, work.number)] = {stored->size(), payload, false};
    return {};
  };
  fetched.status = carry_out().with_context(text_of(work.owner, work.number));
  return fetched;
}

PayloadDecoded NodeProcess::decode(const DecodePayload& work) {
  PayloadDecoded decoded{work.stream, work.owner, work.number, Status()};
  const auto found = held_.find(Key(work.stream, work.owner, work.number));
  if (found == held_.end()) {
    decoded.status = {Code::kNotFound, text_of(work.owner, work.number) + ": it was let go"};
  } else {
    found->second.decoded = true;
  }
  return decoded;
}

void NodeProcess::hand_over(const HandOver& work) {
  const auto found = held_.find(Key(work.stream, work.owner, work.number));
  if (found == held_.end() || !found->second.decoded) {
    return world_.fail(name() + " hands over " + text_of(work.owner, work.number) +
                       ", which it has not decoded");
  }
  world_.oracle().on_hand_over(*this, work.stream);
  if (world_.fault(world_.swarm().hand_over_lost, "payload not handed over")) return;
  const SimProcess* const named = world_.find(work.receiver.name);
  if (named == nullptr || named->role() != Role::kReceiver) {
    return world_.fail(name() + " hands a payload to " + work.receiver.name);
  }
  SimProcess* const to = world_.find(work.receiver);
  if (to == nullptr) return;  // nobody of this incarnation is left
  auto* const receiver = static_cast<ReceiverProcess*>(to);
  const std::shared_ptr<const DecodedPayload> payload = found->second.payload;
  std::uint32_t times = world_.hooks().hand_over ? world_.hooks().hand_over(work) : 1;
  for (; times > 0; --times) {
    world_.schedule().after(world_.latency(), [receiver, work, payload] {
      if (!receiver->alive() || receiver->incarnation() != work.receiver.incarnation) return;
      receiver->happen(receiver->life(),
                       [receiver, work, payload] { receiver->hand_over(work, payload); });
    });
  }
}

void NodeProcess::drop(const DropPayloads& work) {
  const std::uint64_t owners = world_.model().owners();
  std::erase_if(held_, [&](const auto& entry) {
    const auto& [stream, owner, number] = entry.first;
    return stream == work.stream &&
           (work.below == kOrderAll || number * owners + owner < work.below);
  });
}

}  // namespace dcr
