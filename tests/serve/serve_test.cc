// The program in front of engines in processes of their own, as an operator runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "ashlar/base/random.h"
#include "serve/serve_process.h"

namespace ashlar::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Events of the turn before may be late on a busy machine; a claim is right once they have come.
constexpr const char* kPatience = "60s";
// And its workers stay EXACT.
constexpr const char* kLate = "60s";

std::string chat_body(const std::vector<std::pair<std::string, std::string>>& messages,
                      const std::string& more = {}) {
  std::string body = R"({"model":"tiny","max_tokens":6,"messages":[)";
  for (std::size_t i = 0; i < messages.size(); ++i)
    body += (i == 0 ? "" : ",") + (R"({"role":")" + messages[i].first + R"(","content":")") +
            messages[i].second + "\"}";
  return body + "]" + more + "}";
}

std::string text_of(const HttpAnswer& answer) {
  const Json json = Json::parse(answer.body);
  return json["choices"].list.empty() ? std::string() : json["choices"].list[0]["message"]["content"].text;
}

std::uint64_t cached_of(const HttpAnswer& answer) {
  return static_cast<std::uint64_t>(
      Json::parse(answer.body)["usage"]["prompt_tokens_details"]["cached_tokens"].number);
}

// Runs a program to its end: its output and status.
std::pair<std::string, int> run_program(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string output;
  char part[4096];
  while (const std::size_t got = std::fread(part, 1, sizeof part, pipe)) output.append(part, got);
  const int status = ::pclose(pipe);
  return {output, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

TEST(Serve, AConversationStaysWhereItIsCached) {
  EngineProcess a;
  EngineProcess b;
  ServeProcess serve({"--worker", worker_text(a, ",name=a"), "--worker", worker_text(b, ",name=b"),
                      "--event-patience", kPatience, "--late-after", kLate});
  serve.wait_until_heard({&a, &b});
  HttpClient client = serve.client();
  HttpClient direct(a.port());
  std::vector<std::pair<std::string, std::string>> messages = {
      {"system", "You are a stone mason of few words."}};
  std::string worker;
  for (int turn = 0; turn < 5; ++turn) {
    messages.emplace_back("user", "Question number " + std::to_string(turn) + " about stone.");
    const HttpAnswer answer = client.post("/v1/chat/completions", chat_body(messages));
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.header("x-ashlar-state"), "EXACT");
    EXPECT_EQ(answer.header("x-ashlar-cached-tokens"), std::to_string(cached_of(answer))) << "turn " << turn;
    if (turn == 0) worker = answer.header("x-ashlar-worker");
    EXPECT_EQ(answer.header("x-ashlar-worker"), worker) << "turn " << turn;
    EXPECT_EQ(text_of(answer), text_of(direct.post("/v1/chat/completions", chat_body(messages))));
    messages.emplace_back("assistant", text_of(answer));
    const Json receipt = serve.receipt(answer);
    EXPECT_EQ(receipt["outcome"]["misroute"].text, "none");
    EXPECT_EQ(receipt["candidates"].list.size(), 2u);
  }
  EXPECT_GT(serve.metric("ashlar_serve_delivered_tokens_total"), 0);
  serve.wait_for_metric("ashlar_serve_predictions_right_total", 5);
  const auto [seen, status] = run_program(std::string(ASHLAR_PROGRAM) +
                                          " inspect --json http://127.0.0.1:" + std::to_string(serve.port()));
  EXPECT_EQ(status, 0) << seen;
  EXPECT_EQ(Json::parse(seen)["workers"].list.at(1)["state"].text, "EXACT");
}

// Tools of /v1/messages cannot be told to /tokenize, and the first engine has none: both render.
TEST(Serve, WhatTokenizeCannotSayIsRendered) {
  EngineProcess a({"--enable-scale-out", "--no-tokenize"});
  EngineProcess b({"--enable-scale-out"});
  ServeProcess serve({"--worker", worker_text(a, ",name=a"), "--worker", worker_text(b, ",name=b"),
                      "--event-patience", kPatience, "--late-after", kLate, "--tokenize-timeout", "60s"});
  const auto start = std::chrono::steady_clock::now();
  serve.wait_until_heard({&a, &b});
  HttpClient client = serve.client();
  const std::string tools =
      R"({"model":"tiny","max_tokens":4,"tools":[{"name":"chisel","n":1}],)"
      R"("messages":[{"role":"user","content":"Which tool is it that a mason needs?"}]})";
  for (int i = 0; i < 2; ++i) {
    const HttpAnswer answer = client.post("/v1/messages", tools);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json usage = Json::parse(answer.body)["usage"];
    EXPECT_EQ(answer.header("x-ashlar-cached-tokens"),
              std::to_string(static_cast<int>(usage["cache_read_input_tokens"].number)));
    EXPECT_EQ(serve.receipt(answer)["tokens"].text, i == 0 ? "rendered" : "remembered");
    EXPECT_EQ(usage["cache_read_input_tokens"].number > 0, i == 1);
  }
  for (int i = 0; i < 4; ++i) {
    const HttpAnswer answer =
        client.post("/v1/chat/completions", chat_body({{"user", "Question " + std::to_string(i)}}));
    EXPECT_EQ(serve.receipt(answer)["tokens"].text, "asked");
  }
  // Who has no such endpoint is left alone for 30 s at least.
  const double failed = serve.metric("ashlar_serve_tokenize_failed_total");
  EXPECT_LE(failed, 1 + (std::chrono::steady_clock::now() - start) / std::chrono::seconds(30));
}

TEST(Serve, StreamsPassAndAreCountedToo) {
  EngineProcess engine;
  ServeProcess serve({"--worker", worker_text(engine), "--event-patience", kPatience, "--late-after", kLate});
  serve.wait_until_heard({&engine});
  HttpClient client = serve.client();
  const std::string body = chat_body({{"user", "A stream, please, of a few words."}},
                                     R"(,"stream":true,"stream_options":{"include_usage":true})");
  for (int i = 0; i < 2; ++i) {
    const HttpAnswer answer = client.post("/v1/chat/completions", body);
    EXPECT_THAT(answer.header("content-type"), StartsWith("text/event-stream"));
    EXPECT_THAT(answer.body, HasSubstr("data: [DONE]"));
    EXPECT_TRUE(answer.is_complete);
  }
  serve.wait_for_metric("ashlar_serve_predictions_right_total", 2);
  // A client that leaves ends the request at the engine.
  const std::string longer = R"({"model":"tiny","prompt":"run on","max_tokens":1500,"stream":true})";
  client.request("POST", "/v1/completions", longer, {}, [](std::string_view) { return false; });
  HttpClient direct(engine.port());
  const auto is_idle = [&] {
    const std::string page = direct.get("/metrics").body;
    const std::size_t at = page.find("vllm:num_requests_running{");
    const std::size_t value = page.find("} ", at);
    EXPECT_NE(value, std::string::npos) << page;
    return value != std::string::npos && std::stod(page.substr(value + 2)) == 0 &&
           serve.metric("ashlar_serve_running") == 0;
  };
  while (!is_idle()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(serve.metric(R"(ashlar_serve_ended_total{end="client_gone"})"), 1);
}

// What has no conversation passes too, byte for byte as the engine answers.
TEST(Serve, EveryEndpointOfAnEnginePasses) {
  EngineProcess engine;
  ServeProcess serve(
      {"--worker", worker_text(engine, ",name=a"), "--event-patience", kPatience, "--late-after", kLate});
  serve.wait_until_heard({&engine});
  HttpClient client = serve.client();
  HttpClient direct(engine.port());
  struct Case {
    const char* path;
    const char* body;
    const char* compared;  // a field of the answer; ids and times differ
  };
  for (const Case& one :
       {Case{"/v1/embeddings", R"({"model":"tiny","input":["one text","another"]})", "data"},
        Case{"/v1/responses", R"({"model":"tiny","input":"hello, mason","max_output_tokens":9})", "output"},
        Case{"/tokenize", R"({"model":"tiny","prompt":"a stone"})", "tokens"},
        Case{"/detokenize", R"({"model":"tiny","tokens":[97,98,99]})", "prompt"}}) {
    const double before = serve.metric("ashlar_serve_requests_total");
    const HttpAnswer answer = client.post(one.path, one.body);
    ASSERT_EQ(answer.status, 200) << one.path << answer.body;
    EXPECT_EQ(answer.header("x-ashlar-worker"), "a") << one.path;
    EXPECT_EQ(serve.metric("ashlar_serve_requests_total"), before + 1) << one.path;
    const HttpAnswer own = direct.post(one.path, one.body);
    const auto part = [&](const std::string& text) {
      const std::size_t at = text.find("\"" + std::string(one.compared) + "\":");
      return at == std::string::npos ? std::string() : text.substr(at, 40);
    };
    EXPECT_FALSE(part(own.body).empty()) << own.body;
    EXPECT_EQ(part(answer.body), part(own.body)) << one.path;
    // It is over, with what its engine reports.
    const Json receipt = serve.receipt(answer);
    EXPECT_EQ(receipt["outcome"]["end"].text, "complete") << one.path;
  }
  serve.wait_for_metric("ashlar_serve_running", 0);
}

TEST(Serve, ARestartedEngineLosesItsBlocksAtOnce) {
  EngineProcess engine;
  ServeProcess serve({"--worker", worker_text(engine), "--health-interval", "50ms"});
  serve.wait_until_exact();
  HttpClient client = serve.client();
  const std::string body = chat_body({{"user", "Something long enough to fill a few blocks of tokens."}});
  client.post("/v1/chat/completions", body);
  EXPECT_GT(cached_of(client.post("/v1/chat/completions", body)), 0u);
  engine.restart();
  serve.wait_for_fleet([](const std::vector<Json>& workers) {
    const Json& rank = workers.at(0)["ranks"].list.at(0);
    return workers.at(0)["up"].number == 1 && rank["state"].text == "EXACT" && rank["blocks"].number == 0;
  });
  HttpAnswer answer = client.post("/v1/chat/completions", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.header("x-ashlar-cached-tokens"), "0");
  EXPECT_EQ(cached_of(answer), 0u);
}

TEST(Serve, AnEngineThatDiesIsLeftForAnother) {
  EngineProcess a;
  EngineProcess b;
  ServeProcess serve({"--worker", worker_text(a, ",name=a"), "--worker", worker_text(b, ",name=b"),
                      "--health-interval", "50ms"});
  serve.wait_until_exact();
  HttpClient client = serve.client();
  a.kill();
  // Before it is known to be down, and after.
  for (int i = 0; i < 6; ++i) {
    const HttpAnswer answer =
        client.post("/v1/chat/completions", chat_body({{"user", "Number " + std::to_string(i)}}));
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.header("x-ashlar-worker"), "b");
  }
  serve.wait_for_fleet([](const std::vector<Json>& workers) { return workers.at(0)["up"].number == 0; });
  b.kill();
  HttpAnswer answer = client.post("/v1/chat/completions", chat_body({{"user", "Nobody there"}}));
  EXPECT_TRUE(answer.status == 502 || answer.status == 503) << answer.status;
  a.restart();
  serve.wait_for_fleet([](const std::vector<Json>& workers) { return workers.at(0)["up"].number == 1; });
  answer = client.post("/v1/chat/completions", chat_body({{"user", "Back again"}}));
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST(Serve, RanksAreChosenAndTold) {
  EngineProcess engine({}, 2);
  ServeProcess serve(
      {"--worker", worker_text(engine, ",dp=2"), "--event-patience", kPatience, "--late-after", kLate});
  serve.wait_until_heard({&engine});
  HttpClient client = serve.client();
  std::set<std::string> ranks;
  for (int i = 0; i < 8; ++i) {
    const std::string body =
        chat_body({{"user", std::to_string(i) + std::to_string(i) + " is the number of this conversation."}});
    const HttpAnswer first = client.post("/v1/chat/completions", body);
    const HttpAnswer again = client.post("/v1/chat/completions", body);
    EXPECT_EQ(first.header("x-ashlar-dp-rank"), again.header("x-ashlar-dp-rank"));
    EXPECT_EQ(again.header("x-ashlar-cached-tokens"), std::to_string(cached_of(again)));
    EXPECT_GT(cached_of(again), 0u);
    ranks.insert(first.header("x-ashlar-dp-rank"));
  }
  EXPECT_EQ(ranks.size(), 2u);
}

TEST(Serve, WorkersAreReloadedWithoutLosingAStream) {
  EngineProcess a;
  EngineProcess b;
  const ScratchFolder folder;
  const auto write_workers = [&](const std::vector<const EngineProcess*>& engines) {
    std::ofstream out(folder.file("workers.toml"));
    for (const EngineProcess* engine : engines)
      out << "[[worker]]\nurl = \"" << engine->url() << "\"\nevents = \"" << engine->events()
          << "\"\nreplay = \"" << engine->replay() << "\"\n";
  };
  write_workers({&a});
  ServeProcess serve({"--worker-file", folder.file("workers.toml")});
  serve.wait_until_exact();
  HttpClient client = serve.client();
  bool is_reloaded = false;
  const std::string body = R"({"model":"tiny","prompt":"go on and on","max_tokens":400,"stream":true})";
  const HttpAnswer answer = client.request("POST", "/v1/completions", body, {}, [&](std::string_view) {
    if (!is_reloaded) {
      is_reloaded = true;
      write_workers({&b});
      serve.signal(SIGHUP);
      serve.wait_for_fleet([&](const std::vector<Json>& workers) {
        return workers.size() == 1 && workers[0]["address"].text == "127.0.0.1:" + std::to_string(b.port()) &&
               workers[0]["up"].number == 1;
      });
    }
    return true;
  });
  EXPECT_TRUE(answer.is_complete);
  EXPECT_THAT(answer.body, HasSubstr("[DONE]"));
  serve.wait_until_exact();
  EXPECT_EQ(client.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":2})").status, 200);
  // A file that cannot be read changes nothing.
  std::ofstream(folder.file("workers.toml")) << "[[worker]\n";
  serve.signal(SIGHUP);
  EXPECT_EQ(client.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":2})").status, 200);
}

