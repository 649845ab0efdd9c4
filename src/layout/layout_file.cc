#include "layout/layout_file.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/limits.h"
#include "layout/document.h"
#include "tensor/text.h"

namespace dcr {

namespace {

constexpr std::array<std::string_view, 9> kClassNames = {
    "replicated", "column", "row", "gated", "vocabulary", "fsdp", "qkv", "boxes", "none"};

constexpr std::array<std::string_view, kBehaviourCount> kBehaviourNames = {
    "copy",         "contiguous",    "twice",      "fill",           "index_put",
    "unannounced",  "normalise",     "nan_to_num", "clip",           "double",
    "negative_exp", "zero_given",    "replace",    "collective",     "skip",
    "claim_loaded", "claim_skipped", "alternate",  "swap_after_load"};

constexpr std::string_view kExpertCapture = "e";

// The index of `word` among `names`, or their number.
template <std::size_t N>
std::size_t index_of(const std::array<std::string_view, N>& names, std::string_view word) {
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), word) - names.begin());
}

template <std::size_t N>
std::string unknown_word(const char* what, std::string_view word,
                         const std::array<std::string_view, N>& names) {
  return "has an unknown " + std::string(what) + " " + quoted_name(word) +
         suggestion(word, {names.begin(), names.end()});
}

bool is_cut_along_a_dimension(MappingClass mapping) {
  return mapping == MappingClass::kColumn || mapping == MappingClass::kRow ||
         mapping == MappingClass::kFsdp;
}

// Reads one rule. The first error stays in `fields_`.
class RuleParser {
 public:
  RuleParser(const DocumentValue& value, std::size_t number, std::uint32_t ranks, bool receivers)
      : fields_(value, "rule " + std::to_string(number)), ranks_(ranks), receivers_(receivers) {}

  Result<LayoutRule> parse() {
    read_match();
    read_class();
    read_sizes();
    read_experts();
    read_name();
    read_dtype();
    read_boxes();
    if (receivers_) {
      read_behaviour();
    } else {
      read_path();
    }
    DCR_TRY(fields_.finish());
    check();
    DCR_TRY(fields_.finish());
    return std::move(rule_);
  }

 private:
  bool is(MappingClass mapping) const { return rule_.mapping == mapping; }
  void corrupt(const std::string& what) { fields_.fail(Code::kCorrupt, what); }

  void add_pattern(const DocumentValue& value) {
    if (value.kind != DocumentValue::Kind::kString) {
      return corrupt("\"match\" is not a string or an array of strings");
    }
    Result<NamePattern> pattern = NamePattern::parse(value.text);
    if (!pattern.ok()) return corrupt("\"match\": " + pattern.status().message());
    rule_.match.push_back(std::move(pattern).value());
  }

  void read_match() {
    const DocumentValue* match = fields_.require("match");
    if (match == nullptr) return;
    if (match->kind != DocumentValue::Kind::kArray) return add_pattern(*match);
    if (match->elements.empty() || match->elements.size() > kLayoutMatchesMax) {
      return corrupt("\"match\" has " + std::to_string(match->elements.size()) +
                     " patterns, not 1 to " + std::to_string(kLayoutMatchesMax));
    }
    for (const DocumentValue& value : match->elements) add_pattern(value);
  }

  void read_class() {
    std::string word;
    if (fields_.require("class") == nullptr) return;
    fields_.text("class", &word);
    const std::size_t found = index_of(kClassNames, word);
    if (found == kClassNames.size()) {
      return fields_.fail(Code::kUnsupported, unknown_word("class", word, kClassNames));
    }
    if (!receivers_ && found == static_cast<std::size_t>(MappingClass::kNone)) {
      return fields_.fail(Code::kUnsupported, "of class \"none\" is for receivers");
    }
    rule_.mapping = static_cast<MappingClass>(found);
  }

