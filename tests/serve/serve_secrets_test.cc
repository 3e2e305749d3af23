// Secrets of a run are in none of its outputs: logs, errors, answers, metrics, journal, trace, dump, --check.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "serve/serve_process.h"

namespace ashlar::testing {
namespace {

constexpr const char* kToken = "TOKEN-0f3a9c";
constexpr const char* kJournalKey = "JOURNAL-KEY-77aa";  // as long as a key
constexpr const char* kPassword = "PASSWORD-5d1e";
constexpr const char* kEngineKey = "ENGINE-KEY-b42d";  // of a client
constexpr const char* kWorkerKey = "WORKER-KEY-9c31";  // of the router

// Outputs by where they come from.
using Outputs = std::map<std::string, std::string>;

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 4096> part{};
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe))
    output.append(part.data(), got);
  ::pclose(pipe);
  return output;
}

void expect_no_secrets(const Outputs& outputs) {
  for (const auto& [where, text] : outputs)
    for (const char* secret : {kToken, kJournalKey, kPassword, kEngineKey, kWorkerKey})
      EXPECT_EQ(text.find(secret), std::string::npos)
          << secret << " is in " << where << ": " << text.substr(0, 2000);
}

TEST(ServeSecrets, AreInNoOutputOfARun) {
  const ScratchFolder folder;
  std::ofstream(folder.file("token")) << kToken << "\n";
  std::ofstream(folder.file("key")) << kJournalKey;
  std::ofstream(folder.file("worker_key")) << kWorkerKey << "\n";
  const EngineProcess engine;
  Outputs outputs;
  const std::string key_file = ",key_file=" + folder.file("worker_key");
  const std::vector<std::string> options = {"--worker",          worker_text(engine, ",name=a" + key_file),
                                            "--worker-key",      kWorkerKey,
                                            "--worker",          "http://127.0.0.1:1,name=dead,model=tiny",
                                            "--token-file",      folder.file("token"),
                                            "--journal",         folder.file("journal"),
                                            "--journal-key",     folder.file("key"),
                                            "--record",          folder.file("trace.jsonl"),
                                            "--log-level",       "trace",
                                            "--snapshot",        "http://127.0.0.1:1/dump",
                                            "--health-interval", "20ms"};
  {
    ServeProcess serve(options, folder.file("log"), kToken);
    serve.wait_for_fleet([](const std::vector<Json>& workers) {
      for (const Json& worker : workers)
        if (worker["name"].text == "a" && worker["up"].number == 1 && !worker["ranks"].list.empty() &&
            worker["ranks"].list[0]["state"].text == "EXACT")
          return true;
      return false;
    });
    HttpClient client = serve.client();
    const HttpClient::Headers right = {{"x-ashlar-token", kToken},
                                       {"Authorization", std::string("Bearer ") + kEngineKey}};
    const auto keep = [&](const std::string& name, const HttpAnswer& answer) {
      std::string& text = outputs[name + " " + std::to_string(outputs.size())];
      for (const auto& [header, value] : answer.headers) text += header + ": " + value + "\n";
      text += answer.body;
      return answer.status;
    };
    const std::string body = R"({"model":"tiny","prompt":"some words to answer","max_tokens":2})";
    EXPECT_EQ(keep("completion", client.post("/v1/completions", body, right)), 200);
    EXPECT_EQ(keep("other model", client.post("/v1/completions", R"({"model":"x"})", right)), 404);
    EXPECT_EQ(keep("stranger", client.post("/v1/completions", body, {{"x-ashlar-token", "wrong"}})), 401);
    EXPECT_EQ(keep("stranger", client.get("/fleet")), 401);
    EXPECT_EQ(keep("bad header", client.post("/v1/completions", body,
                                             {{"x-ashlar-token", kToken}, {"x-ashlar-weights", "?"}})),
              400);
    keep("bad body", client.post("/register", "{", right));
    for (const char* target : {"/metrics", "/fleet", "/decisions", "/workers", "/dump", "/openapi.json",
                               "/v1/models", "/ready", "/unknown", "/decisions/x"})
      keep(target, client.request("GET", target, {}, right));
    // A stranger's head is enough: nobody waits for the body.
    client.close();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    EXPECT_EQ(keep("stranger's head", client.receive()), 401);
    // A request that is no HTTP has no words of its own in the answer either.
    client.close();
    client.send(std::string("GET / HTTP/1.1\r\nx-ashlar-token: ") + kToken + "\r\n bad\r\n\r\n");
    EXPECT_EQ(keep("no HTTP", client.receive()), 400);
    EXPECT_EQ(serve.process().terminate(), 0);
  }
  const std::string program = ASHLAR_PROGRAM;
  outputs["explain"] =
      output_of(program + " explain " + folder.file("journal") + " --key " + folder.file("key"));
  EXPECT_THAT(outputs["explain"], ::testing::HasSubstr(" 0 not the same"));
  outputs["other key"] =
      output_of(program + " explain " + folder.file("journal") + " --key " + folder.file("token"));
  std::string check = program + " serve --check";
  for (const std::string& option : options) check += " " + option;
  outputs["--check"] = output_of(check);
  EXPECT_THAT(outputs["--check"], ::testing::HasSubstr("token = \"(hidden)\""));
  const Json checked = Json::parse(outputs["--check --json"] = output_of(check + " --json"));
  EXPECT_EQ(checked["settings"]["token"]["value"].text, "(hidden)");
  EXPECT_EQ(checked["settings"]["token"]["source"].text, "flag");
  EXPECT_EQ(checked["settings"]["journal"]["value"].text, folder.file("journal"));
  EXPECT_EQ(checked["settings"]["receipts"]["value"].number, 16'384);
  EXPECT_EQ(checked["settings"]["receipts"]["source"].text, "default");
  EXPECT_EQ(checked["workers"].list.at(1)["name"].text, "dead");
  EXPECT_EQ(checked["workers"].list.at(1)["url"].text, "http://127.0.0.1:1");
  EXPECT_EQ(checked["workers"].list.at(1)["source"].text, "flag");
  EXPECT_THAT(output_of(program + " serve --json"), ::testing::HasSubstr("--check"));
  outputs["log"] = whole_file(folder.file("log"));
  EXPECT_FALSE(outputs["log"].empty());
  outputs["trace"] = whole_file(folder.file("trace.jsonl"));
  EXPECT_FALSE(outputs["trace"].empty());
  int journals = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("journal"))) {
    outputs[entry.path().string()] = whole_file(entry.path());
    ++journals;
  }
  EXPECT_GE(journals, 1);
  expect_no_secrets(outputs);
}