TEST(Serve, ItStopsWhenItsRequestsAreDone) {
  EngineProcess engine;
  ServeProcess serve({"--worker", worker_text(engine)});
  serve.wait_until_exact();
  HttpClient client = serve.client();
  bool is_stopped = false;
  const std::string body = R"({"model":"tiny","prompt":"go on and on","max_tokens":200,"stream":true})";
  const HttpAnswer answer = client.request("POST", "/v1/completions", body, {}, [&](std::string_view) {
    if (!std::exchange(is_stopped, true)) serve.signal(SIGTERM);
    return true;
  });
  EXPECT_TRUE(answer.is_complete);
  EXPECT_THAT(answer.body, HasSubstr("[DONE]"));
  EXPECT_EQ(serve.process().terminate(), 0);
}

TEST(Serve, ASecondRouterStartsFromTheFirst) {
  // The engines keep so few messages that a late listener cannot know what they hold.
  EngineProcess engine({"--buffer-steps", "8"});
  EngineProcess other({"--buffer-steps", "8"});
  const std::vector<std::string> workers = {"--worker",         worker_text(engine, ",name=a"),
                                            "--worker",         worker_text(other, ",name=b"),
                                            "--event-patience", kPatience,
                                            "--late-after",     kLate};
  ServeProcess first(workers);
  first.wait_until_exact();
  HttpClient client = first.client();
  const auto body = [](int number) {
    return chat_body({{"user", std::to_string(number) + " is how this prefix of several blocks begins."}});
  };
  std::map<int, std::string> chosen;
  for (int i = 0; i < 40; ++i) {
    for (int again = 0; again < 2; ++again)
      chosen[i] = client.post("/v1/chat/completions", body(i)).header("x-ashlar-worker");
  }
  first.wait_until_exact();
  const ScratchFolder folder;
  std::string dump = client.get("/dump").body;
  std::ofstream(folder.file("dump.json")) << dump;
  // Events go on where the dump ends: what it says is known, as if it had been heard from the start.
  const HttpAnswer known = client.post("/v1/chat/completions", body(0));
  for (const std::string& snapshot :
       {"http://127.0.0.1:" + std::to_string(first.port()) + "/dump", folder.file("dump.json")}) {
    std::vector<std::string> options = workers;
    options.insert(options.end(), {"--snapshot", snapshot});
    ServeProcess second(options);
    second.wait_until_exact();
    HttpClient asking = second.client();
    const HttpAnswer answer = asking.post("/v1/chat/completions", body(0));
    EXPECT_EQ(answer.header("x-ashlar-state"), "EXACT") << snapshot;
    EXPECT_EQ(answer.header("x-ashlar-worker"), chosen[0]) << snapshot;
    EXPECT_EQ(answer.header("x-ashlar-cached-tokens"), known.header("x-ashlar-cached-tokens")) << snapshot;
    EXPECT_EQ(second.receipt(answer)["outcome"]["misroute"].text, "none") << snapshot;
  }
  // A dump that does not say at which message it was taken cannot be joined to the events after it.
  for (std::size_t at = 0; (at = dump.find("\"states\"", at)) != std::string::npos;)
    dump.replace(at, 8, "\"others\"");
  std::ofstream(folder.file("dump.json")) << dump;
  {
    const std::string snapshot = folder.file("dump.json");
    std::vector<std::string> options = workers;
    options.insert(options.end(), {"--snapshot", snapshot});
    ServeProcess second(options);
    // A worker's part of the snapshot is expected before its events are followed, which tell the size of
    // blocks. A peer is asked beside everything else, and nothing is expected before it has answered.
    second.wait_for_fleet([&](const std::vector<Json>& all) {
      for (const Json& worker : all)
        if (worker["up"].number != 1 || worker["ranks"].list.at(0)["reason"].text.find(
                                            "does not say at which message") == std::string::npos)
          return false;
      return all.size() == 2 && second.metric("ashlar_serve_snapshots_total") >= 1;
    });
    HttpClient asking = second.client();
    const HttpAnswer answer = asking.post("/v1/chat/completions", body(0));
    ASSERT_EQ(answer.status, 200) << answer.body;
    double expected = 0;
    const Json receipt = second.receipt(answer);
    for (const Json& candidate : receipt["candidates"].list)
      expected += candidate["predicted_depth"].number - candidate["depth"].number;
    EXPECT_GT(expected, 0) << snapshot;
    EXPECT_EQ(answer.header("x-ashlar-worker"), chosen[0]) << snapshot;
  }
  const auto [said, status] =
      run_program(std::string(ASHLAR_PROGRAM) + " serve --snapshot " + folder.file("none.json"));
  EXPECT_EQ(status, 1) << said;
  EXPECT_THAT(said, HasSubstr("snapshot: cannot read"));
}

