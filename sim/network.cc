#include "sim/network.h"

#include <memory>
#include <utility>

#include "sim/world.h"

namespace dcr {
namespace {

struct Parcel {
  MessageArrived arrived;
  Endpoint to;            // incarnation 0: any
  bool isolated = false;  // its sender was, when it sent it
};

}  // namespace

void SimNetwork::send(const SimProcess& from, SendMessage&& message) {
  ++sent_;
  world_.oracle().on_send(from, message.message);
  world_.trace([&] {
    return from.name() + " sends " + message_name(message.message) + " to " + message.to;
  });
  Prng& prng = world_.prng();
  const Swarm& swarm = world_.swarm();
  if (happens(prng, swarm.through_bytes)) {
    const Result<Message> read = decode_message(encode_message(message.message));
    if (!read.ok() || *read != message.message) {
      world_.fail(std::string("message ") + message_name(message.message) +
                  " is another when it is read: " + read.status().message());
      return;
    }
  }
  if (world_.faults_on()) {
    if (happens(prng, swarm.lose)) return world_.count_fault("message lost");
    if (happens(prng, swarm.repeat)) {
      world_.count_fault("message repeated");
      carry(from, SendMessage(message));
    }
  }
  carry(from, std::move(message));
}

void SimNetwork::carry(const SimProcess& from, SendMessage&& message) {
  const Swarm& swarm = world_.swarm();
  Microseconds delay = between(world_.prng(), swarm.latency_min, swarm.latency_max);
  if (world_.faults_on() && happens(world_.prng(), swarm.delay)) {
    world_.count_fault("message late");
    delay += world_.prng().below(swarm.delay_max);
  }
  if (world_.find(message.to) == nullptr) {
    return world_.fail(std::string(message_name(message.message)) + " goes to " + message.to +
                       ", which there is not");
  }
  auto parcel = std::make_unique<Parcel>(
      Parcel{{{from.name(), from.incarnation()}, std::move(message.message)},
             {std::move(message.to), message.incarnation},
             from.isolated()});
  world_.schedule().after(delay, [this, parcel = std::move(parcel)]() mutable {
    SimProcess* const to = world_.addressee(parcel->to);
    if (to == nullptr || parcel->isolated != to->isolated()) return;
    to->happen(to->life(),
               [to, parcel = std::move(parcel)] { to->deliver(std::move(parcel->arrived)); });
  });
}

}  // namespace dcr
