#include "layout/generators.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/limits.h"
#include "layout/layout_file.h"
#include "layout/name_pattern.h"
#include "tensor/json.h"
#include "tensor/text.h"

namespace dcr {

namespace {

constexpr std::uint64_t kPaddingMultiple = 64;  // what serving runtimes pad a vocabulary to

struct Spec {
  std::uint64_t shards = 1;    // of each tensor that is cut
  std::uint64_t replicas = 1;  // of everything
  std::uint64_t experts = 1;   // groups of experts
  bool fsdp = false;
  bool fused = false;         // receivers
  bool expert_whole = false;  // receivers: experts not cut
  bool f32 = false;
  bool convert = false;  // owners
  std::uint64_t ranks() const { return shards * replicas; }
};

Status bad_spec(std::string_view spec, const std::string& what) {
  return {Code::kInvalidArgument, "layout " + quoted_name(spec) + ": " + what};
}

// "key:number", or a word alone (number 0).
struct SpecPart {
  std::string_view key;
  std::uint64_t number = 0;
};

Result<std::vector<SpecPart>> split_spec(std::string_view spec) {
  std::vector<SpecPart> parts;
  std::string_view rest = spec;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t colon = part.find(':');
    SpecPart made{part.substr(0, colon), 0};
    if (colon != std::string_view::npos) {
      const std::string_view digits = part.substr(colon + 1);
      if (is_capture_number(digits)) made.number = std::stoul(std::string(digits));
      if (made.number == 0 || made.number > kLayoutRanksMax) {
        return bad_spec(spec, quoted_name(digits) + " is not a number from 1 to " +
                                  std::to_string(kLayoutRanksMax));
      }
    }
    for (const SpecPart& other : parts) {
      if (other.key == made.key) return bad_spec(spec, quoted_name(made.key) + " stands twice");
    }
    parts.push_back(made);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  return parts;
}

Status check_ranks(std::string_view spec, const Spec& made) {
  if (made.ranks() > kLayoutRanksMax) {
    return bad_spec(spec, "more than " + std::to_string(kLayoutRanksMax) + " ranks");
  }
  return {};
}

Result<Spec> parse_owner_spec(std::string_view spec) {
  DCR_ASSIGN(const std::vector<SpecPart> parts, split_spec(spec));
  Spec made;
  std::uint64_t tp = 0;
  std::uint64_t dp = 0;
  for (const auto& [key, number] : parts) {
    if (key == "fsdp" && number > 0) {
      made.fsdp = true;
      made.shards = number;
    } else if (key == "tp" && number > 0) {
      tp = number;
    } else if (key == "dp" && number > 0) {
      dp = number;
    } else if (key == "ep" && number > 0) {
      made.experts = number;
    } else if (key == "f32" && number == 0) {
      made.f32 = true;
    } else if (key == "convert" && number == 0) {
      made.convert = true;
    } else {
      return bad_spec(
          spec, quoted_name(key) + " is not one of fsdp:N, tp:N, dp:N, ep:N, f32 and convert");
    }
  }
  if (made.fsdp && (tp > 0 || dp > 0 || made.experts > 1)) {
    return bad_spec(spec, "fsdp stands alone or with f32 and convert");
  }
  if (!made.fsdp) {
    made.shards = std::max<std::uint64_t>(tp, 1);
    made.replicas = dp > 0 ? dp : made.experts;
    if (made.replicas % made.experts != 0) {
      return bad_spec(spec, "ep does not divide dp");
    }
  }
  DCR_TRY(check_ranks(spec, made));
  return made;
}

Result<Spec> parse_receiver_spec(std::string_view spec) {
  DCR_ASSIGN(const std::vector<SpecPart> parts, split_spec(spec));
  Spec made;
  made.fused = true;
  bool tp = false;
  for (const auto& [key, number] : parts) {
    if (key == "fused-tp" && number > 0) {
      tp = true;
      made.shards = number;
    } else if (key == "ep" && number == 0) {
      made.expert_whole = true;
    } else {
      return bad_spec(spec, quoted_name(key) + " is not one of fused-tp:N and ep");
    }
  }
  if (!tp) return bad_spec(spec, "it needs fused-tp:N");
  return made;
}

// What a tensor is to the layers around it, by the last parts of its name.
enum class Role : std::uint8_t { kOther, kQuery, kKey, kValue, kGate, kUp, kDown, kColumn, kVocab };

struct RoleName {
  std::string_view stem;  // the parts before ".weight" or ".bias", or their end
  Role role;
};

constexpr std::array<RoleName, 26> kRoles = {{
    {"attention.output.dense", Role::kDown},
    {"intermediate.dense", Role::kColumn},
    {"output.dense", Role::kDown},
    {"q_proj", Role::kQuery},
    {"k_proj", Role::kKey},
    {"v_proj", Role::kValue},
    {"self.query", Role::kQuery},
    {"self.key", Role::kKey},
    {"self.value", Role::kValue},
    {"gate_proj", Role::kGate},
    {"up_proj", Role::kUp},
    {"w1", Role::kGate},
    {"w3", Role::kUp},
    {"o_proj", Role::kDown},
    {"out_proj", Role::kDown},
    {"down_proj", Role::kDown},
    {"w2", Role::kDown},
    {"fc1", Role::kColumn},
    {"fc2", Role::kDown},
    {"in_proj", Role::kColumn},
    {"embed_tokens", Role::kVocab},
    {"word_embeddings", Role::kVocab},
    {"embeddings", Role::kVocab},
    {"lm_head", Role::kVocab},
    {"wte", Role::kVocab},
    {"output_layer", Role::kVocab},
}};

bool ends_with_parts(std::string_view text, std::string_view end) {
  return text.ends_with(end) &&
         (text.size() == end.size() || text[text.size() - end.size() - 1] == '.');
}

// Tensors whose names differ in numbers only.
struct Family {
  std::string pattern;
  bool experts = false;  // {e} is among the captures
  std::uint64_t expert_count = 0;
  Role role = Role::kOther;
  std::string stem;                                // the pattern before what gives the role
  std::string kind;                                // "weight", "bias"; the pattern's last part
  std::vector<std::vector<std::string>> captured;  // of each tensor, in order
  std::vector<const CanonicalTensor*> tensors;
  bool used = false;
};

// Splits a name into its pattern and what that captures: numbers become {i}, {j}, … and the one
// after "experts" {e}.
std::string pattern_of(std::string_view name, std::vector<std::string>* captured, bool* experts) {
  static constexpr std::string_view kLetters = "ijklmnopqrstuvwxyz";
  std::string pattern;
  std::string_view before;
  std::size_t letters = 0;
  captured->clear();
  *experts = false;
  for (bool more = true; more;) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    const bool expert = before == "experts" && !*experts;
    if (is_capture_number(part) && (expert || letters < kLetters.size())) {
      pattern.append("{").append(1, expert ? 'e' : kLetters[letters++]).append("}");
      captured->emplace_back(part);
      *experts = *experts || expert;
    } else {
      pattern += part;
    }
    before = part;
    more = dot != std::string_view::npos;
    if (more) {
      pattern += '.';
      name.remove_prefix(dot + 1);
    }
  }
  return pattern;
}

void set_role(Family* family) {
  const std::size_t dot = family->pattern.rfind('.');
  if (dot == std::string::npos) return;
  family->kind = family->pattern.substr(dot + 1);
  if (family->kind != "weight" && family->kind != "bias") return;
  const std::string_view pattern = family->pattern;
  const std::string_view stem = pattern.substr(0, dot);
  for (const RoleName& role : kRoles) {
    if (!ends_with_parts(stem, role.stem)) continue;
    family->role = role.role;
    family->stem = stem.substr(0, stem.size() - role.stem.size());
    return;
  }
}

Result<std::vector<Family>> make_families(const Catalogue& catalogue) {
  std::map<std::string, std::size_t> by_pattern;
  std::vector<Family> families;
  std::vector<std::string> captured;
  for (const CanonicalTensor& tensor : catalogue.tensors()) {
    if (tensor.name.find_first_of("{}") != std::string::npos) {
      return Status(Code::kUnsupported,
                    "tensor " + quoted_name(tensor.name) +
                        " has a brace in its name, which no pattern of a layout file matches",
                    tensor.name);
    }
    bool experts = false;
    std::string pattern = pattern_of(tensor.name, &captured, &experts);
    DCR_ASSIGN(const NamePattern parsed, NamePattern::parse(pattern));
    const auto [found, fresh] = by_pattern.emplace(pattern, families.size());
    if (fresh) {
      Family family;
      family.pattern = std::move(pattern);
      family.experts = experts;
      set_role(&family);
      families.push_back(std::move(family));
    }
    Family& family = families[found->second];
    if (experts) {
      const std::vector<std::string>& names = parsed.captures();
      const auto at = std::find(names.begin(), names.end(), "e") - names.begin();
      const std::uint64_t expert = std::stoul(captured[static_cast<std::size_t>(at)]);
      family.expert_count = std::max(family.expert_count, expert + 1);
    }
    family.captured.push_back(captured);
    family.tensors.push_back(&tensor);
  }
  return families;
}

// The rules, as text.
class Writer {
 public:
  Writer(const Spec& spec, std::vector<Family> families)
      : spec_(spec), families_(std::move(families)) {
    for (std::size_t i = 0; i < families_.size(); ++i) {
      by_place_[{families_[i].stem, families_[i].kind, families_[i].role}] = i;
      names_.insert(families_[i].pattern);
    }
  }

