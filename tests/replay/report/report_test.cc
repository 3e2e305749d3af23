// The reports: their numbers are those of the runs, the HTML needs nothing else and nothing breaks out of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ashlar/replay/report.h"
#include "replay/report/number_text.h"
#include "replay/report/svg_chart.h"
#include "replay/simulate/random_trace.h"
#include "support/small_json.h"

namespace ashlar::replay {
namespace {

using ::testing::HasSubstr;
using testing::Json;
using ::testing::Not;

class ReportTest : public ::testing::Test {
 protected:
  static std::vector<ReplayOutcome> runs_of(const TraceTable& trace) {
    std::vector<ReplayOutcome> runs;
    for (const char* policy : {"lru", "fifo"})
      runs.push_back(simulate(trace, {.workers = 3, .tier_blocks = {30, 40, 80}, .policy = policy}).value());
    return runs;
  }
  const TraceTable trace_ = random_trace(3, 600, 20);
  const std::vector<ReplayOutcome> runs_ = runs_of(trace_);
  const ReplaySubject subject_ = subject_of("a \"trace\" <b>&", trace_);
};

// Opened elements are closed, in order.
std::string unbalanced(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return "a tag does not end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.starts_with("!") || tag.starts_with("meta") || tag.ends_with("/")) continue;
    const std::string name =
        tag.substr(tag.starts_with("/") ? 1 : 0, tag.find(' ') - (tag.starts_with("/") ? 1 : 0));
    if (!tag.starts_with("/")) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back() + " stays open";
}

TEST_F(ReportTest, JsonHasTheNumbersOfTheRuns) {
  const Json json = Json::parse(replay_json(subject_, runs_));
  EXPECT_EQ(json["trace"]["name"].text, subject_.name);
  EXPECT_EQ(json["trace"]["requests"].number, 600);
  EXPECT_EQ(json["trace"]["blocks"].number, static_cast<double>(trace_.named()));
  ASSERT_EQ(json["runs"].list.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& run = json["runs"].list[i];
    const ReplayOutcome& own = runs_[i];
    EXPECT_EQ(run["config"]["policy"].text, own.config.policy);
    EXPECT_EQ(run["config"]["blocks"]["g3"].number, 80);
    EXPECT_EQ(run["hits"]["g2"].number, static_cast<double>(own.total.hits[1]));
    EXPECT_EQ(run["misses"]["elsewhere"].number, static_cast<double>(own.total.misses[2]));
    EXPECT_EQ(run["bound_hit_blocks"].number, static_cast<double>(own.bound_hits));
    EXPECT_NEAR(run["hit_rate"].number, own.total.hit_rate(), 1e-8);
    ASSERT_EQ(run["windows"].list.size(), own.windows.size());
    double hits = 0;
    for (const Json& window : run["windows"].list) hits += window["hit_blocks"].number;
    EXPECT_EQ(hits, static_cast<double>(own.total.hit_blocks()));
    ASSERT_EQ(run["workers"].list.size(), 3u);
    EXPECT_EQ(run["workers"].list[1]["requests"].number, static_cast<double>(own.workers[1].requests));
  }
}

TEST_F(ReportTest, HtmlStandsAlone) {
  const std::string html = replay_html(subject_, runs_);
  for (const char* outside : {"http", "src=", "url(", "@import", "<script", "<link"})
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_THAT(html, HasSubstr("a &quot;trace&quot; &lt;b&gt;&amp;"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
  for (const char* chart : {"Hit rate by tier over time", "Misses by reason", "Evictions",
                            "Bytes written to SSD per hit gained", "Load by worker", "Time to first token"}) {
    std::size_t count = 0;
    for (std::size_t at = html.find("<figcaption>" + std::string(chart)); at != std::string::npos;
         at = html.find("<figcaption>" + std::string(chart), at + 1))
      ++count;
    EXPECT_EQ(count, 2u) << chart;
  }
  EXPECT_THAT(html, HasSubstr("<b>" + percent(runs_[0].total.hit_rate()) + "</b>"));
  EXPECT_THAT(html, HasSubstr("worker 2 computed: "));
}

// The bound of the requests of each column, where hits may be more than the bound over all.
TEST_F(ReportTest, TheBoundIsThatOfEachColumn) {
  for (const ReplayOutcome& run : runs_) {
    std::uint64_t sum = 0;
    for (const ReplayCounts& window : run.windows) sum += window.bound_hits;
    EXPECT_EQ(sum, run.bound_hits);
    EXPECT_EQ(run.total.bound_hits, run.bound_hits);
  }
  const std::string html = replay_html(subject_, runs_);
  EXPECT_THAT(html, HasSubstr("bound, " + percent(runs_[0].bound_rate()) + " over all"));
  EXPECT_THAT(html, HasSubstr("<polyline class=\"mark\" points=\""));
  const Json json = Json::parse(replay_json(subject_, runs_));
  EXPECT_EQ(json["runs"].list[0]["windows"].list[5]["bound_hit_blocks"].number,
            static_cast<double>(runs_[0].windows[5].bound_hits));
}

TEST(SvgChartTest, AColumnAboveTheAxisSaysSo) {
  const auto chart = [](double value) {
    return column_chart({.title = "t",
                         .unit = "",
                         .number = brief,
                         .label = [](std::size_t) { return std::string(); },
                         .most = 10},
                        {{.name = "s", .values = {1, value}}});
  };
  EXPECT_THAT(chart(10), Not(HasSubstr("class=\"cut\"")));
  EXPECT_THAT(chart(10.1), HasSubstr("class=\"cut\""));
  EXPECT_THAT(chart(10.1), HasSubstr("goes on above"));
}

TEST_F(ReportTest, ATierOfNoSpeedAnswersAtOnce) {
  std::vector<ReplayOutcome> runs = {runs_[0]};
  runs[0].config.tier_bytes_per_second = {0, 0, 5e9};
  const std::string html = replay_html(subject_, runs);
  EXPECT_THAT(html, HasSubstr("G2 at once, G3 at 5 GB/s;"));
  EXPECT_THAT(html, Not(HasSubstr("at 0 B/s")));
}

TEST_F(ReportTest, TheTableLeavesOutWhatSaysNothing) {
  const std::string fleet = replay_table(subject_, runs_);
  for (const char* head : {"router", "G3", "in G2", "elsewhere", "SSD/hit", "bound", "busiest"})
    EXPECT_THAT(fleet, HasSubstr(head));
  EXPECT_THAT(fleet, HasSubstr(percent(runs_[1].total.hit_rate())));
  const std::vector<ReplayOutcome> alone = {
      simulate(trace_, {.tier_blocks = {30, 0, 0}, .has_bound = false}).value()};
  const std::string single = replay_table(subject_, alone);
  for (const char* head : {"router", "G3", "in G2", "elsewhere", "SSD/hit", "bound"})
    EXPECT_THAT(single, Not(HasSubstr(head)));
  const std::string html = replay_html(subject_, alone);
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_THAT(html, HasSubstr("This run has no G3"));
}

TEST_F(ReportTest, RunsAreToldApart) {
  std::vector<ReplayOutcome> runs;
  for (const std::uint32_t workers : {1u, 2u})
    runs.push_back(simulate(trace_, {.workers = workers, .tier_blocks = {30, 0, 0}}).value());
  const std::string html = replay_html(subject_, runs);
  EXPECT_THAT(html, HasSubstr(">lru, 1 worker<"));
  EXPECT_THAT(html, HasSubstr(">lru, prefix, 2 workers<"));
  runs.erase(runs.begin());
  EXPECT_THAT(replay_html(subject_, runs), HasSubstr(">lru, prefix<"));
}

TEST_F(ReportTest, SaysWhatAReaderShouldKnow) {
  ReplaySubject subject = subject_;
  EXPECT_TRUE(notes_of(subject).empty());
  const TraceTable odd = table_of({request_of(0, {1, 2}), request_of(0, {1, 1}), request_of(0, {3, 2})});
  EXPECT_EQ(odd.misplaced(), 2u);
  const ReplaySubject odd_subject = subject_of("odd", odd);
  EXPECT_THAT(replay_json(odd_subject, {}), HasSubstr("2 requests name a block behind another one"));
  // All of them at once: of no time there is no share.
  const std::vector<ReplayOutcome> at_once = {simulate(odd, {.tier_blocks = {30, 0, 0}}).value()};
  EXPECT_GT(at_once[0].busiest(), 1);
  EXPECT_THAT(replay_table(odd_subject, at_once), Not(HasSubstr(percent(at_once[0].busiest()))));
  EXPECT_THAT(replay_table(odd_subject, at_once), Not(HasSubstr("busiest above")));
  EXPECT_THAT(replay_html(odd_subject, at_once), Not(HasSubstr(percent(at_once[0].busiest()))));
  EXPECT_THAT(replay_json(odd_subject, at_once), HasSubstr("\"busiest_worker\":null"));
  subject.facts.has_reuse = false;
  subject.facts.format = TraceFormat::kAzure;
  subject.facts.skipped_lines = 1'234;
  subject.facts.first_skipped = "x, line 7: y";
  const std::string table = replay_table(subject, {});
  EXPECT_THAT(table, HasSubstr("azure names no blocks: it carries no reuse"));
  EXPECT_THAT(table, HasSubstr("1,234 lines were skipped; the first: x, line 7: y"));
  EXPECT_THAT(replay_html(subject, {}), HasSubstr("carries no reuse"));
  EXPECT_THAT(replay_json(subject, {}), HasSubstr("carries no reuse"));
}

TEST(NumberTextTest, ReadsWell) {
  EXPECT_EQ(brief(0), "0");
  EXPECT_EQ(brief(999), "999");
  EXPECT_EQ(brief(999.7), "1k");
  EXPECT_EQ(brief(12'345), "12.3k");
  EXPECT_EQ(brief(0.256), "0.26");
  EXPECT_EQ(bytes(5e9), "5 GB");
  EXPECT_EQ(bytes(12), "12 B");
  EXPECT_EQ(grouped(1'234'567), "1,234,567");
  EXPECT_EQ(grouped(123), "123");
  EXPECT_EQ(duration(0), "0");
  EXPECT_EQ(duration(5.21), "5.2 ms");
  EXPECT_EQ(duration(61'000), "61 s");
  EXPECT_EQ(duration(9'000'000), "2.5 h");
  EXPECT_EQ(escaped("a\x01<"), "a?&lt;");
}

}  // namespace
}  // namespace ashlar::replay