  // Keys that belong to some classes only: elsewhere they are unknown.
  void read_sizes() {
    const bool whole =
        is(MappingClass::kReplicated) || is(MappingClass::kNone) || is(MappingClass::kBoxes);
    std::uint64_t shards = whole ? 1 : ranks_;
    if (!whole) fields_.number("shards", 1, ranks_, &shards);
    rule_.shards = static_cast<std::uint32_t>(shards);
    if (is_cut_along_a_dimension(rule_.mapping)) {
      std::uint64_t dim = is(MappingClass::kRow) ? 1 : 0;
      fields_.number("dim", 0, kRankMax - 1, &dim);
      rule_.dim = static_cast<std::uint32_t>(dim);
    }
    if (is(MappingClass::kVocabulary)) {
      rule_.multiple = rule_.shards;
      fields_.number("multiple", 1, kDimensionMax, &rule_.multiple);
    }
    if (is(MappingClass::kQkv) && fields_.require("groups") != nullptr) {
      fields_.number("groups", 1, kDimensionMax, &rule_.groups);
    }
    std::vector<std::uint64_t> numbers;
    if (receivers_ && (is(MappingClass::kColumn) || is(MappingClass::kGated))) {
      fields_.numbers("copies", ranks_, kLayoutMatchesMax, &numbers);
      rule_.copies.assign(numbers.begin(), numbers.end());
    }
    numbers.clear();
    if (!is(MappingClass::kBoxes) && !is(MappingClass::kNone)) {
      fields_.numbers("permute", kRankMax - 1, kRankMax, &numbers);
      rule_.permute.assign(numbers.begin(), numbers.end());
    }
  }

  void read_experts() {
    if (is(MappingClass::kBoxes) || is(MappingClass::kNone) || is(MappingClass::kVocabulary) ||
        is(MappingClass::kQkv)) {
      return;
    }
    std::uint64_t experts = 0;
    std::uint64_t groups = 1;
    fields_.number("experts", 1, kLayoutExpertsMax, &experts);
    fields_.number("expert_groups", 1, ranks_, &groups);
    if (experts == 0 && groups > 1) corrupt("has \"expert_groups\" without \"experts\"");
    rule_.experts = static_cast<std::uint32_t>(experts);
    rule_.expert_groups = static_cast<std::uint32_t>(groups);
  }

  void read_name() {
    if (!fields_.ok()) return;
    std::string name = rule_.match.front().text();
    fields_.text("name", &name);
    Result<NameTemplate> made = NameTemplate::parse(name);
    if (!made.ok()) return corrupt("\"name\": " + made.status().message());
    if (name.empty() || name.size() > kTensorNameBytesMax || !valid_utf8(name)) {
      return corrupt("\"name\" is not a name of 1 to " + std::to_string(kTensorNameBytesMax) +
                     " bytes");
    }
    rule_.name = std::move(made).value();
  }

  void read_dtype() {
    std::string word;
    if (is(MappingClass::kNone)) return;
    fields_.text("dtype", &word);
    if (word.empty()) return;
    Result<Dtype> dtype = dtype_from_name(word);
    if (!dtype.ok()) return fields_.fail(Code::kUnsupported, dtype.status().message());
    rule_.dtype = *dtype;
  }

  void read_path() {
    std::string word = "project";
    fields_.text("path", &word);
    rule_.convert = word == "convert";
    if (!rule_.convert && word != "project") {
      fields_.fail(Code::kUnsupported, "has an unknown path " + quoted_name(word) +
                                           "; it is \"project\" or \"convert\"");
    }
  }

  void read_behaviour() {
    std::string word(behaviour_name(is(MappingClass::kNone) ? Behaviour::kSkip : Behaviour::kCopy));
    fields_.text("behaviour", &word);
    const std::size_t found = index_of(kBehaviourNames, word);
    if (found == kBehaviourNames.size()) {
      return fields_.fail(Code::kUnsupported, unknown_word("behaviour", word, kBehaviourNames));
    }
    rule_.behaviour = static_cast<Behaviour>(found);
    if (is(MappingClass::kNone) && rule_.behaviour != Behaviour::kSkip &&
        rule_.behaviour != Behaviour::kClaimLoaded) {
      corrupt("of class \"none\" can only \"skip\" or \"claim_loaded\"");
    }
  }

  void read_boxes();
  Result<ExplicitShard> read_shard(const DocumentValue& value, const std::string& where);
  Result<ExplicitBox> read_box(const DocumentValue& value, const std::string& where) const;
  void check();
  void check_captures();

  DocumentFields fields_;
  std::uint32_t ranks_;
  bool receivers_;
  LayoutRule rule_;
};

