// FeedSource: where batches of events come from. A user's own feed implements it. EventBus is the feed within a process,
// FileSink and FileSource are a feed through a file; NATS and ZeroMQ are in backend/.
//
// A source delivers what arrives, as it arrives: batches may be missing, duplicated or out of order. StreamReceiver
// restores order, and asks the source for what is missing.
//
// Thread safety: thread-compatible, except EventBus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::feed {

class BatchFrames;

class BatchConsumer {
 public:
  virtual ~BatchConsumer() = default;
  // The batch is valid during the call only.
  virtual void on_batch(const events::EventBatch& batch) = 0;
};

class FeedSource {
 public:
  virtual ~FeedSource() = default;

  // Delivers what is there; when there is nothing, waits for something, up to `timeout`. Returns how many
  // batches were delivered. What cannot be decoded is counted in damaged() and skipped: the gap it leaves is
  // found by its numbers. Errors: kUnavailable: the feed is not connected now, and tries to be; poll again.
  // kNotFound: the feed has ended.
  virtual Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) = 0;

  // Delivers what a stream published from event `from` on, as far as it is still kept: either batches that
  // begin at `from` or before, or a snapshot of a later moment. Returns false when neither can be had.
  // Errors: kUnavailable, kTimeout: somebody who should have answered did not.
  virtual Result<bool> recover(const events::StreamId& stream, std::uint64_t from,
                               BatchConsumer& consumer) = 0;

  // Messages that could not be decoded.
  virtual std::uint64_t damaged() const noexcept = 0;
  // Of a file that has ended: bytes of a last batch that its writer did not finish. They are no damage.
  virtual std::uint64_t unfinished_bytes() const noexcept { return 0; }
  virtual std::string describe() const = 0;
};

// EventBus: the feed within a process, and the default one: a sink of an EventManager, and as many
// subscriptions as one likes.
//
// A subscription has a bounded queue of batches. One that falls behind loses the oldest; the receiver sees
// the gap by the numbers and recovers from the batches that the bus still keeps, or from a snapshot.
//
// Thread safety: thread-safe; one subscription is thread-compatible.
class EventBus {
 public:
  struct Options {
    std::size_t queue_batches = 4096;   // that wait for one subscription
    std::size_t replay_batches = 1024;  // kept for those who lost some
    Clock* clock = nullptr;
  };
  EventBus() : EventBus(Options{}) {}
  explicit EventBus(const Options& options);
  ~EventBus();

  // For EventManager::add_sink(). May outlive the bus, and then publishes to nobody.
  std::shared_ptr<events::BatchSink> sink();
  // Batches from now on; what came before is to be had by recover(). May outlive the bus, and has then ended.
  std::unique_ptr<FeedSource> subscribe();
  // Who is asked for a snapshot when the batches that are kept do not reach back far enough. The source
  // outlives the bus, or is taken back with null.
  void serve_snapshots(events::SnapshotSource* source);

 private:
  struct State;
  class Sink;
  class Subscription;
  std::shared_ptr<State> state_;
};

// FileSink, FileSource: a stream of events in a file (docs/formats/events.md): recorded once, replayed as
// often as one likes.
//
// Each batch stands in the file as on a wire, with its length before it and its checksum inside. A reader
// counts and skips what is damaged, and goes on with the next whole batch, also where a length cannot be
// believed. A file whose last batch is unfinished, as a writer leaves it that was killed, is not damaged: it
// ends before that batch. One sink at a time writes a file; it holds a lock on it (flock).
//
// A source remembers which numbers it has read and where, so that recover() reads the file only from there on
// and only when that helps. Memory: one entry per worker and per hole in its numbers, of these up to 4096.
//
// Thread safety: thread-compatible.
class FileSink final : public events::BatchSink {
 public:
  struct Options {
    std::string path;
    bool append = false;  // to a recording; else the file must not exist
    bool sync = false;    // each batch, and the file's name, is on the disk before publish() returns
    // With append: a damaged recording is replaced by one of its whole batches; else it is refused. A reader
    // that follows the file keeps the damaged one, and is to be started again.
    bool repair = false;
    std::size_t max_batch_bytes = std::size_t{256} << 20;
  };
  // What create() found in the file that it appends to.
  struct Found {
    std::uint64_t batches = 0;           // whole ones; they stay
    std::uint64_t unfinished_bytes = 0;  // of a last batch that a writer did not finish; cut off
    std::uint64_t damaged_places = 0;    // cut out
    std::uint64_t damaged_bytes = 0;
  };
  // To append, reads the whole file. What is cut is logged as a warning. Errors: kAlreadyExists: the file is
  // there, and append is off; kCorruption: it is damaged, and repair is off; kUnavailable: another sink
  // writes it; kInvalidArgument: it is no recording; kUnsupported: of another version; kIo. After an error
  // the file is as it was; where only its folder could not be synced, it is there or repaired.
  static Result<std::unique_ptr<FileSink>> create(const Options& options);
  ~FileSink() override;

