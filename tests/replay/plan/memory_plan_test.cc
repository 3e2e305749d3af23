// Shapes of models, and what a plan says of a machine.
#include "replay/plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>

#include "ashlar/base/random.h"
#include "ashlar/replay/generate.h"
#include "ashlar/replay/simulate.h"
#include "replay/plan/plan_text.h"
#include "support/damage.h"
#include "support/small_json.h"

namespace ashlar::replay {
namespace {

using ::ashlar::testing::Json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ModelShapeTest, KnowsBytesPerToken) {
  const auto bytes = [](const char* name, std::uint32_t tp = 1) {
    return find_model(name).value().bytes_per_token(tp);
  };
  EXPECT_EQ(bytes("Llama-3.1-8B"), 2u * 32 * 8 * 128 * 2);
  EXPECT_EQ(bytes("meta-llama/llama-3.1-70b-instruct", 4), 2u * 80 * 2 * 128 * 2);
  EXPECT_EQ(bytes("Llama-3.1-8B", 16), bytes("Llama-3.1-8B", 8)) << "a head is not cut, but replicated";
  EXPECT_EQ(bytes("Qwen/Qwen3-4B-Instruct-2507"), 2u * 36 * 8 * 128 * 2);
  EXPECT_EQ(bytes("Qwen3-14B-AWQ"), 2u * 40 * 8 * 128 * 2);
  EXPECT_EQ(bytes("Llama-2-7b-hf"), 2u * 32 * 32 * 128 * 2);
  EXPECT_EQ(bytes("DeepSeek-V3"), 61u * 576 * 2);
  EXPECT_EQ(bytes("DeepSeek-V3", 8), bytes("DeepSeek-V3")) << "every rank holds the latent vector";
  const ModelShape gemma = find_model("gemma-3-27b-it").value();
  EXPECT_EQ(gemma.layers(), 62u);
  EXPECT_EQ(gemma.bytes_per_far_token(), 2u * 10 * 16 * 128 * 2);
  EXPECT_TRUE(gemma.has_windows());
  EXPECT_GE(known_models().size(), 15u);
  for (const ModelShape& model : known_models()) EXPECT_TRUE(model.validate()) << model.name;
  const auto unknown = find_model("Llama-9");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message(), HasSubstr("there are Llama-3.2-1B"));
}

TEST(ModelShapeTest, EveryNameFindsItself) {
  for (const ModelShape& model : known_models()) EXPECT_EQ(find_model(model.name).value().name, model.name);
}