  std::string write() {
    // What is joined first, so that nothing else takes its members.
    for (Family& family : families_) {
      if (!spec_.fsdp && !family.used) join(family);
    }
    for (Family& family : families_) {
      if (!family.used) add(family);
    }
    return "{\n  \"format\": 0,\n  \"ranks\": " + std::to_string(spec_.ranks()) +
           ",\n  \"rules\": [\n" + rules_ + "\n  ]\n}\n";
  }

 private:
  using Place = std::tuple<std::string, std::string, Role>;

  void join(Family& family) {
    if (family.role == Role::kQuery) query_key_value(family);
    if (family.role == Role::kGate) gate_and_up(family);
  }

  void add(Family& family) {
    if (spec_.fsdp) return add_rule(family, {&family}, "fsdp", {});
    if (family.role == Role::kVocab && vocabulary(family)) return;
    if (family.role == Role::kDown && is_cut(family, 1)) {
      return add_rule(family, {&family}, "row", stacked_name(family, "w2_weight"));
    }
    const bool column =
        family.role != Role::kOther && family.role != Role::kDown && family.role != Role::kVocab;
    if (column && is_cut(family, 0)) {
      return add_rule(family, {&family}, "column", {});
    }
    add_rule(family, {&family}, "replicated", {});
  }

