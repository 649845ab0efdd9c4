// Random layouts as JSON, and what they mean said element by element: the formulas of
// docs/LAYOUT.md as loops, for tests to compare boxes with.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "tensor/catalogue.h"
#include "tests/support/test_memory.h"

namespace dcr {

// A rule of a random layout, over matrices or (columns == 1, vector) vectors.
struct RandomRule {
  std::string mapping;  // "replicated", "column", "row", "gated", "vocabulary", "fsdp", "qkv"
  std::uint64_t shards = 1;
  std::uint64_t multiple = 1;
  std::uint64_t groups = 1;
  std::vector<std::uint64_t> copies;  // of each member
  bool transposed = false;
  bool vector = false;
  std::uint64_t experts = 0;
  std::uint64_t expert_groups = 1;
  bool stacked = false;
  Dtype dtype = Dtype::kBF16;
  std::optional<Dtype> local_dtype;
  std::uint64_t columns = 1;        // in the local order
  std::vector<std::uint64_t> rows;  // of each member, in the local order
  std::uint64_t layers = 1;
  std::string prefix;

  std::string tensor_name(std::uint64_t layer, std::uint64_t expert, std::size_t member) const {
    std::string name = prefix + "." + std::to_string(layer);
    if (experts > 0) name += ".experts." + std::to_string(expert);
    return name + ".m" + std::to_string(member);
  }
  std::string local_name(std::uint64_t layer, std::uint64_t expert) const {
    std::string name = prefix + ".local" + std::to_string(layer);
    if (experts > 0 && !stacked) name += "e" + std::to_string(expert);
    return name;
  }
};

// A canonical element: which member's, of which expert, and its flat index.
struct Element {
  std::uint64_t expert = 0;
  std::size_t member = 0;
  std::uint64_t index = 0;
  auto operator<=>(const Element&) const = default;
};

// Row `row` and column `column` of a member in the local order.
inline Element element_at(const RandomRule& rule, std::uint64_t expert, std::size_t member,
                          std::uint64_t row, std::uint64_t column) {
  const std::uint64_t index =
      rule.transposed ? column * rule.rows[member] + row : row * rule.columns + column;
  return {expert, member, index};
}

using LocalElements = std::vector<std::optional<Element>>;

inline void add_row(const RandomRule& rule, std::uint64_t expert, std::size_t member,
                    std::uint64_t row, std::uint64_t begin, std::uint64_t end, LocalElements* out) {
  for (std::uint64_t column = begin; column < end; ++column) {
    out->push_back(element_at(rule, expert, member, row, column));
  }
}

// What shard `shard` of one expert's tensors holds, in order.
inline void add_shard(const RandomRule& rule, std::uint64_t expert, std::uint64_t shard,
                      LocalElements* out) {
  const std::uint64_t all = rule.columns;
  if (rule.mapping == "qkv") {
    std::uint64_t group_rows = 0;
    for (const std::uint64_t rows : rule.rows) group_rows += rows / rule.groups;
    const std::uint64_t local = group_rows * rule.groups / rule.shards;
    for (std::uint64_t packed = shard * local; packed < (shard + 1) * local; ++packed) {
      const std::uint64_t group = packed / group_rows;
      std::uint64_t rest = packed % group_rows;
      std::size_t member = 0;
      while (rest >= rule.rows[member] / rule.groups) rest -= rule.rows[member++] / rule.groups;
      add_row(rule, expert, member, group * (rule.rows[member] / rule.groups) + rest, 0, all, out);
    }
    return;
  }
  if (rule.mapping == "vocabulary") {
    const std::uint64_t rows = rule.rows[0];
    const std::uint64_t padded = (rows + rule.multiple - 1) / rule.multiple * rule.multiple;
    const std::uint64_t local = padded / rule.shards;
    for (std::uint64_t row = shard * local; row < (shard + 1) * local; ++row) {
      if (row < rows) {
        add_row(rule, expert, 0, row, 0, all, out);
      } else {
        out->insert(out->end(), all, std::nullopt);
      }
    }
    return;
  }
  for (std::size_t member = 0; member < rule.rows.size(); ++member) {
    const std::uint64_t rows = rule.rows[member];
    std::uint64_t first = 0;
    std::uint64_t last = rows;
    std::uint64_t begin = 0;
    std::uint64_t end = all;
    if (rule.mapping == "column" || rule.mapping == "gated") {
      const std::uint64_t copies = rule.copies.empty() ? 1 : rule.copies[member];
      const std::uint64_t local = rows / (rule.shards / copies);
      first = shard / copies * local;
      last = first + local;
    } else if (rule.mapping == "row") {
      begin = shard * (all / rule.shards);
      end = begin + all / rule.shards;
    } else if (rule.mapping == "fsdp") {
      const std::uint64_t chunk = (rows + rule.shards - 1) / rule.shards;
      first = std::min(rows, shard * chunk);
      last = std::min(rows, first + chunk);
    }
    for (std::uint64_t row = first; row < last; ++row) {
      add_row(rule, expert, member, row, begin, end, out);
    }
  }
}

struct RandomLayout {
  std::uint64_t ranks = 1;
  std::vector<RandomRule> rules;
  Catalogue catalogue;
  std::string json;

