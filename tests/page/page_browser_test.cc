// The live page in a real browser: what it shows is what the API tells; it can be read, and used by keyboard.
//
// With ASHLAR_PICTURES=FOLDER the tests leave pictures of the page there, for people to look at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "page/browser.h"
#include "page/page_probe.h"
#include "serve/serve_process.h"

namespace ashlar::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

// Engines with small caches, so that blocks are removed too, and a router with a journal before them.
class PageTest : public ::testing::Test {
 protected:
  struct Site {
    ScratchFolder folder;
    EngineProcess first{{"--g1", "48", "--g2", "96", "--max-model-len", "384"}};
    EngineProcess second{{"--g1", "48", "--g2", "96", "--max-model-len", "384"}};
    ServeProcess serve;

    Site()
        : serve({"--worker", worker_text(first, ",name=one,g1=48"), "--worker",
                 worker_text(second, ",name=two,g1=48"), "--worker",
                 "http://127.0.0.1:1,name=away,model=tiny,g1=4", "--journal", folder.file("journal"),
                 "--event-patience", "5s"}) {}
    std::string address() const { return "http://127.0.0.1:" + std::to_string(serve.port()); }
  };

  static void SetUpTestSuite() {
    if (find_chromium().empty()) return;
    browser = new Browser(find_chromium());
    site = new Site;
    send_traffic();
  }
  static void TearDownTestSuite() {
    delete std::exchange(browser, nullptr);
    delete std::exchange(site, nullptr);
  }
  void SetUp() override {
    ASHLAR_NEEDS_SERVER(browser != nullptr, "chromium-headless-shell, or chromium, is not installed");
    ASSERT_FALSE(HasFailure());
    browser->prefer("light");
    browser->resize(1280, 900);
  }
  void TearDown() override {
    if (browser == nullptr) return;
    browser->open("about:blank");  // it asks nobody any more
    EXPECT_THAT(browser->take_complaints(), IsEmpty()) << "on the browser's console";
  }

  // Prompts that share their beginnings, several turns of each: more blocks than both engines hold on the
  // device. Then nothing happens any more.
  static void send_traffic() {
    site->serve.wait_for_fleet([](const std::vector<Json>& workers) {
      int exact = 0;
      for (const Json& worker : workers)
        for (const Json& rank : worker["ranks"].list)
          exact += worker["up"].number == 1 && rank["state"].text == "EXACT";
      return exact == 2;
    });
    HttpClient client = site->serve.client();
    int sent = 0;
    for (int family = 0; family < 12; ++family)
      for (int turn = 1; turn <= 4; ++turn, ++sent) {
        const HttpAnswer answer = client.post(
            "/v1/completions", R"({"model":"tiny","max_tokens":4,"prompt":)" + prompt_of(family, turn) + "}");
        ASSERT_EQ(answer.status, 200) << answer.body;
      }
    site->serve.wait_for_metric("ashlar_serve_requests_total", sent);
    site->serve.wait_for_metric("ashlar_serve_ended_total{end=\"complete\"}", sent);
  }
  static std::string prompt_of(int family, int turn) {
    std::string tokens = "[";
    for (int i = 0; i < 32 + 16 * turn; ++i)
      tokens += (i == 0 ? "" : ",") + std::to_string(i < 16 ? i : 20 + (37 * family + 11 * i) % 200);
    return tokens + "]";
  }

  static void open_page(const std::string& hash = {}) {
    browser->open("about:blank");
    browser->open(site->address() + "/" + hash);
    browser->wait_for(
        "document.body.dataset.live === 'yes' && document.querySelectorAll('#workers tr').length === 3");
  }
  // A picture for people, where they want one.
  static void keep_picture(const std::string& name) {
    const char* folder = std::getenv("ASHLAR_PICTURES");  // NOLINT(concurrency-mt-unsafe): nobody sets it
    if (folder != nullptr) std::ofstream(std::string(folder) + "/" + name + ".base64") << browser->picture();
  }
  static void expect_contrast(const std::string& where) {
    const Json contrast = browser->value(kContrastScript);
    EXPECT_GT(contrast["seen"].number, 3) << where;
    EXPECT_EQ(contrast["low"].text, "") << where;
  }

