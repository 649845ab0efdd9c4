#include "run/coordinator_process.h"

#include <utility>

#include "run/mailbox.h"

namespace dcr {

Status run_coordinator(ProcessContext& context, const std::string& name, bool abort,
                       const std::function<void(const CoordinatorProgress&)>& progress) {
  const RunConfig& config = context.config();
  DCR_ASSIGN(const std::unique_ptr<Mailbox> mailbox, Mailbox::open(context, name));
  EndpointLoop<Coordinator, CoordinatorEvent, CoordinatorEffect> loop(name, context.parts(),
                                                                      *mailbox);
  return loop.run(
      [&] {
        CoordinatorOptions options;
        options.name = name;
        options.abort_transition = abort;
        options.waits = config.waits;
        return Coordinator(std::move(options));
      },
      [&](const CoordinatorEffect& effect, const auto&) {
        if (const auto* const needed = std::get_if<OperatorNeeded>(&effect)) {
          context.options().log(name, "an operator is needed: " + needed->text);
        }
        const auto* const now = std::get_if<CoordinatorProgress>(&effect);
        if (now != nullptr && progress) progress(*now);
      });
}

}  // namespace dcr
