#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"
#include "service/journal/journal_checkpoint.h"
#include "service/journal/journal_codec.h"
#include "service/journal/journal_outline.h"
#include "service/route/route_core.h"

namespace ashlar::service {

namespace {

class JournalFile {
 public:
  JournalFile(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}

  // Reads `count` bytes; fewer at the end of the file.
  std::vector<std::byte> read(std::size_t count) {
    std::vector<std::byte> bytes(count);
    bytes.resize(std::fread(bytes.data(), 1, count, file_.get()));
    offset_ += bytes.size();
    return bytes;
  }
  std::uint64_t offset() const noexcept { return offset_; }
  Error damaged(const char* what) const {
    return make_error(ErrorCode::kCorruption, "%s at byte %llu: %s", path_.c_str(),
                      static_cast<unsigned long long>(offset_), what);
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
  std::uint64_t offset_ = 0;
};

Result<JournalFile> open_file(const std::string& path) {
  std::FILE* opened = std::fopen(path.c_str(), "rb");
  if (opened == nullptr)
    return make_error(ErrorCode::kNotFound, "cannot open the journal %s: %s", path.c_str(),
                      std::generic_category().message(errno).c_str());
  return JournalFile(opened, path);
}

// Where a reader stops: before the first choice, first byte or end that is later.
struct JournalEnd {
  Clock::TimePoint until = Clock::TimePoint::max();
  std::uint64_t max_bytes = UINT64_MAX;  // of all files

  bool is_before(JournalRecord type, std::span<const std::byte> payload) const {
    ByteReader in(payload);
    if (type == JournalRecord::kFirstByte || type == JournalRecord::kReleased) {
      in.get<std::uint64_t>();
    } else if (type != JournalRecord::kChosen) {
      return false;
    }
    const Clock::TimePoint time = get_time(in);
    return in.ok() && until < time;
  }
};

// The head, and the check that its records begin with.
Result<JournalHead> read_head(JournalFile& file, const JournalCipher& cipher, std::uint64_t& check) {
  std::vector<std::byte> bytes = file.read(kJournalMagicBytes);
  const Result<std::uint32_t> version = read_journal_version(bytes);
  if (!version) return file.damaged(version.error().message().c_str());
  const std::size_t size = journal_head_bytes(*version);
  const std::vector<std::byte> rest = file.read(size - bytes.size());
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  if (bytes.size() != size) return file.damaged("a head that was not finished");
  const std::span<const std::byte> behind = std::span<const std::byte>(bytes).subspan(kJournalMagicBytes);
  ByteReader in(behind);
  JournalHead head;
  head.version = *version;
  head.run = in.get<std::uint64_t>();
  head.number = in.get<std::uint32_t>();
  head.previous = in.get<std::uint64_t>();
  head.next_decision = in.get<std::uint64_t>();
  head.options = get_options(in, *version);
  check = cipher.check(head.previous, std::span(bytes).first(size - 8));
  if (in.get<std::uint64_t>() != check) return file.damaged("another key than this journal was written with");
  if (auto valid = head.options.validate(); !valid) return file.damaged(valid.error().message().c_str());
  return head;
}

class JournalReplay {
 public:
  // Of the first file: its records are the run's first, or a checkpoint should begin them. Without `replays`
  // decisions are only told.
  JournalReplay(const JournalHead& head, bool replays, const DecisionHearer& each,
                const RequestHearer& each_request, const MomentHearer& moments)
      : core_(head.options),
        version_(head.version),
        begins_(head.number != 0 && replays),
        wants_replay_(replays),
        replays_(replays && head.number == 0),
        each_(each),
        each_request_(each_request),
        moments_(moments) {}

  const RouteCore& core() const noexcept { return core_; }
  bool replays() const noexcept { return replays_; }