Result<ExplicitBox> RuleParser::read_box(const DocumentValue& value,
                                         const std::string& where) const {
  DocumentFields fields(value, where);
  ExplicitBox made;
  std::uint64_t member = 0;
  std::vector<std::uint64_t> sizes;
  std::vector<std::uint64_t> local;
  std::vector<std::uint64_t> canonical;
  fields.number("tensor", 0, rule_.match.size() - 1, &member);
  fields.number("local", 0, kElementsMax, &made.box.src_offset);
  fields.number("canonical", 0, kElementsMax, &made.box.dst_offset);
  fields.numbers("sizes", kElementsMax, kRankMax, &sizes);
  fields.numbers("local_strides", kElementsMax, kRankMax, &local);
  fields.numbers("canonical_strides", kElementsMax, kRankMax, &canonical);
  if (sizes.size() != local.size() || sizes.size() != canonical.size()) {
    fields.fail(Code::kCorrupt, "has lists of different lengths");
  }
  DCR_TRY(fields.finish());
  made.member = static_cast<std::uint32_t>(member);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    made.box.dims.push_back({sizes[d], local[d], canonical[d]});
  }
  return made;
}

Result<ExplicitShard> RuleParser::read_shard(const DocumentValue& value, const std::string& where) {
  DocumentFields fields(value, where);
  ExplicitShard made;
  std::vector<std::uint64_t> ranks;
  fields.require("ranks");
  fields.numbers("ranks", ranks_ - 1, kLayoutRanksMax, &ranks);
  fields.require("shape");
  fields.numbers("shape", kDimensionMax, kRankMax, &made.shape);
  fields.require("boxes");
  fields.each("boxes", kLayoutValuesMax, [&](const DocumentValue& box, std::size_t i) {
    DCR_ASSIGN(ExplicitBox read, read_box(box, where + " box " + std::to_string(i + 1)));
    made.boxes.push_back(std::move(read));
    return Status();
  });
  if (ranks.empty() ||
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) != ranks.end()) {
    fields.fail(Code::kCorrupt, "\"ranks\" are not ascending, at least one");
  }
  DCR_TRY(fields.finish());
  made.ranks.assign(ranks.begin(), ranks.end());
  return made;
}

void RuleParser::read_boxes() {
  if (!is(MappingClass::kBoxes) || !fields_.ok()) return;
  std::set<std::uint32_t> seen;
  fields_.require("boxes");
  fields_.each("boxes", ranks_, [&](const DocumentValue& value, std::size_t i) {
    const std::string where = fields_.where() + " shard " + std::to_string(i + 1);
    DCR_ASSIGN(ExplicitShard shard, read_shard(value, where));
    for (const std::uint32_t rank : shard.ranks) {
      if (!seen.insert(rank).second) {
        return Status(Code::kCorrupt,
                      where + " has rank " + std::to_string(rank) + ", as a shard before it");
      }
    }
    rule_.boxes.push_back(std::move(shard));
    return Status();
  });
}

void RuleParser::check_captures() {
  std::vector<std::string> captures = rule_.match.front().captures();
  std::sort(captures.begin(), captures.end());
  for (const NamePattern& pattern : rule_.match) {
    std::vector<std::string> others = pattern.captures();
    std::sort(others.begin(), others.end());
    if (others != captures) {
      return corrupt(
          "has patterns with different captures: " + quoted_name(rule_.match.front().text()) +
          " and " + quoted_name(pattern.text()));
    }
  }
  const auto has = [](const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::vector<std::string> used = rule_.name.captures();
  for (const std::string& name : used) {
    if (!has(captures, name)) {
      return corrupt("has a name with {" + name + "}, which its patterns do not capture");
    }
  }
  if (rule_.experts > 0 && !has(captures, kExpertCapture)) {
    return corrupt("has \"experts\" but its patterns do not capture {e}");
  }
  rule_.stacked = rule_.experts > 0 && !has(used, kExpertCapture);
  for (const std::string& name : captures) {
    if (!has(used, name) && !(rule_.stacked && name == kExpertCapture) &&
        !is(MappingClass::kNone)) {
      return corrupt("has a name without {" + name + "}, which its patterns capture");
    }
  }
}

void RuleParser::check() {
  if (ranks_ % rule_.pieces() != 0) {
    return corrupt("has " + std::to_string(rule_.pieces()) + " shards, which do not divide " +
                   std::to_string(ranks_) + " ranks");
  }
  const std::size_t count = rule_.match.size();
  if (is(MappingClass::kGated) && count != 2) corrupt("of class \"gated\" needs two patterns");
  if (is(MappingClass::kQkv) && count != 3) corrupt("of class \"qkv\" needs three patterns");
  if ((is(MappingClass::kVocabulary) || is(MappingClass::kFsdp)) && count != 1) {
    corrupt("of class \"" + std::string(mapping_class_name(rule_.mapping)) +
            "\" takes one pattern");
  }
  if (is(MappingClass::kVocabulary) && rule_.multiple % rule_.shards != 0) {
    corrupt("has a \"multiple\" of " + std::to_string(rule_.multiple) + ", which " +
            std::to_string(rule_.shards) + " shards do not divide");
  }
  if (!rule_.copies.empty() && rule_.copies.size() != count) {
    corrupt("has as many \"copies\" as patterns, or none");
  }
  for (const std::uint32_t copies : rule_.copies) {
    if (copies == 0 || rule_.shards % copies != 0) {
      corrupt("has \"copies\" that do not divide its shards");
    }
  }
  std::vector<std::uint32_t> sorted = rule_.permute;
  std::sort(sorted.begin(), sorted.end());
  for (std::uint32_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != i) corrupt("has a \"permute\" that is no permutation of dimensions");
  }
  if (fields_.ok()) check_captures();
}