  // A batch that could not be written whole is taken back from the file. Errors: kIo, for example a full
  // disk; kCapacity: larger than max_batch_bytes.
  Result<void> publish(const events::EventBatch& batch) override;
  std::string describe() const override { return "file " + options_.path; }
  const Found& found() const noexcept { return found_; }

 private:
  FileSink(Options options, int fd) : options_(std::move(options)), fd_(fd) {}
  Result<void> lock();
  Result<void> begin(std::uint64_t size);
  Result<void> look_through();
  // Replaces the file by one of its whole batches.
  Result<void> rewrite();
  // Behind end_, which moves.
  Result<void> write_frame(int fd, std::span<const std::byte> batch, const std::string& path);

  const Options options_;
  int fd_;
  std::uint64_t end_ = 0;  // of the last whole batch
  Found found_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> record_;
};

class FileSource final : public FeedSource {
 public:
  struct Options {
    std::string path;
    // At the end, wait for more instead of ending. A file that becomes shorter, or is replaced, counts as
    // damaged once and is read from its start.
    bool follow = false;
    std::size_t batches_per_poll = 64;  // damaged places included; fewer once 64 MiB were read
    // Of a batch in the file; a larger one counts as damaged. Of a batch in memory; a larger one is counted
    // and skipped.
    std::size_t max_batch_bytes = std::size_t{256} << 20;
    Clock* clock = nullptr;
  };
  // Errors: kNotFound; kInvalidArgument: not a recording; kUnsupported: of another version; kIo.
  static Result<std::unique_ptr<FileSource>> create(const Options& options);
  ~FileSource() override;

  // Errors: kNotFound at the end, unless it follows; kIo.
  Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) override;
  // From the batches before the place that poll() has reached: those behind the last whole snapshot, else
  // those that reach back.
  Result<bool> recover(const events::StreamId& stream, std::uint64_t from, BatchConsumer& consumer) override;
  // Places in the file, and batches that cannot be read.
  std::uint64_t damaged() const noexcept override { return damaged_; }
  std::uint64_t unfinished_bytes() const noexcept override { return unfinished_bytes_; }
  // That belong to no whole batch, so far.
  std::uint64_t damaged_bytes() const noexcept { return damaged_bytes_; }
  std::string describe() const override { return "file " + options_.path; }

 private:
  FileSource(Options options, int fd);
  // Where poll() has read what of the last life of a worker.
  struct Known {
    struct Numbers {
      std::uint64_t end = 0;
      std::uint64_t at = 0;  // place of the first batch of them
    };
    struct Snapshot {
      std::uint64_t first = 0;
      std::uint32_t parts = 0;
      std::uint64_t at = 0;  // place of the first of its parts
      std::set<std::uint32_t> seen = {};
    };
    std::uint64_t incarnation = 0;
    std::map<std::uint64_t, Numbers> numbers = {};  // by the first of them; without overlaps
    Snapshot coming = {};
    std::optional<Snapshot> whole = {};  // the last one
  };
  // Goes to the start where the file became shorter than what was read of it, or another one has its name.
  // False where neither is so, or the new one has no header yet.
  Result<bool> begin_anew();
  void remember(const events::EventBatch& batch, std::uint64_t at);
  // Where to begin to read for events from `from` on.
  std::optional<std::uint64_t> place_of(const events::StreamId& stream, std::uint64_t from) const;

  const Options options_;
  int fd_;
  std::unique_ptr<BatchFrames> frames_;
  std::uint64_t at_;
  std::uint64_t damaged_ = 0;
  std::uint64_t damaged_bytes_ = 0;
  std::uint64_t unfinished_bytes_ = 0;
  bool lost_ = false;  // what was read is gone, and what follows has no header yet
  std::map<events::Worker, Known> known_;
};

}  // namespace ashlar::feed
