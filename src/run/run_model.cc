#include "run/run_model.h"

#include <algorithm>
#include <utility>

#include "layout/converters.h"
#include "layout/generators.h"
#include "layout/layout_file.h"
#include "runtime/file.h"
#include "source/host_source_memory.h"
#include "source/owner.h"

namespace dcr {
namespace {

// A layout file, or what a generator makes of a specification, parsed.
template <typename Generate, typename Parse>
Result<Layout> read_layout(const Catalogue& catalogue, const std::string& layout, Generate generate,
                           Parse parse) {
  const auto text = [&]() -> Result<std::string> {
    if (layout.find('/') == std::string::npos) return generate(catalogue, layout);
    DCR_ASSIGN(const Bytes bytes, read_file(posix_file_system(), layout, kLayoutBytesMax));
    return std::string(bytes.begin(), bytes.end());
  }();
  if (!text.ok()) return text.status();
  Result<Layout> parsed = parse(*text);
  return parsed.ok() ? std::move(parsed) : parsed.status().with_context(layout);
}

// Owners that convert talk to each other.
Status check_collectives(const RunConfig& config, const Geometry& geometry) {
  if (geometry.groups().empty()) return {};
  for (const PeerConfig& owner : config.owner_peers) {
    if (!owner.collective.empty()) continue;
    return {Code::kInvalidArgument, owner.name +
                                        " has no \"collective\", where it listens for the other "
                                        "owners, and the layout has tensors that are converted"};
  }
  return {};
}

Status check_ranks(const RunConfig& config, const OwnerPlan& owners,
                   const ReceiverPlan& receivers) {
  if (owners.ranks() != config.owner_peers.size()) {
    return {Code::kInvalidArgument, "the owners' layout has " + std::to_string(owners.ranks()) +
                                        " ranks, the run " +
                                        std::to_string(config.owner_peers.size()) + " owners"};
  }
  for (const EngineConfig& engine : config.engines) {
    if (engine.receivers.size() == receivers.ranks()) continue;
    return {Code::kInvalidArgument, "the receivers' layout has " +
                                        std::to_string(receivers.ranks()) + " ranks, " +
                                        engine.gate.name + " has " +
                                        std::to_string(engine.receivers.size()) + " receivers"};
  }
  return {};
}

// The boxes of all owners. No memory is touched for them: an arena's pages are taken when used.
Status plan_owners(RunModel* model) {
  std::vector<OwnerInput> inputs;
  std::vector<OwnerDeclaration> declarations;
  HostSourceMemory memory;  // of nobody: converters are asked what they declare
  std::vector<std::unique_ptr<Converter>> converters;
  for (std::uint32_t rank = 0; rank < model->owner_plan.ranks(); ++rank) {
    OwnerInput input;
    input.rank = rank;
    input.tasks = model->owner_plan.rank(model->catalogue, rank).tasks;
    for (auto& made : make_rule_converters(model->catalogue, model->owner_plan, rank, memory)) {
      input.converters.push_back(made.get());
      converters.push_back(std::move(made));
    }
    DCR_ASSIGN(OwnerDeclaration declaration, declare_owner(input));
    declarations.push_back(std::move(declaration));
    inputs.push_back(std::move(input));
  }
  DCR_ASSIGN(model->geometry, Geometry::make(model->catalogue, declarations));
  for (OwnerInput& input : inputs) {
    DCR_ASSIGN(const std::unique_ptr<Owner> owner,
               Owner::create(model->geometry, std::move(input), ""));
    std::vector<OwnerBox>& boxes = model->boxes.emplace_back();
    for (auto& [tensor, box] : owner->item_boxes()) boxes.push_back({tensor, box});
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<const RunModel>> make_run_model(const RunConfig& config) {
  auto model = std::make_unique<RunModel>();
  DCR_ASSIGN(model->base, open_checkpoint(posix_file_system(), config.base));
  DCR_ASSIGN(model->catalogue, checkpoint_catalogue(model->base));
  const Catalogue& catalogue = model->catalogue;
  DCR_ASSIGN(Layout owners,
             read_layout(catalogue, config.owners, generate_owner_layout, parse_owner_layout));
  DCR_ASSIGN(model->owner_plan, OwnerPlan::make(catalogue, std::move(owners)));
  DCR_ASSIGN(Layout receivers, read_layout(catalogue, config.receivers, generate_receiver_layout,
                                           parse_receiver_layout));
  for (const TargetBuffer& buffer : receivers.buffers) model->never_loaded.push_back(buffer.name);
  DCR_ASSIGN(model->receiver_plan, ReceiverPlan::make(catalogue, std::move(receivers)));
  DCR_TRY(check_ranks(config, model->owner_plan, model->receiver_plan));
  DCR_TRY(plan_owners(model.get()));
  DCR_TRY(check_collectives(config, *model->geometry));
  model->digest = source_digest(*model);
  return std::unique_ptr<const RunModel>(std::move(model));
}

Result<Checkpoint> open_candidate(const RunModel& model, const std::string& path) {
  DCR_ASSIGN(Checkpoint checkpoint, open_checkpoint(posix_file_system(), path));
  DCR_TRY(check_same_tensors(model.base, checkpoint).with_context(path));
  return checkpoint;
}

}  // namespace dcr
