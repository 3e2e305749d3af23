// Bodies of requests, and answers of workers, damaged in every way: read or refused, without reading beyond
// the end (under the address sanitizer every input has a block of memory of its own) and without allocating
// more than in proportion to the input.
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "service/gateway/fake_workers.h"
#include "service/gateway/fleet.h"
#include "service/gateway/snapshot.h"
#include "service/request/prompt_blocks.h"
#include "service/request/request_view.h"
#include "service/request/tokenize_question.h"
#include "service/request/usage_scanner.h"
#include "support/counted_new.h"
#include "support/damage.h"

namespace ashlar::service {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::string_view kBodies[] = {
    R"({"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text",
    "text":"a\u00e9\n"},{"type":"image_url","image_url":{"url":"x"}}]}],"stream":true,
    "stream_options":{"include_usage":true},"tools":[{"type":"function"}],"max_tokens":12})",
    R"({"prompt":[1,2,3,4294967295],"cache_salt":"x","prompt":[[1,2],[3]],"temperature":-1.5e+3})",
    R"({"prompt":["a","b"],"max_tokens":1,"chat_template_kwargs":{"a":[{}]},"add_special_tokens":false})",
    R"({"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result",
    "content":[{"type":"text","text":"x"}]}]}]})",
    R"({"input":[{"type":"message","role":"user","content":"x"},{"type":"call"}],"instructions":"i"})",
    R"({"messages":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]})",
};

std::string_view text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(RequestFuzz, DamagedBodiesAreReadOrRefused) {
  Random random(1);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(0.7);
  for (int round = 0; round < 2000 || accepted == 0 || refused == 0 || !box.over(); ++round) {
    const auto seed = std::as_bytes(std::span(kBodies[random.below(std::size(kBodies))]));
    Bytes body(seed.begin(), seed.end());
    testing::damage(body, random);
    body.shrink_to_fit();
    const auto endpoint =
        static_cast<Endpoint>(random.below(static_cast<std::uint64_t>(Endpoint::kOther) + 1));
    const std::size_t before = g_allocated_bytes.load();
    const Result<RequestView> view = read_request(endpoint, text_of(body));
    ASSERT_LE(g_allocated_bytes.load() - before, 4096 + 32 * body.size());
    (view ? accepted : refused) += 1;
    if (!view) continue;
    for (const JsonSlice& message : view->messages) {
      ASSERT_LT(message.begin, message.end);
      ASSERT_LE(message.end, body.size());
    }
  }
}

// Whatever a worker answers, items lie in the prompt, one behind the other.
TEST(RequestFuzz, DamagedAnswersAreReadOrRefused) {
  constexpr std::string_view kAnswers[] = {
      R"({"count":4,"max_model_len":9,"tokens":[1,22,333,128000],"token_strs":null})",
      R"({"request_id":"r","token_ids":[1,2,3,4,5,6],"features":{"mm_hashes":{"image":["aa","bb"]},
      "mm_placeholders":{"image":[{"offset":0,"length":2},{"offset":3,"length":1}]},"kwargs_data":null}})",
      R"([{"token_ids":[7,8,9],"features":null,"sampling_params":{"n":1}}])",
  };
  Random random(3);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(0.3);
  for (int round = 0; round < 2000 || accepted == 0 || refused == 0 || !box.over(); ++round) {
    const auto seed = std::as_bytes(std::span(kAnswers[random.below(std::size(kAnswers))]));
    Bytes body(seed.begin(), seed.end());
    testing::damage(body, random);
    body.shrink_to_fit();
    const std::size_t before = g_allocated_bytes.load();
    (void)read_tokenize_answer(text_of(body));
    const Result<RenderedPrompt> prompt = read_render_answer(text_of(body));
    ASSERT_LE(g_allocated_bytes.load() - before, 8192 + 64 * body.size());
    (prompt ? accepted : refused) += 1;
    if (!prompt) continue;
    std::uint64_t end = 0;
    for (const PromptItem& item : prompt->items) {
      ASSERT_GE(item.offset, end);
      end = item.offset + item.length;
    }
    ASSERT_LE(end, prompt->tokens.size());
    EXPECT_EQ(hash_prompt(prompt->tokens, prompt->items, {}, 2).size(), prompt->tokens.size() / 2);
  }
}

// What a worker lists as its models goes into answers of the router's own.
TEST(RequestFuzz, DamagedModelListsAreReadOrRefused) {
  constexpr std::string_view kLists[] = {
      R"({"object":"list","data":[{"id":"m","parent":null},{"id":"a","parent":"m","n":[{}]}]})",
      R"({"data":{"id":"x"},"data":[{"object":"model","id":"b","max_model_len":4096}],"more":[1e9]})",
  };
  Random random(4);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(0.2);
  for (int round = 0; round < 2000 || accepted == 0 || refused == 0 || !box.over(); ++round) {
    const auto seed = std::as_bytes(std::span(kLists[random.below(std::size(kLists))]));
    Bytes list(seed.begin(), seed.end());
    testing::damage(list, random);
    list.shrink_to_fit();
    const std::size_t before = g_allocated_bytes.load();
    const Result<std::vector<ModelEntry>> models = read_models(text_of(list));
    ASSERT_LE(g_allocated_bytes.load() - before, 4096 + 64 * list.size());
    (models ? accepted : refused) += 1;
    if (!models) continue;
    for (const ModelEntry& entry : *models) {
      ASSERT_FALSE(entry.id.empty());
      ASSERT_TRUE(entry.json.starts_with('{') && entry.json.ends_with('}')) << entry.json;
    }
  }
}