  // What the rank's local tensors hold, by their names (without the shard's number). A tensor that
  // the rank does not have is absent.
  std::map<std::string, LocalElements> local_tensors(std::size_t rule_index,
                                                     std::uint64_t rank) const {
    const RandomRule& rule = rules[rule_index];
    std::map<std::string, LocalElements> made;
    const std::uint64_t shard = rank % rule.shards;
    const std::uint64_t group = rank / rule.shards % rule.expert_groups;
    const std::uint64_t experts = std::max<std::uint64_t>(rule.experts, 1);
    const std::uint64_t each = (experts + rule.expert_groups - 1) / rule.expert_groups;
    for (std::uint64_t layer = 0; layer < rule.layers; ++layer) {
      for (std::uint64_t expert = group * each; expert < std::min(experts, (group + 1) * each);
           ++expert) {
        add_shard(rule, expert, shard, &made[rule.local_name(layer, expert)]);
      }
    }
    return made;
  }

  // The canonical tensor of an element of a local tensor of `layer`.
  std::uint32_t tensor_of(std::size_t rule, std::uint64_t layer, const Element& element) const {
    const std::int64_t found =
        catalogue.find(rules[rule].tensor_name(layer, element.expert, element.member));
    EXPECT_GE(found, 0);
    return static_cast<std::uint32_t>(found);
  }
};

inline std::string rule_json(const RandomRule& rule, bool receivers) {
  std::string match;
  for (std::size_t m = 0; m < rule.rows.size(); ++m) {
    match += (m == 0 ? "\"" : ", \"") + rule.prefix + ".{i}" +
             (rule.experts > 0 ? ".experts.{e}" : "") + ".m" + std::to_string(m) + "\"";
  }
  std::string text = "{\"match\": [" + match + "], \"name\": \"" + rule.prefix + ".local{i}" +
                     (rule.experts > 0 && !rule.stacked ? "e{e}" : "") + "\", \"class\": \"" +
                     rule.mapping + "\"";
  const auto add = [&](const char* key, std::uint64_t value) {
    text += ", \"" + std::string(key) + "\": " + std::to_string(value);
  };
  if (rule.mapping != "replicated") add("shards", rule.shards);
  if (rule.mapping == "vocabulary") add("multiple", rule.multiple);
  if (rule.mapping == "qkv") add("groups", rule.groups);
  if (rule.experts > 0) add("experts", rule.experts);
  if (rule.expert_groups > 1) add("expert_groups", rule.expert_groups);
  if (rule.transposed) text += ", \"permute\": [1, 0]";
  if (rule.local_dtype) {
    text += ", \"dtype\": \"" + std::string(dtype_name(*rule.local_dtype)) + "\"";
  }
  if (receivers && !rule.copies.empty()) {
    text += ", \"copies\": [";
    for (std::size_t m = 0; m < rule.copies.size(); ++m) {
      text += (m == 0 ? "" : ", ") + std::to_string(rule.copies[m]);
    }
    text += "]";
  }
  return text + "}";
}

inline RandomRule random_rule(Prng& prng, std::uint64_t ranks, std::size_t number, bool receivers) {
  constexpr const char* kMappings[] = {"replicated", "column", "row", "gated",
                                       "vocabulary", "fsdp",   "qkv"};
  RandomRule rule;
  rule.mapping = kMappings[prng.below(std::size(kMappings))];
  rule.prefix = "t" + std::to_string(number);
  rule.layers = 1 + prng.below(2);
  const auto divisor = [&](std::uint64_t of) {
    std::uint64_t made = 1 + prng.below(of);
    while (of % made != 0) made = 1 + prng.below(of);
    return made;
  };
  if (rule.mapping != "replicated") rule.shards = divisor(ranks);
  rule.vector = rule.mapping != "row" && prng.below(4) == 0;
  rule.columns = rule.vector ? 1 : 1 + prng.below(5);
  if (rule.mapping == "row") rule.columns = rule.shards * (1 + prng.below(3));
  rule.transposed = !rule.vector && prng.below(3) == 0;
  const bool expert = rule.mapping == "replicated" || rule.mapping == "column" ||
                      rule.mapping == "row" || rule.mapping == "gated" || rule.mapping == "fsdp";
  if (expert && prng.below(3) == 0) {
    rule.experts = 1 + prng.below(5);
    rule.expert_groups = divisor(ranks / rule.shards);
    rule.stacked = prng.below(2) == 0;
  }
  std::size_t members = 1;
  if (rule.mapping == "gated") members = 2;
  if (rule.mapping == "qkv") members = 3;
  if (rule.mapping == "column" || rule.mapping == "replicated") members = 1 + prng.below(3);
  if (rule.mapping == "vocabulary") rule.multiple = rule.shards * (1 + prng.below(4));
  if (rule.mapping == "qkv") rule.groups = rule.shards * (1 + prng.below(3));
  for (std::size_t m = 0; m < members; ++m) {
    std::uint64_t rows = prng.below(12);
    if (rule.mapping == "column" || rule.mapping == "gated") {
      rows = rule.shards * prng.below(4);
      if (receivers) {
        const std::uint64_t copies = divisor(rule.shards);
        rule.copies.push_back(copies);
        rows = rule.shards / copies * prng.below(4);
      }
    }
    if (rule.mapping == "qkv") rows = rule.groups * (1 + prng.below(3));
    rule.rows.push_back(rows);
  }
  constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kF32, Dtype::kU8, Dtype::kI64, Dtype::kF16};
  rule.dtype = kDtypes[prng.below(std::size(kDtypes))];
  if (rule.dtype == Dtype::kBF16 && prng.below(2) == 0) rule.local_dtype = Dtype::kF32;
  return rule;
}