  // False: the record cannot be read.
  bool apply(JournalRecord type, std::span<const std::byte> payload, ReplayReport& report) {
    ByteReader in(payload);
    // One that is replayed comes to the same state by itself.
    if (is_of_checkpoint(type)) return !begins_ || load(type, payload, report);
    begins_ = false;
    if (!replays_ && type == JournalRecord::kWorkerAdded) {
      note(get_spec(in, version_), report);
      return in.ok();
    }
    if (!replays_ && type != JournalRecord::kChosen)
      return type >= JournalRecord::kWorkerAdded && type <= JournalRecord::kExpected;
    switch (type) {
      case JournalRecord::kWorkerAdded: {
        const WorkerSpec spec = get_spec(in, version_);
        note(spec, report);
        if (in.ok() && spec.ranks <= kMaxJournalRanks) core_.add_worker(spec);
        return in.ok() && spec.ranks <= kMaxJournalRanks;
      }
      case JournalRecord::kWorkerRemoved:
        core_.remove_worker(events::WorkerId(in.get<std::uint64_t>()));
        break;
      case JournalRecord::kStateChanged: {
        const events::Worker worker = get_worker(in);
        core_.set_state(worker, static_cast<WorkerState>(in.get<std::uint8_t>()));
        break;
      }
      case JournalRecord::kAvailabilityChanged: {
        const auto worker = events::WorkerId(in.get<std::uint64_t>());
        core_.set_up(worker, in.get<std::uint8_t>() != 0);
        break;
      }
      case JournalRecord::kStored: {
        ReadStore store;
        get_store(in, store);
        if (in.ok()) core_.store(store.event);
        break;
      }
      case JournalRecord::kRemoved: {
        ReadRemoval removal;
        get_removal(in, removal);
        if (in.ok()) core_.remove(removal.worker, removal.tier, removal.names);
        break;
      }
      case JournalRecord::kCleared:
        core_.clear(get_worker(in));
        break;
      case JournalRecord::kExpected: {
        const events::Worker worker = get_worker(in);
        const Clock::TimePoint now = get_time(in);
        std::vector<tokens::LocalHash> locals;
        for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left)
          locals.emplace_back(in.get<std::uint64_t>());
        if (in.ok()) core_.expect(worker, locals, now);
        break;
      }
      case JournalRecord::kChosen:
        return choose(in, payload, report);
      case JournalRecord::kFirstByte:
        core_.first_byte(DecisionId(in.get<std::uint64_t>()));
        tell_moment(in);
        break;
      case JournalRecord::kReleased:
        // One that came out otherwise may not run here.
        if (const DecisionId ended(in.get<std::uint64_t>()); core_.is_running(ended)) core_.release(ended);
        tell_moment(in);
        break;
      default:
        return false;
    }
    return in.ok();
  }

 private:
  static void note(const WorkerSpec& spec, ReplayReport& report) {
    if (!spec.name.empty()) report.worker_names.insert_or_assign(spec.id, spec.name);
  }

  // A record of the checkpoint that the first file begins with.
  bool load(JournalRecord type, std::span<const std::byte> payload, ReplayReport& report) {
    const auto hear = [&](const WorkerSpec& spec) { note(spec, report); };
    if (!read_checkpoint(type, version_, payload, core_, hear)) return false;
    if (type == JournalRecord::kStateEnd) {
      replays_ = wants_replay_;
      begins_ = false;
    }
    return true;
  }

  bool choose(ByteReader& in, std::span<const std::byte> payload, ReplayReport& report) {
    const Clock::TimePoint now = get_time(in);
    ReadRequest request;
    get_request(in, request);
    if (!in.ok() || request.request.block_size == 0) return false;
    const std::span<const std::byte> written = payload.last(in.left());
    ReplayVerdict verdict = ReplayVerdict::kNotReplayed;
    std::array<std::uint32_t, kMissReasons> missed{};
    if (replays_) {
      ByteWriter again;
      const Result<Decision> decision = core_.choose(request.request, now);
      put_decision(again, decision);
      verdict = std::ranges::equal(again.bytes(), written) ? ReplayVerdict::kSame : ReplayVerdict::kDifferent;
      // Of another choice they say nothing about the one that is told.
      if (decision && verdict == ReplayVerdict::kSame) missed = decision->missed;
    }
    report.differences += verdict == ReplayVerdict::kDifferent;
    Result<Decision> told = get_decision(in);
    if (!told && told.error().code() == ErrorCode::kCorruption) return false;
    ++(told ? report.decisions : report.put_off);
    if (told) told->missed = missed;
    if (each_ && told) each_(*told, request.group, verdict);
    if (each_request_ && told && request.tried.empty()) each_request_(request.request, now);
    if (moments_ && replays_) moments_(now, [this] { return core_.loads(); });
    return true;
  }

