// The page over a journal tells every decision and what workers did then.
#include "ashlar/service/journal_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "service/gateway/fleet.h"
#include "service/gateway/past_page.h"
#include "service/gateway/prefix_tree.h"
#include "service/journal/journal_codec.h"
#include "service/journal/journal_outline.h"
#include "service/journal/journal_timeline.h"
#include "service/route/random_routes.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar::service {
namespace {

using testing::Json;

// A random run, its journal, and what its router said of the workers at the end.
class JournalPageTest : public ::testing::Test {
 protected:
  JournalPageTest() : key_(load_journal_key(folder_.file("key"), true).value()) {}

  void record(int steps, std::uint64_t file_bytes = std::uint64_t{1} << 20, std::uint64_t kept_bytes = 0) {
    auto journal = JournalWriter::create({.path = folder_.file("a.journal"),
                                          .key = key_,
                                          .run = 0xABC,
                                          .router = RandomRoutes::tight_options(),
                                          .file_bytes = file_bytes,
                                          .kept_bytes = kept_bytes})
                       .value();
    RandomRoutes routes(3, journal.get());
    for (int i = 0; i < steps; ++i) {
      if (keeps_trees_) before_.emplace_back(routes.decisions().size(), routes.router().outline("m"));
      routes.run(1);
      if (HasFatalFailure()) return;
    }
    made_ = routes.decisions();
    last_ = routes.router().outline("m");
    EXPECT_TRUE(journal->flush());
    const auto runs = find_journals(folder_.path());
    ASSERT_TRUE(runs) << runs.error();
    files_ = runs->front().files;
  }
  std::unique_ptr<JournalPage> open(std::size_t max_bytes = std::size_t{1} << 30) {
    auto page = JournalPage::open(files_, key_, max_bytes);
    EXPECT_TRUE(page) << page.error();
    return *std::move(page);
  }
  // The one file of the run, as the file of that number, with every record for which `keep` is true.
  void rewrite(std::uint32_t number, const std::function<bool(JournalRecord)>& keep) {
    std::ifstream file(files_.at(0), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::span<const std::byte> whole = std::as_bytes(std::span(text));
    const JournalCipher cipher(key_);
    std::uint64_t check = 0;
    std::vector<std::byte> out =
        write_head({.run = 0xABC, .number = number, .options = RandomRoutes::tight_options()}, cipher, check);
    for (std::size_t at = kJournalHeadBytes; at < whole.size();) {
      ByteReader in(whole.subspan(at));
      const std::size_t size = std::size_t{in.get<std::uint32_t>()} + 5;
      const auto record = whole.subspan(at, size);
      at += size + 8;
      if (!keep(static_cast<JournalRecord>(in.get<std::uint8_t>()))) continue;
      check = cipher.check(check, record);
      ByteWriter end;
      end.put(check);
      out.insert(out.end(), record.begin(), record.end());
      out.insert(out.end(), end.bytes().begin(), end.bytes().end());
    }
    files_ = {folder_.file("rewritten.journal")};
    std::ofstream(files_[0], std::ios::binary)
        .write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size()));
  }
  // What the router itself shows of its journal.
  Reply past(JournalWriter& writer, const std::string& target = "/live") {
    return past_.answer(writer, folder_.path(), folder_.file("key"), 0xABC,
                        {.method = "GET", .target = "/past" + target, .headers = {}, .body = {}}, target);
  }
  static Reply get(Gateway& page, const std::string& target, std::string_view method = "GET") {
    const auto passage = page.open();
    const Step step = passage->begin({.method = method, .target = target, .headers = {}, .body = {}}, {});
    return std::get<Reply>(step);
  }

  const ScratchFolder folder_;
  JournalKey key_;
  std::vector<Decision> made_;
  bool keeps_trees_ = false;
  std::vector<std::pair<std::size_t, index::IndexOutline>>
      before_;  // each step: decisions, and what was held
  index::IndexOutline last_;
  std::vector<std::string> files_;
  PastPage past_;
};

