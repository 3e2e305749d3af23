#include "ashlar/service/journal_page.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "service/gateway/api.h"
#include "service/gateway/live_json.h"
#include "service/gateway/tree_reply.h"
#include "service/journal/journal_outline.h"
#include "service/journal/journal_timeline.h"

namespace ashlar::service {

namespace {

constexpr std::size_t kMomentBriefs = 50;
constexpr std::size_t kMostMomentTrees = 4;
// Of a journal, for one tree: whoever asks waits as long as they take to be replayed.
constexpr std::uint64_t kMostTreeBytes = std::uint64_t{1} << 30;

// As the journal names it. Without a name, the router's own workers are counted from 0.
std::string name_of(const JournalTimeline& timeline, events::WorkerId worker) {
  const auto& names = timeline.report().worker_names;
  if (const auto found = names.find(worker); found != names.end()) return found->second;
  return worker.value() >= kFirstOwnId ? "worker " + std::to_string(worker.value() - kFirstOwnId)
                                       : std::to_string(worker.value());
}

Receipt receipt_of(const JournalTimeline& timeline, const JournalTimeline::Made& made) {
  Receipt receipt;
  receipt.decision = made.decision;
  receipt.group = made.group;
  receipt.worker_name = name_of(timeline, made.decision.choice().worker.id);
  return receipt;
}

std::string_view to_text(ReplayVerdict verdict) {
  switch (verdict) {
    case ReplayVerdict::kSame:
      return "the same";
    case ReplayVerdict::kDifferent:
      return "NOT the same";
    case ReplayVerdict::kNotReplayed:
      return "no: the run's first files were removed";
  }
  return "unknown";
}

std::uint64_t sum_over_tiers(const std::vector<WorkerLoad>& loads, std::uint64_t TierChanges::* field) {
  std::uint64_t sum = 0;
  for (const WorkerLoad& load : loads)
    for (const TierChanges& tier : load.tiers) sum += tier.*field;
  return sum;
}

std::uint64_t offloaded_in(const std::vector<WorkerLoad>& loads) {
  std::uint64_t sum = 0;
  for (const WorkerLoad& load : loads)
    for (const TierChanges& tier : load.tiers) sum += tier.all_offloaded();
  return sum;
}

std::uint64_t running_of(const std::vector<WorkerLoad>& loads) {
  std::uint64_t running = 0;
  for (const WorkerLoad& load : loads) running += load.requests;
  return running;
}

void write_moment_totals(JsonText& out, const JournalTotals& totals, std::uint64_t running,
                         bool is_replayed) {
  out.object([&] {
    out.field("requests", totals.decisions);
    out.field("running", running);
    out.field("waiting", 0);
    out.field("decisions", [&] {
      out.object([&] {
        for (std::size_t i = 0; i < totals.states.size(); ++i)
          out.field(to_string(static_cast<WorkerState>(i)), totals.states[i]);
      });
    });
    out.field("prompt_tokens", totals.prompt_tokens);
    out.field("available_tokens", totals.available_tokens);
    out.field("captured_tokens", totals.cached_tokens);
    out.field("delivered_tokens", [&] { out.null(); });
    out.field("hit_blocks", [&] {
      out.object([&] {
        for (std::size_t i = 0; i < totals.hit_blocks.size(); ++i)
          out.field(to_string(static_cast<events::StorageTier>(i)), totals.hit_blocks[i]);
      });
    });
    write_missed(out, is_replayed, [&](std::size_t reason) { return totals.missed_blocks[reason]; });
  });
}

void write_moment_workers(JsonText& out, const JournalTimeline& timeline,
                          const std::vector<WorkerLoad>& loads) {
  out.array([&] {
    for (std::size_t i = 0; i < loads.size();) {
      const WorkerLoad& worker = loads[i];
      out.object([&] {
        out.field("id", worker.worker.id.value());
        out.field("name", name_of(timeline, worker.worker.id));
        out.field("model", worker.group);
        out.field("up", worker.is_up);
        out.field("ranks", [&] {
          out.array([&] {
            for (; i < loads.size() && loads[i].worker.id == worker.worker.id; ++i)
              out.object([&] {
                out.field("dp_rank", loads[i].worker.rank);
                out.field("state", to_string(loads[i].state));
                write_load(out, loads[i]);
              });
          });
        });
      });
    }
  });
}

constexpr std::string_view kNoMoment = R"({"error":"at is a number of ms since the first decision"})";

std::uint64_t span_of(const JournalTimeline& timeline) {
  return milliseconds_between(timeline.begin(), timeline.end()) + 1;
}

Reply answer_moment(const JournalTimeline& timeline, const ReplayedRun& replayed, std::string_view query) {
  const std::uint64_t span = span_of(timeline);
  const Result<std::size_t> at = query_number(query, "at", span, span);
  if (!at) return json_reply(400, std::string(kNoMoment));
  const Clock::TimePoint time = timeline.begin() + std::chrono::milliseconds(*at);
  const std::size_t made = timeline.made_until(time);
  const JournalTimeline::Moment* moment = timeline.moment_at(time);
  static const std::vector<WorkerLoad> kNone;
  const std::vector<WorkerLoad>& loads = moment != nullptr ? moment->loads : kNone;
  const auto& all = timeline.decisions();
  // Where the first ones were left out, the moment tells what they summed up to.
  const JournalTotals totals = made > 0            ? all[made - 1].totals
                               : moment != nullptr ? moment->totals
                                                   : JournalTotals();
  const auto time_of = [&](std::size_t number) {
    return milliseconds_between(timeline.begin(), all[number].decision.time + std::chrono::microseconds(999));
  };
  JsonText out;
  out.object([&] {
    out.field("source", "journal");
    out.field("run", decision_name(timeline.report().run, DecisionId(0)).substr(0, 16));
    out.field("time_ms", *at);
    out.field("draining", false);
    out.field("journal", [&] {
      out.object([&] {
        out.field("to_ms", span);
        out.field("decisions", timeline.report().decisions);
        out.field("differences", timeline.report().differences);
        out.field("replayed", timeline.report().is_replayed);
        out.field("left_out", timeline.left_out());
        out.field("removed_files", timeline.report().removed_files);
        if (replayed.number != 0) {
          out.field("title", replayed.title);
          out.field("run", replayed.number);
        }
        out.field("moment_ms", moment != nullptr ? milliseconds_between(timeline.begin(), moment->time) : 0);
        // Of the decisions beside this moment, as `at` for the next question.
        if (made > 1) out.field("previous_ms", time_of(made - 2));
        if (made < all.size()) out.field("next_ms", time_of(made));
      });
    });
    out.field("totals",
              [&] { write_moment_totals(out, totals, running_of(loads), timeline.report().is_replayed); });
    out.field("workers", [&] { write_moment_workers(out, timeline, loads); });
    out.field("decisions", [&] {
      out.array([&] {
        for (std::size_t i = made; i > 0 && made - i < kMomentBriefs; --i) {
          DecisionBrief brief = brief_of(receipt_of(timeline, all[i - 1]));
          brief.outcome.reset();
          write_brief(out, timeline.report().run, brief, time);
        }
      });
    });
  });
  return json_reply(200, out.take());
}

Reply answer_timeline(const JournalTimeline& timeline) {
  JsonText out;
  out.object([&] {
    out.field("columns", [&] {
      out.array([&] {
        for (const char* name : {"time_ms", "requests", "running", "held", "stored", "removed", "offloaded",
                                 "exact", "prompt_tokens", "available_tokens", "captured_tokens"})
          out.value(name);
      });
    });
    out.field("rows", [&] {
      out.array([&] {
        for (const JournalTimeline::Moment& moment : timeline.moments())
          out.array([&] {
            out.value(milliseconds_between(timeline.begin(), moment.time));
            out.value(moment.totals.decisions);
            out.value(running_of(moment.loads));
            out.value(sum_over_tiers(moment.loads, &TierChanges::held));
            out.value(sum_over_tiers(moment.loads, &TierChanges::stored));
            out.value(sum_over_tiers(moment.loads, &TierChanges::removed));
            out.value(offloaded_in(moment.loads));
            out.value(std::ranges::count(moment.loads, WorkerState::kExact, &WorkerLoad::state));
            out.value(moment.totals.prompt_tokens);
            out.value(moment.totals.available_tokens);
            out.value(moment.totals.cached_tokens);
          });
      });
    });
  });
  return json_reply(200, out.take());
}

Reply answer_made(const JournalTimeline& timeline, std::string_view name) {
  const auto parsed = parse_decision_name(name);
  const JournalTimeline::Made* made =
      parsed && parsed->run == timeline.report().run ? timeline.find(parsed->decision) : nullptr;
  if (made == nullptr) return json_reply(404, R"({"error":"this decision is not kept here"})");
  JsonText out;
  const auto place_of = [&](events::WorkerId id) { return WorkerPlace{.name = name_of(timeline, id)}; };
  write_receipt(out, timeline.report().run, receipt_of(timeline, *made), place_of, to_text(made->verdict),
                made->verdict == ReplayVerdict::kSame);
  return json_reply(200, out.take());
}

}  // namespace

// The timeline, and the trees of the moments that were asked for last.
class JournalPage::State {
 public:
  State(std::unique_ptr<const JournalTimeline> timeline, std::span<const std::string> files,
        const JournalKey& key, ReplayedRun replayed)
      : timeline_(std::move(timeline)),
        files_(files.begin(), files.end()),
        key_(key),
        replayed_(std::move(replayed)) {}