  void tell_moment(ByteReader& in) {
    const Clock::TimePoint now = get_time(in);
    if (moments_ && in.ok()) moments_(now, [this] { return core_.loads(); });
  }

  RouteCore core_;
  const std::uint32_t version_;
  bool begins_;  // with a checkpoint, whose end was not read yet
  const bool wants_replay_;
  bool replays_;
  const DecisionHearer& each_;
  const RequestHearer& each_request_;
  const MomentHearer& moments_;
};

// `check`: of the head; then of the last record. False: `end` was reached.
Result<bool> replay_file(JournalFile& file, const JournalCipher& cipher, std::uint64_t& check,
                         JournalReplay& replay, const JournalEnd& end, ReplayReport& report) {
  for (;;) {
    if (file.offset() > end.max_bytes)
      return make_error(ErrorCode::kCapacity, "more than %llu bytes of the journal would be replayed",
                        static_cast<unsigned long long>(end.max_bytes));
    std::vector<std::byte> record = file.read(5);
    if (record.empty()) return true;
    ByteReader in(record);
    const auto size = in.get<std::uint32_t>();
    const auto type = static_cast<JournalRecord>(in.get<std::uint8_t>());
    if (in.ok() && size > kMaxJournalRecord) return file.damaged("a record that is too long");
    const std::vector<std::byte> rest = in.ok() ? file.read(std::size_t{size} + 8) : std::vector<std::byte>();
    if (!in.ok() || rest.size() != std::size_t{size} + 8) {
      report.unfinished_bytes = record.size() + rest.size();
      return true;
    }
    const std::span<const std::byte> payload = std::span(rest).first(size);
    record.insert(record.end(), payload.begin(), payload.end());
    check = cipher.check(check, record);
    if (ByteReader(std::span(rest).last(8)).get<std::uint64_t>() != check)
      return file.damaged("a record that does not belong here: it was changed, or one is missing");
    if (end.is_before(type, payload)) return false;
    if (!replay.apply(type, payload, report)) return file.damaged("a record that cannot be read");
    report.records += is_of_checkpoint(type) ? 0 : 1;
  }
}

// `replay` is made of the first file's head.
Result<ReplayReport> read_journal(std::span<const std::string> files, const JournalKey& key, bool replays,
                                  const DecisionHearer& each, const RequestHearer& each_request,
                                  const MomentHearer& moments, std::optional<JournalReplay>& replay,
                                  JournalEnd end = {}) {
  ASHLAR_CHECK(!files.empty(), "a journal has a file");
  const JournalCipher cipher(key);
  ReplayReport report;
  std::uint64_t last = 0;  // check of the file before
  std::uint32_t number = 0;
  for (const std::string& path : files) {
    ASHLAR_TRY(JournalFile file, open_file(path));
    std::uint64_t check = 0;
    ASHLAR_TRY(const JournalHead head, read_head(file, cipher, check));
    if (!replay) {
      report.run = head.run;
      report.removed_files = head.number;
      replay.emplace(head, replays, each, each_request, moments);
    } else if (report.unfinished_bytes != 0 || head.run != report.run || head.number != number + 1 ||
               head.previous != last) {
      return file.damaged("this file does not go on where the one before ends: one is missing or was cut");
    }
    number = head.number;
    ++report.files;
    ASHLAR_TRY(const bool goes_on, replay_file(file, cipher, check, *replay, end, report));
    if (!goes_on) break;
    end.max_bytes -= std::min(end.max_bytes, file.offset());
    last = check;
  }
  report.is_replayed = replay->replays();
  return report;
}

}  // namespace

Result<ReplayReport> replay_journal(std::span<const std::string> files, const JournalKey& key,
                                    const DecisionHearer& each, const MomentHearer& moments) {
  std::optional<JournalReplay> replay;
  return read_journal(files, key, true, each, {}, moments, replay);
}

Result<std::string> file_of_decision(std::span<const std::string> files, const JournalKey& key,
                                     DecisionId decision) {
  ASHLAR_CHECK(!files.empty(), "a journal has a file");
  const JournalCipher cipher(key);
  std::string found = files.front();
  for (const std::string& path : files.subspan(1)) {
    ASHLAR_TRY(JournalFile file, open_file(path));
    std::uint64_t check = 0;
    ASHLAR_TRY(const JournalHead head, read_head(file, cipher, check));
    if (head.next_decision > decision.value()) break;
    found = path;
  }
  return found;
}

Result<ReplayReport> read_journal_requests(std::span<const std::string> files, const JournalKey& key,
                                           const RequestHearer& each) {
  std::optional<JournalReplay> replay;
  return read_journal(files, key, false, {}, each, {}, replay);
}

Result<index::IndexOutline> journal_outline(std::span<const std::string> files, const JournalKey& key,
                                            std::string_view group, Clock::TimePoint until,
                                            std::uint64_t max_bytes) {
  std::optional<JournalReplay> replay;
  ASHLAR_TRY(const ReplayReport report,
             read_journal(files, key, true, {}, {}, {}, replay, {.until = until, .max_bytes = max_bytes}));
  if (!report.is_replayed)
    return Error(ErrorCode::kUnsupported,
                 "the run's first files were removed: what workers held is not known");
  index::IndexOutline outline;
  if (const index::FlashIndex* reported = replay->core().reported(group)) reported->outline(outline);
  return outline;
}

std::string unfinished_note(std::uint64_t bytes) {
  return "The journal ends with " + std::to_string(bytes) + " bytes of a record that was not finished.";
}

Result<std::vector<JournalRun>> find_journals(const std::string& path) {
  // A file that begins otherwise is told before its key is asked for.
  const auto is_something_else = [&] {
    std::error_code ignored;
    std::FILE* const opened =
        std::filesystem::is_regular_file(path, ignored) ? std::fopen(path.c_str(), "rb") : nullptr;
    if (opened == nullptr) return false;
    const std::vector<std::byte> start = JournalFile(opened, path).read(sizeof kJournalMagic);
    ByteReader in(start);
    return start.size() == sizeof kJournalMagic && in.get<std::uint64_t>() << 8 != kJournalMagic << 8;
  };
  std::error_code failed;
  if (!std::filesystem::exists(path, failed))
    return Error(ErrorCode::kNotFound, "there is neither a folder nor a file " + path);
  if (is_something_else()) return Error(ErrorCode::kCorruption, path + " is no journal of Ashlar");
  if (!std::filesystem::is_directory(path, failed))
    return std::vector<JournalRun>{{.name = std::filesystem::path(path).stem().string(), .files = {path}}};
  std::map<std::string, std::map<std::uint32_t, std::string>> found;
  for (const auto& entry : std::filesystem::directory_iterator(path, failed))
    if (const auto name = parse_journal_file_name(entry.path().filename().string()))
      found[name->first][name->second] = entry.path().string();
  if (failed || found.empty())
    return Error(ErrorCode::kNotFound,
                 "there is no journal in " + path + "; ashlar serve --journal writes one");
  std::vector<JournalRun> runs;
  for (auto& [name, files] : found) {
    runs.push_back({.name = name, .files = {}});
    for (auto& [number, file] : files) runs.back().files.push_back(std::move(file));
  }
  return runs;
}

}  // namespace ashlar::service
