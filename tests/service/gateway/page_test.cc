// The live page: its files, and the answer that it is made of.
#include "service/page/page_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "service/gateway/fake_workers.h"
#include "service/gateway/live_json.h"
#include "support/small_json.h"

namespace ashlar::service {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::Json;
using ::testing::Not;
using ::testing::Pair;

std::set<std::string> page_references(std::string_view text) {
  const std::regex expression("[\"'](/ui/[a-z_.]+)[\"']");
  const std::string copy(text);
  std::set<std::string> found;
  for (std::sregex_iterator at(copy.begin(), copy.end(), expression), end; at != end; ++at)
    found.insert((*at)[1].str());
  return found;
}

TEST(LivePage, ServesEveryFileThatItNames) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const Reply page = service.get("/");
  EXPECT_EQ(page.status, 200u);
  EXPECT_THAT(page.headers, Contains(Pair("Content-Type", "text/html; charset=utf-8")));
  EXPECT_EQ(service.get("/ui").body, page.body);
  EXPECT_EQ(service.get("/ui/").body, page.body);
  EXPECT_EQ(service.get("/ui/none.js").status, 404u);
  std::set<std::string> seen;
  std::set<std::string> todo = page_references(page.body);
  while (!todo.empty()) {
    const std::string path = *todo.begin();
    todo.erase(todo.begin());
    if (!seen.insert(path).second) continue;
    const Reply file = service.get(path);
    EXPECT_EQ(file.status, 200u) << path;
    for (const std::string& next : page_references(file.body)) todo.insert(next);
  }
  EXPECT_EQ(seen.size(), page_files().size()) << "index.html is named by no file, session.json is none";
}

TEST(LivePage, LoadsNothingFromElsewhere) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  for (const PageFile& file : page_files()) {
    const Reply reply = service.get("/ui/" + std::string(file.name));
    EXPECT_THAT(reply.headers, Contains(Pair("Content-Security-Policy",
                                             HasSubstr("default-src 'none'; script-src 'self'"))));
    // The name of a vocabulary is no address.
    const std::string text = std::regex_replace(reply.body, std::regex("http://www\\.w3\\.org/2000/svg"), "");
    EXPECT_THAT(text, Not(HasSubstr("://"))) << file.name;
  }
}

TEST(LivePage, NeedsNoTokenButItsDataDo) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.token = "secret";
  ServiceUnderTest service(options);
  EXPECT_EQ(service.get("/").status, 200u);
  EXPECT_EQ(service.get("/ui/page.js").status, 200u);
  EXPECT_EQ(service.get("/ui/session.json").body, R"({"needs_token":true})");
  for (const char* path : {"/live", "/fleet", "/decisions", "/uix", "/ui%2Flive"})
    EXPECT_EQ(service.get(path).status, 401u) << path;
  const auto open = service.begin("/live", {}, {{"x-ashlar-token", "secret"}}, "GET");
  EXPECT_EQ(std::get<Reply>(open->step).status, 200u);
  EXPECT_THAT(std::get<Reply>(open->step).body, Not(HasSubstr("secret")));
}

TEST(LivePage, TellsCountersWorkersAndDecisions) {
  ServiceUnderTest service(ServiceUnderTest::options_of(2));
  for (int i = 0; i < 3; ++i) {
    const auto open = service.begin("/v1/completions", tokens_body(40));
    ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
    open->passage->head(200, kJsonHead);
    open->passage->bytes(usage_answer(40, i == 0 ? 0 : 32));
    open->passage->ended(PassageEnd::kComplete);
  }
  const Json live = Json::parse(service.get("/live?decisions=2").body);
  EXPECT_EQ(live["source"].text, "serve");
  EXPECT_EQ(live["totals"]["requests"].number, 3);
  EXPECT_EQ(live["totals"]["prompt_tokens"].number, 120);
  EXPECT_EQ(live["totals"]["delivered_tokens"].number, 64);
  EXPECT_EQ(live["totals"]["decisions"]["FALLBACK"].number, 3);
  EXPECT_EQ(live["totals"]["route_ns"]["count"].number, 3);
  EXPECT_GT(live["totals"]["route_ns"]["p99"].number, 0);
  ASSERT_EQ(live["workers"].list.size(), 2u);
  EXPECT_EQ(live["workers"].list[0]["name"].text, "w0");
  EXPECT_EQ(live["workers"].list[0]["ranks"].list[0]["tiers"]["device"]["held"].number, 0);
  ASSERT_EQ(live["decisions"].list.size(), 2u) << "as many as were asked for";
  const Json& last = live["decisions"].list[0];
  const Json receipt = Json::parse(service.get("/decisions/" + last["id"].text).body);
  EXPECT_EQ(last["worker"].text, receipt["worker"].text);
  EXPECT_EQ(last["cached_tokens"].number, receipt["cached_tokens"].number);
  EXPECT_EQ(last["outcome"]["delivered_tokens"].number, 32);
  EXPECT_EQ(last["candidates"].number, 2);
  EXPECT_EQ(service.get("/live?decisions=x").status, 400u);
  EXPECT_EQ(service.get("/live?decisions=99999999999999999999").status, 200u);
}

