#include "run/run_config.h"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/file.h"

namespace dcr {
namespace {

constexpr const char* kOwnerTable = "owner";

// Edits of one letter that make one word the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

Status wrong(const toml::node& node, const std::string& what) {
  return {Code::kInvalidArgument, "line " + std::to_string(node.source().begin.line) + ": " + what};
}

// One table of the file, of which every key must be taken.
class Table {
 public:
  Table(const toml::table& table, std::string name) : table_(table), name_(std::move(name)) {}

  Status text(const char* key, std::string* to, bool required = true) {
    const toml::node* const node = find(key);
    if (node == nullptr) return required ? missing(key) : Status();
    const auto value = node->value_exact<std::string>();
    if (!value || value->empty()) return wrong(*node, std::string(key) + " is no text");
    *to = *value;
    return {};
  }

  Status number(const char* key, std::uint64_t* to, std::uint64_t least) {
    const toml::node* const node = find(key);
    if (node == nullptr) return {};
    const auto value = node->value_exact<std::int64_t>();
    if (!value || *value < 0 || static_cast<std::uint64_t>(*value) < least) {
      return wrong(*node, std::string(key) + " is no whole number from " + std::to_string(least));
    }
    *to = static_cast<std::uint64_t>(*value);
    return {};
  }

  Status flag(const char* key, bool* to) {
    const toml::node* const node = find(key);
    if (node == nullptr) return {};
    const auto value = node->value_exact<bool>();
    if (!value) return wrong(*node, std::string(key) + " is neither true nor false");
    *to = *value;
    return {};
  }

  // The tables of an array, or none.
  Status tables(const char* key, std::vector<const toml::table*>* to) {
    const toml::node* const node = find(key);
    if (node == nullptr) return {};
    const toml::array* const array = node->as_array();
    if (array == nullptr) return wrong(*node, std::string(key) + " is no list of tables");
    for (const toml::node& entry : *array) {
      const toml::table* const table = entry.as_table();
      if (table == nullptr) return wrong(entry, std::string(key) + " is no list of tables");
      to->push_back(table);
    }
    return {};
  }

  Status table(const char* key, const toml::table** to) {
    const toml::node* const node = find(key);
    if (node == nullptr) return {};
    *to = node->as_table();
    return *to == nullptr ? wrong(*node, std::string(key) + " is no table") : Status();
  }

  // Error: a key that nobody asked for.
  Status finish() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      const std::string near = nearest(name, known_);
      return wrong(node, "unknown key " + name + " in " + name_ +
                             (near.empty() ? "" : "; did you mean " + near + "?"));
    }
    return {};
  }

 private:
  const toml::node* find(const char* key) {
    known_.emplace_back(key);
    return table_.get(key);
  }
  Status missing(const char* key) const {
    return wrong(table_, name_ + " has no " + std::string(key));
  }

  const toml::table& table_;
  const std::string name_;
  std::vector<std::string> known_;
};

Status read_peer(Table& table, PeerConfig* peer) {
  DCR_TRY(table.text("name", &peer->name));
  DCR_TRY(table.text("address", &peer->address));
  return table.text("public_key", &peer->public_key);
}

Status read_peers(Table& root, const char* key, std::vector<PeerConfig>* peers) {
  std::vector<const toml::table*> tables;
  DCR_TRY(root.tables(key, &tables));
  for (const toml::table* const entry : tables) {
    Table table(*entry, key);
    PeerConfig& peer = peers->emplace_back();
    DCR_TRY(read_peer(table, &peer));
    if (std::string_view(key) == kOwnerTable) {
      DCR_TRY(table.text("collective", &peer.collective, false));
    }
    DCR_TRY(table.finish());
  }
  return {};
}

Status read_engines(Table& root, std::vector<EngineConfig>* engines) {
  std::vector<const toml::table*> tables;
  DCR_TRY(root.tables("engine", &tables));
  for (const toml::table* const entry : tables) {
    Table table(*entry, "engine");
    EngineConfig& engine = engines->emplace_back();
    DCR_TRY(read_peer(table, &engine.gate));
    DCR_TRY(table.text("node", &engine.node));
    DCR_TRY(read_peers(table, "receiver", &engine.receivers));
    DCR_TRY(table.finish());
    if (engine.receivers.empty()) return wrong(*entry, engine.gate.name + " has no receiver");
  }
  return {};
}

Status read_waits(Table& root, Waits* waits) {
  const toml::table* found = nullptr;
  DCR_TRY(root.table("waits", &found));
  if (found == nullptr) return {};
  Table table(*found, "waits");
  for (const auto& [key, to] : std::initializer_list<std::pair<const char*, std::uint64_t*>>{
           {"repeat_ms", &waits->repeat_ms},
           {"look_ms", &waits->look_ms},
           {"beat_ms", &waits->beat_ms},
           {"leader_ms", &waits->leader_ms},
           {"prepare_ms", &waits->prepare_ms},
           {"send_ms", &waits->send_ms},
           {"drain_ms", &waits->drain_ms},
           {"apply_ms", &waits->apply_ms},
           {"stop_ms", &waits->stop_ms},
           {"baseline_ms", &waits->baseline_ms},
           {"cleanup_ms", &waits->cleanup_ms},
           {"join_hold_ms", &waits->join_hold_ms},
           {"membership_ms", &waits->membership_ms},
           {"restore_ms", &waits->restore_ms},
           {"restore_again_ms", &waits->restore_again_ms},
           {"attempts_max", &waits->attempts_max}}) {
    DCR_TRY(table.number(key, to, 1));
  }
  return table.finish();
}