TEST(RequestFuzz, DamagedSnapshotsAreReadOrRefused) {
  constexpr std::string_view kDumps[] = {
      R"({"m":{"block_size":4,"workers":{"1":"gpu1","2":"gpu2"},"states":{"1":{"0":{"message":7,
      "digest":"00ff","state":"AAECAwQFBgc="},"1":{"missing":"why"}}},"events":[]}})",
      R"({"m":{"workers":{"18446744073709551615":"w"},"states":{"18446744073709551615":{"4294967295":{}}}}})",
  };
  Random random(5);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(0.2);
  std::vector<Bytes> seeds;
  for (const std::string_view dump : kDumps) {
    const auto bytes = std::as_bytes(std::span(dump));
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  {
    // What a router dumps that holds something.
    ServiceUnderTest service(ServiceUnderTest::options_of(2));
    const events::WorkerId worker = service->router().loads().at(0).worker.id;
    std::vector<events::StoredBlock> blocks;
    for (std::uint64_t i = 1; i <= 4; ++i)
      blocks.push_back({.local = tokens::LocalHash(i), .name = events::BlockName(i)});
    events::BlocksStored event;
    event.worker = {.id = worker};
    event.blocks = blocks;
    ASSERT_EQ(service->router().sink().store(event), events::StoreVerdict::kApplied);
    const std::string dump = service.get("/dump").body;
    ASSERT_TRUE(read_snapshot(dump).has_value()) << dump;
    const auto bytes = std::as_bytes(std::span(dump));
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  for (int round = 0; round < 2000 || accepted == 0 || refused == 0 || !box.over(); ++round) {
    Bytes dump = seeds[random.below(seeds.size())];
    testing::damage(dump, random);
    dump.shrink_to_fit();
    const std::size_t before = g_allocated_bytes.load();
    const Result<Snapshot> snapshot = read_snapshot(text_of(dump));
    ASSERT_LE(g_allocated_bytes.load() - before, (64 << 10) + 256 * dump.size());
    (snapshot ? accepted : refused) += 1;
  }
}

// Requests to the router itself: answered, whatever they say, and with nothing left behind.
TEST(RequestFuzz, DamagedQueriesAreAnsweredOrRefused) {
  constexpr std::string_view kQueries[] = {
      R"({"model_name":"m","token_ids":[1,2,3,4,5,6,7,8],"cache_salt":"s","lora_name":null,"dp_rank":3})",
      R"({"model":"m","block_hashes":[1,18446744073709551615,-5],"routing_group":7,"tenant_id":"t"})",
      R"({"model_name":"m","instance_id":7,"block_size":65537,"endpoint":"tcp://127.0.0.1:1","dp_rank":9})",
  };
  ServiceUnderTest service(ServiceUnderTest::options_of(2));
  Random random(6);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(0.3);
  for (int round = 0; round < 1000 || accepted == 0 || refused == 0 || !box.over(); ++round) {
    const auto seed = std::as_bytes(std::span(kQueries[random.below(std::size(kQueries))]));
    Bytes query(seed.begin(), seed.end());
    testing::damage(query, random);
    for (const char* target : {"/query", "/query_by_hash", "/register", "/unregister"}) {
      const Reply reply = service.post(target, std::string(text_of(query)));
      ASSERT_TRUE(reply.status == 200 || (reply.status >= 400 && reply.status <= 503)) << reply.status;
      (reply.status == 200 ? accepted : refused) += 1;
    }
  }
  EXPECT_EQ(service->router().running(), 0u);
  EXPECT_EQ(service->router().loads().size(), 2u) << "no events can be heard here: nobody can register";
}

TEST(RequestFuzz, LongBodiesTakeMemoryInProportion) {
  for (const std::string& unit :
       {std::string("{},"), std::string("\"\","), std::string("0,"), std::string("[],"), std::string("["),
        std::string("{\"a\":"), std::string("\"\\u0041\",")}) {
    std::string body = R"({"model":")" + std::string(1000, 'm') + R"(","messages":[)";
    std::string prompt = R"({"prompt":[)";
    for (int i = 0; i < 100'000; ++i) {
      body += unit;
      prompt += unit;
    }
    for (const auto& [endpoint, text] :
         {std::pair(Endpoint::kChat, body), {Endpoint::kCompletions, prompt}}) {
      const std::size_t before = g_allocated_bytes.load();
      EXPECT_FALSE(read_request(endpoint, text).has_value());
      EXPECT_LE(g_allocated_bytes.load() - before, 4096 + 32 * text.size()) << unit;
    }
  }
}

TEST(RequestFuzz, AScannerAllocatesNothing) {
  Random random(2);
  UsageScanner json("application/json");
  UsageScanner events("text/event-stream");
  std::string bytes;
  for (int i = 0; i < 2000; ++i) {
    const std::string_view body = kBodies[random.below(std::size(kBodies))];
    bytes += "data: ";
    bytes += body.substr(random.below(body.size()));
    bytes += random.below(2) == 0 ? "\n" : "\n\n";
  }
  const std::size_t before = g_allocated_bytes.load();
  json.feed(bytes);
  events.feed(bytes);
  json.finish();
  events.finish();
  EXPECT_EQ(g_allocated_bytes.load(), before);
}

}  // namespace
}  // namespace ashlar::service