TEST(LivePage, TiersHaveTheSizesThatWorkersAreGiven) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.workers[1].g1 = 1024;
  options.title = "a fleet";
  ServiceUnderTest service(std::move(options));
  const Json live = Json::parse(service.get("/live").body);
  const auto device = [&](std::size_t worker) {
    return live["workers"].list.at(worker)["ranks"].list.at(0)["tiers"]["device"];
  };
  EXPECT_EQ(device(0).map.count("size"), 0u) << "events do not tell it";
  EXPECT_EQ(device(1)["size"].number, 1024);
  EXPECT_EQ(live["title"].text, "a fleet");
  EXPECT_EQ(live["has_journal"].number, 0);
  EXPECT_EQ(service.get("/past").status, 200u) << "a page holds no data";
  EXPECT_EQ(service.get("/past/live").status, 404u) << "there is no journal";
}

TEST(LivePage, TiersCountWhatEventsTell) {
  Router router;
  router.add_worker({.id = events::WorkerId(1), .group = "m", .has_events = true});
  const events::Worker worker{.id = events::WorkerId(1)};
  const auto store = [&](events::StorageTier tier, std::uint64_t first, std::size_t count) {
    std::vector<events::StoredBlock> blocks;
    for (std::size_t i = 0; i < count; ++i)
      blocks.push_back({.local = tokens::LocalHash(first + i), .name = events::BlockName(first + i)});
    events::BlocksStored event;
    event.worker = worker;
    event.tier = tier;
    event.blocks = blocks;
    EXPECT_EQ(router.sink().store(event), events::StoreVerdict::kApplied);
  };
  const auto tier = [&](events::StorageTier of) {
    return router.loads()[0].tiers[static_cast<std::size_t>(of)];
  };
  store(events::StorageTier::kDevice, 10, 5);
  store(events::StorageTier::kHost, 10, 2);
  const events::BlockName names[] = {events::BlockName(13), events::BlockName(14), events::BlockName(99)};
  EXPECT_EQ(router.sink().remove(worker, events::StorageTier::kDevice, names), 2u);
  EXPECT_EQ(tier(events::StorageTier::kDevice),
            (TierChanges{.held = 3, .most = 5, .stored = 5, .removed = 2}));
  EXPECT_EQ(tier(events::StorageTier::kHost),
            (TierChanges{.held = 2, .most = 2, .stored = 2, .offloaded = {2}}));
  // 12 is in the device alone, 10 and 11 are in the host's memory too, 13 and 14 nowhere.
  store(events::StorageTier::kDisk, 10, 5);
  store(events::StorageTier::kDisk, 10, 5);
  EXPECT_EQ(tier(events::StorageTier::kDisk).offloaded, (std::array<std::uint64_t, 5>{1, 2}))
      << "each from the nearest tier above; what the tier has already does not come again";
  store(events::StorageTier::kHost, 10, 5);
  EXPECT_EQ(tier(events::StorageTier::kHost).offloaded, (std::array<std::uint64_t, 5>{3}))
      << "13 and 14 come up from the disk";
  JsonText json;
  write_tiers(json, router.loads()[0].tiers);
  const Json told = Json::parse(json.text());
  EXPECT_EQ(told["disk"]["offloaded"].number, 3);
  EXPECT_EQ(told["disk"]["offloaded_from"]["host"].number, 2);
  EXPECT_EQ(told["device"]["offloaded"].number, 0);
  router.sink().clear(worker);
  EXPECT_EQ(tier(events::StorageTier::kDevice),
            (TierChanges{.held = 0, .most = 5, .stored = 5, .removed = 2}));
}

}  // namespace
}  // namespace ashlar::service