TEST_F(JournalPageTest, TellsTheStateOfAnyMoment) {
  record(600);
  const auto page = open();
  const Json last = Json::parse(get(*page, "/live").body);
  EXPECT_EQ(last["source"].text, "journal");
  EXPECT_EQ(last["totals"]["requests"].number, static_cast<double>(made_.size()));
  EXPECT_EQ(last["journal"]["differences"].number, 0);
  std::uint64_t cached = 0;
  for (const Decision& decision : made_)
    if (!decision.is_estimate) cached += decision.cached_tokens;
  EXPECT_EQ(last["totals"]["captured_tokens"].number, static_cast<double>(cached));
  const Json& missed = last["totals"]["missed_blocks"];
  double all = 0;
  for (std::size_t reason = 0; reason < kMissReasons; ++reason) {
    double sum = 0;
    for (const Decision& decision : made_)
      if (!decision.is_estimate) sum += decision.missed[reason];
    EXPECT_EQ(missed[std::string(to_string(static_cast<MissReason>(reason)))].number, sum);
    all += sum;
  }
  EXPECT_GT(all, 0);
  EXPECT_EQ(last["totals"]["delivered_tokens"].kind, Json::Kind::kNull) << "a journal does not know it";

  // Just after each decision its worker has the load that it saw, and the request.
  for (std::size_t i = 0; i < made_.size(); i += 7) {
    const std::uint64_t at = static_cast<std::uint64_t>(
        std::chrono::ceil<std::chrono::milliseconds>(made_[i].time - made_[0].time).count());
    const Json then = Json::parse(get(*page, "/live?at=" + std::to_string(at)).body);
    ASSERT_FALSE(then["decisions"].list.empty());
    const Json& youngest = then["decisions"].list[0];
    const Json receipt = Json::parse(get(*page, "/decisions/" + youngest["id"].text).body);
    EXPECT_EQ(receipt["replayed"].text, "the same");
    EXPECT_EQ(receipt["candidates"].list.size(), youngest["candidates"].number);
    EXPECT_EQ(receipt.map.count("outcome"), 0u);
    if (youngest["id"].text != decision_name(0xABC, made_[i].id)) continue;  // another in the same ms
    EXPECT_EQ(then["totals"]["requests"].number, static_cast<double>(i + 1));
    if (i > 0) {
      EXPECT_LE(then["journal"]["previous_ms"].number, static_cast<double>(at));
    }
    if (i + 1 < made_.size()) {
      const auto next = static_cast<std::uint64_t>(then["journal"]["next_ms"].number);
      const Json after = Json::parse(get(*page, "/live?at=" + std::to_string(next)).body);
      EXPECT_GT(after["totals"]["requests"].number, static_cast<double>(i + 1)) << "a step forward is one";
    }
  }
}

TEST_F(JournalPageTest, MomentsAreThoseOfTheRouter) {
  record(600);
  const auto timeline = JournalTimeline::read(files_, key_, std::size_t{1} << 30).value();
  std::vector<WorkerLoad> last;
  const auto report =
      replay_journal(files_, key_, {}, [&](Clock::TimePoint, const auto& loads) { last = loads(); });
  ASSERT_TRUE(report);
  ASSERT_FALSE(timeline->moments().empty());
  const std::vector<WorkerLoad>& told = timeline->moment_at(timeline->end())->loads;
  ASSERT_EQ(told.size(), last.size());
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i].worker, last[i].worker);
    EXPECT_EQ(told[i].requests, last[i].requests);
    EXPECT_EQ(told[i].tiers, last[i].tiers);
  }
  EXPECT_EQ(timeline->moment_at(timeline->begin() - std::chrono::seconds(1)), nullptr);
}

