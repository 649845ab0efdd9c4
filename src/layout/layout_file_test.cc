#include "layout/layout_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/prng.h"
#include "layout/owner_plan.h"
#include "layout/receiver_plan.h"
#include "tests/support/campaign.h"
#include "tests/support/test_memory.h"

namespace dcr {
namespace {

std::string owners(const std::string& rule, const std::string& more = "") {
  return parse_owner_layout("{\"format\": 0, \"ranks\": 4, \"rules\": [" + rule + "]" + more + "}")
      .status()
      .message();
}
std::string receivers(const std::string& rule, const std::string& more = "") {
  return parse_receiver_layout("{\"format\": 0, \"ranks\": 4, \"rules\": [" + rule + "]" + more +
                               "}")
      .status()
      .message();
}

TEST(LayoutFile, RuleWithEverything) {
  const Result<Layout> made = parse_receiver_layout(R"({"format": 0, "ranks": 8, "rules": [
      {"match": ["a.{i}.g.{e}", "a.{i}.u.{e}"], "name": "a.{i}.gu", "class": "gated", "shards": 4,
       "dtype": "F32", "permute": [1, 0], "copies": [1, 2], "experts": 6, "expert_groups": 2,
       "behaviour": "twice"}]})");
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->ranks, 8u);
  const LayoutRule& rule = made->rules[0];
  EXPECT_EQ(rule.match.size(), 2u);
  EXPECT_EQ(rule.name.text(), "a.{i}.gu");
  EXPECT_EQ(rule.mapping, MappingClass::kGated);
  EXPECT_EQ(rule.shards, 4u);
  EXPECT_EQ(rule.dtype, Dtype::kF32);
  EXPECT_EQ(rule.permute, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(rule.copies, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(rule.experts, 6u);
  EXPECT_EQ(rule.expert_groups, 2u);
  EXPECT_TRUE(rule.stacked);
  EXPECT_EQ(rule.behaviour, Behaviour::kTwice);
}

TEST(LayoutFile, Defaults) {
  const Result<Layout> made = parse_receiver_layout(R"({"format": 0, "ranks": 6, "rules": [
      {"match": "a", "class": "row"}, {"match": "b", "class": "vocabulary"},
      {"match": "c", "class": "none"}, {"match": "d", "class": "replicated"}]})");
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->rules[0].shards, 6u);
  EXPECT_EQ(made->rules[0].dim, 1u);
  EXPECT_EQ(made->rules[0].name.text(), "a");
  EXPECT_EQ(made->rules[0].behaviour, Behaviour::kCopy);
  EXPECT_EQ(made->rules[1].multiple, 6u);
  EXPECT_EQ(made->rules[2].behaviour, Behaviour::kSkip);
  EXPECT_EQ(made->rules[3].shards, 1u);
}

TEST(LayoutFile, RefusesOtherFiles) {
  const auto error = [](const char* text) { return parse_owner_layout(text).status().message(); };
  EXPECT_EQ(error(""), "layout file: not JSON at byte 1");
  EXPECT_EQ(error("[]"), "layout file is not an object");
  EXPECT_EQ(error("{}"), "layout file has no \"format\"");
  EXPECT_EQ(error(R"({"format": 1})"), "layout file has format 1, not 0");
  EXPECT_EQ(error(R"({"format": 0})"), "layout file has no \"ranks\"");
  EXPECT_EQ(error(R"({"format": 0, "ranks": 0})"),
            "layout file \"ranks\" is not an integer from 1 to 16384");
  EXPECT_EQ(error(R"({"format": 0, "ranks": 1})"), "layout file has no \"rules\"");
  EXPECT_EQ(error(R"({"format": 0, "ranks": 1, "rules": {}})"),
            "layout file \"rules\" is not an array");
  EXPECT_EQ(error(R"({"format": 0, "ranks": 1, "rules": [], "rank": 1})"),
            "layout file has an unknown key \"rank\" (did you mean \"ranks\"?)");
  EXPECT_EQ(owners("", R"(, "aliases": [])"), "layout file has an unknown key \"aliases\"");
  EXPECT_EQ(parse_owner_layout(std::string(kLayoutBytesMax + 1, ' ')).status().message(),
            "layout file: more than 67108864 bytes");
}

