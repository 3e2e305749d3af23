// A journal's records can be walked without its key; that they are the ones that were written only the key
// can tell.
#include <algorithm>
#include <array>
#include <filesystem>

#include "ashlar/base/check.h"
#include "ashlar/service/journal.h"
#include "base/byte_io.h"
#include "base/wide.h"
#include "inspect/inspected_file.h"
#include "service/journal/journal_codec.h"

namespace ashlar::inspect {
namespace {

using service::JournalRecord;
using service::JournalRun;

constexpr std::size_t kRecordKinds = 16;  // by their numbers, from 1
constexpr std::array<const char*, kRecordKinds> kRecordNames = {
    "",          "workers_added", "workers_removed", "state_changes", "availability_changes",
    "stored",    "removed",       "cleared",         "decisions",     "first_bytes",
    "released",  "expected",      "states",          "state_groups",  "state_blocks",
    "state_ends"};

static_assert(static_cast<std::size_t>(JournalRecord::kStateEnd) + 1 == kRecordKinds,
              "every record has a name");

struct WalkedFile {
  std::uint32_t version = 0;
  std::uint64_t run = 0;
  std::uint32_t number = 0;
  std::uint64_t records = 0;
  std::uint64_t unfinished = 0;
};

// Errors: kCorruption: no journal; kUnsupported: of another version; kIo.
Result<WalkedFile> walk(const InspectedFile& file, std::array<std::uint64_t, kRecordKinds>& kinds,
                        Inspection& seen) {
  std::array<std::byte, service::kJournalHeadBytes> longest{};
  ASHLAR_RETURN_IF_ERROR(file.read(0, std::span(longest).first(service::kJournalMagicBytes)));
  const auto version = service::read_journal_version(longest);
  if (!version && version.error().code() == ErrorCode::kCorruption)
    return make_error(ErrorCode::kCorruption, "%s is no journal of Ashlar", file.path().c_str());
  if (!version)
    return make_error(ErrorCode::kUnsupported,
                      "%s is a journal of another version; this program reads %u to %u", file.path().c_str(),
                      service::kOldestJournalVersion, service::kJournalVersion);
  const std::span head = std::span(longest).first(service::journal_head_bytes(*version));
  ASHLAR_RETURN_IF_ERROR(file.read(0, head));
  ByteReader in(head.subspan(service::kJournalMagicBytes));
  WalkedFile walked;
  walked.version = *version;
  walked.run = in.get<std::uint64_t>();
  walked.number = in.get<std::uint32_t>();
  std::uint64_t at = head.size();
  while (at < file.size()) {
    std::array<std::byte, 5> start{};
    ASHLAR_TRY(const std::size_t got, file.read_some(at, start));
    ByteReader record(start);
    const std::uint64_t bytes = std::uint64_t{record.get<std::uint32_t>()};
    const auto type = record.get<std::uint8_t>();
    if (got == start.size() && (bytes > service::kMaxJournalRecord || type == 0 || type >= kRecordKinds)) {
      seen.damage(file.path() + " at byte " + std::to_string(at) +
                  ": no record begins here; what follows cannot be read");
      break;
    }
    if (got < start.size() || at + start.size() + bytes + 8 > file.size()) {
      walked.unfinished = file.size() - at;
      break;
    }
    ASHLAR_DCHECK(type < kinds.size(), "a record of type %u", type);
    ++kinds[type];
    ++walked.records;
    at += start.size() + bytes + 8;
  }
  return walked;
}

Result<service::JournalKey> key_for(const JournalRun& run, const InspectOptions& options) {
  std::string path = options.journal_key;
  if (path.empty()) path = (std::filesystem::path(run.files.front()).parent_path() / "key").string();
  const auto key = service::load_journal_key(path, false);
  if (key) return key;
  return make_error(ErrorCode::kInvalidArgument,
                    "a journal is verified with its key: %s; name its file with --key, or leave out --verify",
                    key.error().message().c_str());
}

}  // namespace

Result<void> inspect_journal(const std::string& path, const InspectOptions& options, Inspection& seen) {
  seen.kind = "journal";
  ASHLAR_TRY(const std::vector<JournalRun> runs, service::find_journals(path));
  std::array<std::uint64_t, kRecordKinds> kinds{};
  InspectedList list{.name = "runs"};
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  std::uint32_t version = 0;
  for (const JournalRun& run : runs) {
    ASHLAR_CHECK(!run.files.empty(), "a run has a file");
    WalkedFile first;
    std::uint64_t records = 0;
    std::uint64_t run_bytes = 0;
    std::uint64_t unfinished = 0;
    for (std::size_t i = 0; i < run.files.size(); ++i) {
      ASHLAR_TRY(const InspectedFile file, InspectedFile::open(run.files[i]));
      ASHLAR_TRY(const WalkedFile walked, walk(file, kinds, seen));
      if (i == 0) first = walked;
      version = std::max(version, walked.version);
      if (walked.run != first.run || walked.number != first.number + i)
        seen.damage(run.files[i] + " does not go on where the file before it ends: one is missing");
      records += walked.records;
      run_bytes += file.size();
      unfinished = walked.unfinished;
      if (walked.unfinished != 0 && i + 1 < run.files.size())
        seen.damage(run.files[i] + " ends within a record, and another file follows");
    }
    std::vector<InspectedField> item = {{"run", hex_of(first.run)},
                                        {"files", std::uint64_t{run.files.size()}},
                                        {"first_file", std::uint64_t{first.number}},
                                        {"records", records},
                                        {"journal_bytes", run_bytes}};
    if (unfinished != 0)
      seen.notes.push_back(run.files.back() + " ends with " + std::to_string(unfinished) +
                           " bytes of a record that was not finished");
    if (options.verify) {
      ASHLAR_TRY(const service::JournalKey key, key_for(run, options));
      const auto report = service::replay_journal(run.files, key);
      if (!report && report.error().code() != ErrorCode::kCorruption) return report.error();
      if (!report) {
        seen.damage(report.error().message());
      } else {
        item.push_back({"differences", report->differences});
        if (report->differences != 0)
          seen.damage(std::to_string(report->differences) + " decisions of run " + hex_of(first.run) +
                          " came out otherwise when replayed",
                      report->differences);
        if (report->removed_files != 0)
          seen.notes.push_back("the first " + std::to_string(report->removed_files) + " files of run " +
                               hex_of(first.run) + " were removed: " +
                               (report->is_replayed ? "it was replayed from the checkpoint after them"
                                                    : "it was checked and not replayed"));
      }
    }
    list.add(std::move(item));
    files += run.files.size();
    bytes += run_bytes;
  }
  seen.add("version", std::uint64_t{version});
  seen.add("runs_found", std::uint64_t{runs.size()});
  seen.add("files", files);
  seen.add("file_bytes", bytes);
  for (std::size_t kind = 1; kind < kRecordKinds; ++kind) seen.add(kRecordNames[kind], kinds[kind]);
  seen.lists.push_back(std::move(list));
  seen.is_verified = options.verify;
  return {};
}

}  // namespace ashlar::inspect