// Of the worker file too, and without a start.
TEST(Serve, ACheckFindsWhatAStartWouldRefuse) {
  const ScratchFolder folder;
  const std::string file = folder.file("workers.toml");
  const auto check = [&](const std::string& worker, const std::string& more = {}) {
    std::ofstream(file) << "[[worker]]\nurl = \"http://gpu1:8000\"\n" << worker;
    return run_program(std::string(ASHLAR_PROGRAM) + " serve --check --worker http://gpu2:8000,name=b" +
                       " --worker-file " + file + " " + more);
  };
  const auto [said, status] = check("name = \"a\"\n", "--json");
  ASSERT_EQ(status, 0) << said;
  const Json workers = Json::parse(said)["workers"];
  ASSERT_EQ(workers.list.size(), 2u) << said;
  EXPECT_EQ(workers.list[0]["source"].text, "flag");
  EXPECT_EQ(workers.list[1]["source"].text, "worker_file");
  EXPECT_EQ(workers.list[1]["name"].text, "a");
  EXPECT_THAT(check("name = \"a\"\n").first,
              HasSubstr("[[worker]]  # worker_file\nurl = \"http://gpu1:8000\""));
  const std::string key = folder.file("key.pem");
  std::ofstream(key) << "no key";
  const std::vector<std::tuple<std::string, std::string, std::string>> refused = {
      {"name = \"b\"\n", "", "two are called 'b'"},
      {"dp = 2\nevents = \"tcp://gpu1:65535\"\n", "", "a port for every rank"},
      {"", "--tls-certificate " + key + " --tls-key " + key, "key.pem"},
      {"", "--journal " + key, "of the journal cannot be written"},
      {"", "--snapshot " + key, "not the dump of a router"}};
  for (const auto& [worker, more, what] : refused) {
    const auto [reason, failed] = check(worker, more);
    EXPECT_EQ(failed, 1) << reason;
    EXPECT_THAT(reason, HasSubstr(what));
  }
}

