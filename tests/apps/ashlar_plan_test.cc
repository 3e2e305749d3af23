// `ashlar plan`, run as a person runs it.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "apps/run_program.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar {
namespace {

using ::ashlar::testing::Json;

TEST(AshlarPlan, SaysWhatAModelTakes) {
  const Ended text = run("plan --model Llama-3.1-8B --gpu-mem 80 --host-mem 256");
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_TRUE(says(text, "131,072")) << text.output;
  EXPECT_TRUE(says(text, "    G2   256.0 GiB   2,097,152   131,072\n")) << text.output;
  const Ended huge =
      run("plan --gpu-mem 80 --host-mem 1000000000 --weights 0 --layers 1 --kv-heads 1 --head-dim 1");
  EXPECT_EQ(huge.status, 0) << huge.output;
  EXPECT_TRUE(says(huge, "    G2   953.7 PiB   268,435,456,000,000,000   16,777,216,000,000,000\n"))
      << huge.output;
  EXPECT_TRUE(says(run("plan --models"), "DeepSeek-V3"));
  const Json models = Json::parse(run("plan --models --json").output)["models"];
  ASSERT_GT(models.list.size(), 3u);
  EXPECT_EQ(models.list[2]["model"].text, "Llama-3.1-8B");
  EXPECT_EQ(models.list[2]["weights_gb"].number, 16.1);
  const ScratchFolder folder;
  std::ofstream(folder.file("config.json"))
      << R"({"num_hidden_layers":2,"num_key_value_heads":2,"head_dim":4})";
  const Ended config =
      run("plan --json --weights 0 --gpu-mem 1 --dtype fp8 --model " + folder.file("config.json"));
  EXPECT_EQ(config.status, 0) << config.output;
  EXPECT_EQ(Json::parse(config.output)["bytes_per_token"].number, 2 * 2 * 2 * 4);
  std::ofstream(folder.file("config.json"))
      << R"({"num_hidden_layers":2,"num_key_value_heads":2,"head_dim":4,"sliding_window":64})";
  const Ended unknown = run("plan --gpu-mem 1 --weights 0 --model " + folder.file("config.json"));
  EXPECT_EQ(unknown.status, 0) << unknown.output;
  EXPECT_TRUE(says(unknown, "not which layers have it")) << unknown.output;
  const Ended numbers = run("plan --json --weights 0 --gpu-mem 1 --layers 2 --kv-heads 0 --head-dim 8");
  EXPECT_EQ(Json::parse(numbers.output)["bytes_per_token"].number, 2 * 8 * 2) << "one latent vector";
}

TEST(AshlarPlan, FollowsATrace) {
  const ScratchFolder folder;
  ASSERT_EQ(run("replay --generate chat,requests=500 --write " + folder.file("trace.jsonl")).status, 0);
  const std::string base =
      "plan --json --model Llama-3.1-8B --gpu-mem 20 --host-mem 4 --trace " + folder.file("trace.jsonl");
  const Ended exact = run(base);
  ASSERT_EQ(exact.status, 0) << exact.output;
  const Json json = Json::parse(exact.output);
  EXPECT_EQ(json["trace"]["requests"].number, 500);
  EXPECT_GT(json["trace"]["most_prefix_hits"].number, 0);
  EXPECT_EQ(json["trace"]["curve"].list.size(), 10u);
  const Ended sampled = run(base + " --sample 0.2");
  EXPECT_NEAR(Json::parse(sampled.output)["trace"]["sample_rate"].number, 0.2, 1e-6);
  std::ofstream(folder.file("trace.jsonl"), std::ios::app) << "not a request\n";
  EXPECT_EQ(run(base).status, 1);
  EXPECT_EQ(run(base + " --lenient").status, 3);
}

TEST(AshlarPlan, WekaSessionsBeginAsFarApartAsInReplay) {
  const ScratchFolder folder;
  {
    std::ofstream trace(folder.file("weka.jsonl"));
    for (int i = 0; i < 3; ++i)
      trace << R"({"id":")" << i
            << R"(","block_size":64,"hash_id_scope":"local","requests":[{"t":0,"in":64,"hash_ids":[1]}]})"
            << "\n";
  }
  const std::string base =
      "plan --json --layers 1 --kv-heads 1 --head-dim 512 --weights 0 --gpu-mem 1 --trace " +
      folder.file("weka.jsonl");
  const auto days = [&](const std::string& more) {
    return Json::parse(run(base + more).output)["trace"]["days"].number;
  };
  EXPECT_NEAR(days(""), 2 * 1'000 / 86.4e6, 1e-9);
  EXPECT_NEAR(days(" --session-interval 60000"), 2 * 60'000 / 86.4e6, 1e-9);
}

TEST(AshlarPlan, ATraceMayHaveNoTimes) {
  const ScratchFolder folder;
  {
    std::ofstream trace(folder.file("trace.jsonl"));
    for (int i = 0; i < 40; ++i)
      trace << R"({"input_length": 1024, "output_length": 1, "hash_ids": [)" << i % 4 * 2 << ", "
            << i % 4 * 2 + 1 << "]}\n";
  }
  const std::string base =
      "plan --layers 1 --kv-heads 1 --head-dim 512 --weights 0 --gpu-mem 0.002 --host-mem 1 --ssd 1 "
      "--ssd-tbw 1 --host-price 1 --gpu-price 1 --prefill-rate 1 --trace " +
      folder.file("trace.jsonl");
  const Ended text = run(base);
  ASSERT_EQ(text.status, 0) << text.output;
  EXPECT_TRUE(says(text, "all at once: nothing can be said per day")) << text.output;
  EXPECT_TRUE(says(text, "Take G2 of 1.0 GiB: prefix hits rise from 0.0% to 90.0%")) << text.output;
  for (const char* rated : {"inf", "nan", "written to G3", "its life", "tokens that it finds"})
    EXPECT_FALSE(says(text, rated)) << rated << "\n" << text.output;
  const Json json = Json::parse(run(base + " --json").output);
  std::vector<double> sizes;
  for (const Json& point : json["trace"]["curve"].list) sizes.push_back(point["blocks"].number);
  EXPECT_EQ(sizes, (std::vector<double>{1, 2, 4, 8})) << "each size once";
  for (const char* rated : {"days", "ssd_bytes_written_per_day", "ssd_years"})
    EXPECT_EQ(json["trace"].map.count(rated), 0u) << rated;
}

TEST(AshlarPlan, WhatIsNotKnownIsNull) {
  const ScratchFolder folder;
  ASSERT_EQ(run("replay --generate chat,requests=300 --write " + folder.file("trace.jsonl")).status, 0);
  const std::string base =
      "plan --json --model Llama-3.1-8B --gpu-mem 20 --host-mem 1 --trace " + folder.file("trace.jsonl");
  const Ended plain = run(base);
  for (const char* of_ssd : {"ssd_bytes_written_per_day", "ssd_drive_writes_per_day", "ssd_years"})
    EXPECT_TRUE(says(plain, std::string("\"") + of_ssd + "\":null")) << of_ssd << "\n" << plain.output;
  const Ended unrated = run(base + " --ssd 4");
  EXPECT_FALSE(says(unrated, "\"ssd_bytes_written_per_day\":null")) << unrated.output;
  EXPECT_TRUE(says(unrated, "\"ssd_years\":null")) << unrated.output;
  const Ended rated = run(base + " --ssd 4 --ssd-tbw 100");
  EXPECT_GT(Json::parse(rated.output)["trace"]["ssd_years"].number, 0) << rated.output;
  EXPECT_FALSE(says(rated, "null")) << rated.output;
}

TEST(AshlarPlan, AZeroIsNotNothing) {
  const ScratchFolder folder;
  ASSERT_EQ(run("replay --generate chat,requests=300 --write " + folder.file("trace.jsonl")).status, 0);
  const std::string base =
      "plan --json --model Llama-3.1-8B --gpu-mem 20 --host-mem 4 --trace " + folder.file("trace.jsonl");
  const Json none = Json::parse(run(base).output);
  EXPECT_EQ(none["tiers"].list.at(1).map.count("cost_per_month"), 0u);
  const Ended free = run(base + " --host-price 0 --gpu-price 0 --prefill-rate 1000");
  ASSERT_EQ(free.status, 0) << free.output;
  const Json json = Json::parse(free.output);
  EXPECT_EQ(json["tiers"].list.at(1).map.count("cost_per_month"), 1u) << free.output;
  EXPECT_EQ(json["tiers"].list.at(1)["cost_per_month"].number, 0);
  EXPECT_EQ(json.map.count("computing_cost_per_million_tokens"), 1u);
  for (const char* option : {"--gpu-mem", "--ssd-tbw", "--ssd-dwpd", "--prefill-rate"}) {
    const Ended ended = run(std::string("plan --model Llama-3.1-8B ") + option + " 0");
    EXPECT_GE(ended.status, 100) << option << " " << ended.output;
    EXPECT_TRUE(says(ended, "takes a number from 1e-06")) << ended.output;
  }
}

TEST(AshlarPlan, SaysWhoseWeightsItCounts) {
  const Ended table = run("plan --model Llama-3.1-8B-FP8 --gpu-mem 80");
  EXPECT_EQ(table.status, 0);
  EXPECT_TRUE(says(table, "give --weights for fp8")) << table.output;
  EXPECT_FALSE(says(run("plan --model Llama-3.1-8B-FP8 --gpu-mem 80 --weights 9"), "for fp8"));
}

TEST(AshlarPlan, WrongUsageSaysWhatToGive) {
  for (const auto& [arguments, expected] :
       {std::pair<std::string, std::string>{"plan --model Lama-3 --gpu-mem 80", "--models lists it"},
        {"plan --gpu-mem 80 --model Phi-4-mini-instruct", "there are Phi-4"},
        {"plan --model Llama-3.1-8B --gpu-mem 80 --dtype fp3", "there are fp8, bf16"},
        {"plan --model Llama-3.1-8B --gpu-mem 80 --trace none --format csv", "mooncake"},
        {"plan", "which model?"},
        {"plan --model Llama-3.1-8B", "--gpu-mem is needed: the GiB of one GPU"},
        {"plan --gpu-mem 80 --layers 32 --head-dim 128", "--kv-heads and --head-dim together"},
        {"plan --gpu-mem 80 --kv-heads 8 --head-dim 128", "needs --layers"},
        {"plan --gpu-mem 80 --window 128", "needs --layers"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --window 128", "leave out --layers"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --kv-heads 4 --head-dim 64", "leave out --layers"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --gpu-utilization 0", "a share above 0"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --ssd 100", "blocks reach G3 through G2"}}) {
    const Ended ended = run(arguments);
    EXPECT_GE(ended.status, 100) << arguments << "\n" << ended.output;
    EXPECT_TRUE(says(ended, expected)) << arguments << "\n" << ended.output;
  }
}

TEST(AshlarPlan, ErrorsSayWhatToGive) {
  for (const auto& [arguments, expected] :
       {std::pair<std::string, std::string>{"plan --model Llama-3.1-70B --gpu-mem 80", "give more --tp"},
        {"plan --model none.json --gpu-mem 80", "No such file"},
        {"plan --model Llama-3.1-8B --gpu-mem 80 --trace none", "none"}}) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.status, 1) << arguments << "\n" << ended.output;
    EXPECT_TRUE(says(ended, expected)) << arguments << "\n" << ended.output;
  }
}

}  // namespace
}  // namespace ashlar
