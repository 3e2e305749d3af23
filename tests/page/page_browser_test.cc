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
#include <thread>

#include "page/page_site.h"

namespace ashlar::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

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

// 12,345 as the page writes it.
std::string with_commas(double number) {
  std::string digits = std::to_string(std::llround(number));
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

// Where the cards at the top differ from /live.
std::string card_differences(const Json& cards, const Json& live) {
  std::string found;
  const auto compare = [&](const std::string& card, const std::string& value, const std::string& after) {
    if (cards[card]["value"].text != value || cards[card]["after"].text != after)
      found += card + " is " + cards[card]["value"].text + cards[card]["after"].text + ", not " + value +
               after + "; ";
  };
  const Json& totals = live["totals"];
  double held = 0;
  double exact = 0;
  double ranks = 0;
  for (const Json& worker : live["workers"].list)
    for (const Json& rank : worker["ranks"].list) {
      ++ranks;
      exact += rank["state"].text == "EXACT" ? 1 : 0;
      for (const auto& [name, tier] : rank["tiers"].map) held += tier["held"].number;
    }
  compare("running", with_commas(totals["running"].number), "");
  compare("waiting", with_commas(totals["waiting"].number), "");
  compare("held", with_commas(held), "");
  compare("exact", with_commas(exact), "of " + with_commas(ranks));
  compare("requests", cards["requests"]["value"].text, "/s of " + with_commas(totals["requests"].number));
  const double hits = 100 * totals["delivered_tokens"].number / totals["prompt_tokens"].number;
  if (std::abs(std::stod(cards["hits"]["value"].text) - hits) > 0.051)
    found += "hits are " + cards["hits"]["value"].text + ", not " + std::to_string(hits) + "; ";
  // "16.4", "µs · p99 66 µs".
  const std::string& unit = cards["choice"]["after"].text;
  const double factor = unit.starts_with("ns") ? 1 : unit.starts_with("ms") ? 1e6 : 1e3;
  const double choice = totals["route_ns"]["p50"].number;
  if (std::abs(factor * std::stod(cards["choice"]["value"].text) - choice) > 0.06 * choice)
    found += "a choice takes " + cards["choice"]["value"].text + unit + ", not " + std::to_string(choice) +
             " ns; ";
  return found;
}

// Where the page differs from /live; empty: nowhere.
std::string differences(const Json& shown, const Json& live) {
  std::string found;
  const auto compare = [&](const std::string& what, double is, double should_be) {
    if (is != should_be)
      found += what + ": " + std::to_string(is) + ", not " + std::to_string(should_be) + "; ";
  };
  for (const auto& [key, value] : shown["keys"].map) compare(key, value.number, expected_number(live, key));
  found += card_differences(shown["cards"], live);
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
    if (!found.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(found, "");
  EXPECT_GE(shown["keys"].map.size(), 20u);
  EXPECT_GT(shown["keys"]["totals.predictions_right"].number, 0);
  EXPECT_GT(shown["keys"]["sum.removed"].number, 0) << "the caches are small";
  EXPECT_GT(shown["keys"]["totals.missed_blocks.never_seen"].number, 0);
  EXPECT_GT(shown["keys"]["totals.hit_blocks.device"].number, 0);
  // The devices are as large as the workers say; of the host's memory they say nothing.
  const auto note = [](const std::string& tier) {
    return browser->text("document.querySelector('[data-key=\"tiers." + tier + ".held\"]').dataset.note");
  };
  EXPECT_THAT(note("device"), StartsWith("of 100 "));
  EXPECT_THAT(note("host"), HasSubstr(" held at most "));
  keep_picture("light");
}

// Rates and charts, from two states of the service that are 2 s apart.
TEST_F(PageTest, ShowsRatesAndCharts) {
  open_page();
  const Json shown = browser->value(R"(
    Promise.all([import('/ui/history.js'), import('/ui/overview.js'), fetch('/live').then((a) => a.json())])
    .then(([{History}, {showOverview, showCharts}, live]) => {
      document.getElementById('pause').click();
      const history = new History();
      Object.assign(live.totals, {requests: 100, prompt_tokens: 1000, available_tokens: 700,
                                  captured_tokens: 600, delivered_tokens: 500});
      history.add(live, 0);
      const later = structuredClone(live);
      later.time_ms += 2000;
      later.totals.requests += 10;
      later.totals.prompt_tokens += 800;
      later.totals.available_tokens += 600;
      later.totals.captured_tokens += 500;
      later.totals.delivered_tokens += 400;
      const device = later.workers[0].ranks[0].tiers.device;
      device.stored += 60;
      device.removed += 20;
      const host = later.workers[0].ranks[0].tiers.host;
      host.stored += 40;
      host.offloaded += 30;
      history.add(later, 2000);
      const third = structuredClone(later);  // an area needs two rates
      third.time_ms += 2000;
      history.add(third, 4000);
      showOverview(later, history);
      showCharts(history.fateRows(), history.flowRows(), ['4 s ago', 'now']);
      const text = (e) => e.textContent;
      const row = [...document.querySelectorAll('#workers tr')].find((e) => e.dataset.row.endsWith('.0'));
      const chart = (id) => {
        const box = document.getElementById(id);
        return {
          label: text(box.querySelector('.top-label')),
          axis: [...box.querySelectorAll('.axis span')].map(text),
          drawn: [...box.querySelectorAll('path')].map((e) => Number(e.getAttribute('d')?.length > 10)),
        };
      };
      return {
        fate: history.fateRows()[0], flow: history.flowRows()[0],
        requests: text(document.querySelector('[data-number="requests"]')),
        stored: text(row.children[8]), removed: text(row.children[9]),
        charts: [chart('fate-chart'), chart('blocks-chart')],
      };
    }))");
  const auto numbers = [](const Json& list) {
    std::vector<double> values;
    for (const Json& value : list.list) values.push_back(value.number);
    return values;
  };
  EXPECT_THAT(numbers(shown["fate"]), ElementsAre(200, 50, 50, 100)) << "tokens per second";
  EXPECT_THAT(numbers(shown["flow"]), ElementsAre(35, 15, 10)) << "stored, offloaded, removed";
  // The mean of 4 s.
  EXPECT_EQ(std::stod(shown["requests"].text), 2.5);
  EXPECT_EQ(std::stod(shown["stored"].text), 25);
  EXPECT_EQ(std::stod(shown["removed"].text), 5);
  const std::vector<Json>& charts = shown["charts"].list;
  EXPECT_EQ(charts.at(0)["label"].text, "400/s");
  EXPECT_EQ(charts.at(1)["label"].text, "50/s");
  for (const Json& chart : charts) {
    EXPECT_EQ(chart["axis"].list.at(0).text + chart["axis"].list.at(1).text, "4 s agonow");
    for (const Json& drawn : chart["drawn"].list) EXPECT_EQ(drawn.number, 1);
  }
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
  const auto expect_fact = [](const std::string& name, const std::string& value) {
    EXPECT_EQ(browser->text("document.querySelector('[data-fact=\"" + name + "\"]').textContent"), value);
  };
  for (const char* name : {"model", "worker", "policy"}) expect_fact(name, receipt[name].text);
  expect_fact("state", receipt["state"].text);
  expect_fact("prompt tokens", with_commas(receipt["prompt_tokens"].number));
  expect_fact("block size", with_commas(receipt["block_size"].number));
  expect_fact("claimed tokens", with_commas(receipt["cached_tokens"].number));
  expect_fact("best worker", with_commas(receipt["available_tokens"].number));
  expect_fact("tokens of the prompt", receipt["tokens"].text);
  expect_fact("output tokens", with_commas(receipt["outcome"]["output_tokens"].number));
  expect_fact("end", receipt["outcome"]["end"].text + ", status 200");
  expect_fact("found otherwise", receipt["outcome"]["misroute"].text);
  double missing = 0;
  for (const auto& [reason, blocks] : receipt["missed_blocks"].map) missing += blocks.number;
  expect_fact("blocks not found", with_commas(missing));
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
  EXPECT_THAT(walk(*browser),
              ElementsAre("A", "overview", "tree", "past", "pause", "theme", "filter", "decisions"));
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
  EXPECT_LE(browser->number("document.querySelectorAll('[role=treeitem]:not(.rest)').length"), 2000);
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
  browser->wait_for("document.querySelectorAll('#prefixes [role=treeitem]:not(.rest)').length === 240");
  // 119 more ask for as many as fit: 14 times 120, and what is left.
  browser->value("document.querySelectorAll('#prefixes > [aria-expanded=false]').forEach((e) => e.click())");
  browser->wait_for("window.answered === 2 + 15");
  browser->wait_for("document.querySelectorAll('#prefixes [role=treeitem]:not(.rest)').length >= 2000");
  EXPECT_EQ(browser->number("document.querySelectorAll('#prefixes [role=treeitem]:not(.rest)').length"),
            2000);
  // What is closed makes room again.
  browser->value("document.querySelector('#prefixes > [aria-expanded=true]').click()");
  browser->value("document.querySelector('#prefixes > [aria-expanded=false]').click()");
  browser->wait_for("window.answered === 2 + 16");
  browser->wait_for("document.querySelectorAll('#prefixes [role=treeitem]:not(.rest)').length === 2000");
}

// A late answer of an older moment is not shown, and neither is the tree of one that failed.
TEST_F(PageTest, TheTreeIsTheOneThatWasAskedForLast) {
  open_page("#tree");
  browser->wait_for("document.querySelector('#prefixes [role=treeitem] [role=treeitem]')");
  browser->value(R"({
    const real = window.fetch;
    window.waiting = [];
    window.fetch = (path, request) => {
      if (!path.startsWith('/tree')) return real(path, request);
      return new Promise((resolve) => window.waiting.push((blocks) => resolve(new Response(JSON.stringify({
        workers: [], blocks, copies: blocks, elements: 0, age_ms: 0,
        root: {name: '0', position: 0, blocks, below: blocks, children: 0, holders: 0, held: [],
               hidden_below: 0, shown: []}})))));
    };
    document.getElementById('tree-refresh').click();
    document.getElementById('tree-refresh').click();
  })");
  browser->wait_for("window.waiting.length === 2");
  browser->value("window.waiting[1](222)");
  browser->wait_for("document.getElementById('prefixes').dataset.blocks === '222'");
  browser->value("{ window.waiting[0](111); new Promise((resolve) => setTimeout(resolve)); }");
  browser->value("new Promise((resolve) => setTimeout(resolve))");
  EXPECT_EQ(browser->text("document.getElementById('prefixes').dataset.blocks"), "222");
}

// The real service with a large tree: 120 elements at once, more on request, 2,000 on the page.
TEST_F(PageTest, ALargeTreeIsOpenedPieceByPiece) {
  constexpr int kSequences = 2300;
  constexpr int kAtOnce = 100;
  const EngineProcess engine({"--g1", "4096", "--max-model-len", "64"});
  const ServeProcess serve({"--worker", worker_text(engine, ",name=large")});
  serve.wait_until_exact();
  HttpClient client = serve.client();
  for (int first = 0; first < kSequences; first += kAtOnce) {
    std::string prompts;
    for (int i = first; i < first + kAtOnce; ++i)
      prompts += (i == first ? "[" : ",[") + std::to_string(1 + i % 200) + "," + std::to_string(1 + i / 200) +
                 ",3,4,5,6,7,8,9]";
    const HttpAnswer answer =
        client.post("/v1/completions", R"({"model":"tiny","max_tokens":1,"prompt":[)" + prompts + "]}");
    ASSERT_EQ(answer.status, 200) << answer.body;
  }
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  while (serve.get("/tree?limit=1")["blocks"].number < kSequences && !HasFailure()) {
    ASSERT_LT(std::chrono::steady_clock::now(), last) << "not every sequence was reported";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  browser->open("http://127.0.0.1:" + std::to_string(serve.port()) + "/#tree");
  const auto expect_shown = [](int count) {
    browser->wait_for("document.querySelectorAll('#prefixes [role=treeitem]:not(.rest)').length === " +
                      std::to_string(count));
  };
  expect_shown(120);
  EXPECT_EQ(browser->text("document.querySelector('#prefixes > .rest').textContent"),
            "and 2,180 smaller ones, 2,180 blocks: more");
  // By keyboard: the focus goes on to the first of those that came.
  browser->value("document.querySelector('#prefixes [tabindex=\"0\"]').focus()");
  browser->press("End");
  browser->press("Enter");
  expect_shown(240);
  browser->wait_for("document.activeElement === document.querySelectorAll('#prefixes > li')[120]");
  const auto open_more = [] { browser->value("document.querySelector('#prefixes > .rest').click()"); };
  for (int count = 360; count <= 1920; count += 120) {
    open_more();
    expect_shown(count);
  }
  open_more();
  expect_shown(2000);
  open_more();
  browser->wait_for(
      "document.getElementById('tree-note').textContent.startsWith('2,000 elements are shown')");
  EXPECT_EQ(browser->number("new Set([...document.querySelectorAll('[data-below]')].map((e) => "
                            "e.dataset.below)).size"),
            2000)
      << "none is shown twice";
  browser->open("about:blank");
}

// A router that was started again may be up for longer than the page saw the one before. What the page saw
// stays, and the charts go on behind it.
TEST_F(PageTest, AnotherRunGoesOnBehindTheOneBefore) {
  open_page();
  EXPECT_EQ(site->serve.get("/live")["run"].text.size(), 16u);
  const Json lengths = browser->value(R"(
    Promise.all([import('/ui/history.js'), fetch('/live').then((answer) => answer.json())])
    .then(([page, live]) => {
      const history = new page.History();
      const seen = (run, time_ms, requests, now) => {
        history.add({...live, run, time_ms, totals: {...live.totals, requests}}, now);
        return [history.samples.length, history.samples.at(-1).time];
      };
      return [
        ...[['a', 1000, 5, 0], ['a', 2000, 6, 1000], ['a', 2000, 6, 1500], ['a', 1500, 6, 1600],
            ['b', 9000, 90, 4000], ['b', 10000, 92, 5000], ['c', 5, 1, 6000]].map((one) => seen(...one)),
        history.rates((s) => s.requests), [history.recent((s) => s.requests)],
      ];
    }))");
  std::vector<std::vector<double>> seen;
  for (const Json& row : lengths.list) {
    seen.emplace_back();
    for (const Json& number : row.list) seen.back().push_back(number.number);
  }
  // Lengths and times; then the requests per second between them, none where a run begins.
  EXPECT_THAT(seen, ElementsAre(ElementsAre(1, 1000), ElementsAre(2, 2000), ElementsAre(2, 2000),
                                ElementsAre(2, 2000), ElementsAre(3, 5000), ElementsAre(4, 6000),
                                ElementsAre(5, 7000), ElementsAre(1, 0, 2, 0), ElementsAre(0)));
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
  const Json rows =
      browser->value(R"(Object.fromEntries([...document.querySelectorAll('#found tr')].map((row) =>
      [row.children[0].textContent, [1, 3, 4, 5].map((i) => Number(row.children[i].textContent))])))");
  const Json live = site->serve.get("/live");
  for (const Json& worker : live["workers"].list) {
    const Json& score = scores["instances"][std::to_string(static_cast<std::uint64_t>(worker["id"].number))];
    const char* fields[] = {"longest_matched", "gpu", "cpu", "disk"};
    const std::vector<Json>& cells = rows[worker["name"].text].list;
    ASSERT_EQ(cells.size(), 4u) << worker["name"].text;
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(cells[i].number, score[fields[i]].number / 8) << worker["name"].text << " " << fields[i];
  }
  // A text is tokenized by a worker.
  browser->value("document.getElementById('prompt').value = 'words that nobody has said'");
  browser->value("document.querySelector('#search button').click()");
  browser->wait_for("document.getElementById('search-note').textContent.includes('whole blocks of 8')");
  // The words of a chat stand in its template: as a prompt their blocks are others.
  const std::string words = "what is said in a chat, and nowhere else";
  const HttpAnswer chat = client.post(
      "/v1/chat/completions",
      R"({"model":"tiny","max_tokens":32,"messages":[{"role":"user","content":")" + words + "\"}]}");
  ASSERT_EQ(chat.status, 200) << chat.body;
  const auto find = [&](const std::string& as) {
    browser->value("document.getElementById('prompt').value = " + in_quotes(words));
    browser->value("document.getElementById('search-as').value = " + in_quotes(as));
    browser->value("document.querySelector('#search button').click()");
    browser->wait_for("!document.getElementById('found-table').hidden");
    return browser->number("Number(document.querySelector('#found tr').children[1].textContent)");
  };
  // Its events may be on their way; an engine's first message may come with its next ones only.
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (find("messages") < 4 && std::chrono::steady_clock::now() < last)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(find("messages"), 4);
  EXPECT_EQ(find("prompt"), 0);
}

}  // namespace
}  // namespace ashlar::testing