// Wrong usage, unlike the same value in the environment.
TEST(Serve, AFlagThatIsNotUnderstoodIsRefused) {
  for (const char* flag : {"--port 99999", "--policy best", "--worker nowhere"}) {
    const auto [said, status] = run_program(std::string(ASHLAR_PROGRAM) + " serve --check " + flag);
    EXPECT_GE(status, 100) << flag << ": " << said;
    EXPECT_THAT(said, HasSubstr(std::string(flag).substr(0, 6))) << said;
  }
  const auto [said, status] =
      run_program("ASHLAR_PORT=99999 " + std::string(ASHLAR_PROGRAM) + " serve --check");
  EXPECT_EQ(status, 1) << said;
}

TEST(Serve, AnIndexersClientCanAsk) {
  EngineProcess own;
  EngineProcess other;
  ServeProcess serve({"--worker", worker_text(own)});
  serve.wait_until_exact();
  HttpClient client = serve.client();
  HttpClient direct(other.port());
  direct.post("/v1/completions",
              R"({"model":"tiny","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17],"max_tokens":1})");
  const std::string registration = R"({"instance_id":77,"model_name":"tiny","block_size":8,"endpoint":")" +
                                   other.events() + R"(","replay_endpoint":")" + other.replay() + "\"}";
  EXPECT_EQ(client.post("/register", registration).status, 201);
  EXPECT_EQ(client.post("/register", registration).status, 409);
  const std::string query =
      R"({"model_name":"tiny","token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]})";
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  HttpAnswer answer;
  do {
    answer = client.post("/query", query);
  } while (answer.body.find("\"77\"") == std::string::npos && std::chrono::steady_clock::now() < last);
  const Json json = Json::parse(answer.body);
  EXPECT_EQ(json["scores"]["77"]["0"].number, 16) << answer.body;
  EXPECT_EQ(json["instances"]["77"]["longest_matched"].number, 16);
  EXPECT_EQ(json["frequencies"].list.size(), 2u);
  const HttpAnswer form =
      client.post("/query", R"({"model":"tiny","token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]})");
  EXPECT_EQ(Json::parse(form.body)["default"]["77"]["GPU"].number, 16) << form.body;
  EXPECT_EQ(client.post("/query", R"({"model_name":"none","token_ids":[1]})").status, 404);
  EXPECT_EQ(client.post("/query", R"({"model_name":"tiny"})").status, 400);
  EXPECT_EQ(
      client.post("/query_by_hash", R"({"model_name":"tiny","block_hashes":[1],"cache_salt":"x"})").status,
      400);
  EXPECT_THAT(client.get("/dump").body, HasSubstr("\"worker_id\":77"));
  EXPECT_THAT(client.get("/workers?model_name=tiny").body, HasSubstr(other.events()));
  // It is asked about, and gets no requests.
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(client.post("/v1/completions", R"({"model":"tiny","prompt":"x","max_tokens":2})")
                  .header("x-ashlar-worker"),
              "127.0.0.1:" + std::to_string(own.port()));
  EXPECT_EQ(client.post("/unregister", R"({"instance_id":77,"model_name":"tiny"})").status, 200);
  EXPECT_EQ(client.post("/unregister", R"({"instance_id":77,"model_name":"tiny"})").status, 404);
  EXPECT_EQ(client.get("/openapi.json").status, 200);
}