  const JournalTimeline& timeline() const noexcept { return *timeline_; }
  Reply answer(const ClientRequest& request);

 private:
  struct MomentTree {
    std::string group;
    std::uint64_t at_ms = 0;
    std::shared_ptr<const PrefixTree> tree;
  };

  Reply answer_tree_of(std::string_view query);
  // Those who ask meanwhile wait: a tree is made once.
  Result<std::shared_ptr<const PrefixTree>> tree_at(const std::string& group, std::uint64_t at_ms)
      ASHLAR_EXCLUDES(mu_);

  const std::unique_ptr<const JournalTimeline> timeline_;
  const std::vector<std::string> files_;
  const JournalKey key_;
  const ReplayedRun replayed_;
  Mutex mu_;
  std::deque<MomentTree> trees_ ASHLAR_GUARDED_BY(mu_);  // the last one asked for first
};

Result<std::shared_ptr<const PrefixTree>> JournalPage::State::tree_at(const std::string& group,
                                                                      std::uint64_t at_ms) {
  const MutexLock lock(mu_);
  for (std::size_t i = 0; i < trees_.size(); ++i) {
    if (trees_[i].at_ms != at_ms || trees_[i].group != group) continue;
    std::swap(trees_[i], trees_.front());
    return trees_.front().tree;
  }
  ASHLAR_TRY(index::IndexOutline outline,
             journal_outline(files_, key_, group, timeline_->begin() + std::chrono::milliseconds(at_ms),
                             kMostTreeBytes));
  trees_.push_front(
      {.group = group, .at_ms = at_ms, .tree = std::make_shared<const PrefixTree>(std::move(outline))});
  if (trees_.size() > kMostMomentTrees) trees_.pop_back();
  return trees_.front().tree;
}

Reply JournalPage::State::answer_tree_of(std::string_view query) {
  const auto wanted = parse_tree_query(query);
  if (!wanted) return tree_error(400, wanted.error().message());
  const std::uint64_t span = span_of(*timeline_);
  const Result<std::size_t> at = query_number(query, "at", span, span);
  if (!at) return json_reply(400, std::string(kNoMoment));
  std::string group = query_value(query, "model");
  if (group.empty()) group = timeline_->decisions().back().group;
  const auto tree = tree_at(group, *at);
  if (!tree)
    return tree_error(tree.error().code() == ErrorCode::kUnsupported ? 404 : 503, tree.error().message());
  return tree_reply(**tree, *wanted, {.model = group, .name_of = [this](events::WorkerId id) {
                                        return name_of(*timeline_, id);
                                      }});
}

Reply JournalPage::State::answer(const ClientRequest& request) {
  if (request.method != "GET" && request.method != "HEAD")
    return json_reply(405, R"({"error":"a journal is only read: GET"})");
  const std::size_t mark = std::min(request.target.find('?'), request.target.size());
  const std::string_view path = request.target.substr(0, mark);
  const std::string_view query = request.target.substr(std::min(mark + 1, request.target.size()));
  if (is_page_path(path)) return answer_page(path, false);
  if (path == "/live") return answer_moment(*timeline_, replayed_, query);
  if (path == "/timeline") return answer_timeline(*timeline_);
  if (path == "/tree") return answer_tree_of(query);
  if (path.starts_with("/decisions/")) return answer_made(*timeline_, path.substr(11));
  if (path == "/health") return json_reply(200, R"({"status":"ok"})");
  return json_reply(404, R"({"error":"a journal has /live, /timeline, /tree and /decisions/{id}"})");
}

namespace {

// Everything is answered at once.
class JournalPassage final : public Passage {
 public:
  using Answer = std::function<Reply(const ClientRequest&)>;
  explicit JournalPassage(Answer answer) : answer_(std::move(answer)) {}