TEST(LayoutFile, RefusesOtherRules) {
  EXPECT_EQ(owners("1"), "rule 1 is not an object");
  EXPECT_EQ(owners(R"({"class": "row"})"), "rule 1 has no \"match\"");
  EXPECT_EQ(owners(R"({"match": 1, "class": "row"})"),
            "rule 1 \"match\" is not a string or an array of strings");
  EXPECT_EQ(owners(R"({"match": [], "class": "row"})"),
            "rule 1 \"match\" has 0 patterns, not 1 to 16");
  EXPECT_EQ(owners(R"({"match": "a{i}", "class": "row"})"),
            "rule 1 \"match\": pattern \"a{i}\": a capture is a whole part between dots, as {i}");
  EXPECT_EQ(owners(R"({"match": "a"})"), "rule 1 has no \"class\"");
  EXPECT_EQ(owners(R"({"match": "a", "class": "rows"})"),
            "rule 1 has an unknown class \"rows\" (did you mean \"row\"?)");
  EXPECT_EQ(owners(R"({"match": "a", "class": "none"})"),
            "rule 1 of class \"none\" is for receivers");
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "shards": 3})"),
            "rule 1 has 3 shards, which do not divide 4 ranks");
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "shards": 5})"),
            "rule 1 \"shards\" is not an integer from 1 to 4");
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "multiple": 4})"),
            "rule 1 has an unknown key \"multiple\"");
  EXPECT_EQ(owners(R"({"match": "a", "class": "column", "copies": [1]})"),
            "rule 1 has an unknown key \"copies\"");
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "dtype": "BF17"})"),
            "rule 1 dtype \"BF17\" is not one of the safetensors format");
  EXPECT_EQ(owners(R"({"match": "a", "class": "gated"})"),
            "rule 1 of class \"gated\" needs two patterns");
  EXPECT_EQ(owners(R"({"match": "a", "class": "qkv"})"), "rule 1 has no \"groups\"");
  EXPECT_EQ(owners(R"({"match": "a", "class": "qkv", "groups": 2})"),
            "rule 1 of class \"qkv\" needs three patterns");
  EXPECT_EQ(owners(R"({"match": ["a", "b"], "class": "fsdp"})"),
            "rule 1 of class \"fsdp\" takes one pattern");
  EXPECT_EQ(owners(R"({"match": "a", "class": "vocabulary", "multiple": 6})"),
            "rule 1 has a \"multiple\" of 6, which 4 shards do not divide");
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "permute": [0, 2]})"),
            "rule 1 has a \"permute\" that is no permutation of dimensions");
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "expert_groups": 2})"),
            "rule 1 has \"expert_groups\" without \"experts\"");
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "experts": 2})"),
            "rule 1 has \"experts\" but its patterns do not capture {e}");
  EXPECT_EQ(owners(R"({"match": ["a.{i}", "a.{j}"], "class": "row"})"),
            "rule 1 has patterns with different captures: \"a.{i}\" and \"a.{j}\"");
  EXPECT_EQ(owners(R"({"match": "a.{i}", "name": "b", "class": "row"})"),
            "rule 1 has a name without {i}, which its patterns capture");
  EXPECT_EQ(owners(R"({"match": "a", "name": "b.{i}", "class": "row"})"),
            "rule 1 has a name with {i}, which its patterns do not capture");
  EXPECT_EQ(owners(R"({"match": "a", "name": "b.{", "class": "row"})"),
            "rule 1 \"name\": name \"b.{\": braces hold a capture's name, as {i}");
}

TEST(LayoutFile, OwnersProjectOrConvert) {
  const Result<Layout> made = parse_owner_layout(R"({"format": 0, "ranks": 2, "rules": [
      {"match": "a", "class": "row"}, {"match": "b", "class": "row", "path": "convert"},
      {"match": "c", "class": "row", "path": "project"}]})");
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_FALSE(made->rules[0].convert);
  EXPECT_TRUE(made->rules[1].convert);
  EXPECT_FALSE(made->rules[2].convert);
  EXPECT_EQ(owners(R"({"match": "a", "class": "row", "path": "converts"})"),
            "rule 1 has an unknown path \"converts\"; it is \"project\" or \"convert\"");
  EXPECT_EQ(receivers(R"({"match": "a", "class": "row", "path": "convert"})"),
            "rule 1 has an unknown key \"path\" (did you mean \"match\"?)");
}

