#include "run/node_process.h"

#include <utility>

#include "protocol/node.h"
#include "run/mailbox.h"
#include "run/node_work.h"
#include "run/run_model.h"

namespace dcr {

Status run_node(ProcessContext& context, const std::string& name) {
  DCR_ASSIGN(const std::unique_ptr<const RunModel> model, make_run_model(context.config()));
  return serve_node(context, name, *model,
                    [&context] { return context.options().cancel->cancelled(); });
}

Status serve_node(ProcessContext& context, const std::string& name, const PublishedSource& source,
                  std::function<bool()> cancelled) {
  const RunConfig& config = context.config();
  DCR_ASSIGN(const std::unique_ptr<Mailbox> mailbox, Mailbox::open(context, name));
  NodeWork work(context, source);
  LoopParts parts = context.parts();
  parts.cancelled = std::move(cancelled);
  EndpointLoop<NodeEndpoint, NodeEvent, NodeEffect> loop(name, std::move(parts), *mailbox);
  return loop.run(
      [&] {
        NodeEndpointOptions options;
        options.name = name;
        options.owners = source.owners();
        options.staging_bytes_max = config.staging_bytes_max;
        options.decoded_bytes_max = config.memory_bytes_max;
        options.waits = config.waits;
        return NodeEndpoint(std::move(options));
      },
      [&](const NodeEffect& effect, const auto& post) { work.begin(effect, post); });
}

}  // namespace dcr