double misroutes(const ServeProcess& serve, const std::string& reason) {
  return serve.metric("ashlar_serve_misroute_total{reason=\"" + reason + "\"}");
}

std::string ids_body(int first) {
  std::string ids;
  for (int i = 0; i < 32; ++i) ids += (i == 0 ? "" : ",") + std::to_string(first + i % 16);
  return R"({"model":"tiny","max_tokens":1,"prompt":[)" + ids + "]}";
}

// Its cache is small: removals of other blocks explain nothing of what it says.
TEST(Serve, WhatALyingEngineFindsIsUnexplained) {
  EngineProcess engine({"--lie-usage", "--g1", "24"});
  ServeProcess serve({"--worker", worker_text(engine), "--event-patience", kPatience});
  serve.wait_until_heard({&engine});
  HttpClient client = serve.client();
  std::set<std::string> asked;  // decisions for a prompt that was asked before
  for (int prompt = 0; prompt < 8; ++prompt)
    for (int again = 0; again < 2; ++again) {
      const HttpAnswer answer = client.post("/v1/completions", ids_body(prompt));
      ASSERT_EQ(answer.status, 200) << answer.body;
      if (again == 0 || answer.header("x-ashlar-state") != "EXACT") continue;
      EXPECT_EQ(answer.header("x-ashlar-cached-tokens"), "24") << "it may find no more of 32 tokens";
      EXPECT_EQ(cached_of(answer), 32u);
      asked.insert(answer.header("x-ashlar-decision-id"));
    }
  EXPECT_FALSE(asked.empty());
  const auto removed = [&] {
    const Json fleet = serve.get("/fleet");
    return fleet["workers"].list.at(0)["ranks"].list.at(0)["tiers"]["device"]["removed"].number;
  };
  EXPECT_GT(removed(), 0);
  for (const std::string& id : asked) {
    Json receipt;
    while (receipt["outcome"].kind != Json::Kind::kMap && !HasFailure())
      receipt = serve.get("/decisions/" + id);
    EXPECT_EQ(receipt["outcome"]["misroute"].text, "unexplained") << id;
  }
  EXPECT_EQ(misroutes(serve, "unexplained"), asked.size());
}