// How much of what, and how long.
Status read_amounts(Table& root, RunConfig* config) {
  std::uint64_t threads = config->threads;
  DCR_TRY(root.number("memory_bytes_max", &config->memory_bytes_max, kMiB));
  DCR_TRY(root.number("staging_bytes_max", &config->staging_bytes_max, 0));
  DCR_TRY(root.number("bucket_bytes", &config->bucket_bytes, 1));
  DCR_TRY(root.number("threads", &threads, 1));
  DCR_TRY(read_waits(root, &config->waits));
  if (threads > kThreadsOfEndpointMax) {
    return {Code::kInvalidArgument, "threads is above " + std::to_string(kThreadsOfEndpointMax)};
  }
  config->threads = static_cast<unsigned>(threads);
  return {};
}

Result<toml::table> parse_toml(std::string_view text) {
  toml::parse_result parsed = toml::parse(text);
  if (parsed) return std::move(parsed).table();
  return Status(Code::kInvalidArgument, "line " +
                                            std::to_string(parsed.error().source().begin.line) +
                                            ": " + std::string(parsed.error().description()));
}

std::int64_t toml_number(std::uint64_t value) { return static_cast<std::int64_t>(value); }

toml::table waits_table(const Waits& waits) {
  return toml::table{{"repeat_ms", toml_number(waits.repeat_ms)},
                     {"look_ms", toml_number(waits.look_ms)},
                     {"beat_ms", toml_number(waits.beat_ms)},
                     {"leader_ms", toml_number(waits.leader_ms)},
                     {"prepare_ms", toml_number(waits.prepare_ms)},
                     {"send_ms", toml_number(waits.send_ms)},
                     {"drain_ms", toml_number(waits.drain_ms)},
                     {"apply_ms", toml_number(waits.apply_ms)},
                     {"stop_ms", toml_number(waits.stop_ms)},
                     {"baseline_ms", toml_number(waits.baseline_ms)},
                     {"cleanup_ms", toml_number(waits.cleanup_ms)},
                     {"join_hold_ms", toml_number(waits.join_hold_ms)},
                     {"membership_ms", toml_number(waits.membership_ms)},
                     {"restore_ms", toml_number(waits.restore_ms)},
                     {"restore_again_ms", toml_number(waits.restore_again_ms)},
                     {"attempts_max", toml_number(waits.attempts_max)}};
}

std::string absolute(const std::string& path, const std::string& directory) {
  return path.starts_with('/') ? path : join_path(directory, path);
}

// A layout's file, or what to generate one from, which has a ':' and no '/'.
std::string layout_path(const std::string& layout, const std::string& directory) {
  const bool generated =
      layout.find(':') != std::string::npos && layout.find('/') == std::string::npos;
  return generated ? layout : absolute(layout, directory);
}

Status check_weights(const RunConfig& config) {
  const std::pair<const char*, const std::string&> keys[] = {
      {"base", config.base}, {"owners", config.owners}, {"receivers", config.receivers}};
  std::string there, missing;
  for (const auto& [key, value] : keys) (value.empty() ? missing : there) = key;
  if (there.empty() || missing.empty()) return {};
  return {Code::kInvalidArgument,
          "the file has " + there + " and no " + missing +
              ": a run of checkpoints has base, owners and receivers, one of trainers and engines "
              "none of them"};
}

Status check(const RunConfig& config) {
  DCR_TRY(check_weights(config));
  std::set<std::string> names;
  for (const PeerConfig& peer : all_peers(config)) {
    if (names.insert(peer.name).second) continue;
    return {Code::kInvalidArgument, "two endpoints are named " + peer.name};
  }
  for (const EngineConfig& engine : config.engines) {
    const bool found =
        std::any_of(config.nodes.begin(), config.nodes.end(),
                    [&](const PeerConfig& node) { return node.name == engine.node; });
    if (found) continue;
    return {Code::kInvalidArgument,
            engine.gate.name + " is on node " + engine.node + ", which there is not"};
  }
  if (config.owner_peers.empty()) return {Code::kInvalidArgument, "the run has no owner"};
  return {};
}

void format_peer(std::ostream& out, const char* table, const PeerConfig& peer) {
  toml::table keys{{"name", peer.name}, {"address", peer.address}, {"public_key", peer.public_key}};
  if (!peer.collective.empty()) keys.insert("collective", peer.collective);
  out << "\n[[" << table << "]]\n" << keys << "\n";
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t edits = distance(word, candidate);
    if (edits >= least) continue;
    least = edits;
    best = candidate;
  }
  return best;
}

