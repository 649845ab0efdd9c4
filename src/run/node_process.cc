#include "run/node_process.h"

#include <utility>

#include "protocol/node.h"
#include "run/mailbox.h"
#include "run/node_work.h"
#include "run/run_identity.h"
#include "run/run_model.h"
#include "run/source_watch.h"

namespace dcr {
namespace {

constexpr std::uint64_t kWaitForOwnersMs = 200;

}  // namespace

Status run_node(ProcessContext& context, const std::string& name) {
  if (context.config().base.empty()) {
    DCR_TRY(check_store(context, name, false));
    return serve_joined_owners(context, name, [] {});
  }
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

Status serve_joined_owners(ProcessContext& context, const std::string& name,
                           const std::function<void()>& idle) {
  const auto cancelled = [&context] { return context.options().cancel->cancelled(); };
  SourceWatch watch(context, sources_path(context.config()));
  while (!cancelled()) {
    DCR_ASSIGN(const std::optional<JoinedSource> joined, watch.wait(kWaitForOwnersMs));
    idle();
    if (!joined) continue;
    Status status = serve_node(context, name, joined->source,
                               [&] { return cancelled() || watch.changed(joined->owners); });
    if (status.code() != Code::kCancelled) return status;
  }
  return {Code::kCancelled, name + " was asked to end"};
}

}  // namespace dcr
