// `ashlar plan`, run as a person runs it.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

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
  EXPECT_TRUE(says(text, "G2      256.0 GiB       2,097,152         131,072")) << text.output;
  EXPECT_TRUE(says(run("plan --models"), "DeepSeek-V3"));
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

TEST(AshlarPlan, ErrorsSayWhatToGive) {
  for (const auto& [arguments, expected] :
       {std::pair<std::string, std::string>{"plan", "which model?"},
        {"plan --model Llama-3.1-8B", "give the GiB of one GPU"},
        {"plan --model Llama-3.1-70B --gpu-mem 80", "give more --tp"},
        {"plan --model Lama-3 --gpu-mem 80", "--models lists it"},
        {"plan --gpu-mem 80 --layers 32 --head-dim 128", "--kv-heads and --head-dim together"},
        {"plan --gpu-mem 80 --kv-heads 8 --head-dim 128", "needs --layers"},
        {"plan --gpu-mem 80 --window 128", "needs --layers"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --window 128", "leave out --layers"},
        {"plan --gpu-mem 80 --model Llama-3.1-8B --kv-heads 4 --head-dim 64", "leave out --layers"},
        {"plan --gpu-mem 80 --model Phi-4-mini-instruct", "there are Phi-4"},
        {"plan --model none.json --gpu-mem 80", "No such file"},
        {"plan --model Llama-3.1-8B --gpu-mem 80 --dtype fp3", "there are fp8, bf16"},
        {"plan --model Llama-3.1-8B --gpu-mem 80 --trace none", "none"}}) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.status, 1) << arguments << "\n" << ended.output;
    EXPECT_TRUE(says(ended, expected)) << arguments << "\n" << ended.output;
  }
}

}  // namespace
}  // namespace ashlar