  static Browser* browser;
  static Site* site;
};
Browser* PageTest::browser = nullptr;
PageTest::Site* PageTest::site = nullptr;

// "totals.hit_blocks.device" of a value.
double at_path(const Json& value, const std::string& path) {
  const std::size_t dot = path.find('.');
  return dot == std::string::npos ? value[path].number
                                  : at_path(value[path.substr(0, dot)], path.substr(dot + 1));
}

// What a labelled number of the page stands for.
double expected_number(const Json& live, const std::string& key) {
  const Json& totals = live["totals"];
  if (key.starts_with("totals.")) return at_path(live, key);
  double sum = 0;
  if (key.starts_with("sum.") || key.starts_with("tiers.")) {
    const std::size_t dot = key.find('.');
    const std::size_t last = key.rfind('.');
    const std::string tier = dot == last ? "" : key.substr(dot + 1, last - dot - 1);
    for (const Json& worker : live["workers"].list)
      for (const Json& rank : worker["ranks"].list)
        for (const auto& [name, changes] : rank["tiers"].map)
          if (tier.empty() || tier == name) sum += changes[key.substr(last + 1)].number;
    return sum;
  }
  // Where prompt tokens were found: delivered, lost, elsewhere, nowhere.
  const double prompt = totals["prompt_tokens"].number;
  const double delivered = totals["delivered_tokens"].number;
  const double captured = totals["captured_tokens"].number;
  const double lost = std::max(0.0, captured - delivered);
  const double elsewhere = std::max(0.0, totals["available_tokens"].number - std::max(captured, delivered));
  if (key == "fate.0") return delivered;
  if (key == "fate.1") return lost;
  if (key == "fate.2") return elsewhere;
  if (key == "fate.3") return prompt - delivered - lost - elsewhere;
  ADD_FAILURE() << "what is " << key << "?";
  return -1;
}

// Where the page differs from /live; empty: nowhere.
std::string differences(const Json& shown, const Json& live) {
  std::string found;
  const auto compare = [&](const std::string& what, double is, double should_be) {
    if (is != should_be)
      found += what + ": " + std::to_string(is) + ", not " + std::to_string(should_be) + "; ";
  };
  for (const auto& [key, value] : shown["keys"].map) compare(key, value.number, expected_number(live, key));
  for (const Json& worker : live["workers"].list)
    for (const Json& rank : worker["ranks"].list) {
      const std::string row = std::to_string(static_cast<std::uint64_t>(worker["id"].number)) + "." +
                              std::to_string(static_cast<int>(rank["dp_rank"].number));
      const Json& is = shown["workers"][row];
      if (is["name"].text != worker["name"].text) found += row + " has no row; ";
      const std::string state = worker["up"].number == 1 ? rank["state"].text : "down";
      if (is["state"].text != state) found += row + " is " + state + "; ";
      const char* numbers[] = {"requests", "prefill_tokens", "decode_blocks", "chosen"};
      for (std::size_t i = 0; i < 4 && i < is["numbers"].list.size(); ++i)
        compare(row + " " + numbers[i], is["numbers"].list[i].number, rank[numbers[i]].number);
      for (const auto& [tier, changes] : rank["tiers"].map)
        compare(row + " " + tier, is["tiers"][tier].number, changes["held"].number);
    }
  if (shown["decisions"].list.size() != live["decisions"].list.size()) return found + "other decisions";
  for (std::size_t i = 0; i < live["decisions"].list.size(); ++i) {
    const Json& is = shown["decisions"].list[i];
    const Json& decision = live["decisions"].list[i];
    if (is["id"].text != decision["id"].text || is["worker"].text != decision["worker"].text ||
        is["state"].text != decision["state"].text)
      found += "decision " + is["id"].text + "; ";
    compare("prompt", is["prompt"].number, decision["prompt_tokens"].number);
    compare("claimed", is["claimed"].number, decision["cached_tokens"].number);
    compare("best", is["best"].number, decision["available_tokens"].number);
    const Json& outcome = decision["outcome"];
    if (outcome["delivered_tokens"].kind != Json::Kind::kNumber) continue;
    compare("delivered", is["delivered"].number, outcome["delivered_tokens"].number);
    if (outcome["misroute"].text == "none" && is["result"].text != "as claimed")
      found += is["id"].text + " is " + is["result"].text + "; ";
  }
  return found;
}

