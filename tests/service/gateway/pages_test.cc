// What the pages list is what there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "service/gateway/fake_workers.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar::service {
namespace {

using ::ashlar::testing::Json;

std::string page(const std::string& name) {
  std::ifstream in(std::string(ASHLAR_DOCS) + "/" + name);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::set<std::string> all_matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at)
    found.insert((*at)[1].str());
  return found;
}

TEST(Pages, MetricsAreThoseOfTheService) {
  const ScratchFolder folder;
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.journal = folder.file("journal");
  options.record = folder.file("trace.jsonl");
  ServiceUnderTest service(options);
  const std::set<std::string> listed = all_matches(page("metrics.md"), "`(ashlar_serve_[a-z_]+)`");
  const std::set<std::string> told =
      all_matches(service.get("/metrics").body, "# TYPE (ashlar_serve_[a-z_]+) ");
  EXPECT_EQ(listed, told);
}

TEST(Pages, MetricsNameEachWorkerWithItsStateAndLoad) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.workers[0].dp = 2;
  options.workers[1].name = "gpu1:8000";
  ServiceUnderTest service(options);
  service.down[9002] = true;
  for (int i = 0; i < 3; ++i) service.answer_errands();
  const auto open = service.begin("/v1/completions", tokens_body(40), {{"x-data-parallel-rank", "1"}});
  ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
  const std::string text = service.get("/metrics").body;
  for (const char* line :
       {R"(ashlar_serve_worker_state{worker="w0",rank="0",state="FALLBACK"} 1)",
        R"(ashlar_serve_worker_state{worker="w0",rank="1",state="EXACT"} 0)",
        R"(ashlar_serve_worker_reason{worker="w0",rank="1",reason="no_events"} 1)",
        R"(ashlar_serve_worker_up{worker="w0"} 1)", R"(ashlar_serve_worker_requests{worker="w0",rank="1"} 1)",
        R"(ashlar_serve_worker_up{worker="gpu1:8000"} )"})
    EXPECT_NE(text.find("\n" + std::string(line)), std::string::npos) << line << "\n" << text;
}

// The first part of a value that its schema does not name; empty: all is described.
std::string undescribed(const Json& value, const Json& schema, const Json& openapi) {
  if (const std::string& name = schema["$ref"].text; !name.empty())
    return undescribed(value, openapi["components"]["schemas"][name.substr(name.rfind('/') + 1)], openapi);
  if (const auto& choices = schema["oneOf"].list; !choices.empty()) {
    std::string last;
    for (const Json& choice : choices) {
      last = undescribed(value, choice, openapi);
      if (last.empty()) return {};
    }
    return last;
  }
  const Json& type = schema["type"];
  std::vector<std::string> types{type.text};
  for (const Json& one : type.list) types.push_back(one.text);
  constexpr const char* kTypes[] = {"null", "boolean", "integer", "string", "array", "object"};
  if (std::ranges::find(types, kTypes[static_cast<int>(value.kind)]) == types.end())
    return ": not of type " + type.text;
  for (const Json& item : value.list)
    if (const std::string other = undescribed(item, schema["items"], openapi); !other.empty())
      return "[]" + other;
  if (schema["properties"].map.empty() && schema["additionalProperties"].map.empty()) return {};
  for (const auto& [key, member] : value.map) {
    const Json& named = schema["properties"][key];
    const Json& its = named.map.empty() ? schema["additionalProperties"] : named;
    if (its.map.empty()) return "." + key;
    if (const std::string other = undescribed(member, its, openapi); !other.empty()) return "." + key + other;
  }
  return {};
}

TEST(Pages, AnswersAreAsTheirSchemasSay) {
  ServiceUnderTest service(ServiceUnderTest::options_of(2));
  const auto open = service.begin("/v1/completions", tokens_body(40));
  open->passage->head(200, kJsonHead);
  const Json openapi = Json::parse(service.get("/openapi.json").body);
  const auto complaint = [&](const std::string& path, const std::string& described) {
    const Json& schema =
        openapi["paths"][described]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
    EXPECT_FALSE(schema.map.empty()) << described;
    return undescribed(Json::parse(service.get(path).body), schema, openapi);
  };
  const std::string receipt =
      "/decisions/" + Json::parse(service.get("/decisions").body).list.at(0)["id"].text;
  EXPECT_EQ(complaint(receipt, "/decisions/{id}"), "") << "while it runs";
  open->passage->bytes(usage_answer(40, 0));
  open->passage->ended(PassageEnd::kComplete);
  EXPECT_EQ(complaint(receipt, "/decisions/{id}"), "");
  for (const char* path : {"/fleet", "/decisions", "/workers", "/dump"}) EXPECT_EQ(complaint(path, path), "");
}

// Whether a listener hears its worker, in the words of indexers of the field.
TEST(Pages, WorkersHaveTheStatusOfTheirListeners) {
  class Engine final : public feed::EngineSource {
   public:
    explicit Engine(bool is_broken) : is_broken_(is_broken) {}
    Result<std::optional<feed::EngineMessage>> receive(Clock::Duration) override {
      std::this_thread::yield();
      if (is_broken_) return Error(ErrorCode::kUnavailable, "nobody is there");
      return std::optional<feed::EngineMessage>();
    }
    Result<feed::EngineReplay> replay(std::uint64_t) override {
      return Error(ErrorCode::kUnsupported, "none");
    }
    std::uint64_t damaged() const noexcept override { return 0; }
    std::string describe() const override { return "scripted"; }

   private:
    const bool is_broken_;
  };
  ServeOptions options = ServiceUnderTest::options_of(3);
  options.workers[1].events = "tcp://127.0.0.1:1";
  options.workers[2].events = "tcp://127.0.0.1:2";
  ServiceUnderTest service(options, {}, [](const EngineEndpoint& endpoint) {
    const bool is_broken = endpoint.events.ends_with(":1");
    return Result<std::unique_ptr<feed::EngineSource>>(std::make_unique<Engine>(is_broken));
  });
  const auto status = [&](std::size_t worker) {
    return Json::parse(service.get("/workers").body).list.at(worker)["status"].text;
  };
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  while (status(1) != "failed") {
    ASSERT_LT(std::chrono::steady_clock::now(), last) << "the break was never noticed";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(status(0), "paused") << "nothing is heard of it";
  EXPECT_EQ(status(2), "pending");
}

TEST(Pages, EndpointsAreThoseOfTheService) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const std::string openapi = service.get("/openapi.json").body;
  const std::set<std::string> described = all_matches(openapi, "\"(/[a-z_./0-9{}]*)\": \\{");
  ASSERT_FALSE(described.empty());
  const std::set<std::string> listed =
      all_matches(page("http.md"), "\\| `(?:GET|POST) (/[a-z_./0-9{}]*)[?`]");
  EXPECT_EQ(listed, described);
  // None of them is a worker's, whatever its method.
  for (const std::string& path : described)
    for (const char* method : {"GET", "POST"}) {
      const auto open = service.begin(path, "{}", {}, method);
      service.finish(*open);
      EXPECT_TRUE(std::holds_alternative<Reply>(open->step)) << method << " " << path;
    }
}

}  // namespace
}  // namespace ashlar::service
