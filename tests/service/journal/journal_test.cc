// A journal gives the same choices again, says when it was changed, and ends cleanly where a disk does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "ashlar/service/journal.h"
#include "ashlar/testing/time_box.h"
#include "service/journal/journal_codec.h"
#include "service/route/random_routes.h"

namespace ashlar::service {
namespace {

using ::testing::HasSubstr;

constexpr std::uintmax_t kHead = kJournalHeadBytes;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ashlar_test_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    key_ = load_journal_key(folder_ + "/key", true).value();
  }
  ~JournalTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "a.journal") const { return folder_ + "/" + name; }
  JournalWriter::Options options(const std::string& name = "a.journal") const {
    return {.path = path(name), .key = key_, .run = 0xABC, .router = RandomRoutes::tight_options()};
  }
  // What a random run decided; its journal is at path().
  std::vector<Decision> record(std::uint64_t seed, int steps) {
    auto journal = JournalWriter::create(options()).value();
    RandomRoutes routes(seed, journal.get());
    routes.run(steps);
    EXPECT_TRUE(journal->flush());
    return routes.decisions();
  }
  // The same in files of that length.
  std::vector<Decision> record_files(std::uint64_t seed, int steps, std::uint64_t file_bytes,
                                     std::uint64_t kept_bytes = 0, const std::string& failure = {}) {
    auto limits = options();
    limits.file_bytes = file_bytes;
    limits.kept_bytes = kept_bytes;
    auto journal = JournalWriter::create(limits).value();
    RandomRoutes routes(seed, journal.get());
    for (int i = 0; i < steps; ++i) {
      routes.run(1);
      if (i % 3 == 0) routes.router().tidy();  // of which no file says anything
    }
    EXPECT_EQ(journal->flush().has_value(), failure.empty());
    EXPECT_THAT(journal->status().failure, HasSubstr(failure));
    return routes.decisions();
  }
  // The files of the run "a".
  std::vector<std::string> run_files() const {
    const auto runs = find_journals(folder_);
    for (const JournalRun& run : *runs)
      if (run.name == "a") return run.files;
    return {};
  }
  std::string bytes() const {
    std::ifstream in(path(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void write(const std::string& bytes) const {
    std::ofstream out(path(), std::ios::binary | std::ios::trunc);
    out << bytes;
  }

  std::string folder_;
  JournalKey key_{};
};

TEST_F(JournalTest, EveryChoiceComesOutAgain) {
  ashlar::testing::TimeBox box(0.5);
  std::uint64_t seed = 1;
  do {
    const std::vector<Decision> made = record(seed, 800);
    std::vector<Decision> told;
    const ReplayReport report =
        replay_journal(path(), key_,
                       [&](const Decision& decision, const std::string& group, ReplayVerdict verdict) {
                         EXPECT_EQ(group, "m");
                         EXPECT_EQ(verdict, ReplayVerdict::kSame) << "decision " << decision.id.value();
                         told.push_back(decision);
                       })
            .value();
    EXPECT_EQ(report.run, 0xABCu);
    EXPECT_EQ(report.differences, 0u) << "seed " << seed;
    EXPECT_EQ(told, made) << "seed " << seed;
    EXPECT_EQ(report.decisions, made.size()) << "seed " << seed;
    EXPECT_GT(report.put_off, 0u) << "seed " << seed;
    EXPECT_EQ(report.unfinished_bytes, 0u);
    std::filesystem::remove(path());
    ++seed;
  } while (!box.over());
}

TEST_F(JournalTest, AWorkerThatIsLateIsLateAgain) {
  {
    auto journal = JournalWriter::create(options()).value();
    ManualClock clock;
    Router router({}, journal.get(), clock);
    const events::Worker worker{.id = events::WorkerId(1)};
    router.add_worker({.id = worker.id, .group = "m", .has_events = true});
    router.set_state(worker, WorkerState::kExact);
    router.beat(worker, std::chrono::seconds(2));
    for (int i = 0; i < 4; ++i) {
      router.choose({.group = "m", .prompt_tokens = 5, .block_size = 4}).value();
      clock.advance(std::chrono::seconds(1));
    }
  }
  std::vector<WorkerState> states;
  const ReplayReport report =
      replay_journal(path(), key_, [&](const Decision& decision, const std::string&, ReplayVerdict) {
        states.push_back(decision.choice().state);
      }).value();
  EXPECT_EQ(report.differences, 0u);
  EXPECT_EQ(states, (std::vector{WorkerState::kExact, WorkerState::kExact, WorkerState::kDegraded,
                                 WorkerState::kDegraded}));
}

TEST_F(JournalTest, ExpectationsThatChangeNothingAreNotWritten) {
  auto journal = JournalWriter::create(options()).value();
  Router router({}, journal.get());
  const events::Worker worker{.id = events::WorkerId(1)};
  router.add_worker({.id = worker.id, .group = "m", .has_events = true});
  router.set_state(worker, WorkerState::kExact);
  EXPECT_TRUE(journal->flush());
  const std::size_t before = bytes().size();
  const std::vector<tokens::LocalHash> locals = {tokens::LocalHash(1)};
  router.expect(worker, locals);
  router.expect({.id = worker.id, .rank = 1}, locals);
  router.expect({.id = events::WorkerId(2)}, locals);
  EXPECT_TRUE(journal->flush());
  EXPECT_EQ(bytes().size(), before);
  router.set_state(worker, WorkerState::kDegraded);
  router.expect(worker, locals);
  EXPECT_TRUE(journal->flush());
  EXPECT_GT(bytes().size(), before);
}

TEST_F(JournalTest, HashesAndSessionsAreNotInTheFile) {
  {
    auto journal = JournalWriter::create(options()).value();
    Router router({}, journal.get());
    router.add_worker({.id = events::WorkerId(1), .group = "m"});
    const std::vector<tokens::LocalHash> locals = {tokens::LocalHash(0x1122334455667788)};
    const std::vector<events::StoredBlock> blocks = {
        {.local = locals[0], .name = events::BlockName(0x0102030405060708)}};
    events::BlocksStored event;
    event.worker = {.id = events::WorkerId(1)};
    event.blocks = blocks;
    router.sink().store(event);
    router.release(router
                       .choose({.group = "m",
                                .locals = locals,
                                .prompt_tokens = 20,
                                .block_size = 16,
                                .session = 0x99AABBCCDDEEFF11})
                       ->id);
  }
  const std::string text = bytes();
  for (const std::uint64_t secret : {0x1122334455667788u, 0x0102030405060708u, 0x99AABBCCDDEEFF11u})
    EXPECT_EQ(text.find(std::string(reinterpret_cast<const char*>(&secret), 8)), std::string::npos);
  EXPECT_EQ(text.find(std::string(key_.begin(), key_.end())), std::string::npos);
}

TEST_F(JournalTest, AnyChangedByteIsNoticed) {
  record(3, 60);
  const std::string whole = bytes();
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    std::string changed = whole;
    const std::size_t at = random.below(whole.size());
    changed[at] = static_cast<char>(changed[at] ^ (1 + random.below(255)));
    write(changed);
    const auto report = replay_journal(path(), key_);
    if (report) {
      // A length that leads beyond the end looks like a record that was not finished.
      EXPECT_GT(report->unfinished_bytes, 0u) << "byte " << at;
    } else {
      EXPECT_EQ(report.error().code(), ErrorCode::kCorruption) << report.error();
    }
  }
}

TEST_F(JournalTest, AMissingRecordIsNoticed) {
  record(3, 60);
  const std::string whole = bytes();
  std::uint32_t size = 0;
  std::memcpy(&size, whole.data() + kHead, sizeof size);
  write(whole.substr(0, kHead) + whole.substr(kHead + 5 + size + 8));
  const auto report = replay_journal(path(), key_);
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message(), HasSubstr("one is missing"));
}

