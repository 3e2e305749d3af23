#include "apps/ashlar/run_journals.h"

#include <utility>

namespace ashlar::apps {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{32} << 20;  // bytes; a batch of requests adds less to it

}  // namespace

Result<RunJournals> RunJournals::create() {
  ASHLAR_TRY(TemporaryFolder folder, TemporaryFolder::create("ashlar_replay"));
  ASHLAR_TRY(const service::JournalKey key, service::load_journal_key(folder.file("key"), true));
  return RunJournals(std::move(folder), key);
}

Result<void> RunJournals::begin(const replay::ReplayConfig& config) {
  writer_.reset();
  path_ = folder_.file(std::to_string(++number_) + ".journal");
  ASHLAR_TRY(writer_, service::JournalWriter::create({.path = path_,
                                                      .key = key_,
                                                      .run = number_,
                                                      .router = {.seed = config.seed},
                                                      .max_waiting_bytes = std::size_t{1} << 30,
                                                      .file_bytes = UINT64_MAX}));
  return {};
}

void RunJournals::keep_up() {
  // If it failed, finish() says so.
  if (writer_ && writer_->status().waiting > kMostWaiting) static_cast<void>(writer_->flush());
}

Result<std::shared_ptr<service::JournalPage>> RunJournals::finish(const std::string& title,
                                                                  std::size_t max_bytes) {
  const Result<void> written = writer_->flush();
  writer_.reset();
  ASHLAR_RETURN_IF_ERROR(written);
  ASHLAR_TRY(auto page, service::JournalPage::open(std::span(&path_, 1), key_, max_bytes,
                                                   {.number = number_, .title = title}));
  return std::shared_ptr<service::JournalPage>(std::move(page));
}

std::string title_of(const replay::ReplayConfig& config) {
  std::string title = config.policy + ", " + std::string(to_string(config.routing)) + ", " +
                      std::to_string(config.workers) + (config.workers == 1 ? " worker" : " workers");
  for (std::size_t i = 0; i < replay::kReplayTiers; ++i)
    if (config.tier_blocks[i] != 0)
      title += ", G" + std::to_string(i + 1) + " " + std::to_string(config.tier_blocks[i]);
  return title;
}

}  // namespace ashlar::apps
