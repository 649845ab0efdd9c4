#include "run/node_process.h"

#include "protocol/node.h"
#include "run/mailbox.h"
#include "run/node_work.h"
#include "run/run_model.h"

namespace dcr {

Status run_node(ProcessContext& context, const std::string& name) {
  const RunConfig& config = context.config();
  DCR_ASSIGN(const std::unique_ptr<const RunModel> model, make_run_model(config));
  DCR_ASSIGN(const std::unique_ptr<Mailbox> mailbox, Mailbox::open(context, name));
  NodeWork work(context, *model);
  EndpointLoop<NodeEndpoint, NodeEvent, NodeEffect> loop(name, context.parts(), *mailbox);
  return loop.run(
      [&] {
        NodeEndpointOptions options;
        options.name = name;
        options.owners = model->owners();
        options.staging_bytes_max = config.staging_bytes_max;
        options.decoded_bytes_max = config.memory_bytes_max;
        options.waits = config.waits;
        return NodeEndpoint(std::move(options));
      },
      [&](const NodeEffect& effect, const auto& post) { work.begin(effect, post); });
}

}  // namespace dcr