TEST_F(PageTest, ShowsWhatTheApiTells) {
  open_page();
  // Events may still be on their way; then both stand still.
  std::string found = "nothing yet";
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  Json shown;
  while (!found.empty() && std::chrono::steady_clock::now() < last) {
    const Json live = site->serve.get("/live");
    shown = browser->value(kShownScript);
    found = differences(shown, live);
  }
  EXPECT_EQ(found, "");
  EXPECT_GE(shown["keys"].map.size(), 20u);
  EXPECT_GT(shown["keys"]["totals.predictions_right"].number, 0);
  EXPECT_GT(shown["keys"]["sum.removed"].number, 0) << "the caches are small";
  EXPECT_GT(shown["keys"]["totals.hit_blocks.device"].number, 0);
  // The devices are as large as the workers say; of the host's memory they say nothing.
  const auto note = [](const std::string& tier) {
    return browser->text("document.querySelector('[data-key=\"tiers." + tier + ".held\"]').dataset.note");
  };
  EXPECT_THAT(note("device"), StartsWith("of 100 "));
  EXPECT_THAT(note("host"), HasSubstr(" held at most "));
  keep_picture("light");
}

TEST_F(PageTest, ShowsTheReceiptOfADecision) {
  open_page();
  browser->wait_for("document.querySelectorAll('#decisions tr').length >= 48");
  const std::string id = browser->text("document.querySelector('#decisions button').textContent");
  browser->value("document.querySelector('#decisions button').click()");
  browser->wait_for("document.getElementById('receipt-body').dataset.decision === " + in_quotes(id));
  const Json receipt = site->serve.get("/decisions/" + id);
  const Json shown = browser->value(R"([...document.querySelectorAll('#receipt-body tbody tr')].map((row) =>
      Object.fromEntries([...row.children].map((cell) => [cell.dataset.term, Number(cell.textContent)])
        .concat([['id', Number(row.dataset.worker)], ['chosen', Number(row.className === 'chosen')]]))))");
  ASSERT_EQ(shown.list.size(), receipt["candidates"].list.size());
  for (std::size_t i = 0; i < shown.list.size(); ++i) {
    const Json& is = shown.list[i];
    const Json& candidate = receipt["candidates"].list[i];
    EXPECT_EQ(is["id"].number, candidate["worker"].number);
    EXPECT_EQ(is["chosen"].number == 1, candidate["worker"].number == receipt["worker_id"].number);
    EXPECT_EQ(is["device"].number, candidate["blocks"]["device"].number);
    EXPECT_EQ(is["expected"].number, candidate["predicted_depth"].number);
    EXPECT_EQ(is["running"].number, candidate["requests"].number);
    for (const char* term : {"prefill", "decode", "requests", "session"})
      EXPECT_EQ(std::lround(1000 * is[term].number), candidate["cost"][term].number) << term;
    EXPECT_EQ(std::lround(1000 * is["cost"].number), candidate["cost"]["total"].number);
  }
  const Json& delivered = receipt["outcome"]["delivered_tokens"];
  EXPECT_EQ(
      browser->text("document.querySelector('[data-fact=\"delivered tokens\"]').textContent"),
      delivered.kind == Json::Kind::kNumber ? std::to_string(std::lround(delivered.number)) : "not said");
  expect_contrast("a receipt");
  keep_picture("receipt");
  browser->resize(360, 740);
  EXPECT_EQ(browser->text(kOverflowScript), "");
  browser->press("Escape");
  browser->wait_for("!document.getElementById('receipt').open");
}

