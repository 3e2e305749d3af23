// JournalWriter and replay_journal(): every input of a Router in a file, and the same choices out of it
// again.
//
// The file holds no text and no hash of a client's tokens: names and hashes of blocks, and sessions, are
// written through a keyed hash, which keeps equal ones equal and says nothing else to whoever lacks the key.
// Each record is chained to the one before by a keyed checksum, so that a record that was changed, left out
// or put in shows. docs/formats/journal.md has the format.
//
// The writer never delays a request: records are handed to a thread. If the disk is full, fails, or is slower
// than the traffic, the journal ends there, with an error in status(); what was written stays readable.
//
// Thread safety: JournalWriter's calls as RouteLog (under the router's lock); status() is thread-safe.
// Complexity:    O(blocks) per record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

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
  std::uint64_t bytes = 0;    // in the file
  std::uint64_t waiting = 0;  // bytes not in the file yet
  std::string failure;        // why it ended; empty: it did not
};

class JournalWriter final : public RouteLog {
 public:
  struct Options {
    std::string path;  // of a new file
    JournalKey key = {};
    std::uint64_t run = 0;      // tells the decisions of several runs apart
    RouterOptions router = {};  // those of the router that it belongs to
    std::size_t max_waiting_bytes = std::size_t{64} << 20;
  };
  // Errors: kAlreadyExists; kIo: the file cannot be made; kCapacity: no thread.
  static Result<std::unique_ptr<JournalWriter>> create(const Options& options);
  // Writes what is left.
  ~JournalWriter() override;

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
  std::unique_ptr<State> state_;
};

struct ReplayReport {
  std::uint64_t run = 0;
  std::uint64_t records = 0;
  std::uint64_t decisions = 0;         // made, refusals included
  std::uint64_t differences = 0;       // decisions that came out otherwise
  std::uint64_t unfinished_bytes = 0;  // of a last record that was not written whole
};

// Feeds the journal to a router again and compares each decision with the one that was written, byte for
// byte. `each` hears every decision as written, and whether it came out the same; it may be empty. Errors:
// kNotFound; kCorruption: not a journal, another key, or a record that does not belong there, with its place.
using DecisionHearer = std::function<void(const Decision& decision, const std::string& group, bool is_same)>;
Result<ReplayReport> replay_journal(const std::string& path, const JournalKey& key,
                                    const DecisionHearer& each = {});

// "run-number" in hexadecimal and decimal, as in x-ashlar-decision-id.
std::string decision_name(std::uint64_t run, DecisionId decision);
// Errors: kInvalidArgument.
struct DecisionName {
  std::uint64_t run = 0;
  DecisionId decision;
};
Result<DecisionName> parse_decision_name(std::string_view text);

}  // namespace ashlar::service