Status read_alias(const DocumentValue& value, std::size_t number, Layout* layout) {
  DocumentFields fields(value, "alias " + std::to_string(number));
  TargetAlias made;
  fields.require("name");
  fields.text("name", &made.name);
  fields.require("of");
  fields.text("of", &made.of);
  DCR_TRY(fields.finish());
  layout->aliases.push_back(std::move(made));
  return {};
}

Status read_buffer(const DocumentValue& value, std::size_t number, Layout* layout) {
  DocumentFields fields(value, "buffer " + std::to_string(number));
  TargetBuffer made;
  std::string word;
  fields.require("name");
  fields.text("name", &made.name);
  fields.require("dtype");
  fields.text("dtype", &word);
  fields.require("shape");
  fields.numbers("shape", kDimensionMax, kRankMax, &made.shape);
  DCR_TRY(fields.finish());
  const Result<Dtype> dtype = dtype_from_name(word);
  if (!dtype.ok()) return dtype.status().with_context(fields.where());
  made.dtype = *dtype;
  const Result<std::uint64_t> bytes = tensor_bytes(made.dtype, made.shape);
  if (!bytes.ok()) return bytes.status().with_context(fields.where());
  layout->buffers.push_back(std::move(made));
  return {};
}

Result<Layout> parse_layout(std::string_view text, bool receivers) {
  const Result<DocumentValue> document = parse_document(text, kLayoutBytesMax, kLayoutValuesMax);
  if (!document.ok()) return document.status().with_context("layout file");
  DocumentFields fields(*document, "layout file");
  Layout layout;
  std::uint64_t format = 0;
  std::uint64_t ranks = 1;
  fields.require("format");
  fields.number("format", 0, ~std::uint64_t{0}, &format);
  if (format != 0) {
    fields.fail(Code::kUnsupported, "has format " + std::to_string(format) + ", not 0");
  }
  fields.require("ranks");
  fields.number("ranks", 1, kLayoutRanksMax, &ranks);
  layout.ranks = static_cast<std::uint32_t>(ranks);
  fields.require("rules");
  fields.each("rules", kLayoutRulesMax, [&](const DocumentValue& value, std::size_t i) {
    RuleParser parser(value, i + 1, layout.ranks, receivers);
    DCR_ASSIGN(LayoutRule rule, parser.parse());
    layout.rules.push_back(std::move(rule));
    return Status();
  });
  if (receivers) {
    fields.each("aliases", kLayoutRulesMax, [&](const DocumentValue& value, std::size_t i) {
      return read_alias(value, i + 1, &layout);
    });
    fields.each("buffers", kLayoutRulesMax, [&](const DocumentValue& value, std::size_t i) {
      return read_buffer(value, i + 1, &layout);
    });
  }
  DCR_TRY(fields.finish());
  return layout;
}

}  // namespace

std::string_view mapping_class_name(MappingClass mapping) {
  return kClassNames[static_cast<std::size_t>(mapping)];
}

std::string_view behaviour_name(Behaviour behaviour) {
  return kBehaviourNames[static_cast<std::size_t>(behaviour)];
}

Result<Layout> parse_owner_layout(std::string_view text) { return parse_layout(text, false); }
Result<Layout> parse_receiver_layout(std::string_view text) { return parse_layout(text, true); }

}  // namespace dcr
