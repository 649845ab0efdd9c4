#include "protocol/refused_receiver.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/assert.h"

namespace dcr {

RefusedReceiver::RefusedReceiver(RefusedReceiverOptions options)
    : options_(std::move(options)),
      session_({options_.name, Role::kReceiver, options_.engine, options_.waits}) {
  DCR_ASSERT(options_.engine_instance > 0);
}

// Whether it ends here: with what an operator has to see to, or because it is barred.
bool RefusedReceiver::end() { return session_.barred() || !session_.failure().ok(); }

void RefusedReceiver::step(const ReceiverEvent& event, Milliseconds now,
                           std::vector<ReceiverEffect>* effects) {
  if (ended_) return;
  if (std::holds_alternative<Started>(event)) session_.start(now);
  if (const auto* const answer = std::get_if<ControlAnswered>(&event)) {
    session_.answered(*answer, now);
  }
  if (const auto* const arrived = std::get_if<MessageArrived>(&event)) {
    if (std::holds_alternative<Look>(arrived->message)) session_.look();
    if (session_.enrolled() && std::holds_alternative<StatusRequest>(arrived->message)) {
      effects->emplace_back(SendMessage{arrived->from.name, arrived->from.incarnation, status()});
    }
  }
  ended_ = end();
  if (ended_) {
    effects->emplace_back(
        Ended{session_.barred() ? Status(Code::kConflict, "it was barred") : session_.failure()});
    return;
  }
  if (session_.enrolled() && now >= say_at_) {
    say_at_ = now + options_.waits.look_ms;
    const Refused refused{options_.failure, options_.engine_instance};
    effects->emplace_back(SendMessage{options_.engine, 0, refused});
    const std::string leader = session_.leader();
    if (!leader.empty()) effects->emplace_back(SendMessage{leader, 0, refused});
  }
  if (std::optional<CallControl> call = session_.next_call(now)) {
    effects->emplace_back(std::move(*call));
  }
}

Milliseconds RefusedReceiver::wake_at() const {
  if (ended_) return kNever;
  return session_.enrolled() ? std::min(session_.wake_at(), say_at_) : session_.wake_at();
}

StatusReply RefusedReceiver::status() const {
  StatusReply reply;
  reply.state = "refused";
  reply.detail = options_.failure.message;
  return reply;
}

}  // namespace dcr
