#include "cli/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace dcr {
namespace {

using Json = nlohmann::ordered_json;

std::string print(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

double change_rate(std::uint64_t changed, std::uint64_t elements) {
  return elements == 0 ? 0.0 : static_cast<double>(changed) / static_cast<double>(elements);
}

// Null when nothing changed: a delta of no change has no cost per change.
Json bits_per_change(std::uint64_t delta_bytes, std::uint64_t changed) {
  if (changed == 0) return nullptr;
  return 8.0 * static_cast<double>(delta_bytes) / static_cast<double>(changed);
}

Json left_out_json(const std::vector<LeftOut>& files) {
  Json list = Json::array();
  for (const LeftOut& file : files) list.push_back({{"name", file.name}, {"reason", file.reason}});
  return list;
}

void add_measured(Json& json, const Measured& measured) {
  json["seconds"] = measured.seconds;
  json["peak_rss_bytes"] = measured.peak_rss_bytes;
}

Json transition_of(const TransitionRecord& transition) {
  return {{"attempt", transition.attempt},
          {"state", attempt_state_name(transition.state)},
          {"mode", attempt_mode_name(transition.mode)},
          {"base_version", transition.base.version},
          {"dirty", transition.dirty()}};
}

Json reply_of(const StatusReply& reply) {
  return {{"state", reply.state},
          {"detail", reply.detail},
          {"attempt", reply.attempt},
          {"held_version", reply.held ? Json(reply.held->version) : Json()},
          {"gate_open", reply.gate_open},
          {"gate_reason", reply.gate_reason}};
}

Json engines_json(const std::vector<EngineStatus>& engines, std::uint64_t committed) {
  Json list = Json::array();
  for (const EngineStatus& engine : engines) {
    Json entry = {{"name", engine.name}, {"answered", engine.answered}};
    entry["gate"] = engine.answered ? Json(engine.open ? "open" : "closed") : Json();
    entry["reason"] = engine.reason;
    entry["gate_for_seconds"] = engine.answered ? Json(engine.seconds) : Json();
    entry["held_version"] = engine.held ? Json(*engine.held) : Json();
    entry["committed_version"] = committed;
    entry["lag"] = engine.held ? Json(committed - std::min(*engine.held, committed)) : Json();
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

std::string diff_json(const DiffResult& result, const Measured& measured) {
  Json json;
  json["tensors"] = result.tensors;
  json["elements"] = result.elements;
  json["changed"] = result.changed;
  json["change_rate"] = change_rate(result.changed, result.elements);
  json["delta_bytes"] = result.delta_bytes;
  json["payload_bytes"] = result.payload_bytes;
  json["bits_per_change"] = bits_per_change(result.delta_bytes, result.changed);
  json["encodings"] = result.encodings;
  json["added"] = result.added;
  json["removed"] = result.removed;
  json["replaced"] = result.replaced;
  json["carried_files"] = result.carried_files;
  json["left_out"] = left_out_json(result.left_out);
  add_measured(json, measured);
  return print(json);
}

std::string apply_json(const CommandLine& line, const ApplyResult& result,
                       const Measured& measured) {
  Json json;
  json["deltas"] = line.deltas.size();
  json["in_place"] = line.in_place;
  json["tensors"] = result.tensors;
  json["changed"] = result.changed;
  json["bytes_written"] = result.bytes_written;
  json["already_target"] = result.already_target;
  json["replayed_journal"] = result.replayed_journal;
  json["files"] = result.files;
  add_measured(json, measured);
  return print(json);
}

std::string verify_json(const VerifyResult& result, const Measured& measured) {
  Json differences = Json::array();
  for (const Difference& difference : result.differences) {
    differences.push_back(
        {{"kind", difference.kind}, {"name", difference.tensor}, {"detail", difference.detail}});
  }
  Json json;
  json["equal"] = result.differing == 0;
  json["tensors"] = result.tensors;
  json["elements"] = result.elements;
  json["bytes"] = result.bytes;
  json["files"] = result.files;
  json["differing"] = result.differing;
  json["differences"] = std::move(differences);
  add_measured(json, measured);
  return print(json);
}

std::string inspect_json(const InspectResult& result, const Measured& measured) {
  Json streams = Json::array();
  for (const StreamInfo& stream : result.streams) {
    streams.push_back({{"kind", stream.kind},
                       {"width", stream.width},
                       {"raw_bytes", stream.raw_bytes},
                       {"stored_bytes", stream.stored_bytes}});
  }
  Json groups = Json::array();
  for (const GroupInfo& group : result.groups) {
    groups.push_back({{"name", group.name},
                      {"tensors", group.tensors},
                      {"elements", group.elements},
                      {"changed", group.changed},
                      {"change_rate", change_rate(group.changed, group.elements)},
                      {"raw_bytes", group.raw_bytes}});
  }
  Json files = Json::array();
  for (const InspectResult::Carried& file : result.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"stored_bytes", file.stored_bytes},
                     {"source", file.source}});
  }
  Json json;
  json["format_version"] = result.format_version;
  json["delta_bytes"] = result.delta_bytes;
  json["payloads"] = result.payloads;
  json["items"] = result.items;
  json["tensors"] = result.tensors;
  json["elements"] = result.elements;
  json["changed"] = result.changed;
  json["change_rate"] = change_rate(result.changed, result.elements);
  json["bits_per_change"] = bits_per_change(result.delta_bytes, result.changed);
  json["base_identity"] = result.base_identity;
  json["target_identity"] = result.target_identity;
  json["encodings"] = result.encodings;
  json["streams"] = std::move(streams);
  json["groups"] = std::move(groups);
  json["added"] = result.added;
  json["removed"] = result.removed;
  json["replaced"] = result.replaced;
  json["files"] = std::move(files);
  json["left_out"] = left_out_json(result.left_out);
  add_measured(json, measured);
  return print(json);
}

std::string refit_json(const RefitResult& result, const Measured& measured) {
  Json not_traced = Json::array();
  for (const RefitPath& path : result.not_traced) {
    not_traced.push_back({{"tensor", path.tensor},
                          {"receiver", path.rank},
                          {"path", path.path},
                          {"reason", path.reason}});
  }
  Json uneven = Json::array();
  for (const RefitUneven& found : result.uneven) {
    uneven.push_back({{"tensor", found.tensor}, {"reason", found.reason}});
  }
  Json stages = Json::array();
  for (const RefitStage& stage : result.stages) {
    stages.push_back(
        {{"name", stage.name}, {"wall_seconds", stage.wall}, {"busy_seconds", stage.busy}});
  }
  Json json;
  json["equal"] = result.differing_bytes == 0 && result.resident_different == 0;
  json["owners"] = result.owners;
  json["receivers"] = result.receivers;
  json["tensors"] = result.tensors;
  json["elements"] = result.elements;
  json["changed"] = result.changed;
  json["change_rate"] = change_rate(result.changed, result.elements);
  json["canonical_change_rate"] = change_rate(result.canonical_changed, result.canonical_elements);
  json["model_bytes"] = result.model_bytes;
  json["payloads"] = result.payloads;
  json["payload_bytes"] = result.payload_bytes;
  json["encodings"] = result.encodings;
  json["destinations"] = result.destinations;
  json["checked"] = result.checked;
  json["owned_bytes_max"] = result.owned_bytes_max;
  json["owned_bytes_mean"] = result.owned_bytes_mean;
  json["paths"] = result.paths;
  json["not_traced"] = std::move(not_traced);
  json["uneven"] = std::move(uneven);
  json["stages"] = std::move(stages);
  json["startup_seconds"] = result.startup_seconds;
  json["refit_seconds"] = result.refit_seconds;
  json["owner_memory_bytes"] = result.owner_memory_bytes;
  json["receiver_memory_bytes"] = result.receiver_memory_bytes;
  json["resident_different"] = result.resident_different;
  json["compared_bytes"] = result.compared_bytes;
  json["differing_bytes"] = result.differing_bytes;
  json["differing"] = result.differing;
  add_measured(json, measured);
  return print(json);
}

std::string keygen_json(const std::string& endpoint, const MadeKeys& made,
                        const Measured& measured) {
  Json json;
  json["name"] = endpoint;
  json["public_key"] = key_text(made.public_key);
  json["secret_file"] = made.secret_path;
  json["public_file"] = made.public_path;
  add_measured(json, measured);
  return print(json);
}

std::string error_json(const Status& error) {
  Json json;
  json["code"] = code_name(error.code());
  json["message"] = error.message();
  if (!error.tensor().empty()) json["tensor"] = error.tensor();
  return print(Json{{"error", std::move(json)}});
}

std::string run_refit_json(const RefitReport& report) {
  Json json;
  json["committed_version"] = report.committed.id.version;
  json["label"] = report.committed.label;
  json["attempts"] = report.attempts;
  json["payload_bytes"] = report.payload_bytes;
  json["without_baseline"] = report.without_baseline;
  json["gate_closed_early"] = nullptr;
  if (report.gate_closed_early) {
    json["gate_closed_early"] = {
        {"reason", report.gate_closed_early->reason},
        {"seconds", 1e-3 * static_cast<double>(report.gate_closed_early->after_ms)}};
  }
  return print(json);
}

std::string status_json(const RunStatus& status, const std::vector<EngineStatus>& engines,
                        const RunCounts& counts) {
  const ControlRecords& records = status.membership.records;
  const auto known = [](bool answered, auto value) { return answered ? Json(value) : Json(); };
  const bool gates = counts.engines.engines > 0;
  const bool owners = counts.owners > 0;
  Json json;
  json["committed_version"] = records.commit.id.version;
  json["label"] = records.commit.label;
  json["attempts"] = records.transition.attempt;
  json["kills"] = nullptr;  // nobody counts them in a cluster whose processes nobody watches
  json["refits"] = records.commit.id.version;
  json["receivers"] = std::count_if(
      status.membership.members.begin(), status.membership.members.end(), [](const Member& member) {
        return member.role == Role::kReceiver && member.state == MemberState::kMember;
      });
  json["bytes_compared"] = known(gates, counts.engines.bytes_compared);
  json["bytes_differing"] = known(gates, counts.engines.bytes_differing);
  json["reads"] = known(gates, counts.engines.reads);
  json["reads_different"] = known(gates, counts.engines.reads_different);
  json["gate_seconds"] = known(gates, counts.engines.gate_seconds);
  json["seconds"] = known(owners, counts.refit_seconds);
  json["payload_bytes"] = known(owners, counts.payload_bytes);
  json["transition"] = transition_of(records.transition);
  json["leader"] = records.leader.holder.name;
  json["engines"] = engines_json(engines, records.commit.id.version);
  json["endpoints"] = Json::array();
  for (const Member& member : status.membership.members) {
    Json entry = {{"name", member.endpoint.name},
                  {"role", role_name(member.role)},
                  {"incarnation", member.endpoint.incarnation},
                  {"engine", member.engine},
                  {"membership", member_state_name(member.state)}};
    const auto found = status.endpoints.find(member.endpoint.name);
    entry["answered"] = found != status.endpoints.end();
    if (found != status.endpoints.end()) entry.update(reply_of(found->second));
    json["endpoints"].push_back(std::move(entry));
  }
  json["silent"] = status.silent;
  return print(json);
}

std::string abort_json(bool commit_found, const ControlRecords& after) {
  Json json;
  json["committed_version"] = after.commit.id.version;
  json["commit_found"] = commit_found;
  json["transition"] = transition_of(after.transition);
  return print(json);
}

std::string restore_json(const std::vector<std::string>& receivers) {
  return print({{"restored", receivers}});
}

std::string local_json(const LocalResult& result) {
  Json json;
  json["committed_version"] = result.committed.id.version;
  json["attempts"] = result.attempts;
  json["kills"] = result.kills;
  json["pauses"] = result.pauses;
  json["refits"] = result.refits;
  json["receivers"] = result.receivers;
  json["bytes_compared"] = result.bytes_compared;
  json["bytes_differing"] = result.bytes_differing;
  json["reads"] = result.reads;
  json["reads_different"] = result.reads_different;
  json["gate_seconds"] = result.gate_seconds;
  json["seconds"] = result.seconds;
  json["payload_bytes"] = result.payload_bytes;
  json["not_reached"] = result.not_reached;
  json["gate_closed_early"] = Json::array();
  for (const LocalEarlyClose& early : result.gates_closed_early) {
    json["gate_closed_early"].push_back(
        {{"version", early.version}, {"reason", early.reason}, {"seconds", early.seconds}});
  }
  json["windows"] = Json::array();
  for (const LocalWindow& window : result.windows) {
    json["windows"].push_back(
        {{"version", window.version}, {"begin", window.begin}, {"end", window.end}});
  }
  json["spans"] = Json::array();
  for (const LocalSpan& span : result.spans) {
    json["spans"].push_back({{"stage", span.stage},
                             {"endpoint", span.endpoint},
                             {"begin", span.begin},
                             {"end", span.end},
                             {"busy", span.busy}});
  }
  return print(json);
}

}  // namespace dcr