TEST_F(PageTest, CanBeReadInBothSchemes) {
  open_page();
  for (const char* scheme : {"light", "dark"}) {
    browser->prefer(scheme);
    browser->value("location.hash = '#overview'");
    browser->wait_for("!document.getElementById('view-overview').hidden");
    expect_contrast(std::string(scheme) + " overview");
    if (scheme == std::string("dark")) keep_picture("dark");
    browser->value("location.hash = '#tree'");
    browser->wait_for("document.querySelector('#prefixes [role=treeitem] [role=treeitem]')");
    expect_contrast(std::string(scheme) + " tree");
  }
  // The button goes over the system's choice, and its choice stays.
  const auto ground = "getComputedStyle(document.documentElement).backgroundColor";
  const std::string dark = browser->text(ground);
  browser->value("document.getElementById('theme').click()");
  EXPECT_EQ(browser->text("document.documentElement.dataset.theme"), "light");
  EXPECT_NE(browser->text(ground), dark);
  open_page();
  EXPECT_EQ(browser->text("document.documentElement.dataset.theme"), "light");
  browser->value("localStorage.clear()");
}

TEST_F(PageTest, FitsAPhone) {
  browser->resize(360, 740);
  open_page();
  browser->wait_for("document.querySelectorAll('#decisions tr').length >= 48");
  EXPECT_EQ(browser->text(kOverflowScript), "");
  keep_picture("phone");
  open_page("#tree");
  browser->wait_for("document.querySelector('#prefixes [role=treeitem] [role=treeitem]')");
  EXPECT_EQ(browser->text(kOverflowScript), "");
}

// Presses Tab until the focus is back at the start; what it passed, each visible.
std::vector<std::string> walk(Browser& browser) {
  std::vector<std::string> passed;
  browser.value("document.activeElement.blur()");
  for (int i = 0; i < 200; ++i) {
    browser.press("Tab");
    const Json focus = browser.value(kFocusScript);
    if (focus["name"].text.empty() || (i > 0 && focus["name"].text == passed.front())) break;
    EXPECT_EQ(focus["visible"].number, 1) << focus["name"].text;
    if (passed.empty() || passed.back() != focus["name"].text) passed.push_back(focus["name"].text);
  }
  return passed;
}

TEST_F(PageTest, IsReachedByKeyboard) {
  open_page();
  browser->wait_for("document.querySelectorAll('#decisions tr').length >= 48");
  EXPECT_THAT(walk(*browser), ElementsAre("A", "overview", "tree", "pause", "theme", "filter", "decisions"));
  // A receipt opens and closes, and the focus comes back.
  browser->value("document.querySelector('#decisions button').focus()");
  browser->press("Enter");
  browser->wait_for("document.getElementById('receipt').open");
  browser->press("Escape");
  browser->wait_for("!document.getElementById('receipt').open");
  EXPECT_EQ(browser->number("Number(document.activeElement === document.querySelector('#decisions button'))"),
            1);
  // The filter.
  browser->value("document.getElementById('filter').focus()");
  browser->type("exact");
  browser->wait_for("document.querySelectorAll('#workers tr').length === 2");
}