TEST(ModelShapeTest, RepositoriesAreFoundUnderTheirNames) {
  for (const auto& [name, known] :
       {std::pair<const char*, const char*>{"meta-llama/Meta-Llama-3-8B-Instruct", "Llama-3-8B"},
        {"meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "Llama-3.1-405B"},
        {"meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B"},
        {"meta-llama/Llama-2-13b-chat-hf", "Llama-2-13B"},
        {"meta-llama/Llama-4-Scout-17B-16E-Instruct", "Llama-4-Scout-17B-16E"},
        {"meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "Llama-4-Maverick-17B-128E"},
        {"mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"},
        {"mistralai/Mistral-7B-Instruct-v0.2", "Mistral-7B-v0.3"},
        {"mistralai/Mistral-7B-Instruct-v0.1", "Mistral-7B-v0.1"},
        {"mistralai/Mistral-Nemo-Instruct-2407", "Mistral-Nemo-12B"},
        {"mistralai/Mistral-Large-Instruct-2407", "Mistral-Large-2"},
        {"mistralai/Mistral-Small-24B-Instruct-2501", "Mistral-Small-24B"},
        {"mistralai/Mistral-Small-3.1-24B-Instruct-2503", "Mistral-Small-3.2-24B"},
        {"mistralai/Devstral-Small-2507", "Mistral-Small-24B"},
        {"mistralai/Mixtral-8x22B-Instruct-v0.1", "Mixtral-8x22B"},
        {"Qwen/Qwen2.5-Coder-32B-Instruct-AWQ", "Qwen2.5-32B"},
        {"Qwen/Qwen2-7B-Instruct", "Qwen2.5-7B"},
        {"Qwen/QwQ-32B", "Qwen2.5-32B"},
        {"Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen3-30B-A3B"},
        {"Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-30B-A3B"},
        {"Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "Qwen3-Coder-480B-A35B"},
        {"Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next-80B-A3B"},
        {"deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3"},
        {"deepseek-ai/DeepSeek-V3.1-Base", "DeepSeek-V3"},
        {"deepseek-ai/DeepSeek-V3.1-Terminus", "DeepSeek-V3"},
        {"deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "Llama-3.3-70B"},
        {"moonshotai/Kimi-K2-Instruct-0905", "Kimi-K2"},
        {"moonshotai/Kimi-K2-Thinking", "Kimi-K2-Thinking"},
        {"zai-org/GLM-4-9B-0414", "GLM-4-9B"},
        {"zai-org/GLM-4.5-Air-FP8", "GLM-4.5-Air"},
        {"zai-org/GLM-4.6", "GLM-4.6"},
        {"google/gemma-3-12b-it", "Gemma-3-12B"},
        {"microsoft/phi-4", "Phi-4"},
        {"microsoft/Phi-4-reasoning-plus", "Phi-4"},
        {"openai/gpt-oss-120b", "gpt-oss-120b"}}) {
    const auto found = find_model(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->name, known);
  }
  // Another size, another window, or linear attention: another model.
  for (const char* name :
       {"mistralai/Mistral-Large-3-675B-Instruct-2512", "mistralai/Mistral-7B",
        "deepseek-ai/DeepSeek-V3.2-Exp", "zai-org/GLM-4.7", "Kimi-K2.5", "meta-llama", "Qwen/Qwen2.5-Coder"})
    EXPECT_FALSE(find_model(name)) << name;
  EXPECT_EQ(find_model("Qwen3-Next-80B-A3B").value().bytes_per_token(), 2u * 12 * 2 * 256 * 2);
  EXPECT_EQ(find_model("Mistral-7B-v0.1").value().bytes_per_far_token(), 0u);
  EXPECT_EQ(find_model("Kimi-K2-Instruct").value().note, "");
}

TEST(ModelShapeTest, OnlyEndingsThatKeepTheShapeAreTaken) {
  for (const auto& [name, known] :
       {std::pair<const char*, const char*>{"Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen3-235B-A22B"},
        {"mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"},
        {"hugging-quants/Llama-3.1-8B-Instruct-AWQ-INT4", "Llama-3.1-8B"},
        {"deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1"},
        {"DeepSeek-V3-Base", "DeepSeek-V3"},
        {"Llama-3.1-8B-hf", "Llama-3.1-8B"}}) {
    const auto found = find_model(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->name, known);
  }
  EXPECT_THAT(find_model("Llama-3.1-8B-Instruct-FP8").value().note,
              HasSubstr("16.1 GB; give --weights for fp8"));
  EXPECT_THAT(find_model("Qwen3-32B-AWQ").value().note, HasSubstr("for awq"));
  EXPECT_THAT(find_model("gpt-oss-20b-BF16").value().note, HasSubstr("for bf16"));
  for (const char* published : {"Llama-3.1-8B", "Llama-3.1-8B-Instruct-bf16", "DeepSeek-R1-0528-FP8"})
    EXPECT_EQ(find_model(published).value().note, "") << published;
  for (const auto& [name, near] :
       {std::pair<const char*, const char*>{"deepseek-ai/DeepSeek-R1-Distill-Llama-7B",
                                            "there are DeepSeek-V3, DeepSeek-R1"},
        {"microsoft/Phi-4-mini-instruct", "there are Phi-4;"},
        {"Phi-4-", "there are Phi-4;"},
        {"Qwen3-8Bx", "Qwen3-8B"},
        {"DeepSeek-R1-v", "DeepSeek-R1"}}) {
    const auto refused = find_model(name);
    ASSERT_FALSE(refused) << name << " is " << refused->name;
    EXPECT_THAT(refused.error().message(), HasSubstr(near));
  }
}

TEST(ModelShapeTest, ReadsAConfiguration) {
  const auto shape = [](const char* json) { return parse_model_config("config.json", json).value(); };
  EXPECT_EQ(shape(R"({"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
                      "hidden_size":4096,"num_ratio":0.5,"num_labels":-1,
                      "rope_theta":5e5,"torch_dtype":"bfloat16"})")
                .groups,
            (std::vector<LayerGroup>{{32, 8, 128, 0}}));
  EXPECT_EQ(shape(R"({"num_hidden_layers":61,"num_attention_heads":128,"kv_lora_rank":512,
                      "qk_rope_head_dim":64,"hidden_size":7168})")
                .bytes_per_token(),
            find_model("DeepSeek-V3").value().bytes_per_token());
  EXPECT_EQ(shape(R"({"vision_config":{"num_hidden_layers":27},"text_config":{"num_hidden_layers":12,
                      "num_key_value_heads":4,"head_dim":256,"sliding_window":1024,
                      "sliding_window_pattern":6}})")
                .groups,
            (std::vector<LayerGroup>{{2, 4, 256, 0}, {10, 4, 256, 1024}}));
  EXPECT_EQ(shape(R"({"num_hidden_layers":3,"num_key_value_heads":8,"head_dim":64,"sliding_window":128,
                      "layer_types":["sliding_attention","full_attention","sliding_attention"]})")
                .groups,
            (std::vector<LayerGroup>{{1, 8, 64, 0}, {2, 8, 64, 128}}));
  EXPECT_EQ(shape(R"({"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,
                      "hidden_size":3584,"sliding_window":131072,"use_sliding_window":false})")
                .groups,
            (std::vector<LayerGroup>{{28, 4, 128, 0}}));
  const ModelShape linear = shape(R"({"num_hidden_layers":4,"num_key_value_heads":2,"head_dim":256,
      "layer_types":["linear_attention","linear_attention","linear_attention","full_attention"]})");
  EXPECT_EQ(linear.groups, (std::vector<LayerGroup>{{1, 2, 256, 0}}));
  EXPECT_EQ(linear.note, "");
  // Llama 4 attends within chunks in three of four layers.
  const ModelShape chunked = shape(R"({"num_hidden_layers":4,"num_key_value_heads":8,"head_dim":128,
      "attention_chunk_size":8192,
      "layer_types":["chunked_attention","chunked_attention","chunked_attention","full_attention"]})");
  EXPECT_EQ(chunked.groups, (std::vector<LayerGroup>{{1, 8, 128, 0}, {3, 8, 128, 8192}}));
  const ModelShape short_of = shape(R"({"num_hidden_layers":4,"num_key_value_heads":8,"head_dim":128,
      "layer_types":["full_attention"]})");
  EXPECT_EQ(short_of.groups, (std::vector<LayerGroup>{{4, 8, 128, 0}}));
  EXPECT_THAT(short_of.note, HasSubstr("types of 1 layers and 4 layers"));
  // Gemma 2 has a window in every other layer, and its older files do not say so.
  const ModelShape open = shape(R"({"model_type":"gemma2","num_hidden_layers":42,"num_attention_heads":16,
      "num_key_value_heads":8,"head_dim":256,"sliding_window":4096})");
  EXPECT_EQ(open.groups, (std::vector<LayerGroup>{{42, 8, 256, 0}}));
  EXPECT_THAT(open.note, HasSubstr("not which layers have it"));
  for (const auto& [json, missing] :
       {std::pair<const char*, const char*>{"{}", "num_hidden_layers"},
        {R"({"num_hidden_layers":2})", "num_key_value_heads"},
        {R"({"num_hidden_layers":2,"num_key_value_heads":2})", "head_dim"},
        {R"({"num_hidden_layers":99999,"num_key_value_heads":2,"head_dim":2})", "which no model has"},
        {R"({"num_hidden_layers":1,"layer_types":["linear_attention"]})", "linear attention in all layers"},
        {R"({"num_hidden_layers":3,"num_key_value_heads":2,"head_dim":2,
             "layer_types":["full_attention","ring_attention","spiral"]})",
         "layer_types that are not known: ring_attention, spiral;"},
        {"[]", "is no config.json"},
        {"", "is no config.json"}}) {
    const auto refused = parse_model_config("config.json", json);
    ASSERT_FALSE(refused) << json;
    EXPECT_THAT(refused.error().message(), HasSubstr(missing));
  }
}

