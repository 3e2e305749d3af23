#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

#include "service/journal/journal_codec.h"
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

struct JournalHead {
  std::uint64_t run = 0;
  RouterOptions options;
  std::uint64_t check = 0;
};

Result<JournalHead> read_head(JournalFile& file, const JournalCipher& cipher) {
  constexpr std::size_t kHeadBytes = 8 + 4 + 8 + 32 + 8;
  const std::vector<std::byte> bytes = file.read(kHeadBytes);
  ByteReader in(bytes);
  const auto magic = in.get<std::uint64_t>();
  if (bytes.size() != kHeadBytes || magic != kJournalMagic)
    return file.damaged("this is no journal of Ashlar");
  const auto version = in.get<std::uint32_t>();
  if (version != kJournalVersion) return file.damaged("a journal of another version");
  JournalHead head;
  head.run = in.get<std::uint64_t>();
  head.options = get_options(in);
  head.check = cipher.check(0, std::span(bytes).first(kHeadBytes - 8));
  if (in.get<std::uint64_t>() != head.check)
    return file.damaged("another key than this journal was written with");
  if (auto valid = head.options.validate(); !valid) return file.damaged(valid.error().message().c_str());
  return head;
}

class JournalReplay {
 public:
  JournalReplay(const RouterOptions& options, const DecisionHearer& each) : core_(options), each_(each) {}

  // False: the record cannot be read.
  bool apply(JournalRecord type, std::span<const std::byte> payload, ReplayReport& report) {
    ByteReader in(payload);
    switch (type) {
      case JournalRecord::kWorkerAdded: {
        const WorkerSpec spec = get_spec(in);
        if (in.ok() && spec.ranks <= kMaxRanks) core_.add_worker(spec);
        return in.ok() && spec.ranks <= kMaxRanks;
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
      case JournalRecord::kStored:
        store(in);
        break;
      case JournalRecord::kRemoved: {
        const events::Worker worker = get_worker(in);
        const auto tier = static_cast<events::StorageTier>(in.get<std::uint8_t>());
        std::vector<events::BlockName> names;
        for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left)
          names.emplace_back(in.get<std::uint64_t>());
        if (in.ok()) core_.remove(worker, tier, names);
        break;
      }
      case JournalRecord::kCleared:
        core_.clear(get_worker(in));
        break;
      case JournalRecord::kExpected: {
        const events::Worker worker = get_worker(in);
        const auto now = Clock::TimePoint(Clock::Duration(in.get<Clock::Duration::rep>()));
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
        break;
      case JournalRecord::kReleased:
        // One that came out otherwise may not run here.
        if (const DecisionId ended(in.get<std::uint64_t>()); core_.is_running(ended)) core_.release(ended);
        break;
      default:
        return false;
    }
    return in.ok();
  }

 private:
  static constexpr std::uint32_t kMaxRanks = 65'535;

  void store(ByteReader& in) {
    events::BlocksStored event;
    event.worker = get_worker(in);
    event.tier = static_cast<events::StorageTier>(in.get<std::uint8_t>());
    const bool has_parent = in.get<std::uint8_t>() != 0;
    const auto parent = events::BlockName(in.get<std::uint64_t>());
    if (has_parent) event.parent = parent;
    const bool has_position = in.get<std::uint8_t>() != 0;
    const auto position = in.get<std::uint32_t>();
    if (has_position) event.start_position = position;
    std::vector<events::StoredBlock> blocks;
    for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left) {
      const auto name = events::BlockName(in.get<std::uint64_t>());
      blocks.push_back({.local = tokens::LocalHash(in.get<std::uint64_t>()), .name = name});
    }
    event.blocks = blocks;
    if (in.ok()) core_.store(event);
  }

  bool choose(ByteReader& in, std::span<const std::byte> payload, ReplayReport& report) {
    const auto now = Clock::TimePoint(Clock::Duration(in.get<Clock::Duration::rep>()));
    ReadRequest request;
    get_request(in, request);
    if (!in.ok() || request.request.block_size == 0) return false;
    const std::span<const std::byte> written = payload.last(in.left());
    const Result<Decision> decided = core_.choose(request.request, now);
    ByteWriter again;
    put_decision(again, decided);
    const bool is_same = std::ranges::equal(again.bytes(), written);
    ++report.decisions;
    report.differences += !is_same;
    const Result<Decision> told = get_decision(in);
    if (!told && told.error().code() == ErrorCode::kCorruption) return false;
    if (each_ && told) each_(*told, request.group, is_same);
    return true;
  }

  RouteCore core_;
  const DecisionHearer& each_;
};

}  // namespace

Result<ReplayReport> replay_journal(const std::string& path, const JournalKey& key,
                                    const DecisionHearer& each) {
  std::FILE* opened = std::fopen(path.c_str(), "rb");
  if (opened == nullptr)
    return make_error(ErrorCode::kNotFound, "cannot open the journal %s: %s", path.c_str(),
                      std::generic_category().message(errno).c_str());
  JournalFile file(opened, path);
  const JournalCipher cipher(key);
  ASHLAR_TRY(const JournalHead head, read_head(file, cipher));
  ReplayReport report{.run = head.run};
  JournalReplay replay(head.options, each);
  std::uint64_t check = head.check;
  for (;;) {
    std::vector<std::byte> record = file.read(5);
    if (record.empty()) return report;
    ByteReader in(record);
    const auto size = in.get<std::uint32_t>();
    const auto type = static_cast<JournalRecord>(in.get<std::uint8_t>());
    if (in.ok() && size > kMaxJournalRecord) return file.damaged("a record that is too long");
    const std::vector<std::byte> rest = in.ok() ? file.read(std::size_t{size} + 8) : std::vector<std::byte>();
    if (!in.ok() || rest.size() != std::size_t{size} + 8) {
      report.unfinished_bytes = record.size() + rest.size();
      return report;
    }
    const std::span<const std::byte> payload = std::span(rest).first(size);
    record.insert(record.end(), payload.begin(), payload.end());
    check = cipher.check(check, record);
    if (ByteReader(std::span(rest).last(8)).get<std::uint64_t>() != check)
      return file.damaged("a record that does not belong here: it was changed, or one is missing");
    if (!replay.apply(type, payload, report)) return file.damaged("a record that cannot be read");
    ++report.records;
  }
}

}  // namespace ashlar::service
