// FileSink, FileSource: a stream of events in a file (docs/formats/events.md): recorded once, replayed as often as one likes.
//
// Each batch stands in the file as on a wire, with its length before it and its checksum inside. A file that was cut short ends at
// its last whole batch; a damaged batch is counted and skipped as long as its length can be believed.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
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
  // Errors: kAlreadyExists: the file is there, and append is off; kInvalidArgument: it is no recording; kIo.
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
    bool follow = false;  // at the end, wait for more instead of ending
    std::size_t batches_per_poll = 64;
    Clock* clock = nullptr;
  };
  // Errors: kNotFound; kInvalidArgument: not a recording; kUnsupported: of another version; kIo.
  static Result<std::unique_ptr<FileSource>> open(const Options& options);
  ~FileSource() override;

  // Errors: kNotFound at the end, unless it follows; kIo.
  Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration timeout) override;
  // From the batches before the place that poll() has reached.
  Result<bool> recover(const events::StreamId& stream, std::uint64_t from, BatchConsumer& consumer) override;
  std::uint64_t damaged() const noexcept override { return damaged_; }
  std::string describe() const override { return "file " + options_.path; }

 private:
  FileSource(Options options, int fd, std::uint64_t at) : options_(std::move(options)), fd_(fd), at_(at) {}
  // The batch at `*at`; moves past it. Nothing at the end, or where the file was cut short.
  Result<bool> read_at(std::uint64_t* at, events::OwnedBatch& out, bool* good);

  const Options options_;
  const int fd_;
  std::uint64_t at_;
  std::uint64_t damaged_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace ashlar::feed