TEST(LayoutFile, RefusesOtherReceivers) {
  EXPECT_EQ(receivers(R"({"match": "a", "class": "row", "behaviour": "copys"})"),
            "rule 1 has an unknown behaviour \"copys\" (did you mean \"copy\"?)");
  EXPECT_EQ(receivers(R"({"match": "a", "class": "none", "behaviour": "copy"})"),
            "rule 1 of class \"none\" can only \"skip\" or \"claim_loaded\"");
  EXPECT_EQ(receivers(R"({"match": "a", "class": "column", "copies": [3]})"),
            "rule 1 has \"copies\" that do not divide its shards");
  EXPECT_EQ(receivers(R"({"match": "a", "class": "column", "copies": [1, 1]})"),
            "rule 1 has as many \"copies\" as patterns, or none");
  EXPECT_EQ(receivers("", R"(, "aliases": [{"name": "x"}])"), "alias 1 has no \"of\"");
  EXPECT_EQ(receivers("", R"(, "buffers": [{"name": "x", "dtype": "F33", "shape": []}])"),
            "buffer 1: dtype \"F33\" is not one of the safetensors format");
  EXPECT_EQ(receivers("", R"(, "buffers": [{"name": "x", "dtype": "F4", "shape": [1]}])"),
            "buffer 1: shape [1] of dtype F4 does not end on a byte boundary");
}

TEST(LayoutFile, RefusesOtherBoxes) {
  const auto boxes = [](const std::string& shard) {
    return owners(R"({"match": "a", "class": "boxes", "boxes": [)" + shard + "]}");
  };
  EXPECT_EQ(boxes(R"({"ranks": [0], "shape": [4], "boxes": []})"), "");
  EXPECT_EQ(owners(R"({"match": "a", "class": "boxes"})"), "rule 1 has no \"boxes\"");
  EXPECT_EQ(boxes(R"({"shape": [4], "boxes": []})"), "rule 1 shard 1 has no \"ranks\"");
  EXPECT_EQ(boxes(R"({"ranks": [4], "shape": [4], "boxes": []})"),
            "rule 1 shard 1 \"ranks\" has an element that is not an integer from 0 to 3");
  EXPECT_EQ(boxes(R"({"ranks": [1, 1], "shape": [4], "boxes": []})"),
            "rule 1 shard 1 \"ranks\" are not ascending, at least one");
  EXPECT_EQ(boxes(R"({"ranks": [1], "shape": [4], "boxes": []},
                     {"ranks": [0, 1], "shape": [4], "boxes": []})"),
            "rule 1 shard 2 has rank 1, as a shard before it");
  EXPECT_EQ(boxes(R"({"ranks": [1], "shape": [4], "boxes": [{"tensor": 1}]})"),
            "rule 1 shard 1 box 1 \"tensor\" is not an integer from 0 to 0");
  EXPECT_EQ(boxes(R"({"ranks": [1], "shape": [4], "boxes": [{"sizes": [1]}]})"),
            "rule 1 shard 1 box 1 has lists of different lengths");
}

TEST(LayoutFile, WordsAreNamed) {
  EXPECT_EQ(mapping_class_name(MappingClass::kVocabulary), "vocabulary");
  EXPECT_EQ(mapping_class_name(MappingClass::kNone), "none");
  EXPECT_EQ(behaviour_name(Behaviour::kCopy), "copy");
  EXPECT_EQ(behaviour_name(Behaviour::kSwapAfterLoad), "swap_after_load");
}

