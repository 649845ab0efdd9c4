#include "layout/generators.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "layout/owner_plan.h"
#include "layout/receiver_plan.h"
#include "layout/reference_loader.h"
#include "tests/support/campaign.h"
#include "tests/support/test_memory.h"

namespace dcr {
namespace {

CanonicalTensor tensor(const std::string& name, Shape shape, Dtype dtype = Dtype::kBF16) {
  return {name, dtype, std::move(shape), 0};
}

// A small model with the names of Qwen3-MoE: dense in layer 0, experts in the others.
Catalogue qwen_like() {
  std::vector<CanonicalTensor> tensors = {tensor("model.embed_tokens.weight", {100, 16}),
                                          tensor("model.norm.weight", {16}),
                                          tensor("lm_head.weight", {100, 16})};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    tensors.push_back(tensor(at + "input_layernorm.weight", {16}));
    tensors.push_back(tensor(at + "self_attn.q_proj.weight", {64, 16}));
    tensors.push_back(tensor(at + "self_attn.q_proj.bias", {64}));
    tensors.push_back(tensor(at + "self_attn.k_proj.weight", {32, 16}));
    tensors.push_back(tensor(at + "self_attn.k_proj.bias", {32}));
    tensors.push_back(tensor(at + "self_attn.v_proj.weight", {32, 16}));
    tensors.push_back(tensor(at + "self_attn.v_proj.bias", {32}));
    tensors.push_back(tensor(at + "self_attn.o_proj.weight", {16, 64}));
    std::vector<std::string> blocks = {at + "mlp."};
    if (layer > 0) {
      tensors.push_back(tensor(at + "mlp.gate.weight", {8, 16}));
      blocks.clear();
      for (int expert = 0; expert < 8; ++expert) {
        blocks.push_back(at + "mlp.experts." + std::to_string(expert) + ".");
      }
    }
    for (const std::string& block : blocks) {
      tensors.push_back(tensor(block + "gate_proj.weight", {24, 16}));
      tensors.push_back(tensor(block + "up_proj.weight", {24, 16}));
      tensors.push_back(tensor(block + "down_proj.weight", {16, 24}));
    }
  }
  return test_catalogue(std::move(tensors));
}

// The names of a sentence-transformers BERT.
Catalogue bert_like() {
  std::vector<CanonicalTensor> tensors = {tensor("embeddings.word_embeddings.weight", {131, 16}),
                                          tensor("embeddings.position_embeddings.weight", {20, 16}),
                                          tensor("embeddings.LayerNorm.weight", {16}),
                                          tensor("embeddings.position_ids", {1, 20}, Dtype::kI64),
                                          tensor("pooler.dense.weight", {16, 16})};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "encoder.layer." + std::to_string(layer) + ".";
    for (const char* kind : {"query", "key", "value"}) {
      tensors.push_back(tensor(at + "attention.self." + kind + ".weight", {16, 16}));
      tensors.push_back(tensor(at + "attention.self." + kind + ".bias", {16}));
    }
    tensors.push_back(tensor(at + "attention.output.dense.weight", {16, 16}));
    tensors.push_back(tensor(at + "attention.output.dense.bias", {16}));
    tensors.push_back(tensor(at + "intermediate.dense.weight", {32, 16}));
    tensors.push_back(tensor(at + "intermediate.dense.bias", {32}));
    tensors.push_back(tensor(at + "output.dense.weight", {16, 32}));
    tensors.push_back(tensor(at + "output.LayerNorm.bias", {16}));
  }
  return test_catalogue(std::move(tensors));
}

// The layout is valid and its owners hold every element once.
void expect_owners(const Catalogue& catalogue, const std::string& spec) {
  SCOPED_TRACE(spec);
  const Result<std::string> text = generate_owner_layout(catalogue, spec);
  ASSERT_TRUE(text.ok()) << text.status().message();
  Result<Layout> layout = parse_owner_layout(*text);
  ASSERT_TRUE(layout.ok()) << layout.status().message() << "\n" << *text;
  const Result<OwnerPlan> plan = OwnerPlan::make(catalogue, std::move(layout).value());
  ASSERT_TRUE(plan.ok()) << plan.status().message() << "\n" << *text;
  std::vector<std::vector<ConversionTask>> tasks;
  for (std::uint32_t rank = 0; rank < plan->ranks(); ++rank) {
    tasks.push_back(plan->rank(catalogue, rank).tasks);
  }
  const Status checked = check_tasks(catalogue, tasks);
  EXPECT_TRUE(checked.ok()) << checked.message() << "\n" << *text;
}