  Step begin(const ClientRequest& request, Wake) override { return answer_(request); }
  Step answered(Result<service::Answer>) override { return nothing(); }
  Step resumed() override { return nothing(); }
  Step failed(ForwardFailure, std::string_view) override { return nothing(); }
  HeadVerdict head(unsigned, std::span<const HeaderView>) override { return {.instead = nothing()}; }
  void bytes(std::string_view) override {}
  void ended(PassageEnd) override {}

 private:
  static Reply nothing() {
    ASHLAR_CHECK(false, "a journal asks no worker");
    return {};
  }
  const Answer answer_;
};

}  // namespace

JournalPage::JournalPage(std::unique_ptr<State> state) : state_(std::move(state)) {}
JournalPage::~JournalPage() = default;

Result<std::unique_ptr<JournalPage>> JournalPage::open(std::span<const std::string> files,
                                                       const JournalKey& key, std::size_t max_bytes,
                                                       ReplayedRun replayed) {
  ASHLAR_TRY(auto timeline, JournalTimeline::read(files, key, max_bytes));
  return std::unique_ptr<JournalPage>(
      new JournalPage(std::make_unique<State>(std::move(timeline), files, key, std::move(replayed))));
}

std::unique_ptr<Passage> JournalPage::open() {
  return std::make_unique<JournalPassage>(
      [state = state_.get()](const ClientRequest& request) { return state->answer(request); });
}

const ReplayReport& JournalPage::report() const noexcept {
  return state_->timeline().report();
}

}  // namespace ashlar::service