TEST(ModelShapeTest, AConfigurationMayBeAnything) {
  const std::string good =
      R"({"num_hidden_layers":12,"num_key_value_heads":4,"head_dim":256,"sliding_window":1024,)"
      R"("layer_types":["full_attention"],"text_config":{"hidden_size":7168}})";
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    Random random(seed);
    std::vector<std::byte> bytes(good.size());
    std::memcpy(bytes.data(), good.data(), good.size());
    ashlar::testing::damage(bytes, random);
    const auto shape = parse_model_config("x", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    EXPECT_TRUE(!shape || shape->validate());
  }
}

TEST(MemoryPlanTest, CountsTokensAndBlocksOfTiers) {
  const ModelShape model{.name = "m", .groups = {{1, 1, 512, 0}}, .weights_gb = 0};  // 2 KiB per token
  const MachineShape machine{.gpu_gib = 1, .utilization = 0.5, .host_gib = 2, .ssd_gib = 4};
  const MemoryPlan plan = plan_memory(model, machine, 16, nullptr).value();
  ASSERT_EQ(plan.tiers.size(), 3u);
  EXPECT_EQ(plan.tiers[0].tokens, 262'144u);
  EXPECT_EQ(plan.tiers[0].blocks, 16'384u);
  EXPECT_EQ(plan.tiers[1].tokens, 1'048'576u);
  EXPECT_EQ(plan.tiers[2].tokens, 2'097'152u);
  EXPECT_THAT(plan.recommendation, HasSubstr("give --trace"));
  EXPECT_EQ(Json::parse(plan.to_json())["bytes_per_block"].number, 32'768);
  MachineShape heavy = machine;
  heavy.weights_gb = 100;
  const auto refused = plan_memory(model, heavy, 16, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("no block fits"));
  MachineShape no_host = machine;
  no_host.host_gib = 0;
  const auto apart = plan_memory(model, no_host, 16, nullptr);
  ASSERT_FALSE(apart);
  EXPECT_THAT(apart.error().message(), HasSubstr("blocks reach G3 through G2"));
}

class TracePlanTest : public ::testing::Test {
 protected:
  // Tiers of so many blocks of the trace.
  MemoryPlan plan(double g1, double g2, double g3, MachineShape machine = {}) const {
    const ModelShape model{.name = "m", .groups = {{1, 1, 512, 0}}};
    const double block = 2048.0 * 64 / (1024.0 * 1024 * 1024);
    machine.gpu_gib = g1 * block;
    machine.utilization = 1;
    machine.host_gib = g2 * block;
    machine.ssd_gib = g3 * block;
    return plan_memory(model, machine, 16, &curve_).value();
  }

  const GeneratorOptions options_{.kind = WorkloadKind::kChat, .requests = 2'000, .block_size = 64};
  const CapacityCurve curve_ = CapacityCurve::build(*generate_trace(options_)).value();
};

TEST_F(TracePlanTest, ASampleSaysWhatItsErrorIsOf) {
  const CapacityCurve sampled = CapacityCurve::build(*generate_trace(options_), {.rate = 0.25}).value();
  const ModelShape model{.name = "m", .groups = {{1, 1, 512, 0}}};
  const MachineShape machine{.gpu_gib = 0.1, .host_gib = 1};
  const MemoryPlan made = plan_memory(model, machine, 16, &sampled).value();
  EXPECT_THAT(made.recommendation,
              HasSubstr("prefix hits are of a sample of 25.0% of the blocks and within "));
  const Json tier = Json::parse(made.to_json())["tiers"].list.at(1);
  EXPECT_NEAR(tier["block_hits_error"].number, made.tiers[1].error, 1e-6);
  EXPECT_NEAR(tier["prefix_hits_error"].number, made.tiers[1].error, 1e-6);
  EXPECT_GT(made.tiers[1].error, 0);
  EXPECT_THAT(made.to_text(), HasSubstr(percent_text(made.tiers[1].prefix_hits) + " +- "));
  EXPECT_THAT(plan(500, 2000, 0).recommendation, Not(HasSubstr("sample")));
}

TEST_F(TracePlanTest, ATierHasWhatThoseAboveItHave) {
  const MemoryPlan made = plan(500, 2000, 10'000);
  EXPECT_NEAR(made.tiers[0].prefix_hits, curve_.prefix_hits(500), 1e-3);
  EXPECT_NEAR(made.tiers[1].prefix_hits, curve_.prefix_hits(2000), 1e-3);
  EXPECT_NEAR(made.tiers[2].prefix_hits, curve_.prefix_hits(10'000), 1e-3);
  EXPECT_NEAR(made.tiers[0].gain + made.tiers[1].gain + made.tiers[2].gain, made.tiers[2].prefix_hits, 1e-9);
  EXPECT_NEAR(made.ssd_writes_per_day.value(), made.ssd_bytes_per_day.value() / made.tiers[2].bytes, 1e-9);
  EXPECT_EQ(made.ssd_years, std::nullopt) << "no limit was given";
  EXPECT_EQ(made.curve.size(), 10u);
  const Json json = Json::parse(made.to_json());
  EXPECT_EQ(json["trace"]["requests"].number, 2'000);
  EXPECT_EQ(json["tiers"].list.size(), 3u);
  EXPECT_THAT(made.to_text(), HasSubstr(made.recommendation));
}

// Within a point.
TEST_F(TracePlanTest, FindsWhatReplayFindsInTwoTiers) {
  const TraceTable trace = TraceTable::load(*generate_trace(options_)).value();
  for (const auto& [g1, g2] : {std::pair<std::uint32_t, std::uint32_t>{500, 500}, {500, 1000}, {500, 3000}}) {
    const ReplayConfig config{.tier_blocks = {g1, g2, 0}, .policy = "lru", .has_bound = false};
    const auto run = simulate(trace, config).value();
    const double found = static_cast<double>(run.total.hit_blocks()) / static_cast<double>(run.total.blocks);
    EXPECT_NEAR(plan(g1, g2, 0).tiers[1].prefix_hits, found, 0.01) << g1 << " and " << g2;
  }
}

// Also where G2 holds everything, and where it is larger than G3.
TEST_F(TracePlanTest, WritesToG3WhatReplayWrites) {
  const TraceTable trace = TraceTable::load(*generate_trace(options_)).value();
  for (const auto& [g1, g2, g3] : {std::array<std::uint32_t, 3>{500, 1'000, 4'000},
                                   {500, 100'000, 120'000},
                                   {500, 4'000, 2'000},
                                   {2'000, 500, 6'000}}) {
    const std::string shape = std::to_string(g1) + " " + std::to_string(g2) + " " + std::to_string(g3);
    const ReplayConfig config{.tier_blocks = {g1, g2, g3}, .policy = "lru", .has_bound = false};
    const auto run = simulate(trace, config).value();
    const MemoryPlan made = plan(g1, g2, g3);
    const auto written = static_cast<double>(run.total.written[2]);
    ASSERT_GT(written, 0) << shape;
    EXPECT_NEAR(made.ssd_bytes_per_day.value() * made.days / (2048 * 64), written, 0.01 * written) << shape;
    if (run.total.hits[2] < 500) continue;  // as good as none
    EXPECT_NEAR(made.ssd_bytes_per_hit.value(), run.written_per_hit(), 0.05 * run.written_per_hit()) << shape;
    EXPECT_THAT(made.to_text(), HasSubstr("written to G3 per hit"));
  }
}

TEST_F(TracePlanTest, WearAndCostsFollowFromRates) {
  const MemoryPlan made =
      plan(100, 200, 10'000,
           {.ssd_tbw = 1, .host_price = 3, .ssd_price = 0.1, .gpu_price = 2, .prefill_rate = 1000});
  EXPECT_NEAR(made.ssd_years.value(), 1e12 / made.ssd_bytes_per_day.value() / 365, 1e-6);
  EXPECT_NEAR(made.cost_of_computing.value(), 2.0 / 3600 / 1000 * 1e6, 1e-9);
  const double tokens_per_month =
      static_cast<double>(curve_.accesses()) / made.days * 730 / 24 * 64 * made.tiers[1].gain;
  EXPECT_NEAR(made.tiers[1].cost_per_million_hits.value(),
              made.tiers[1].cost_per_month.value() / tokens_per_month * 1e6, 1e-6);
  const MemoryPlan rated = plan(100, 200, 10'000, {.ssd_dwpd = 1});
  EXPECT_NEAR(rated.ssd_years.value(), 5 / rated.ssd_writes_per_day.value(), 1e-6);
}

TEST_F(TracePlanTest, RecommendsWhatGains) {
  EXPECT_THAT(plan(1e6, 0, 0).recommendation, StartsWith("Add nothing"));
  EXPECT_THAT(plan(100, 100'000, 0).recommendation, StartsWith("Take G2"));
  EXPECT_THAT(plan(100, 100'000, 100'000).recommendation, HasSubstr("; leave out G3"));
  EXPECT_THAT(plan(100, 0, 0).recommendation, HasSubstr("nine tenths"));
  const std::string dear =
      plan(100, 100'000, 0, {.host_price = 1e9, .gpu_price = 1, .prefill_rate = 1e6}).recommendation;
  EXPECT_THAT(dear, HasSubstr("for more than computing it costs"));
  EXPECT_THAT(plan(100, 1, 100'000, {.ssd_tbw = 1e-3}).recommendation, HasSubstr("its drive would last"));
}

TEST_F(TracePlanTest, ATierThatIsLeftOutCountsForNothing) {
  const MachineShape prices{.host_price = 1e9, .ssd_price = 1e-9, .gpu_price = 1, .prefill_rate = 1e6};
  const MemoryPlan made = plan(100, 100'000, 100'000, prices);
  EXPECT_LT(made.tiers[2].gain, 0.01) << "beside G2 it would gain nothing";
  EXPECT_THAT(made.recommendation, StartsWith("Leave out G2"));
  EXPECT_THAT(made.recommendation, HasSubstr("; take G3"));
  EXPECT_THAT(made.recommendation, HasSubstr("through a G2 of a few blocks"));
  EXPECT_THAT(plan(100, 2'000, 100'000).recommendation, Not(HasSubstr("of a few blocks")));
  EXPECT_THAT(made.recommendation, HasSubstr("rise from " + percent_text(curve_.prefix_hits(100)) + " to " +
                                             percent_text(curve_.prefix_hits(100'000))));
  // What is written to the drive then depends on its own size alone, and does on G2's where that is larger.
  MachineShape worn = prices;
  worn.ssd_tbw = 3.5 * 365 * plan(100, 50'000, 2'000).ssd_bytes_per_day.value() / 1e12;
  const MemoryPlan without = plan(100, 50'000, 2'000, worn);
  EXPECT_NEAR(without.ssd_years.value(), 3.5, 1e-6);
  EXPECT_THAT(without.recommendation, HasSubstr("; do not take G3"));
  EXPECT_THAT(plan(100, 1, 100'000, {.ssd_tbw = 1e-3}).recommendation, HasSubstr("in all would find"))
      << "a drive that wears out is not reached either";
}

}  // namespace
}  // namespace ashlar::replay