// The layout is valid, its loaders take every tensor, and the ranks together hold each element.
void expect_receivers(const Catalogue& catalogue, const std::string& spec) {
  SCOPED_TRACE(spec);
  const Result<std::string> text = generate_receiver_layout(catalogue, spec);
  ASSERT_TRUE(text.ok()) << text.status().message();
  Result<Layout> layout = parse_receiver_layout(*text);
  ASSERT_TRUE(layout.ok()) << layout.status().message() << "\n" << *text;
  const Result<ReceiverPlan> plan = ReceiverPlan::make(catalogue, std::move(layout).value());
  ASSERT_TRUE(plan.ok()) << plan.status().message() << "\n" << *text;
  std::vector<std::vector<bool>> held(catalogue.size());
  for (std::uint32_t i = 0; i < catalogue.size(); ++i) held[i].resize(catalogue[i].words);
  TestCanonical canonical(catalogue);
  for (std::uint32_t rank = 0; rank < plan->ranks(); ++rank) {
    const Result<ReceiverRank> made = plan->rank(catalogue, rank);
    ASSERT_TRUE(made.ok()) << made.status().message() << "\n" << *text;
    for (std::uint32_t i = 0; i < catalogue.size(); ++i) {
      for (const LoadWrite& write : made->steps[i].writes) {
        for_each_run(write.box, [&](const Run& run) {
          for (std::uint64_t w = 0; w < run.length; ++w) held[i][run.src + w] = true;
          return true;
        });
      }
    }
    TestMemory memory(made->storage_bytes);
    ReferenceLoader loader(catalogue, *made, memory, rank);
    const Status loaded = load_dense(catalogue, canonical, memory, loader);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
  }
  for (std::uint32_t i = 0; i < catalogue.size(); ++i) {
    EXPECT_EQ(std::find(held[i].begin(), held[i].end(), false), held[i].end())
        << catalogue[i].name << "\n"
        << *text;
  }
}

Catalogue small_model() {
  return test_catalogue({tensor("a.0.q_proj.bias", {4}), tensor("a.0.k_proj.bias", {4}),
                         tensor("a.0.v_proj.bias", {4}), tensor("a.0.o_proj.bias", {4}),
                         tensor("a.0.experts.0.w1.weight", {4, 2}),
                         tensor("a.0.experts.0.w2.weight", {2, 4}),
                         tensor("a.0.experts.0.w3.weight", {4, 2}), tensor("wte.weight", {9, 2}),
                         tensor("ids", {3}, Dtype::kI64)});
}

TEST(Generators, Models) {
  for (const Catalogue& catalogue : {qwen_like(), bert_like()}) {
    for (const char* spec :
         {"fsdp:1", "fsdp:8", "fsdp:7,f32", "tp:1", "tp:4", "tp:8", "tp:3", "tp:4,dp:2", "ep:8",
          "tp:2,ep:4", "tp:2,convert", "tp:2,ep:2,dp:4,f32"}) {
      expect_owners(catalogue, spec);
    }
    for (const char* spec :
         {"fused-tp:1", "fused-tp:2", "fused-tp:8", "fused-tp:3", "fused-tp:4,ep"}) {
      expect_receivers(catalogue, spec);
    }
  }
}

TEST(Generators, TextOfOwners) {
  EXPECT_EQ(generate_owner_layout(small_model(), "tp:2,ep:2,f32").value(),
            R"({
  "format": 0,
  "ranks": 4,
  "rules": [
    {"match": ["a.{i}.experts.{e}.w1.weight",
               "a.{i}.experts.{e}.w3.weight"],
     "name": "a.{i}.experts.{e}.linear_fc1.weight", "class": "gated", "shards": 2, "experts": 1, )"
            R"("expert_groups": 2, "dtype": "F32"},
    {"match": ["a.{i}.q_proj.bias",
               "a.{i}.k_proj.bias",
               "a.{i}.v_proj.bias"],
     "name": "a.{i}.linear_qkv.bias", "class": "qkv", "shards": 2, "groups": 2, "dtype": "F32"},
    {"match": "a.{i}.experts.{e}.w2.weight", "class": "row", "shards": 2, "experts": 1, )"
            R"("expert_groups": 2, "dtype": "F32"},
    {"match": "a.{i}.o_proj.bias", "class": "replicated", "dtype": "F32"},
    {"match": "ids", "class": "replicated"},
    {"match": "wte.weight", "class": "vocabulary", "shards": 2, "multiple": 128, "dtype": "F32"}
  ]
}
)");
}

TEST(Generators, TextOfReceivers) {
  EXPECT_EQ(generate_receiver_layout(small_model(), "fused-tp:2").value(), R"({
  "format": 0,
  "ranks": 2,
  "rules": [
    {"match": ["a.{i}.experts.{e}.w1.weight",
               "a.{i}.experts.{e}.w3.weight"],
     "name": "a.{i}.experts.w13_weight", "class": "gated", "shards": 2, "experts": 1},
    {"match": ["a.{i}.q_proj.bias",
               "a.{i}.k_proj.bias",
               "a.{i}.v_proj.bias"],
     "name": "a.{i}.qkv_proj.bias", "class": "column", "shards": 2},
    {"match": "a.{i}.experts.{e}.w2.weight",
     "name": "a.{i}.experts.w2_weight", "class": "row", "shards": 2, "experts": 1},
    {"match": "a.{i}.o_proj.bias", "class": "replicated"},
    {"match": "ids", "class": "replicated"},
    {"match": "wte.weight", "class": "vocabulary", "shards": 2, "multiple": 64}
  ]
}
)");
}