TEST_F(JournalPageTest, TheTreeOfAMomentIsTheOneOfThen) {
  keeps_trees_ = true;
  record(600);
  const auto numbers = [](index::IndexOutline outline) {
    const PrefixTree tree(std::move(outline));
    return std::array{tree.blocks(), tree.copies(), std::uint64_t{tree.elements()}};
  };
  std::size_t seen = 0;
  for (std::size_t step = 0; step + 1 < before_.size(); ++step) {
    const std::size_t decision = before_[step].first;
    if (before_[step + 1].first == decision || decision % 16 != 0) continue;  // nothing was chosen here
    const auto outline =
        journal_outline(files_, key_, "m", made_[decision].time - Clock::Duration(1), std::uint64_t{1} << 30);
    ASSERT_TRUE(outline) << outline.error();
    EXPECT_EQ(numbers(*outline), numbers(before_[step].second)) << "before decision " << decision;
    seen += outline->runs.size();
  }
  EXPECT_GT(seen, 0u);
  const auto page = open();
  const Json end = Json::parse(get(*page, "/tree?depth=64&limit=2000").body);
  const std::array<std::uint64_t, 3> all = numbers(last_);
  EXPECT_EQ(end["blocks"].number, static_cast<double>(all[0]));
  EXPECT_EQ(end["copies"].number, static_cast<double>(all[1]));
  EXPECT_EQ(end["elements"].number, static_cast<double>(all[2]));
  EXPECT_EQ(end["model"].text, "m");
  // Elements keep their names, so that one can be opened at another moment.
  const Json& first = end["root"]["shown"].list.at(0);
  const Json below = Json::parse(get(*page, "/tree?model=m&root=" + first["name"].text).body);
  EXPECT_EQ(below["root"]["below"].number, first["below"].number);
  EXPECT_EQ(Json::parse(get(*page, "/tree?at=0&model=other").body)["blocks"].number, 0);
  EXPECT_EQ(get(*page, "/tree?at=0&root=123456").status, 404u);
  EXPECT_EQ(get(*page, "/tree?at=x").status, 400u);
  EXPECT_EQ(get(*page, "/tree?depth=x").status, 400u);
  const auto refused = journal_outline(files_, key_, "m", Clock::TimePoint::max(), 1000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
}

TEST_F(JournalPageTest, WorkersHaveTheirNames) {
  const events::Worker one{.id = events::WorkerId(kFirstOwnId)};
  const events::Worker two{.id = events::WorkerId(kFirstOwnId + 1)};
  {
    auto journal = JournalWriter::create({.path = folder_.file("a.journal"), .key = key_, .run = 5}).value();
    Router router({}, journal.get());
    router.add_worker({.id = one.id, .group = "m", .has_events = true, .name = "first"});
    router.add_worker({.id = two.id, .group = "m", .has_events = true});
    for (const events::Worker& worker : {one, two}) router.set_state(worker, WorkerState::kExact);
    events::BlocksStored event;
    const events::StoredBlock block{.local = tokens::LocalHash(1), .name = events::BlockName(1)};
    event.worker = one;
    event.blocks = std::span(&block, 1);
    router.sink().store(event);
    const tokens::LocalHash locals[] = {tokens::LocalHash(1), tokens::LocalHash(2)};
    ASSERT_EQ(router.choose({.group = "m", .locals = locals, .prompt_tokens = 33, .block_size = 16})
                  ->choice()
                  .worker,
              one);
    ASSERT_TRUE(journal->flush());
  }
  files_ = {folder_.file("a.journal")};
  const auto page = open();
  const Json live = Json::parse(get(*page, "/live").body);
  ASSERT_EQ(live["workers"].list.size(), 2u);
  EXPECT_EQ(live["workers"].list[0]["name"].text, "first");
  EXPECT_EQ(live["workers"].list[1]["name"].text, "worker 1") << "it has none";
  ASSERT_EQ(live["decisions"].list.size(), 1u);
  EXPECT_EQ(live["decisions"].list[0]["worker"].text, "first");
  const Json receipt = Json::parse(get(*page, "/decisions/" + live["decisions"].list[0]["id"].text).body);
  EXPECT_EQ(receipt["worker"].text, "first");
  EXPECT_EQ(receipt["candidates"].list.at(1)["name"].text, "worker 1");
  EXPECT_EQ(receipt["missed_blocks"]["never_seen"].number, 1);
  EXPECT_EQ(Json::parse(get(*page, "/tree").body)["workers"].list.at(0)["name"].text, "first");
}

TEST_F(JournalPageTest, KeepsSoManyMomentsAndBytes) {
  record(12'000);
  const auto whole = JournalTimeline::read(files_, key_, std::size_t{1} << 30).value();
  EXPECT_EQ(whole->decisions().size(), made_.size());
  EXPECT_EQ(whole->left_out(), 0u);
  EXPECT_LT(whole->moments().size(), 2 * JournalTimeline::kMostMoments);
  EXPECT_GT(whole->moments().size(), JournalTimeline::kMostMoments / 4);
  EXPECT_TRUE(std::ranges::is_sorted(whole->moments(), {}, &JournalTimeline::Moment::time));
  const auto part = JournalTimeline::read(files_, key_, 100'000).value();
  EXPECT_GT(part->left_out(), 0u);
  EXPECT_EQ(part->left_out() + part->decisions().size(), made_.size());
  EXPECT_EQ(part->decisions().back().totals.decisions, made_.size()) << "those left out count";
  EXPECT_EQ(part->find(made_.front().id), nullptr);
  EXPECT_NE(part->find(made_.back().id), nullptr);
}

TEST_F(JournalPageTest, BeginsWithACheckpointWhereTheFirstFilesAreGone) {
  record(2000, 20'000, 150'000);
  const auto page = open();
  EXPECT_GT(page->report().removed_files, 0u);
  const Json live = Json::parse(get(*page, "/live").body);
  EXPECT_EQ(live["journal"]["replayed"].number, 1);
  EXPECT_EQ(live["journal"]["differences"].number, 0);
  EXPECT_FALSE(live["workers"].list.empty());
  EXPECT_FALSE(live["decisions"].list.empty());
  EXPECT_EQ(get(*page, "/tree").status, 200u);
}

TEST_F(JournalPageTest, ACheckpointThatIsNotWholeShowsNothing) {
  record(2000, 20'000);
  ASSERT_GT(files_.size(), 1u);
  files_ = {files_[1]};
  std::filesystem::resize_file(files_[0], 300);
  EXPECT_EQ(JournalPage::open(files_, key_, std::size_t{1} << 30).error().code(), ErrorCode::kNotFound);
}

TEST_F(JournalPageTest, ReasonsOfMissesAreThoseOfDecisionsThatReplay) {
  record(600);
  const std::vector<std::string> whole = files_;
  rewrite(0, [](JournalRecord type) { return type != JournalRecord::kStored; });
  {
    const auto timeline = JournalTimeline::read(files_, key_, std::size_t{1} << 30).value();
    const auto page = open();
    ASSERT_GT(page->report().differences, 0u);
    ASSERT_LT(page->report().differences, page->report().decisions);
    std::uint64_t sum = 0;
    for (const JournalTimeline::Made& made : timeline->decisions()) {
      const Reply reply = get(*page, "/decisions/" + decision_name(0xABC, made.decision.id));
      const Json missed = Json::parse(reply.body)["missed_blocks"];
      if (made.verdict == ReplayVerdict::kSame) {
        EXPECT_EQ(missed.map.size(), kMissReasons);
        if (!made.decision.is_estimate)
          sum += std::accumulate(made.decision.missed.begin(), made.decision.missed.end(), std::uint64_t{0});
      } else {
        EXPECT_EQ(missed.kind, Json::Kind::kNull);
        EXPECT_EQ(made.decision.missed, (std::array<std::uint32_t, kMissReasons>{}));
      }
    }
    const Json totals = Json::parse(get(*page, "/live").body)["totals"];
    double told = 0;
    for (const auto& [reason, blocks] : totals["missed_blocks"].map) told += blocks.number;
    EXPECT_EQ(told, static_cast<double>(sum));
  }
  files_ = whole;
  rewrite(1, [](JournalRecord) { return true; });
  const auto page = open();
  const Json live = Json::parse(get(*page, "/live").body);
  EXPECT_EQ(live["journal"]["replayed"].number, 0) << "it has no checkpoint";
  EXPECT_EQ(live["journal"]["removed_files"].number, 1);
  EXPECT_EQ(live["totals"]["missed_blocks"].kind, Json::Kind::kNull);
  const Json receipt = Json::parse(get(*page, "/decisions/" + live["decisions"].list.at(0)["id"].text).body);
  EXPECT_EQ(receipt["missed_blocks"].kind, Json::Kind::kNull);
}

TEST_F(JournalPageTest, ThePastIsThatOfAJournalThatHasEndedToo) {
  auto journal = JournalWriter::create({.path = folder_.file("0000000000000abc.journal"),
                                        .key = key_,
                                        .run = 0xABC,
                                        .router = RandomRoutes::tight_options(),
                                        .max_waiting_bytes = std::size_t{1} << 20})
                     .value();
  EXPECT_EQ(past(*journal).status, 503u) << "nothing is decided yet";
  RandomRoutes routes(3, journal.get());
  routes.run(100);
  ASSERT_TRUE(journal->flush());
  const std::vector<events::BlockName> names(200'000, events::BlockName(1));  // more than may wait
  journal->removed(events::Worker{.id = events::WorkerId(1)}, events::StorageTier::kDevice, names);
  ASSERT_NE(journal->status().failure, "");
  const Reply reply = past(*journal);
  ASSERT_EQ(reply.status, 200u) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["totals"]["requests"].number,
            static_cast<double>(routes.decisions().size()));
  EXPECT_EQ(past(*journal, "/timeline").status, 200u);
}

TEST_F(JournalPageTest, ThePastReadsTheYoungestFiles) {
  const auto read = [&](const std::vector<std::uintmax_t>& sizes) {
    std::vector<std::string> files;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      files.push_back(folder_.file(std::to_string(i)));
      std::ofstream(files.back()).close();
      std::filesystem::resize_file(files.back(), sizes[i]);
    }
    const auto youngest = PastPage::youngest(files, 100);
    return youngest ? std::optional(youngest->size()) : std::nullopt;
  };
  EXPECT_EQ(read({1, 1, 1}), 3u) << "all of them";
  EXPECT_EQ(read({110, 110, 1}), 2u) << "and the one in which they begin";
  EXPECT_EQ(read({1, 50, 50}), 2u);
  EXPECT_EQ(read({1, 110}), 1u);
  EXPECT_EQ(read({1, 201, 1}), 1u) << "too long a file";
  EXPECT_EQ(read({1, 201}), std::nullopt);
  const std::vector<std::string> none = {folder_.file("none")};
  EXPECT_EQ(PastPage::youngest(none, 100).error().code(), ErrorCode::kNotFound);
}

TEST_F(JournalPageTest, AnswersWhatThePageAsks) {
  record(200);
  const auto page = open();
  EXPECT_EQ(get(*page, "/").status, 200u);
  EXPECT_EQ(get(*page, "/ui/travel.js").status, 200u);
  EXPECT_EQ(get(*page, "/ui/session.json").body, R"({"needs_token":false})");
  const Json timeline = Json::parse(get(*page, "/timeline").body);
  ASSERT_FALSE(timeline["rows"].list.empty());
  EXPECT_EQ(timeline["rows"].list[0].list.size(), timeline["columns"].list.size());
  EXPECT_EQ(get(*page, "/live?at=x").status, 400u);
  EXPECT_EQ(get(*page, "/live?at=99999999999999999999").status, 200u);
  EXPECT_EQ(get(*page, "/decisions/nothing").status, 404u);
  EXPECT_EQ(get(*page, "/decisions/0000000000000001-1").status, 404u) << "of another run";
  EXPECT_EQ(get(*page, "/metrics").status, 404u);
  EXPECT_EQ(get(*page, "/live", "POST").status, 405u);
}

}  // namespace
}  // namespace ashlar::service