  // Shards of a rule for this family: experts that stay whole are not cut.
  std::uint64_t shards_of(const Family& family) const {
    return family.experts && spec_.expert_whole ? 1 : spec_.shards;
  }

  // Whether every tensor of the family divides along the dimension.
  bool is_cut(const Family& family, std::size_t dim) const {
    return std::all_of(family.tensors.begin(), family.tensors.end(),
                       [&](const CanonicalTensor* tensor) {
                         return dim < tensor->shape.size() && dtype_bits(tensor->dtype) >= 8 &&
                                tensor->shape[dim] % shards_of(family) == 0;
                       });
  }

  Family* partner(const Family& family, Role role) {
    const auto found = by_place_.find({family.stem, family.kind, role});
    if (found == by_place_.end()) return nullptr;
    Family& other = families_[found->second];
    if (other.used || other.captured != family.captured) return nullptr;
    for (std::size_t i = 0; i < other.tensors.size(); ++i) {
      const CanonicalTensor& a = *family.tensors[i];
      const CanonicalTensor& b = *other.tensors[i];
      const bool fits = a.dtype == b.dtype && a.shape.size() == b.shape.size() &&
                        !a.shape.empty() &&
                        std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
      if (!fits) return nullptr;
    }
    return &other;
  }

  bool vocabulary(Family& family) {
    const bool rows =
        family.kind == "weight" && std::all_of(family.tensors.begin(), family.tensors.end(),
                                               [](const CanonicalTensor* tensor) {
                                                 return tensor->shape.size() == 2 &&
                                                        dtype_bits(tensor->dtype) >= 8;
                                               });
    if (!rows) return false;
    const std::uint64_t multiple = spec_.fused && kPaddingMultiple % spec_.shards == 0
                                       ? kPaddingMultiple
                                       : kPaddingMultiple * spec_.shards;
    add_rule(family, {&family}, "vocabulary", {}, ", \"multiple\": " + std::to_string(multiple));
    return true;
  }