Result<RunConfig> parse_run_config(std::string_view text, const std::string& directory) {
  DCR_ASSIGN(const toml::table parsed, parse_toml(text));
  RunConfig config;
  Table root(parsed, "the file");
  DCR_TRY(root.text("directory", &config.directory));
  DCR_TRY(root.text("objects", &config.objects, false));
  DCR_TRY(root.text("work", &config.work, false));
  DCR_TRY(root.text("base", &config.base, false));
  DCR_TRY(root.text("owners", &config.owners, false));
  DCR_TRY(root.text("receivers", &config.receivers, false));
  DCR_TRY(root.flag("requests", &config.requests));
  DCR_TRY(read_amounts(root, &config));
  DCR_TRY(read_peers(root, "coordinator", &config.coordinators));
  DCR_TRY(read_peers(root, kOwnerTable, &config.owner_peers));
  DCR_TRY(read_peers(root, "node", &config.nodes));
  DCR_TRY(read_engines(root, &config.engines));
  DCR_TRY(read_peers(root, "operator", &config.operators));
  DCR_TRY(root.finish());
  config.directory = absolute(config.directory, directory);
  for (std::string* const path : {&config.objects, &config.work, &config.base}) {
    if (!path->empty()) *path = absolute(*path, directory);
  }
  for (std::string* const layout : {&config.owners, &config.receivers}) {
    if (!layout->empty()) *layout = layout_path(*layout, directory);
  }
  DCR_TRY(check(config));
  return config;
}

Result<RunConfig> read_run_config(const std::string& path) {
  DCR_ASSIGN(const Bytes bytes, read_file(posix_file_system(), path, kRunConfigBytesMax));
  auto config = parse_run_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                 parent_path(path));
  if (!config.ok()) return config.status().with_context(path);
  return config;
}

Result<RunConfig> parse_run_settings(std::string_view text, const std::string& directory) {
  DCR_ASSIGN(const toml::table parsed, parse_toml(text));
  RunConfig config;
  config.directory = directory;
  Table root(parsed, "the settings");
  DCR_TRY(read_amounts(root, &config));
  DCR_TRY(root.finish());
  return config;
}

std::string format_run_settings(const RunConfig& config) {
  std::ostringstream out;
  out << toml::table{{"memory_bytes_max", toml_number(config.memory_bytes_max)},
                     {"staging_bytes_max", toml_number(config.staging_bytes_max)},
                     {"bucket_bytes", toml_number(config.bucket_bytes)},
                     {"threads", toml_number(config.threads)}}
      << "\n\n[waits]\n"
      << waits_table(config.waits) << "\n";
  return out.str();
}

std::string format_run_config(const RunConfig& config) {
  std::ostringstream out;
  toml::table head{{"directory", config.directory},
                   {"memory_bytes_max", toml_number(config.memory_bytes_max)},
                   {"staging_bytes_max", toml_number(config.staging_bytes_max)},
                   {"bucket_bytes", toml_number(config.bucket_bytes)},
                   {"threads", toml_number(config.threads)},
                   {"requests", config.requests}};
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"objects", config.objects},
           {"work", config.work},
           {"base", config.base},
           {"owners", config.owners},
           {"receivers", config.receivers}}) {
    if (!value.empty()) head.insert(key, value);
  }
  out << head << "\n\n[waits]\n" << waits_table(config.waits) << "\n";
  for (const PeerConfig& peer : config.coordinators) format_peer(out, "coordinator", peer);
  for (const PeerConfig& peer : config.owner_peers) format_peer(out, kOwnerTable, peer);
  for (const PeerConfig& peer : config.nodes) format_peer(out, "node", peer);
  for (const EngineConfig& engine : config.engines) {
    format_peer(out, "engine", engine.gate);
    out << toml::table{{"node", engine.node}} << "\n";
    for (const PeerConfig& peer : engine.receivers) format_peer(out, "engine.receiver", peer);
  }
  for (const PeerConfig& peer : config.operators) format_peer(out, "operator", peer);
  return out.str();
}

Status check_has_base(const RunConfig& config, const std::string& what) {
  if (!config.base.empty()) return {};
  return {Code::kInvalidArgument,
          "the run's file has no base: its owners and engines are trainers and servers, which take "
          "part by themselves; " +
              what};
}

std::vector<PeerConfig> all_peers(const RunConfig& config) {
  std::vector<PeerConfig> peers = config.coordinators;
  const auto add = [&](const std::vector<PeerConfig>& more) {
    peers.insert(peers.end(), more.begin(), more.end());
  };
  add(config.owner_peers);
  add(config.nodes);
  for (const EngineConfig& engine : config.engines) {
    peers.push_back(engine.gate);
    add(engine.receivers);
  }
  add(config.operators);
  return peers;
}

Result<PeerConfig> find_peer(const RunConfig& config, const std::string& name) {
  std::vector<std::string> names;
  for (const PeerConfig& peer : all_peers(config)) {
    if (peer.name == name) return peer;
    names.push_back(peer.name);
  }
  const std::string near = nearest(name, names);
  return Status(Code::kInvalidArgument, "no endpoint is named " + name +
                                            (near.empty() ? "" : "; did you mean " + near + "?"));
}

}  // namespace dcr