TEST_F(PageTest, TheTreeIsWalkedByArrowKeys) {
  open_page("#tree");
  browser->wait_for("document.querySelector('#prefixes [role=treeitem] [role=treeitem]')");
  // What is shown is what the service tells, once its tree is no older than the last event.
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  Json told;
  do {
    ASSERT_LT(std::chrono::steady_clock::now(), last) << "the page never showed what the service tells";
    told = site->serve.get("/tree?model=tiny&depth=1");
    browser->value("document.getElementById('prefixes').replaceChildren()");
    browser->value("document.getElementById('tree-refresh').click()");
    browser->wait_for("document.querySelector('#prefixes [role=treeitem] [role=treeitem]')");
  } while (browser->number("Number(document.getElementById('prefixes').dataset.blocks)") !=
           told["blocks"].number);
  const Json shown = browser->value(R"(Object.fromEntries(
      [...document.querySelectorAll('#prefixes > [role=treeitem] > .node [data-below]')]
        .map((e) => [e.dataset.below, Number(e.textContent.replace(/,/g, ''))])))");
  ASSERT_EQ(shown.map.size(), told["root"]["shown"].list.size());
  for (const Json& element : told["root"]["shown"].list)
    EXPECT_EQ(shown[element["name"].text].number, element["below"].number);
  EXPECT_LE(browser->number("document.querySelectorAll('[role=treeitem]').length"), 2000);
  keep_picture("tree");

  EXPECT_THAT(walk(*browser),
              IsSupersetOf({"prompt", "search-model", "tree-model", "tree-refresh", "treeitem"}));
  const auto focus_is = [&](const std::string& selector) {
    browser->wait_for("document.activeElement === document.querySelector(" + in_quotes(selector) + ")");
  };
  browser->value("document.querySelector('#prefixes [tabindex=\"0\"]').focus()");
  browser->press("Home");
  const std::string first = "#prefixes > [role=treeitem]";
  focus_is(first);
  browser->wait_for("document.activeElement.getAttribute('aria-expanded') === 'true'");
  browser->press("ArrowRight");
  focus_is(first + " [role=treeitem]");
  browser->press("ArrowLeft");
  focus_is(first);
  browser->press("ArrowLeft");
  browser->wait_for(
      "document.activeElement.getAttribute('aria-expanded') === 'false' && "
      "!document.activeElement.querySelector('ul')");
  browser->press("ArrowRight");
  browser->wait_for(
      "document.activeElement.getAttribute('aria-expanded') === 'true' && "
      "document.activeElement.querySelector('ul')");
  browser->press("ArrowDown");
  focus_is(first + " [role=treeitem]");
  browser->press("ArrowUp");
  focus_is(first);
  browser->press("End");
  browser->wait_for("document.activeElement === [...document.querySelectorAll('[role=treeitem]')].at(-1)");
  EXPECT_EQ(browser->number("document.querySelectorAll('#prefixes [tabindex=\"0\"]').length"), 1)
      << "one of the tree is in the order of tabs";
}

// However many are opened before the first answer comes.
TEST_F(PageTest, TheTreeStaysBelowItsMost) {
  open_page("#tree");
  browser->wait_for("document.querySelector('#prefixes [role=treeitem] [role=treeitem]')");
  browser->value(R"({
    const real = window.fetch;
    window.answered = 0;
    window.fetch = async (path, request) => {
      if (!path.startsWith('/tree')) return real(path, request);
      const query = new URLSearchParams(path.slice(path.indexOf('?')));
      const one = (name, shown) => ({name, position: 0, blocks: 1, below: 1000, children: 1000, holders: 0,
                                     held: [], hidden_below: 1, shown});
      const shown = Array.from({length: Number(query.get('limit'))},
                               (_, i) => one(`${query.get('root')}.${i}`, []));
      await new Promise((resolve) => setTimeout(resolve));
      ++window.answered;
      return new Response(JSON.stringify({workers: [], blocks: 1000000, copies: 1000000, elements: 1000000,
                                          age_ms: 0, root: one(query.get('root'), shown)}));
    };
    document.getElementById('tree-refresh').click();
  })");
  browser->wait_for("document.querySelectorAll('#prefixes [role=treeitem]').length === 240");
  // 119 more ask for as many as fit: 14 times 120, and what is left.
  browser->value("document.querySelectorAll('#prefixes > [aria-expanded=false]').forEach((e) => e.click())");
  browser->wait_for("window.answered === 2 + 15");
  browser->wait_for("document.querySelectorAll('#prefixes [role=treeitem]').length >= 2000");
  EXPECT_EQ(browser->number("document.querySelectorAll('#prefixes [role=treeitem]').length"), 2000);
  // What is closed makes room again.
  browser->value("document.querySelector('#prefixes > [aria-expanded=true]').click()");
  browser->value("document.querySelector('#prefixes > [aria-expanded=false]').click()");
  browser->wait_for("window.answered === 2 + 16");
  browser->wait_for("document.querySelectorAll('#prefixes [role=treeitem]').length === 2000");
}

