// The page over journals, the runs of a replay, and a router that wants its token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>

#include "page/page_site.h"

namespace ashlar::testing {
namespace {

TEST_F(PageTest, TravelsThroughAJournal) {
  ServerProcess explain({ASHLAR_PROGRAM, "explain", site->folder.file("journal"), "--page", "--port", "0"});
  const std::optional<std::string> line = explain.read_line();
  ASSERT_TRUE(line && line->starts_with("listening on http://127.0.0.1:")) << line.value_or("");
  const int port = std::stoi(line->substr(line->rfind(':') + 1));
  browser->open("http://127.0.0.1:" + std::to_string(port) + "/");
  browser->wait_for(
      "document.querySelectorAll('#decisions tr').length > 0 && "
      "!document.getElementById('travel').hidden");
  HttpClient client(port);
  const auto live = [&](const std::string& at) { return Json::parse(client.get("/live" + at).body); };
  const Json end = live("");
  ASSERT_EQ(end["journal"]["differences"].number, 0);
  // The start, by keyboard: one decision; then step by step.
  browser->value("document.getElementById('moment').focus()");
  browser->press("Home");
  browser->wait_for("document.body.dataset.time === '0'");
  for (int step = 0; step < 5; ++step) {
    const std::string time = browser->text("document.body.dataset.time");
    const Json then = live("?at=" + time);
    EXPECT_EQ(browser->number("document.querySelectorAll('#decisions tr').length"),
              static_cast<double>(then["decisions"].list.size()));
    EXPECT_EQ(browser->text("document.querySelector('#decisions button').textContent"),
              then["decisions"].list.at(0)["id"].text);
    EXPECT_EQ(browser->number("Number(document.querySelector('[data-key=\"totals.prompt_tokens\"]')"
                              ".firstChild.textContent.replace(/,/g, ''))"),
              then["totals"]["prompt_tokens"].number);
    EXPECT_EQ(browser->number("document.querySelectorAll('#workers tr').length"),
              static_cast<double>(then["workers"].list.size()));
    browser->value("document.getElementById('forth').click()");
    browser->wait_for("document.body.dataset.time !== " + in_quotes(time));
  }
  browser->value("document.getElementById('moment').focus()");
  browser->press("End");
  browser->wait_for("document.querySelectorAll('#decisions tr').length === " +
                    std::to_string(end["decisions"].list.size()));
  expect_contrast("a journal");
  keep_picture("journal");
  // The tree, at the end and at the start.
  const auto expect_tree = [&](const std::string& at) {
    const Json tree = Json::parse(client.get("/tree?at=" + at).body);
    browser->wait_for("document.getElementById('prefixes').dataset.blocks === '" +
                      std::to_string(static_cast<int>(tree["blocks"].number)) + "'");
    return tree["blocks"].number;
  };
  browser->value("location.hash = '#tree'");
  const double held = expect_tree(browser->text("document.body.dataset.time"));
  EXPECT_GT(held, 0);
  EXPECT_EQ(browser->number("document.querySelector('#search').checkVisibility() ? 1 : 0"), 0);
  keep_picture("journal_tree");
  browser->value("document.getElementById('moment').focus()");
  browser->press("Home");
  EXPECT_LT(expect_tree("0"), held);
  browser->press("End");
  browser->wait_for("document.body.dataset.time !== '0'");
  EXPECT_EQ(expect_tree(browser->text("document.body.dataset.time")), held);
  browser->value("location.hash = '#overview'");
  browser->wait_for("document.querySelectorAll('#decisions tr').length === " +
                    std::to_string(end["decisions"].list.size()));
  browser->value("document.querySelector('#decisions button').click()");
  browser->wait_for("document.querySelector('[data-fact=replayed]')?.textContent === 'the same'");
  browser->press("Escape");
  browser->resize(360, 740);
  EXPECT_EQ(browser->text(kOverflowScript), "");
  browser->open("about:blank");
  EXPECT_EQ(explain.terminate(), 0);
}

TEST_F(PageTest, ATripThatFailsEndsAndIsSetUpOnce) {
  ServerProcess explain({ASHLAR_PROGRAM, "explain", site->folder.file("journal"), "--page", "--port", "0"});
  const std::optional<std::string> line = explain.read_line();
  ASSERT_TRUE(line && line->starts_with("listening on http://127.0.0.1:")) << line.value_or("");
  // The first question for the timeline is lost; questions for moments are counted, and lost on demand.
  const Json stub = browser->call("Page.addScriptToEvaluateOnNewDocument", "{\"source\":" + in_quotes(R"({
    const real = window.fetch;
    window.moments = 0;
    window.lost = 0;
    window.fetch = (path, request) => {
      if (path.startsWith('/timeline') && window.lost++ === 0) return Promise.reject(new TypeError('lost'));
      if (path.startsWith('/live?at=') && ++window.moments && window.is_gone)
        return Promise.reject(new TypeError('gone'));
      return real(path, request);
    };
  })") + "}");
  browser->open("http://127.0.0.1:" + line->substr(line->rfind(':') + 1) + "/");
  browser->wait_for("!document.getElementById('travel').hidden && document.body.dataset.time !== undefined");
  EXPECT_EQ(browser->number("window.lost"), 2) << "it was asked again";
  const std::string end = browser->text("document.body.dataset.time");
  browser->value("document.getElementById('back').click()");
  browser->wait_for("document.body.dataset.time !== " + in_quotes(end));
  browser->value("new Promise((resolve) => setTimeout(resolve))");
  EXPECT_EQ(browser->number("window.moments"), 1) << "a click is one question";
  browser->value("{ window.is_gone = true; document.getElementById('play').click(); }");
  EXPECT_EQ(browser->text("document.getElementById('play').textContent"), "Stop");
  browser->wait_for("document.getElementById('journal-note').textContent === 'gone'");
  browser->wait_for("document.getElementById('play').textContent === 'Play'");
  browser->call("Page.removeScriptToEvaluateOnNewDocument",
                "{\"identifier\":" + in_quotes(stub["identifier"].text) + "}");
  browser->open("about:blank");
  EXPECT_EQ(explain.terminate(), 0);
}

// The router's own journal, while it is written.
TEST_F(PageTest, LooksBackAtTheRouterItself) {
  open_page();
  browser->wait_for("!document.getElementById('past').hidden");
  browser->value("document.getElementById('past').click()");
  browser->wait_for(
      "location.pathname === '/past' && document.querySelectorAll('#decisions tr').length > 0 && "
      "!document.getElementById('travel').hidden");
  const Json end = site->serve.get("/past/live");
  EXPECT_EQ(end["source"].text, "journal");
  EXPECT_EQ(end["journal"]["differences"].number, 0);
  EXPECT_GE(end["totals"]["requests"].number, 48);
  EXPECT_EQ(end["workers"].list.at(0)["name"].text, "one");
  browser->value("document.getElementById('moment').focus()");
  browser->press("Home");
  browser->wait_for("document.querySelectorAll('#decisions tr').length === 1");
  browser->value("document.querySelector('#decisions button').click()");
  browser->wait_for("document.querySelector('[data-fact=replayed]')?.textContent === 'the same'");
  browser->press("Escape");
  browser->value("location.hash = '#tree'");
  browser->wait_for("document.getElementById('prefixes').dataset.blocks !== undefined");
  EXPECT_EQ(browser->text("document.getElementById('past').textContent"), "Live");
  browser->value("document.getElementById('past').click()");
  browser->wait_for("location.pathname === '/' && document.body.dataset.live === 'yes'");
}

TEST_F(PageTest, ShowsTheRunsOfAReplay) {
  ServerProcess replay({ASHLAR_PROGRAM, "replay", "--generate", "chat,requests=200", "--workers", "2", "--g1",
                        "200", "--g2", "400", "--policy", "lru,fifo", "--page", "--port", "0", "--quiet"});
  const std::optional<std::string> line = replay.read_line();
  ASSERT_TRUE(line && line->starts_with("listening on http://127.0.0.1:")) << line.value_or("");
  const int port = std::stoi(line->substr(line->rfind(':') + 1));
  HttpClient client(port);
  const std::string address = "http://127.0.0.1:" + std::to_string(port);
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  while (Json::parse(client.get("/runs.json").body)["complete"].number == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), last) << "the runs never ended";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const Json report = Json::parse(client.get("/report.json").body);
  ASSERT_EQ(report["runs"].list.size(), 2u);
  for (int run = 1; run <= 2; ++run) {
    browser->open(address + "/?run=" + std::to_string(run));
    browser->wait_for(
        "document.querySelectorAll('#decisions tr').length > 0 && "
        "document.getElementById('run').options.length === 2");
    const Json live = Json::parse(client.get("/live?run=" + std::to_string(run)).body);
    EXPECT_EQ(live["journal"]["differences"].number, 0);
    EXPECT_EQ(live["totals"]["requests"].number, 200);
    double hits = 0;
    for (const auto& [tier, blocks] : live["totals"]["hit_blocks"].map) hits += blocks.number;
    EXPECT_EQ(hits, report["runs"].list[static_cast<std::size_t>(run - 1)]["hit_blocks"].number);
    EXPECT_EQ(browser->number("Number(document.querySelector('[data-key=\"totals.hit_blocks.device\"]')"
                              ".firstChild.textContent.replace(/,/g, ''))"),
              live["totals"]["hit_blocks"]["device"].number);
    // Misses, by reason: those of the report. It knows which blocks workers had, a router which were named.
    const Json& told = report["runs"].list[static_cast<std::size_t>(run - 1)]["misses"];
    const Json& missed = live["totals"]["missed_blocks"];
    for (const char* reason : {"elsewhere", "broken_prefix"})
      EXPECT_EQ(missed[reason].number, told[reason].number) << reason;
    EXPECT_EQ(missed["never_seen"].number + missed["evicted"].number,
              told["never_seen"].number + told["evicted"].number);
    EXPECT_LE(missed["never_seen"].number, told["never_seen"].number);
    EXPECT_GT(missed["evicted"].number, 0) << "caches of 600 blocks evict";
    for (const char* reason : {"never_seen", "evicted", "elsewhere", "broken_prefix"})
      EXPECT_EQ(browser->number("Number(document.querySelector('[data-key=\"totals.missed_blocks." +
                                std::string(reason) + "\"]').firstChild.textContent.replace(/,/g, ''))"),
                missed[reason].number);
    EXPECT_EQ(browser->text("document.querySelector('#workers td').textContent"), "worker 0");
    EXPECT_EQ(browser->text("document.getElementById('run').value"), std::to_string(run));
    EXPECT_EQ(browser->text("document.getElementById('run').selectedOptions[0].textContent"),
              live["journal"]["title"].text);
    expect_contrast("a replay");
  }
  keep_picture("replay");
  browser->resize(360, 740);
  EXPECT_EQ(browser->text(kOverflowScript), "");
  browser->resize(1280, 900);
  browser->value("document.getElementById('report').click()");
  browser->wait_for("document.querySelectorAll('svg').length > 0 && location.pathname === '/report'");
  EXPECT_EQ(client.get("/live?run=3").status, 404);
  EXPECT_EQ(client.get("/ui/page.js?run=3").status, 200) << "the page's files are those of every run";
  browser->open("about:blank");
  EXPECT_EQ(replay.terminate(), 0);
}