TEST_F(JournalTest, AnUnfinishedEndIsReadUpToIt) {
  record(3, 60);
  const std::string whole = bytes();
  const ReplayReport all = replay_journal(path(), key_).value();
  write(whole.substr(0, whole.size() - 3));
  const ReplayReport cut = replay_journal(path(), key_).value();
  EXPECT_EQ(cut.records, all.records - 1);
  EXPECT_GT(cut.unfinished_bytes, 0u);
}

TEST_F(JournalTest, OtherKeysAndOtherFilesAreRefused) {
  record(3, 10);
  JournalKey other = key_;
  other[3] = static_cast<std::uint8_t>(other[3] ^ 1);
  EXPECT_THAT(replay_journal(path(), other).error().message(), HasSubstr("another key"));
  write("not a journal");
  EXPECT_THAT(replay_journal(path(), key_).error().message(), HasSubstr("no journal"));
  EXPECT_EQ(replay_journal(path("none"), key_).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(JournalWriter::create(options()).error().code(), ErrorCode::kAlreadyExists);
}

TEST_F(JournalTest, KeysAreKeptForTheirOwnerAndNeverGuessed) {
  EXPECT_EQ(load_journal_key(path("key"), true).value(), key_) << "made once";
  EXPECT_EQ(std::filesystem::status(path("key")).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(load_journal_key(path("none"), false).error().code(), ErrorCode::kIo);
  std::ofstream(path("short")) << "abc";
  EXPECT_EQ(load_journal_key(path("short"), true).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(JournalTest, GoesOnFromFileToFile) {
  const std::vector<Decision> made = record_files(7, 600, 4000);
  const std::vector<std::string> files = run_files();
  ASSERT_GT(files.size(), 5u);
  for (const std::string& file : std::span(files).first(files.size() - 1))
    EXPECT_GE(std::filesystem::file_size(file), 4000u) << file;
  std::vector<Decision> told;
  const ReplayReport report =
      replay_journal(files, key_, [&](const Decision& decision, const std::string&, ReplayVerdict verdict) {
        EXPECT_EQ(verdict, ReplayVerdict::kSame);
        told.push_back(decision);
      }).value();
  EXPECT_EQ(told, made);
  EXPECT_EQ(report.differences, 0u);
  EXPECT_EQ(report.files, files.size());
  EXPECT_EQ(report.removed_files, 0u);
  // The same as from one file.
  const std::uint64_t records = report.records;
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directory(folder_);
  EXPECT_EQ(record(7, 600), made);
  EXPECT_EQ(replay_journal(path(), key_)->records, records);
}

TEST_F(JournalTest, AFileThatIsMissingOrCutIsNoticed) {
  record_files(7, 300, 4000);
  const std::vector<std::string> files = run_files();
  ASSERT_GT(files.size(), 3u);
  std::vector<std::string> gap = files;
  gap.erase(gap.begin() + 1);
  EXPECT_THAT(replay_journal(gap, key_).error().message(), HasSubstr("one is missing"));
  std::vector<std::string> turned = files;
  std::swap(turned[1], turned[2]);
  EXPECT_EQ(replay_journal(turned, key_).error().code(), ErrorCode::kCorruption);
  // Within a record, and at the end of one.
  for (const std::uintmax_t size : {std::filesystem::file_size(files[1]) - 3, kHead}) {
    std::filesystem::resize_file(files[1], size);
    EXPECT_THAT(replay_journal(files, key_).error().message(), HasSubstr("does not go on")) << size;
  }
}

// Whether two decisions are the same but for which of the missing blocks were named before: a checkpoint does
// not say.
bool same_but_names(Decision a, Decision b) {
  for (Decision* const decision : {&a, &b}) {
    auto& missed = decision->missed;
    missed[static_cast<std::size_t>(MissReason::kEvicted)] +=
        std::exchange(missed[static_cast<std::size_t>(MissReason::kNeverSeen)], 0);
  }
  return a == b;
}

TEST_F(JournalTest, AReplayBeginsWithAnyFile) {
  ashlar::testing::TimeBox box(0.5);
  std::uint64_t seed = 1;
  do {
    const std::vector<Decision> made = record_files(seed, 900, 6000);
    const std::vector<std::string> files = run_files();
    ASSERT_GT(files.size(), 3u);
    std::size_t last = made.size();
    for (std::size_t first = 0; first < files.size(); ++first) {
      std::vector<Decision> told;
      const ReplayReport report =
          replay_journal(std::span(files).subspan(first), key_,
                         [&](const Decision& decision, const std::string&, ReplayVerdict verdict) {
                           EXPECT_EQ(verdict, ReplayVerdict::kSame)
                               << "seed " << seed << " file " << first << " decision " << decision.id.value();
                           told.push_back(decision);
                         })
              .value();
      EXPECT_TRUE(report.is_replayed);
      EXPECT_EQ(report.removed_files, first);
      EXPECT_EQ(report.differences, 0u) << "seed " << seed << " file " << first;
      ASSERT_LE(told.size(), last) << "each begins later, with no decision in between perhaps";
      last = told.size();
      EXPECT_TRUE(std::equal(told.rbegin(), told.rend(), made.rbegin(), same_but_names)) << "seed " << seed;
      if (HasFailure()) return;
    }
    EXPECT_LT(last, made.size());
    for (std::size_t i = 0; i < made.size(); i += 50) {
      const std::string file = file_of_decision(files, key_, made[i].id).value();
      bool is_there = false;
      ASSERT_TRUE(
          replay_journal(file, key_, [&](const Decision& decision, const std::string&, ReplayVerdict) {
            is_there |= same_but_names(decision, made[i]);
          }));
      EXPECT_TRUE(is_there) << "decision " << made[i].id.value() << " in " << file;
    }
    for (const std::string& file : files) std::filesystem::remove(file);
    ++seed;
  } while (!box.over());
}

TEST_F(JournalTest, ACheckpointThatWasNotFinishedIsNotReplayedFrom) {
  record_files(7, 600, 4000);
  const std::string second = run_files().at(1);
  std::filesystem::resize_file(second, kHead + 400);
  const ReplayReport report = replay_journal(second, key_).value();
  EXPECT_FALSE(report.is_replayed);
  EXPECT_GT(report.unfinished_bytes, 0u);
}

TEST_F(JournalTest, TheOldestFilesAreRemovedAndTheRestIsReplayed) {
  record(1, 100);  // an earlier run
  std::filesystem::rename(path(), path("earlier.journal"));
  const std::vector<Decision> made = record_files(7, 900, 4000, 80'000);
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    if (entry.path().extension() == ".journal") bytes += entry.file_size();
  EXPECT_LE(bytes, 80'000u);
  EXPECT_FALSE(std::filesystem::exists(path("earlier.journal")));
  EXPECT_FALSE(std::filesystem::exists(path()));
  const std::vector<std::string> files = run_files();
  std::vector<Decision> told;
  const ReplayReport report =
      replay_journal(files, key_, [&](const Decision& decision, const std::string&, ReplayVerdict verdict) {
        EXPECT_EQ(verdict, ReplayVerdict::kSame);
        told.push_back(decision);
      }).value();
  EXPECT_GT(report.removed_files, 0u);
  EXPECT_EQ(report.differences, 0u);
  ASSERT_FALSE(told.empty());
  ASSERT_LT(told.size(), made.size());
  EXPECT_TRUE(std::equal(told.rbegin(), told.rend(), made.rbegin())) << "the last ones, as they were made";
  // A change in them still shows.
  std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(200);
  file.put('!');
  file.close();
  EXPECT_EQ(replay_journal(files, key_).error().code(), ErrorCode::kCorruption);
  auto none = options("b.journal");
  none.kept_bytes = none.file_bytes - 1;
  EXPECT_EQ(JournalWriter::create(none).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(JournalTest, AFlushWaitsForNothingThatComesMeanwhile) {
  auto limits = options();
  limits.max_waiting_bytes = std::size_t{1} << 30;
  auto journal = JournalWriter::create(limits).value();
  std::atomic<bool> is_flushed{false};
  std::thread traffic([&] {
    for (std::uint64_t i = 0; !is_flushed; ++i) journal->worker_removed(events::WorkerId(i));
  });
  while (journal->status().records < 100) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    const JournalStatus before = journal->status();
    EXPECT_TRUE(journal->flush());
    EXPECT_GE(journal->status().bytes, before.bytes + before.waiting);
  }
  is_flushed = true;
  traffic.join();
}

// The kernel refuses to make the file longer, as it does where the disk is full.
TEST_F(JournalTest, AWriteThatFailsEndsTheJournalNotTheRouter) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  auto journal = JournalWriter::create(options()).value();
  RandomRoutes routes(3, journal.get());
  routes.run(20);
  ASSERT_TRUE(journal->flush());
  rlimit now = before;
  now.rlim_cur = std::filesystem::file_size(path()) + 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  Result<void> flushed;
  while (flushed) {
    routes.run(20);
    flushed = journal->flush();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(flushed.error().code(), ErrorCode::kIo);
  EXPECT_THAT(journal->status().failure, HasSubstr("cannot write"));
  const std::size_t chosen = routes.chosen();
  routes.run(200);
  EXPECT_GT(routes.chosen(), chosen);
  journal.reset();
  const ReplayReport report = replay_journal(path(), key_).value();
  EXPECT_GT(report.decisions, 0u);
  EXPECT_EQ(report.differences, 0u);
}

TEST_F(JournalTest, ANextFileThatCannotBeMadeEndsIt) {
  std::ofstream(path("a.000002.journal")) << "taken";
  record_files(7, 600, 4000, 0, "cannot make the journal");
  const std::vector<std::string> files = {path(), path("a.000001.journal")};
  EXPECT_EQ(replay_journal(files, key_)->differences, 0u);
}

TEST_F(JournalTest, AFullDiskEndsTheJournalNotTheRouter) {
  auto limits = options();
  limits.path = "/dev/full";
  ASSERT_FALSE(JournalWriter::create(limits)) << "it makes files, and writes to no other";
  // A writer whose thread can take nothing more: what waits is bounded.
  auto small = options();
  small.max_waiting_bytes = 200;
  auto journal = JournalWriter::create(small).value();
  RandomRoutes routes(3, journal.get());
  const std::vector<tokens::LocalHash> locals(64, tokens::LocalHash(1));
  routes.run(5);
  // One record alone is larger than what may wait.
  const auto large =
      routes.router().choose({.group = "m", .locals = locals, .prompt_tokens = 1024, .block_size = 16});
  if (large) routes.router().release(large->id);
  EXPECT_THAT(journal->status().failure, HasSubstr("slower than the traffic"));
  EXPECT_EQ(journal->flush().error().code(), ErrorCode::kIo);
  routes.run(200);
  EXPECT_GT(routes.chosen(), 0u);
  journal.reset();
  EXPECT_EQ(replay_journal(path(), key_)->differences, 0u);
}

// As an earlier version wrote it: another head, and a chain of checks that begins with it.
TEST_F(JournalTest, Version3IsReadWithoutLimitsOfPredictions) {
  RouterOptions router = RandomRoutes::tight_options();
  router.max_predicted_blocks = router.max_predictions = SIZE_MAX;
  auto written = options();
  written.router = router;
  std::size_t made = 0;
  {
    auto journal = JournalWriter::create(written).value();
    RandomRoutes routes(5, journal.get(), router);
    routes.run(300);
    ASSERT_TRUE(journal->flush());
    made = routes.chosen();
  }
  const std::string now = bytes();
  const JournalCipher cipher(key_);
  std::uint64_t check = 0;
  std::string old;
  const auto put = [&old](std::span<const std::byte> part) {
    old.append(reinterpret_cast<const char*>(part.data()), part.size());
  };
  put(write_head({.version = 3, .run = 0xABC, .options = router}, cipher, check));
  ASSERT_EQ(old.size(), kJournalHeadBytes - 16);
  for (std::size_t at = kJournalHeadBytes; at < now.size();) {
    std::uint32_t size = 0;
    std::memcpy(&size, now.data() + at, sizeof size);
    const auto frame = std::as_bytes(std::span(now)).subspan(at, 5 + size);
    check = cipher.check(check, frame);
    put(frame);
    put(std::as_bytes(std::span(&check, 1)));
    at += 5 + size + 8;
  }
  write(old);
  const ReplayReport report = replay_journal(path(), key_).value();
  EXPECT_EQ(report.run, 0xABCu);
  EXPECT_EQ(report.differences, 0u);
  EXPECT_GE(report.decisions, made);
}

TEST_F(JournalTest, WorkersHaveTheirNamesInEveryFile) {
  auto limits = options();
  limits.file_bytes = 2000;
  {
    auto journal = JournalWriter::create(limits).value();
    Router router(limits.router, journal.get());
    router.add_worker({.id = events::WorkerId(1), .group = "m", .name = "alpha"});
    router.add_worker({.id = events::WorkerId(2), .group = "m", .name = "beta"});
    while (journal->status().files < 3)
      router.release(router.choose({.group = "m", .prompt_tokens = 5, .block_size = 4})->id);
    ASSERT_TRUE(journal->flush());
  }
  const std::map<events::WorkerId, std::string> names = {{events::WorkerId(1), "alpha"},
                                                         {events::WorkerId(2), "beta"}};
  const std::vector<std::string> files = run_files();
  EXPECT_EQ(replay_journal(files, key_)->worker_names, names);
  EXPECT_EQ(replay_journal(files.back(), key_)->worker_names, names) << "from a checkpoint";
}

TEST(DecisionNames, ComeBack) {
  const std::string name = decision_name(0x1F, DecisionId(42));
  EXPECT_EQ(name, "000000000000001f-42");
  EXPECT_EQ(parse_decision_name(name)->run, 0x1Fu);
  EXPECT_EQ(parse_decision_name(name)->decision, DecisionId(42));
  for (const char* bad : {"", "42", "000000000000001f-", "000000000000001g-1", "000000000000001f-1x"})
    EXPECT_FALSE(parse_decision_name(bad)) << bad;
}

}  // namespace
}  // namespace ashlar::service