// Claims that are made before events of the request before have come are too low, and say why afterwards.
TEST(Serve, LateEventsExplainWhatWasFound) {
  EngineProcess engine({"--late-events", "1000"});
  ServeProcess serve({"--worker", worker_text(engine), "--late-after", kLate});
  serve.wait_until_heard({&engine});
  HttpClient client = serve.client();
  int asked = 0;
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (misroutes(serve, "stored_meanwhile") < 1 && std::chrono::steady_clock::now() < last) {
    ASSERT_EQ(client.post("/v1/completions", ids_body(asked / 3 % 200)).status, 200);
    ++asked;
  }
  const auto judged = [&] {
    return serve.metric("ashlar_serve_predictions_right_total") + misroutes(serve, "stored_meanwhile") +
           misroutes(serve, "evicted");
  };
  while (judged() < asked && std::chrono::steady_clock::now() < last)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(judged(), asked);
  EXPECT_GE(misroutes(serve, "stored_meanwhile"), 1);
}

// Many clients with shared prefixes, small caches, engines that restart, are cleared and lose messages: what
// is claimed is what is found, and where it is not, the receipt says why. The journal gives every choice
// again.
TEST(Serve, ClaimsHoldWhileThingsBreak) {
  std::vector<std::unique_ptr<EngineProcess>> engines;
  const ScratchFolder folder;
  std::vector<std::string> options = {"--journal",
                                      folder.file("journal"),
                                      "--record",
                                      folder.file("trace.jsonl"),
                                      "--journal-file-bytes",
                                      "64KiB",
                                      "--health-interval",
                                      "50ms",
                                      "--late-after",
                                      kLate};
  for (int i = 0; i < 2; ++i) {
    engines.push_back(
        std::make_unique<EngineProcess>(std::vector<std::string>{"--g1", "160", "--drop-event-every", "23"}));
    options.insert(options.end(), {"--worker", worker_text(*engines.back())});
  }
  ServeProcess serve(options);
  serve.wait_until_exact();
  std::atomic<int> asked{0};
  std::atomic<int> answered{0};
  std::atomic<int> equal{0};
  std::mutex mutex;
  std::vector<HttpAnswer> others;
  constexpr int kRequests = 400;
  const auto talk = [&](std::uint64_t seed) {
    Random random(seed);
    HttpClient client = serve.client();
    while (asked.fetch_add(1) < kRequests) {
      const std::string body = chat_body(
          {{"system", "System prompt number " + std::to_string(random.below(3)) + ", shared by many."},
           {"user", "Question " + std::to_string(random.below(60)) + " of some length, to be answered."}});
      const HttpAnswer answer = client.post("/v1/chat/completions", body);
      if (answer.status != 200 || answer.header("x-ashlar-cached-tokens").empty()) continue;
      ++answered;
      if (answer.header("x-ashlar-cached-tokens") == std::to_string(cached_of(answer))) {
        ++equal;
        continue;
      }
      const std::lock_guard lock(mutex);
      others.push_back(answer);
    }
  };
  std::vector<std::thread> clients;
  for (std::uint64_t i = 0; i < 8; ++i) clients.emplace_back(talk, i + 1);
  while (asked < kRequests / 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  engines[0]->restart();
  while (asked < 2 * kRequests / 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  HttpClient(engines[1]->port()).post("/reset_prefix_cache", "");
  for (std::thread& client : clients) client.join();
  EXPECT_GT(answered, kRequests * 8 / 10);
  // If an engine's last message was not sent, the next one shows it; if that is not sent, the one after it.
  for (const auto& engine : engines)
    for (const std::string text : {"This has never been asked before.", "And neither has this one."})
      EXPECT_EQ(HttpClient(engine->port()).post("/v1/chat/completions", chat_body({{"user", text}})).status,
                200);
  std::map<std::string, int> reasons;
  for (const HttpAnswer& answer : others) ++reasons[serve.receipt(answer)["outcome"]["misroute"].text];
  std::string explained;
  for (const auto& [reason, count] : reasons) explained += ", " + std::to_string(count) + " " + reason;
  std::printf("%d of %d answers found what was claimed%s\n", equal.load(), answered.load(),
              explained.c_str());
  for (const auto& [reason, count] : reasons)
    EXPECT_THAT(reason, ::testing::AnyOf("evicted", "cleared", "stored_meanwhile", "not_exact")) << count;
  // Every answer with a claim is judged, and none twice.
  serve.wait_for_metric("ashlar_serve_predictions_right_total", equal);
  double misrouted = 0;
  for (const char* reason :
       {"evicted", "cleared", "stored_meanwhile", "not_exact", "unexplained", "forgotten", "other_tokens"})
    misrouted += misroutes(serve, reason);
  EXPECT_EQ(equal + misrouted, answered);
  EXPECT_EQ(misroutes(serve, "unexplained"), 0);
  EXPECT_GT(equal, answered * 6 / 10);
  EXPECT_EQ(serve.process().terminate(), 0);
  const auto [said, status] = run_program(std::string(ASHLAR_PROGRAM) + " explain " + folder.file("journal"));
  EXPECT_EQ(status, 0) << said;
  EXPECT_THAT(said, HasSubstr(" 0 not the same"));
  EXPECT_THAT(said, HasSubstr(" files that follow: "));
  const auto [json, json_status] =
      run_program(std::string(ASHLAR_PROGRAM) + " explain --json " + folder.file("journal"));
  EXPECT_EQ(json_status, 0) << json;
  EXPECT_EQ(Json::parse(json)["differences"].number, 0);
  EXPECT_GT(Json::parse(json)["decisions"].number, 0);
  std::ifstream trace(folder.file("trace.jsonl"));
  std::string line;
  int lines = 0;
  while (std::getline(trace, line)) {
    EXPECT_GT(Json::parse(line)["input_length"].number, 0) << line;
    ++lines;
  }
  EXPECT_GE(lines, answered);
}

}  // namespace
}  // namespace ashlar::testing
