#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/base/mutex.h"
#include "ashlar/service/journal.h"
#include "base/owned_fd.h"
#include "base/start_thread.h"
#include "service/journal/journal_checkpoint.h"
#include "service/journal/journal_codec.h"

namespace ashlar::service {

namespace {

std::string system_reason() {
  return std::generic_category().message(errno);
}

// Errors: kIo.
Result<void> write_all(int file, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0)
      return make_error(ErrorCode::kIo, "cannot write %s: %s", path.c_str(),
                        wrote == 0 ? "nothing was taken" : system_reason().c_str());
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return {};
}

Result<OwnedFd> open_journal_file(const std::string& path) {
  OwnedFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0)
    return make_error(errno == EEXIST ? ErrorCode::kAlreadyExists : ErrorCode::kIo,
                      "cannot make the journal %s: %s", path.c_str(), system_reason().c_str());
  return file;
}

Result<JournalKey> make_key(const std::string& path) {
  JournalKey key;
  for (std::size_t drawn = 0; drawn < key.size();) {
    const ssize_t got = ::getrandom(key.data() + drawn, key.size() - drawn, 0);
    if (got < 0 && errno != EINTR)
      return make_error(ErrorCode::kIo, "cannot draw a key: %s", system_reason().c_str());
    if (got > 0) drawn += static_cast<std::size_t>(got);
  }
  const OwnedFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0)
    return make_error(ErrorCode::kIo, "cannot make the key file %s: %s", path.c_str(),
                      system_reason().c_str());
  ASHLAR_RETURN_IF_ERROR(write_all(file.get(), std::as_bytes(std::span(key)), path));
  return key;
}

}  // namespace

Result<JournalKey> load_journal_key(const std::string& path, bool make_if_missing) {
  const OwnedFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) {
    if (errno == ENOENT && make_if_missing) return make_key(path);
    return make_error(ErrorCode::kIo, "cannot read the key file %s: %s", path.c_str(),
                      system_reason().c_str());
  }
  std::array<std::uint8_t, std::tuple_size_v<JournalKey> + 1> bytes{};
  std::size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return make_error(ErrorCode::kIo, "cannot read the key file %s: %s", path.c_str(),
                        system_reason().c_str());
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  JournalKey key;
  if (size != key.size())
    return make_error(ErrorCode::kInvalidArgument, "the key file %s holds %s; a key has %zu bytes",
                      path.c_str(), size < key.size() ? "too few bytes" : "more than a key", key.size());
  std::copy_n(bytes.begin(), key.size(), key.begin());
  return key;
}

