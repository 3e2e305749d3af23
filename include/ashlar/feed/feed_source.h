// FeedSource: the source of event batches. User-defined feeds implement it. EventBus is the feed within a
// process, FileSink and FileSource are a feed through a file; NATS and ZeroMQ are in backend/.
//
// A source delivers batches as they arrive: they may be missing, duplicated or out of order. StreamReceiver
// restores order, and asks the source for missing ones.
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

  // Delivers available batches; waits for one up to `timeout` if there are none. Returns how many were
  // delivered. Undecodable messages are counted in damaged() and skipped; the numbers reveal the gap. Errors:
  // kUnavailable: not connected now, reconnecting; poll again. kNotFound: the feed has ended.
  virtual Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) = 0;

  // Delivers the batches of a stream from event `from` on: either batches that start at `from` or before, or
  // a later snapshot. Returns false if neither is kept. Errors: kUnavailable, kTimeout: the publisher or
  // server did not answer.
  virtual Result<bool> recover(const events::StreamId& stream, std::uint64_t from,
                               BatchConsumer& consumer) = 0;

  // Messages that could not be decoded.
  virtual std::uint64_t damaged() const noexcept = 0;
  // Of a file that has ended: bytes of an unfinished last batch. They do not count as damage.
  virtual std::uint64_t unfinished_bytes() const noexcept { return 0; }
  virtual std::string describe() const = 0;
};

// EventBus: the feed within a process: a sink of an EventManager, and any number of subscriptions.
//
// A subscription has a bounded queue of batches and drops the oldest when it falls behind; the receiver sees
// the gap in the numbers and recovers from batches that the bus keeps, or from a snapshot.
//
// Thread safety: thread-safe; one subscription is thread-compatible.
class EventBus {
 public:
  struct Options {
    std::size_t queue_batches = 4096;   // queued per subscription
    std::size_t replay_batches = 1024;  // kept for recover()
    Clock* clock = nullptr;
  };
  EventBus() : EventBus(Options{}) {}
  explicit EventBus(const Options& options);
  ~EventBus();

  // For EventManager::add_sink(). May outlive the bus; its batches are then discarded.
  std::shared_ptr<events::BatchSink> sink();
  // A late one begins with a snapshot where the bus serves them: it then knows a quiet worker too. Then
  // delivers batches from now on; earlier ones through recover(). May outlive the bus, which ends it.
  std::unique_ptr<FeedSource> subscribe();
  // Takes snapshots when the kept batches do not reach back far enough. The source outlives the bus, or null
  // removes it.
  void serve_snapshots(events::SnapshotSource* source);

 private:
  struct State;
  class Sink;
  class Subscription;
  std::shared_ptr<State> state_;
};

// FileSink, FileSource: a stream of events in a file (docs/formats/events.md), recorded once and replayed any
// number of times.
//
// Each batch is stored as on the wire, preceded by its length and with its checksum inside. A reader counts
// and skips damaged bytes and continues with the next whole batch, even after a wrong length. A file whose
// last batch is unfinished, as a killed writer leaves it, is not damaged: it ends before that batch. One sink
// at a time writes a file, under a lock (flock).
//
// A source remembers which numbers it read and where, so recover() reads the file only from there, and only
// if that helps. Memory: one entry per worker and per gap in its numbers, of these up to 4096.
//
// Thread safety: thread-compatible.
class FileSink final : public events::BatchSink {
 public:
  struct Options {
    std::string path;
    bool append = false;  // to an existing recording; otherwise the file must not exist
    bool sync = false;    // each batch, and the file's name, is on disk before publish() returns
    // With append: replaces a damaged recording by one of its whole batches instead of refusing it. Restart
    // readers that follow the file: they keep reading the old one.
    bool repair = false;
    std::size_t max_batch_bytes = std::size_t{256} << 20;
  };
  // The state of an existing file, as create() found it.
  struct Found {
    std::uint64_t batches = 0;           // whole ones; they stay
    std::uint64_t unfinished_bytes = 0;  // of an unfinished last batch; cut off
    std::uint64_t damaged_places = 0;    // cut out
    std::uint64_t damaged_bytes = 0;
  };
  // To append, reads the whole file; cuts are logged as warnings. Errors: kAlreadyExists: the file exists,
  // and append is off; kCorruption: it is damaged, and repair is off; kUnavailable: another sink writes it;
  // kInvalidArgument: not a recording; kUnsupported: another version; kIo. An error leaves the file
  // unchanged, unless only syncing its folder failed.
  static Result<std::unique_ptr<FileSink>> create(const Options& options);
  ~FileSink() override;

  // A partly written batch is removed from the file. Errors: kIo, for example a full disk; kCapacity: larger
  // than max_batch_bytes.
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
  // Writes after end_, and advances it.
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
    // Wait for more at the end. A file that becomes shorter, or is replaced, counts as damaged once and is
    // read from its start.
    bool follow = false;
    std::size_t batches_per_poll = 64;  // damaged places included; fewer once 64 MiB were read
    // Limit of a batch, in the file and decoded. A larger one counts as damaged and is skipped.
    std::size_t max_batch_bytes = std::size_t{256} << 20;
    Clock* clock = nullptr;
  };
  // Errors: kNotFound; kInvalidArgument: not a recording; kUnsupported: of another version; kIo.
  static Result<std::unique_ptr<FileSource>> create(const Options& options);
  ~FileSource() override;

  // Errors: kNotFound at the end, unless it follows; kIo.
  Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) override;
  // Reads the batches before the position of poll(): those from the last whole snapshot on, otherwise those
  // that reach back to `from`.
  Result<bool> recover(const events::StreamId& stream, std::uint64_t from, BatchConsumer& consumer) override;
  // Damaged ranges of the file, and undecodable batches.
  std::uint64_t damaged() const noexcept override { return damaged_; }
  std::uint64_t unfinished_bytes() const noexcept override { return unfinished_bytes_; }
  // Bytes outside whole batches, so far.
  std::uint64_t damaged_bytes() const noexcept { return damaged_bytes_; }
  std::string describe() const override { return "file " + options_.path; }

 private:
  FileSource(Options options, int fd);
  // What poll() has read of the last incarnation of a worker, and where.
  struct Known {
    struct Numbers {
      std::uint64_t end = 0;
      std::uint64_t at = 0;  // offset of the first of its batches
    };
    struct Snapshot {
      std::uint64_t first = 0;
      std::uint32_t parts = 0;
      std::uint64_t at = 0;  // offset of its first part
      std::set<std::uint32_t> seen = {};
    };
    std::uint64_t incarnation = 0;
    std::map<std::uint64_t, Numbers> numbers = {};  // by the first of them; without overlaps
    Snapshot coming = {};
    std::optional<Snapshot> whole = {};  // the last one
  };
  // Restarts at the beginning if the file was truncated below the read position, or was replaced. Returns
  // false otherwise, or if the new file has no header yet.
  Result<bool> begin_anew();
  void remember(const events::EventBatch& batch, std::uint64_t at);
  // Where to start reading for events from `from` on.
  std::optional<std::uint64_t> place_of(const events::StreamId& stream, std::uint64_t from) const;

  const Options options_;
  int fd_;
  std::unique_ptr<BatchFrames> frames_;
  std::uint64_t at_;
  std::uint64_t damaged_ = 0;
  std::uint64_t damaged_bytes_ = 0;
  std::uint64_t unfinished_bytes_ = 0;
  bool lost_ = false;  // the file read so far is gone, and the new one has no header yet
  std::map<events::Worker, Known> known_;
};

}  // namespace ashlar::feed