  void query_key_value(Family& query) {
    Family* key = partner(query, Role::kKey);
    Family* value = partner(query, Role::kValue);
    if (key == nullptr || value == nullptr) return;
    if (!is_cut(query, 0) || !is_cut(*key, 0) || !is_cut(*value, 0)) return;
    const std::string name = query.stem + (spec_.fused ? "qkv_proj." : "linear_qkv.") + query.kind;
    if (!is_free(name)) return;
    if (spec_.fused) return add_rule(query, {&query, key, value}, "column", name);
    const std::uint64_t groups = head_groups(query, *key, *value);
    if (groups == 0) return;
    add_rule(query, {&query, key, value}, "qkv", name, ", \"groups\": " + std::to_string(groups));
  }

  // A number of groups of heads that fits all: of heads of 128, 64, 32 or 16 rows where they
  // divide, else one per shard.
  std::uint64_t head_groups(const Family& query, const Family& key, const Family& value) const {
    const std::uint64_t rows = key.tensors.front()->shape.front();
    for (std::size_t i = 0; i < key.tensors.size(); ++i) {
      if (key.tensors[i]->shape.front() != rows || value.tensors[i]->shape.front() != rows) {
        return 0;
      }
    }
    const auto fits = [&](std::uint64_t groups) {
      return groups > 0 && rows % groups == 0 && groups % spec_.shards == 0 &&
             std::all_of(query.tensors.begin(), query.tensors.end(),
                         [&](const CanonicalTensor* tensor) {
                           return tensor->shape.front() % groups == 0;
                         });
    };
    for (std::uint64_t head = 128; head >= 16; head /= 2) {
      if (rows % head == 0 && fits(rows / head)) return rows / head;
    }
    return fits(spec_.shards) ? spec_.shards : 0;
  }

  void gate_and_up(Family& gate) {
    Family* up = partner(gate, Role::kUp);
    if (up == nullptr || !is_cut(gate, 0) || !is_cut(*up, 0)) return;
    std::string name = stacked_name(gate, "w13_weight");
    if (name.empty()) {
      name = gate.stem + (spec_.fused ? "gate_up_proj." : "linear_fc1.") + gate.kind;
    }
    if (is_free(name)) add_rule(gate, {&gate, up}, "gated", name);
  }

  // Whether no other rule makes tensors of this name.
  bool is_free(const std::string& name) const { return !names_.contains(name); }