// A router that was started again may be up for longer than the page saw the one before.
TEST_F(PageTest, AnotherRunBeginsItsChartsAnew) {
  open_page();
  EXPECT_EQ(site->serve.get("/live")["run"].text.size(), 16u);
  const Json lengths = browser->value(R"(
    Promise.all([import('/ui/history.js'), fetch('/live').then((answer) => answer.json())])
    .then(([page, live]) => {
      const history = new page.History();
      return [['a', 10], ['a', 20], ['a', 20], ['a', 15], ['a', 30], ['b', 40], ['b', 50], ['c', 5]].map(
        ([run, time_ms]) => (history.add({...live, run, time_ms}), history.samples.length));
    }))");
  std::vector<double> seen;
  for (const Json& length : lengths.list) seen.push_back(length.number);
  EXPECT_THAT(seen, ElementsAre(1, 2, 2, 2, 3, 1, 2, 1));
}

TEST_F(PageTest, FindsThePromptOfARequest) {
  open_page("#tree");
  browser->wait_for("document.getElementById('search-model').value === 'tiny'");
  const std::string prompt = prompt_of(11, 4);
  browser->value("document.getElementById('prompt').focus()");
  browser->type(prompt);
  browser->value("document.querySelector('#search button').focus()");
  browser->press("Enter");
  browser->wait_for("!document.getElementById('found-table').hidden");
  HttpClient client = site->serve.client();
  const Json scores =
      Json::parse(client.post("/query", R"({"model_name":"tiny","token_ids":)" + prompt + "}").body);
  double best = 0;
  for (const auto& [id, score] : scores["instances"].map)
    best = std::max(best, score["longest_matched"].number);
  EXPECT_GT(best, 0);
  EXPECT_EQ(browser->number("Number(document.querySelector('#found tr').children[1].textContent)"), best / 8);
  EXPECT_EQ(browser->number("document.querySelectorAll('#found tr').length"), 3);
  // A text is tokenized by a worker.
  browser->value("document.getElementById('prompt').value = 'words that nobody has said'");
  browser->value("document.querySelector('#search button').click()");
  browser->wait_for("document.getElementById('search-note').textContent.includes('whole blocks of 8')");
}

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

TEST_F(PageTest, ShowsTheRunsOfAReplay) {
  ServerProcess replay({ASHLAR_PROGRAM, "replay", "--generate", "chat,requests=200", "--workers", "2", "--g1",
                        "200", "--g2", "400", "--policy", "lru,fifo", "--page", "--port", "0", "--quiet"});
  const std::optional<std::string> line = replay.read_line();
  ASSERT_TRUE(line && line->starts_with("listening on http://127.0.0.1:")) << line.value_or("");
  const int port = std::stoi(line->substr(line->rfind(':') + 1));
  HttpClient client(port);
  const std::string address = "http://127.0.0.1:" + std::to_string(port);
  while (Json::parse(client.get("/runs.json").body)["complete"].number == 0) {
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