TEST_F(PageTest, AsksForTheTokenOnce) {
  const ScratchFolder folder;
  std::ofstream(folder.file("token")) << "a-secret\n";
  const ServeProcess serve(
      {"--worker", "http://127.0.0.1:1,name=away,model=tiny", "--token-file", folder.file("token")}, {},
      "a-secret");
  const std::string url = "http://127.0.0.1:" + std::to_string(serve.port()) + "/";
  browser->open(url);
  browser->wait_for("document.getElementById('ask-token').open");
  EXPECT_EQ(browser->number("document.querySelectorAll('#workers tr').length"), 0);
  EXPECT_EQ(browser->text("document.activeElement.id"), "token");
  expect_contrast("the question");
  browser->type("a-secret");
  browser->press("Enter");
  browser->wait_for("document.querySelectorAll('#workers tr').length === 1");
  // Not again in this tab, and nowhere but there.
  browser->value("document.body.dataset.before = 'reload'");
  browser->value("location.reload()");
  browser->wait_for(
      "document.querySelectorAll('#workers tr').length === 1 && "
      "!document.body.dataset.before && !document.getElementById('ask-token').open");
  EXPECT_EQ(browser->text("location.href + document.cookie + JSON.stringify(localStorage)"), url + "{}");
  EXPECT_EQ(browser->number("Number(document.documentElement.outerHTML.includes('a-secret'))"), 0);
  browser->open("about:blank");
}

}  // namespace
}  // namespace ashlar::testing
