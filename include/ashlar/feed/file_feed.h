// FileSink, FileSource: a stream of events in a file (docs/formats/events.md): recorded once, replayed as often as one likes.
//
// Each batch stands in the file as on a wire, with its length before it and its checksum inside. A file that was cut short ends at
// its last whole batch; a damaged batch is counted and skipped as long as its length can be believed. One sink at a time writes a
// file; it holds a lock on it (flock).
//
// A source remembers which numbers it has read and where, so that recover() reads the file only from there on and only when that
// helps. Memory: one entry per worker and per hole in its numbers, of these up to 4096.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ashlar/events/event_batch.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::feed {

class FileSink final : public events::BatchSink {
 public:
  struct Options {
    std::string path;
    bool append = false;  // to a recording; else the file must not exist
    bool sync = false;    // each batch is on the disk before publish() returns
  };
  // Errors: kAlreadyExists: the file is there, and append is off; kUnavailable: another sink writes it; kInvalidArgument: it is no
  // recording; kIo.
  static Result<std::unique_ptr<FileSink>> create(const Options& options);
  ~FileSink() override;

  // A batch that could not be written whole is taken back from the file. Errors: kIo, for example a full disk; kCapacity.
  Result<void> publish(const events::EventBatch& batch) override;
  std::string describe() const override { return "file " + options_.path; }

 private:
  FileSink(Options options, int fd, std::uint64_t end) : options_(std::move(options)), fd_(fd), end_(end) {}

  const Options options_;
  const int fd_;
  std::uint64_t end_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> record_;
};

class FileSource final : public FeedSource {
 public:
  struct Options {
    std::string path;
    bool follow = false;                // at the end, wait for more instead of ending
    std::size_t batches_per_poll = 64;  // those that are damaged included
    Clock* clock = nullptr;
  };
  // Errors: kNotFound; kInvalidArgument: not a recording; kUnsupported: of another version; kIo.
  static Result<std::unique_ptr<FileSource>> open(const Options& options);
  ~FileSource() override;

  // Errors: kNotFound at the end, unless it follows; kIo.
  Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) override;
  // From the batches before the place that poll() has reached: those behind the last whole snapshot, else those that reach back.
  Result<bool> recover(const events::StreamId& stream, std::uint64_t from, BatchConsumer& consumer) override;
  std::uint64_t damaged() const noexcept override { return damaged_; }
  std::string describe() const override { return "file " + options_.path; }

 private:
  FileSource(Options options, int fd, std::uint64_t at) : options_(std::move(options)), fd_(fd), at_(at) {}
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
  void remember(const events::EventBatch& batch, std::uint64_t at);
  // Where to begin to read for events from `from` on.
  std::optional<std::uint64_t> place_of(const events::StreamId& stream, std::uint64_t from) const;
  // The batch at `*at`; moves past it. Nothing at the end, or where the file was cut short.
  Result<bool> read_at(std::uint64_t* at, events::OwnedBatch& out, bool* good);

  const Options options_;
  const int fd_;
  std::uint64_t at_;
  std::uint64_t damaged_ = 0;
  std::map<events::Worker, Known> known_;
  std::vector<std::byte> bytes_;
};

}  // namespace ashlar::feed