// docs/LAYOUT.md: the examples parse and fit the tensors they speak of.
std::string example(const std::string& kind) {
  std::ifstream file(DCR_SOURCE_DIR "/docs/LAYOUT.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const std::string fence = "```json " + kind + "\n";
  const std::size_t begin = all.find(fence);
  EXPECT_NE(begin, std::string::npos) << kind;
  const std::size_t from = begin + fence.size();
  return all.substr(from, all.find("```", from) - from);
}

TEST(LayoutDocument, ExamplesAreValid) {
  std::vector<CanonicalTensor> tensors = {{"model.embed_tokens.weight", Dtype::kBF16, {300, 8}, 0}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string at = layer;
    tensors.push_back({at + "input_layernorm.weight", Dtype::kBF16, {8}, 0});
    tensors.push_back({at + "self_attn.q_proj.weight", Dtype::kBF16, {32, 8}, 0});
    tensors.push_back({at + "self_attn.k_proj.weight", Dtype::kBF16, {16, 8}, 0});
    tensors.push_back({at + "self_attn.v_proj.weight", Dtype::kBF16, {16, 8}, 0});
    tensors.push_back({at + "self_attn.o_proj.weight", Dtype::kBF16, {8, 32}, 0});
    for (const char* expert : {"0.", "1.", "2.", "3."}) {
      const std::string in = at + "mlp.experts." + expert;
      tensors.push_back({in + "gate_proj.weight", Dtype::kBF16, {6, 8}, 0});
      tensors.push_back({in + "up_proj.weight", Dtype::kBF16, {6, 8}, 0});
      tensors.push_back({in + "down_proj.weight", Dtype::kBF16, {8, 6}, 0});
    }
  }
  const Catalogue catalogue = test_catalogue(std::move(tensors));
  const Result<Layout> owners = parse_owner_layout(example("owners"));
  ASSERT_TRUE(owners.ok()) << owners.status().message();
  const Result<OwnerPlan> plan = OwnerPlan::make(catalogue, *owners);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::vector<ConversionTask>> tasks;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    tasks.push_back(plan->rank(catalogue, rank).tasks);
  }
  const Status checked = check_tasks(catalogue, tasks);
  EXPECT_TRUE(checked.ok()) << checked.message();
  const Result<Layout> serving = parse_receiver_layout(example("receivers"));
  ASSERT_TRUE(serving.ok()) << serving.status().message();
  const Result<ReceiverPlan> placed = ReceiverPlan::make(catalogue, *serving);
  ASSERT_TRUE(placed.ok()) << placed.status().message();
  const Result<ReceiverRank> rank = placed->rank(catalogue, 1);
  ASSERT_TRUE(rank.ok()) << rank.status().message();
  EXPECT_EQ(rank->targets.size(), 1u + 2 * 5 + 2);

  const Catalogue matrix = test_catalogue({{"matrix", Dtype::kF32, {4, 3}, 0}});
  const Result<Layout> boxes = parse_owner_layout(example("owners-boxes"));
  ASSERT_TRUE(boxes.ok()) << boxes.status().message();
  const Result<OwnerPlan> boxed = OwnerPlan::make(matrix, *boxes);
  EXPECT_TRUE(boxed.ok()) << boxed.status().message();
}

// A file with a few bytes changed is refused or valid; nothing else happens.
TEST(LayoutFile, DamagedFilesAreHarmless) {
  Prng prng(51);
  for (const char* kind : {"owners", "receivers", "owners-boxes"}) {
    const std::string good = example(kind);
    for (std::uint64_t round = 0; round < campaign_cases(3000); ++round) {
      std::string bad = good;
      for (std::uint64_t n = 1 + prng.below(3); n > 0; --n) {
        const std::size_t at = prng.below(bad.size());
        const std::uint64_t what = prng.below(3);
        if (what == 0) bad[at] = static_cast<char>(32 + prng.below(95));
        if (what == 1) bad.erase(at, 1 + prng.below(20));
        if (what == 2) bad.insert(at, bad.substr(prng.below(bad.size()), prng.below(30)));
        if (bad.empty()) bad = "{";
      }
      static_cast<void>(parse_owner_layout(bad).ok());
      static_cast<void>(parse_receiver_layout(bad).ok());
    }
  }
}

}  // namespace
}  // namespace dcr