TEST(Generators, RefusesOtherSpecs) {
  const Catalogue catalogue = bert_like();
  const auto owners = [&](const char* spec) {
    return generate_owner_layout(catalogue, spec).status().message();
  };
  const auto receivers = [&](const char* spec) {
    return generate_receiver_layout(catalogue, spec).status().message();
  };
  EXPECT_EQ(owners("fsdp"),
            "layout \"fsdp\": \"fsdp\" is not one of fsdp:N, tp:N, dp:N, ep:N, f32 "
            "and convert");
  EXPECT_EQ(owners(""),
            "layout \"\": \"\" is not one of fsdp:N, tp:N, dp:N, ep:N, f32 and convert");
  EXPECT_EQ(owners("tp:0"), "layout \"tp:0\": \"0\" is not a number from 1 to 16384");
  EXPECT_EQ(owners("tp:x"), "layout \"tp:x\": \"x\" is not a number from 1 to 16384");
  EXPECT_EQ(owners("tp:2,tp:2"), "layout \"tp:2,tp:2\": \"tp\" stands twice");
  EXPECT_EQ(owners("fsdp:2,tp:2"),
            "layout \"fsdp:2,tp:2\": fsdp stands alone or with f32 and convert");
  EXPECT_EQ(owners("ep:3,dp:4"), "layout \"ep:3,dp:4\": ep does not divide dp");
  EXPECT_EQ(owners("tp:16384,dp:2"), "layout \"tp:16384,dp:2\": more than 16384 ranks");
  EXPECT_EQ(receivers("tp:2"), "layout \"tp:2\": \"tp\" is not one of fused-tp:N and ep");
  EXPECT_EQ(receivers("ep"), "layout \"ep\": it needs fused-tp:N");
  const Catalogue odd = test_catalogue({tensor("a.{i}", {2})});
  EXPECT_EQ(generate_owner_layout(odd, "tp:2").status().message(),
            "tensor \"a.{i}\" has a brace in its name, which no pattern of a layout file matches");
}

// Whatever the names and shapes are, what is generated is valid.
TEST(Generators, RandomCatalogues) {
  Prng prng(41);
  static constexpr std::string_view kWords[] = {
      "q_proj",  "k_proj",       "v_proj",      "qkv_proj", "gate_proj",
      "up_proj", "gate_up_proj", "down_proj",   "o_proj",   "experts",
      "experts", "w1",           "w2",          "w3",       "embed_tokens",
      "norm",    "linear_fc1",   "w2_weight",   "0",        "1",
      "2",       "00",           "12345678901", "",         "a"};
  constexpr Dtype kDtypes[] = {Dtype::kBF16, Dtype::kBF16, Dtype::kF32, Dtype::kI64, Dtype::kF4};
  for (std::uint64_t round = 0; round < campaign_cases(600); ++round) {
    std::map<std::string, CanonicalTensor> tensors;
    for (std::uint64_t n = 1 + prng.below(30); n > 0; --n) {
      std::string name = "m";
      for (std::uint64_t parts = prng.below(4); parts > 0; --parts) {
        name += "." + std::string(kWords[prng.below(std::size(kWords))]);
      }
      name += prng.below(4) == 0 ? ".bias" : ".weight";
      Shape shape;
      for (std::uint64_t rank = prng.below(4); rank > 0; --rank) shape.push_back(2 * prng.below(5));
      const Dtype dtype = kDtypes[prng.below(std::size(kDtypes))];
      if (dtype_bits(dtype) < 8 && shape.empty()) shape = {2};  // ends on a byte
      tensors[name] = tensor(name, shape, dtype);
    }
    // Siblings, so that something is joined.
    const std::string at = "m." + std::to_string(prng.below(3)) + ".experts.";
    for (std::uint64_t expert = 0; expert < prng.below(4); ++expert) {
      for (const char* word : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = at + std::to_string(expert) + "." + word + ".weight";
        tensors[name] = tensor(name, {4, 4});
      }
    }
    std::vector<CanonicalTensor> list;
    list.reserve(tensors.size());
    for (const auto& [name, made] : tensors) list.push_back(made);
    const Catalogue catalogue = test_catalogue(std::move(list));
    constexpr const char* kOwners[] = {"fsdp:3", "tp:2", "tp:2,ep:2", "ep:3", "tp:4,dp:2,f32"};
    constexpr const char* kReceivers[] = {"fused-tp:2", "fused-tp:3,ep", "fused-tp:1"};
    SCOPED_TRACE("round " + std::to_string(round));
    expect_owners(catalogue, kOwners[prng.below(std::size(kOwners))]);
    expect_receivers(catalogue, kReceivers[prng.below(std::size(kReceivers))]);
  }
}

}  // namespace
}  // namespace dcr
