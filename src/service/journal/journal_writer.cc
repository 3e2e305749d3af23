#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
    const bool was_empty = waiting_.empty();
    if (file_bytes_ > kJournalHeadBytes && file_bytes_ + payload.bytes().size() + 13 > options_.file_bytes)
      begin_file();
    const std::size_t begin = waiting_.size();
    if (begin + payload.bytes().size() > options_.max_waiting_bytes ||
        payload.bytes().size() > kMaxJournalRecord) {
      fail("the disk is slower than the traffic: " + std::to_string(begin) + " bytes wait");
      return;
    }
    ByteWriter record;
    record.put(static_cast<std::uint32_t>(payload.bytes().size()));
    record.put(static_cast<std::uint8_t>(type));
    record.put_bytes(payload.bytes());
    check_ = cipher_.check(check_, record.bytes());
    record.put(check_);
    waiting_.insert(waiting_.end(), record.bytes().begin(), record.bytes().end());
    ++records_;
    file_bytes_ += record.bytes().size();
    ASHLAR_DCHECK(waiting_.size() == begin + payload.bytes().size() + 13, "a record has 13 bytes of frame");
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
    while (failure_.empty() && (!waiting_.empty() || in_hand_ != 0)) changed_.wait(mu_);
    if (!failure_.empty()) return Error(ErrorCode::kIo, "the journal has ended: " + failure_);
    return {};
  }

 private:
  // The next file begins with the check of the last record of this one.
  void begin_file() ASHLAR_REQUIRES(mu_) {
    cuts_.push_back(waiting_.size());
    const std::vector<std::byte> head =
        write_head({.run = options_.run, .number = ++number_, .previous = check_, .options = options_.router},
                   cipher_, check_);
    waiting_.insert(waiting_.end(), head.begin(), head.end());
    file_bytes_ = head.size();
  }

  // Takes no more records. Those that wait are still written.
  void fail(std::string why) ASHLAR_REQUIRES(mu_) {
    failure_ = std::move(why);
    ASHLAR_LOG(LogLevel::kError, "journal", "%s ends here: %s", options_.path.c_str(), failure_.c_str());
    changed_.notify_all();
  }

  // Bytes of one file or several, which end at `cuts`.
  Result<void> write(std::span<const std::byte> bytes, std::span<const std::size_t> cuts) {
    std::size_t begin = 0;
    for (const std::size_t cut : cuts) {
      ASHLAR_DCHECK(begin <= cut && cut <= bytes.size(), "a file ends within what is written");
      ASHLAR_RETURN_IF_ERROR(write_all(file_.get(), bytes.subspan(begin, cut - begin), path_));
      begin = cut;
      path_ = journal_file_name(options_.path, ++open_number_);
      ASHLAR_TRY(file_, open_journal_file(path_));
      remove_oldest();
    }
    return write_all(file_.get(), bytes.subspan(begin), path_);
  }

  // So that the folder has room for a whole file more.
  void remove_oldest() const {
    if (options_.kept_bytes == 0) return;
    struct Kept {
      std::filesystem::file_time_type time;
      std::uint32_t number = 0;
      std::filesystem::path path;
      std::uint64_t bytes = 0;
    };
    std::vector<Kept> kept;
    std::uint64_t bytes = options_.file_bytes;
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
    remove_oldest();
    std::vector<std::byte> hand;
    std::vector<std::size_t> cuts;
    for (;;) {
      {
        MutexLock lock(mu_);
        while (waiting_.empty() && !stops_) changed_.wait(mu_);
        if (waiting_.empty()) return;
        hand.clear();
        hand.swap(waiting_);
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
  std::vector<std::size_t> cuts_ ASHLAR_GUARDED_BY(mu_);  // of waiting_: where the next file begins
  std::uint32_t number_ ASHLAR_GUARDED_BY(mu_) = 0;       // of the file at the end of waiting_
  std::uint64_t file_bytes_ ASHLAR_GUARDED_BY(mu_) = 0;   // of that file
  std::size_t in_hand_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t check_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t records_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t written_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::string failure_ ASHLAR_GUARDED_BY(mu_);
  bool stops_ ASHLAR_GUARDED_BY(mu_) = false;
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
  const JournalCipher& cipher = state_->cipher();
  ByteWriter out;
  put_worker(out, event.worker);
  out.put(static_cast<std::uint8_t>(event.tier));
  out.put(static_cast<std::uint8_t>(event.parent.has_value()));
  out.put(event.parent ? cipher.name(event.parent->value()) : std::uint64_t{0});
  out.put(static_cast<std::uint8_t>(event.start_position.has_value()));
  out.put(event.start_position.value_or(0));
  out.put(static_cast<std::uint32_t>(event.blocks.size()));
  for (const events::StoredBlock& block : event.blocks) {
    out.put(cipher.name(block.name.value()));
    out.put(cipher.block(block.local.value()));
  }
  state_->append(JournalRecord::kStored, std::move(out));
}

void JournalWriter::removed(const events::Worker& worker, events::StorageTier tier,
                            std::span<const events::BlockName> names) {
  ByteWriter out;
  put_worker(out, worker);
  out.put(static_cast<std::uint8_t>(tier));
  out.put(static_cast<std::uint32_t>(names.size()));
  for (const events::BlockName name : names) out.put(state_->cipher().name(name.value()));
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
  put_request(out, request, state_->cipher());
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