inline RandomLayout random_layout(Prng& prng, bool receivers) {
  static constexpr std::uint64_t kRanks[] = {1, 2, 3, 4, 6, 8};
  RandomLayout made;
  made.ranks = kRanks[prng.below(std::size(kRanks))];
  std::vector<CanonicalTensor> tensors;
  std::string rules;
  for (std::size_t n = 1 + prng.below(3); n > 0; --n) {
    RandomRule rule = random_rule(prng, made.ranks, made.rules.size(), receivers);
    for (std::uint64_t layer = 0; layer < rule.layers; ++layer) {
      for (std::uint64_t expert = 0; expert < std::max<std::uint64_t>(rule.experts, 1); ++expert) {
        for (std::size_t m = 0; m < rule.rows.size(); ++m) {
          CanonicalTensor tensor;
          tensor.name = rule.tensor_name(layer, expert, m);
          tensor.dtype = rule.dtype;
          tensor.shape = {rule.rows[m], rule.columns};
          if (rule.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
          if (rule.vector) tensor.shape.pop_back();
          tensors.push_back(std::move(tensor));
        }
      }
    }
    rules += (rules.empty() ? "" : ",\n") + rule_json(rule, receivers);
    made.rules.push_back(std::move(rule));
  }
  made.catalogue = test_catalogue(std::move(tensors));
  made.json =
      "{\"format\": 0, \"ranks\": " + std::to_string(made.ranks) + ", \"rules\": [" + rules + "]}";
  return made;
}

}  // namespace dcr
