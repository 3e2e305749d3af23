// JournalWriter and replay_journal(): every input of a Router in a file, and the same choices out of it
// again.
//
// The file holds no text and no hash of a client's tokens: names and hashes of blocks, and sessions, are
// written through a keyed hash, which keeps equal ones equal and says nothing else to whoever lacks the key.
// Each record is chained to the one before by a keyed checksum, so that a record that was changed, left out
// or put in shows. docs/formats/journal.md has the format.
//
// Every file but the first begins with a checkpoint, the state of the router at that point: a replay can
// begin with any of them, and old files can be removed.
//
// The writer delays no request but the one that begins a file: records are handed to a thread. If the disk is
// full, fails, or is slower than the traffic, the journal ends there, with an error in status(); what was
// written stays readable.
//
// Thread safety: JournalWriter's calls as RouteLog (under the router's lock); status(), flush() thread-safe.
// Complexity:    O(blocks) per record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

using JournalKey = std::array<std::uint8_t, 16>;

// The key in a file. A file that does not exist is made, readable by its owner only, with a key that is
// drawn.
// Errors: kInvalidArgument: the file does not hold 16 bytes; kIo.
Result<JournalKey> load_journal_key(const std::string& path, bool make_if_missing);

struct JournalStatus {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;    // written, over all files
  std::uint64_t files = 1;    // begun
  std::uint64_t waiting = 0;  // bytes not in the file yet
  std::string failure;        // why it ended; empty: it did not
};

class JournalWriter final : public RouteLog {
 public:
  struct Options {
    std::string path;  // of a new file, "NAME.journal"; those that follow are "NAME.000001.journal" and so on
    JournalKey key = {};
    std::uint64_t run = 0;      // tells the decisions of several runs apart
    RouterOptions router = {};  // those of the router that it belongs to
    std::size_t max_waiting_bytes = std::size_t{64} << 20;
    // A file ends with the record that makes it as long, the checkpoint at its start not counted.
    std::uint64_t file_bytes = std::uint64_t{256} << 20;
    // Of all journals in the folder, also of earlier runs: beyond it the oldest files are removed, but never
    // the one that is written. At least file_bytes; 0: all are kept.
    std::uint64_t kept_bytes = 0;
  };
  // Errors: kAlreadyExists; kIo: the file cannot be made; kCapacity: no thread.
  static Result<std::unique_ptr<JournalWriter>> create(const Options& options);
  // Writes what is left.
  ~JournalWriter() override;

  bool wants_checkpoint() const noexcept override;
  void checkpoint(const RouteCore& core) override;
  std::span<const tokens::LocalHash> keyed(std::span<const tokens::LocalHash> locals) override;
  void worker_added(const WorkerSpec& spec) override;
  void worker_removed(events::WorkerId worker) override;
  void state_changed(const events::Worker& worker, WorkerState state) override;
  void availability_changed(events::WorkerId worker, bool is_up) override;
  void stored(const events::BlocksStored& event) override;
  void removed(const events::Worker& worker, events::StorageTier tier,
               std::span<const events::BlockName> names) override;
  void cleared(const events::Worker& worker) override;
  void expected(const events::Worker& worker, std::span<const tokens::LocalHash> locals,
                Clock::TimePoint now) override;
  void chosen(const RouteRequest& request, Clock::TimePoint now, const Result<Decision>& decision) override;
  void first_byte(DecisionId decision, Clock::TimePoint now) override;
  void released(DecisionId decision, Clock::TimePoint now) override;

  JournalStatus status() const;
  // Waits until everything so far is in the file. Errors: kIo: the journal has ended.
  Result<void> flush();

 private:
  class State;
  explicit JournalWriter(std::unique_ptr<State> state);
  // Into keyed_.
  void key_locals(std::span<const tokens::LocalHash> locals);
  std::unique_ptr<State> state_;
  std::vector<tokens::LocalHash> keyed_;  // of the request that is being chosen for
  bool has_keyed_ = false;
};

struct ReplayReport {
  std::uint64_t run = 0;
  std::uint64_t files = 0;
  std::uint64_t removed_files = 0;  // before the first
  bool is_replayed = false;         // from the first record of the run, or from a checkpoint
  std::uint64_t records = 0;
  std::uint64_t decisions = 0;         // a worker was chosen
  std::uint64_t put_off = 0;           // none was: no room, events that were still to come, nobody there
  std::uint64_t differences = 0;       // of both, those that came out otherwise
  std::uint64_t unfinished_bytes = 0;  // of a last record that was not written whole
  // Of all workers that it had; those of version 3 have none.
  std::map<events::WorkerId, std::string> worker_names = {};
};

// "The journal ends with 12 bytes of a record that was not finished."
std::string unfinished_note(std::uint64_t bytes);

// Whether a decision came out as it was written.
enum class ReplayVerdict : std::uint8_t { kSame, kDifferent, kNotReplayed };

// Feeds the files of a run, in their order, to a router again and compares each decision with the one that
// was written, byte for byte. `each` hears every decision as written; it may be empty. Where the first file
// is not the run's first, the checkpoint at its start is where the replay begins. If that was not written to
// its end there is nothing to replay from: records are checked, and decisions told as they stand. Errors:
// kNotFound; kCorruption: not a journal, another key, a file that is missing in between, or a record that
// does not belong there, with its place.
using DecisionHearer =
    std::function<void(const Decision& decision, const std::string& group, ReplayVerdict verdict)>;
// Hears of the times in a replay: after each choice, first byte and end. `loads` tells what every worker does
// and holds then.
using MomentHearer =
    std::function<void(Clock::TimePoint time, const std::function<std::vector<WorkerLoad>()>& loads)>;
Result<ReplayReport> replay_journal(std::span<const std::string> files, const JournalKey& key,
                                    const DecisionHearer& each = {}, const MomentHearer& moments = {});
inline Result<ReplayReport> replay_journal(const std::string& file, const JournalKey& key,
                                           const DecisionHearer& each = {}) {
  return replay_journal(std::span(&file, 1), key, each);
}

// Of the files of a run, in their order, the one in which the decision was made: the last that begins before
// it. Errors: as replay_journal().
Result<std::string> file_of_decision(std::span<const std::string> files, const JournalKey& key,
                                     DecisionId decision);

// The requests of a run for which a worker was chosen, in their order and once each: those that were tried
// again elsewhere are not told again. Hashes and sessions are keyed, and point into memory of the call.
// Nothing is replayed. Errors: as replay_journal().
using RequestHearer = std::function<void(const RouteRequest& request, Clock::TimePoint now)>;
Result<ReplayReport> read_journal_requests(std::span<const std::string> files, const JournalKey& key,
                                           const RequestHearer& each);

// The files of one run, in their order.
struct JournalRun {
  std::string name;
  std::vector<std::string> files;
};
// The journals of a folder by their names, or the one file. Errors: kNotFound; kCorruption: the file is no
// journal.
Result<std::vector<JournalRun>> find_journals(const std::string& path);

// "run-number" in hexadecimal and decimal, as in x-ashlar-decision-id.
std::string decision_name(std::uint64_t run, DecisionId decision);
// Errors: kInvalidArgument.
struct DecisionName {
  std::uint64_t run = 0;
  DecisionId decision;
};
Result<DecisionName> parse_decision_name(std::string_view text);

}  // namespace ashlar::service