  // Receivers hold experts in one parameter, if every layer has all of them and of one shape.
  bool is_stacked(const Family& family) const {
    if (!spec_.fused || !family.experts || family.kind != "weight") return false;
    if (family.expert_count > kLayoutExpertsMax) return false;
    const Shape& shape = family.tensors.front()->shape;
    const bool alike =
        std::all_of(family.tensors.begin(), family.tensors.end(),
                    [&](const CanonicalTensor* tensor) { return tensor->shape == shape; });
    return alike && complete(family);
  }

  // {e} is the last capture, and what the others take comes with all experts.
  static bool complete(const Family& family) {
    if (family.pattern.find('{', family.pattern.find("{e}") + 1) != std::string::npos) return false;
    std::map<std::vector<std::string>, std::uint64_t> counts;
    for (std::vector<std::string> captured : family.captured) {
      captured.pop_back();
      ++counts[captured];
    }
    return std::all_of(counts.begin(), counts.end(),
                       [&](const auto& count) { return count.second == family.expert_count; });
  }

  std::string stacked_name(const Family& family, const std::string& last) const {
    if (!is_stacked(family)) return {};
    const std::string name = family.pattern.substr(0, family.pattern.find("{e}")) + last;
    return is_free(name) ? name : std::string();
  }

  void add_rule(Family& family, const std::vector<Family*>& members, const std::string& mapping,
                const std::string& name, const std::string& more = {});

  const Spec& spec_;
  std::vector<Family> families_;
  std::map<Place, std::size_t> by_place_;
  std::set<std::string> names_;  // of local tensors, as their rules write them
  std::string rules_;
};

void Writer::add_rule(Family& family, const std::vector<Family*>& members,
                      const std::string& mapping, const std::string& name,
                      const std::string& more) {
  std::string patterns;
  for (Family* member : members) {
    patterns += (patterns.empty() ? "" : ",\n               ") + json_string(member->pattern);
    member->used = true;
  }
  rules_ += rules_.empty() ? "    {" : ",\n    {";
  rules_ += "\"match\": " + (members.size() == 1 ? patterns : "[" + patterns + "]");
  if (!name.empty()) rules_ += ",\n     \"name\": " + json_string(name);
  names_.insert(name);
  rules_ += ", \"class\": \"" + mapping + "\"";
  if (mapping != "replicated") rules_ += ", \"shards\": " + std::to_string(shards_of(family));
  rules_ += more;
  const std::uint64_t groups = spec_.expert_whole ? spec_.shards : spec_.experts;
  const bool counted =
      mapping == "replicated" || mapping == "column" || mapping == "row" || mapping == "gated";
  const bool stacked = !name.empty() && name.find("{e}") == std::string::npos;
  const bool few = family.expert_count <= kLayoutExpertsMax;
  if (family.experts && counted && few && (groups > 1 || stacked)) {
    rules_ += ", \"experts\": " + std::to_string(family.expert_count);
    if (groups > 1) rules_ += ", \"expert_groups\": " + std::to_string(groups);
  }
  const bool floats =
      std::all_of(family.tensors.begin(), family.tensors.end(), [](const CanonicalTensor* tensor) {
        return tensor->dtype == Dtype::kBF16 || tensor->dtype == Dtype::kF16;
      });
  if (spec_.f32 && floats) rules_ += ", \"dtype\": \"F32\"";
  if (spec_.convert) rules_ += ", \"path\": \"convert\"";
  rules_ += "}";
}

}  // namespace

Result<std::string> generate_owner_layout(const Catalogue& catalogue, std::string_view spec) {
  DCR_ASSIGN(const Spec parsed, parse_owner_spec(spec));
  DCR_ASSIGN(std::vector<Family> families, make_families(catalogue));
  return Writer(parsed, std::move(families)).write();
}

Result<std::string> generate_receiver_layout(const Catalogue& catalogue, std::string_view spec) {
  DCR_ASSIGN(const Spec parsed, parse_receiver_spec(spec));
  DCR_ASSIGN(std::vector<Family> families, make_families(catalogue));
  return Writer(parsed, std::move(families)).write();
}

}  // namespace dcr