// An address with a password is refused, by whichever way it comes, and the refusal does not repeat it.
TEST(ServeSecrets, PasswordsOfAddressesAreRefusedUnseen) {
  const ScratchFolder folder;
  const std::string program = std::string(ASHLAR_PROGRAM) + " serve --port 0 ";
  Outputs outputs;
  for (const std::string start : {"http://", "https://", "HTTP://", "http:/", "http:", "", "ftp://"}) {
    const std::string url = start + "user:" + kPassword + "@127.0.0.1:1/dump";
    std::ofstream(folder.file("config.toml")) << "snapshot = \"" << url << "\"\n";
    for (const std::string check : {"", "--check "}) {
      outputs["flag " + check + start] = output_of(program + check + "--snapshot '" + url + "'");
      outputs["variable " + check + start] = output_of("ASHLAR_SNAPSHOT='" + url + "' " + program + check);
      outputs["file " + check + start] =
          output_of(program + check + "--config " + folder.file("config.toml"));
      outputs["worker " + check + start] = output_of(program + check + "--worker '" + url + "'");
      outputs["events " + check + start] =
          output_of(program + check + "--worker 'http://127.0.0.1:1,events=" + url + "'");
    }
  }
  for (const auto& [where, text] : outputs) {
    const bool says_why = text.find("user or password") != std::string::npos ||
                          text.find("not understood") != std::string::npos ||
                          text.find("not allowed") != std::string::npos;
    EXPECT_TRUE(says_why) << where << ": " << text;
  }
  expect_no_secrets(outputs);
}

}  // namespace
}  // namespace ashlar::testing