class JournalWriter::State {
 public:
  State(const Options& options, OwnedFd file)
      : options_(options), cipher_(options.key), path_(options.path), file_(std::move(file)) {
    waiting_ = write_head({.run = options_.run, .options = options_.router}, cipher_, check_);
    file_bytes_ = waiting_.size();
  }
  ~State() {
    {
      MutexLock lock(mu_);
      stops_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Result<void> start() {
    return start_thread(&thread_, [this] { run(); });
  }

  const JournalCipher& cipher() const noexcept { return cipher_; }

  void append(JournalRecord type, ByteWriter payload) {
    MutexLock lock(mu_);
    if (!failure_.empty()) return;
    const std::size_t size = payload.bytes().size();
    if (waiting_.size() - state_bytes_ + size > options_.max_waiting_bytes || size > kMaxJournalRecord) {
      fail("the disk is slower than the traffic: " + std::to_string(waiting_.size()) + " bytes wait");
      return;
    }
    const bool was_empty = waiting_.empty();
    ++records_;
    file_bytes_ += put_record(type, payload);
    wants_checkpoint_.store(file_bytes_ >= options_.file_bytes, std::memory_order_relaxed);
    if (was_empty) changed_.notify_all();
  }

  bool wants_checkpoint() const noexcept { return wants_checkpoint_.load(std::memory_order_relaxed); }

  // The next file begins with the check of the last record of this one, and with these records.
  void begin_file(std::uint64_t next_decision, std::vector<std::pair<JournalRecord, ByteWriter>> state) {
    MutexLock lock(mu_);
    wants_checkpoint_.store(false, std::memory_order_relaxed);
    if (!failure_.empty()) return;
    for (auto& [type, payload] : state)
      if (payload.bytes().size() > kMaxJournalRecord) return fail("the state of the router is too large");
    const bool was_empty = waiting_.empty();
    cuts_.push_back({.at = waiting_.size()});
    const std::vector<std::byte> head = write_head({.run = options_.run,
                                                    .number = ++number_,
                                                    .previous = check_,
                                                    .next_decision = next_decision,
                                                    .options = options_.router},
                                                   cipher_, check_);
    waiting_.insert(waiting_.end(), head.begin(), head.end());
    file_bytes_ = head.size();
    for (auto& [type, payload] : state) {
      cuts_.back().state_bytes += put_record(type, payload);
      payload = {};
    }
    state_bytes_ += cuts_.back().state_bytes;
    if (was_empty) changed_.notify_all();
  }

  JournalStatus status() const {
    MutexLock lock(mu_);
    return {.records = records_,
            .bytes = written_,
            .files = std::uint64_t{number_} + 1,
            .waiting = waiting_.size() + in_hand_,
            .failure = failure_};
  }

  Result<void> flush() {
    MutexLock lock(mu_);
    // Records that come meanwhile are not waited for.
    const std::uint64_t wanted = written_ + in_hand_ + waiting_.size();
    while (failure_.empty() && written_ < wanted) changed_.wait(mu_);
    if (!failure_.empty()) return Error(ErrorCode::kIo, "the journal has ended: " + failure_);
    return {};
  }

 private:
  // Where a file ends in what waits, and how long the checkpoint of the next is.
  struct Cut {
    std::size_t at = 0;
    std::uint64_t state_bytes = 0;
  };

  // Returns the bytes of the record.
  std::size_t put_record(JournalRecord type, ByteWriter& payload) ASHLAR_REQUIRES(mu_) {
    ByteWriter record;
    record.put(static_cast<std::uint32_t>(payload.bytes().size()));
    record.put(static_cast<std::uint8_t>(type));
    record.put_bytes(payload.bytes());
    check_ = cipher_.check(check_, record.bytes());
    record.put(check_);
    ASHLAR_DCHECK(record.bytes().size() == payload.bytes().size() + 13, "a record has 13 bytes of frame");
    waiting_.insert(waiting_.end(), record.bytes().begin(), record.bytes().end());
    return record.bytes().size();
  }

  // Takes no more records. Those that wait are still written.
  void fail(std::string why) ASHLAR_REQUIRES(mu_) {
    failure_ = std::move(why);
    ASHLAR_LOG(LogLevel::kError, "journal", "%s ends here: %s", options_.path.c_str(), failure_.c_str());
    changed_.notify_all();
  }

  // Bytes of one file or several, which end at `cuts`.
  Result<void> write(std::span<const std::byte> bytes, std::span<const Cut> cuts) {
    std::size_t begin = 0;
    for (const auto& [cut, state_bytes] : cuts) {
      ASHLAR_DCHECK(begin <= cut && cut <= bytes.size(), "a file ends within what is written");
      ASHLAR_RETURN_IF_ERROR(write_all(file_.get(), bytes.subspan(begin, cut - begin), path_));
      begin = cut;
      path_ = journal_file_name(options_.path, ++open_number_);
      ASHLAR_TRY(file_, open_journal_file(path_));
      remove_oldest(state_bytes);
    }
    return write_all(file_.get(), bytes.subspan(begin), path_);
  }

  // So that the folder has room for a whole file more.
  void remove_oldest(std::uint64_t state_bytes) const {
    if (options_.kept_bytes == 0) return;
    struct Kept {
      std::filesystem::file_time_type time;
      std::uint32_t number = 0;
      std::filesystem::path path;
      std::uint64_t bytes = 0;
    };
    std::vector<Kept> kept;
    std::uint64_t bytes = options_.file_bytes + state_bytes;
    std::error_code failed;
    const std::filesystem::path current(path_);
    for (const auto& entry : std::filesystem::directory_iterator(
             current.has_parent_path() ? current.parent_path() : std::filesystem::path("."), failed)) {
      const auto name = parse_journal_file_name(entry.path().filename().string());
      std::error_code ignored;
      if (!name || entry.path().filename() == current.filename() || !entry.is_regular_file(ignored)) continue;
      kept.push_back({entry.last_write_time(ignored), name->second, entry.path(), entry.file_size(ignored)});
      bytes += kept.back().bytes;
    }
    std::ranges::sort(kept, [](const Kept& a, const Kept& b) {
      return std::tie(a.time, a.number) < std::tie(b.time, b.number);
    });
    for (const Kept& oldest : kept) {
      if (bytes <= options_.kept_bytes) return;
      if (std::filesystem::remove(oldest.path, failed)) {
        bytes -= oldest.bytes;
      } else {
        ASHLAR_LOG(LogLevel::kWarn, "journal", "%s cannot be removed: %s", oldest.path.c_str(),
                   failed.message().c_str());
      }
    }
  }

  void run() {
    remove_oldest(0);
    std::vector<std::byte> hand;
    std::vector<Cut> cuts;
    for (;;) {
      {
        MutexLock lock(mu_);
        while (waiting_.empty() && !stops_) changed_.wait(mu_);
        if (waiting_.empty()) return;
        hand.clear();
        hand.swap(waiting_);
        state_bytes_ = 0;
        cuts.clear();
        cuts.swap(cuts_);
        in_hand_ = hand.size();
      }
      const Result<void> wrote = write(hand, cuts);
      MutexLock lock(mu_);
      written_ += wrote ? hand.size() : 0;
      in_hand_ = 0;
      if (!wrote) {
        waiting_.clear();
        fail(wrote.error().message());
        return;
      }
      changed_.notify_all();
    }
  }

  const Options options_;
  const JournalCipher cipher_;
  // Of the thread.
  std::string path_;
  OwnedFd file_;
  std::uint32_t open_number_ = 0;
  std::thread thread_;
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<std::byte> waiting_ ASHLAR_GUARDED_BY(mu_);
  std::size_t state_bytes_ ASHLAR_GUARDED_BY(mu_) = 0;   // of waiting_: those of checkpoints
  std::vector<Cut> cuts_ ASHLAR_GUARDED_BY(mu_);         // of waiting_
  std::uint32_t number_ ASHLAR_GUARDED_BY(mu_) = 0;      // of the file at the end of waiting_
  std::uint64_t file_bytes_ ASHLAR_GUARDED_BY(mu_) = 0;  // of that file
  std::size_t in_hand_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t check_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t records_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t written_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::string failure_ ASHLAR_GUARDED_BY(mu_);
  bool stops_ ASHLAR_GUARDED_BY(mu_) = false;
  std::atomic<bool> wants_checkpoint_{false};
};

JournalWriter::JournalWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
JournalWriter::~JournalWriter() = default;

Result<std::unique_ptr<JournalWriter>> JournalWriter::create(const Options& options) {
  if (options.file_bytes < kJournalHeadBytes ||
      (options.kept_bytes != 0 && options.kept_bytes < options.file_bytes))
    return make_error(ErrorCode::kInvalidArgument,
                      "a journal keeps at least one file: %llu bytes are kept, a file has %llu",
                      static_cast<unsigned long long>(options.kept_bytes),
                      static_cast<unsigned long long>(options.file_bytes));
  ASHLAR_TRY(OwnedFd file, open_journal_file(options.path));
  auto state = std::make_unique<State>(options, std::move(file));
  ASHLAR_RETURN_IF_ERROR(state->start());
  return std::unique_ptr<JournalWriter>(new JournalWriter(std::move(state)));
}

bool JournalWriter::wants_checkpoint() const noexcept {
  return state_->wants_checkpoint();
}

void JournalWriter::checkpoint(const RouteCore& core) {
  std::vector<std::pair<JournalRecord, ByteWriter>> records;
  write_checkpoint(core, state_->cipher(), [&](JournalRecord type, ByteWriter payload) {
    records.emplace_back(type, std::move(payload));
  });
  state_->begin_file(core.next_decision(), std::move(records));
}

void JournalWriter::key_locals(std::span<const tokens::LocalHash> locals) {
  keyed_.clear();
  keyed_.reserve(locals.size());
  for (const tokens::LocalHash local : locals) keyed_.emplace_back(state_->cipher().block(local.value()));
}

std::span<const tokens::LocalHash> JournalWriter::keyed(std::span<const tokens::LocalHash> locals) {
  key_locals(locals);
  has_keyed_ = true;
  return keyed_;
}

void JournalWriter::worker_added(const WorkerSpec& spec) {
  ByteWriter out;
  put_spec(out, spec);
  state_->append(JournalRecord::kWorkerAdded, std::move(out));
}

void JournalWriter::worker_removed(events::WorkerId worker) {
  ByteWriter out;
  out.put(worker.value());
  state_->append(JournalRecord::kWorkerRemoved, std::move(out));
}

void JournalWriter::state_changed(const events::Worker& worker, WorkerState state) {
  ByteWriter out;
  put_worker(out, worker);
  out.put(static_cast<std::uint8_t>(state));
  state_->append(JournalRecord::kStateChanged, std::move(out));
}

void JournalWriter::availability_changed(events::WorkerId worker, bool is_up) {
  ByteWriter out;
  out.put(worker.value());
  out.put(static_cast<std::uint8_t>(is_up));
  state_->append(JournalRecord::kAvailabilityChanged, std::move(out));
}

void JournalWriter::stored(const events::BlocksStored& event) {
  ByteWriter out;
  put_store(out, event, state_->cipher());
  state_->append(JournalRecord::kStored, std::move(out));
}

void JournalWriter::removed(const events::Worker& worker, events::StorageTier tier,
                            std::span<const events::BlockName> names) {
  ByteWriter out;
  put_removal(out, worker, tier, names, state_->cipher());
  state_->append(JournalRecord::kRemoved, std::move(out));
}

void JournalWriter::cleared(const events::Worker& worker) {
  ByteWriter out;
  put_worker(out, worker);
  state_->append(JournalRecord::kCleared, std::move(out));
}

void JournalWriter::expected(const events::Worker& worker, std::span<const tokens::LocalHash> locals,
                             Clock::TimePoint now) {
  ByteWriter out;
  put_worker(out, worker);
  out.put(now.time_since_epoch().count());
  out.put(static_cast<std::uint32_t>(locals.size()));
  for (const tokens::LocalHash local : locals) out.put(state_->cipher().block(local.value()));
  state_->append(JournalRecord::kExpected, std::move(out));
}

void JournalWriter::chosen(const RouteRequest& request, Clock::TimePoint now,
                           const Result<Decision>& decision) {
  ByteWriter out;
  out.put(now.time_since_epoch().count());
  if (!std::exchange(has_keyed_, false)) key_locals(request.locals);
  put_request(out, request, keyed_, state_->cipher());
  put_decision(out, decision);
  state_->append(JournalRecord::kChosen, std::move(out));
}

void JournalWriter::first_byte(DecisionId decision, Clock::TimePoint now) {
  ByteWriter out;
  out.put(decision.value());
  out.put(now.time_since_epoch().count());
  state_->append(JournalRecord::kFirstByte, std::move(out));
}

void JournalWriter::released(DecisionId decision, Clock::TimePoint now) {
  ByteWriter out;
  out.put(decision.value());
  out.put(now.time_since_epoch().count());
  state_->append(JournalRecord::kReleased, std::move(out));
}

JournalStatus JournalWriter::status() const {
  return state_->status();
}
Result<void> JournalWriter::flush() {
  return state_->flush();
}

}  // namespace ashlar::service
