// Lines wait in a buffer with a bound; a thread takes all of them at once, gives hashes their numbers and
// writes. Numbers are given by that thread alone, in the order of the lines, so that a line that finds no
// room takes none.
//
// A block's hash is chained with those before it, under a key drawn for the file: equal ids mean equal
// prefixes, and nobody can test a guess of a prompt against the file.
//
// A write that fails part of the way is taken back (ftruncate), so that the file always ends with a whole
// line.
#include "service/request/trace_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/base/mutex.h"
#include "base/owned_fd.h"
#include "base/start_thread.h"
#include "events/json_writer.h"
#include "tokens/siphash128.h"

namespace ashlar::service {
namespace {

using tokens::SipHash128;

// A line that waits; its hashes stand in the buffer of all of them.
struct WaitingLine {
  std::uint64_t milliseconds = 0;
  std::uint64_t input_tokens = 0;
  std::optional<std::uint64_t> output_tokens;
  std::uint64_t session = 0;
  std::uint32_t block_size = 0;
  std::uint32_t locals = 0;
};

struct WaitingLines {
  std::vector<WaitingLine> lines;
  std::vector<tokens::LocalHash> locals;
  std::size_t bytes = 0;
};

// Numbers of hashes, in order of appearance. The oldest are forgotten.
class HashNumbers {
 public:
  HashNumbers(std::size_t most, const SipHash128::Key& key)
      : most_(std::max<std::size_t>(1, most)), key_(key) {}

  std::uint64_t number_of(std::uint64_t chained) {
    const auto [place, is_new] = numbers_.try_emplace(chained, next_);
    if (!is_new) return place->second;
    order_.push_back(chained);
    if (order_.size() > most_) {
      numbers_.erase(order_.front());
      order_.pop_front();
    }
    ASHLAR_DCHECK(numbers_.size() == order_.size() && order_.size() <= most_,
                  "every number has its turn to go");
    return next_++;
  }
  // A number that no other block gets.
  std::uint64_t fresh() { return next_++; }

  std::uint64_t chain(std::uint64_t before, tokens::LocalHash local) const {
    SipHash128 hash(key_);
    hash.update_u64(before);
    hash.update_u64(local.value());
    return hash.digest().lo;
  }

 private:
  const std::size_t most_;
  const SipHash128::Key key_;
  std::uint64_t next_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> numbers_;
  std::deque<std::uint64_t> order_;
};

void append_number_field(std::string& out, std::string_view name, std::uint64_t value) {
  out += name;
  events::append_number(out, value);
}

// Ids are for every block of the prompt, or left out where its blocks are not known. The last block, if it is
// not full, is shared with nobody.
void append_line(std::string& out, const WaitingLine& line, std::span<const tokens::LocalHash> locals,
                 HashNumbers& numbers) {
  ASHLAR_DCHECK(line.block_size != 0 || locals.empty(), "%zu blocks without a size", locals.size());
  append_number_field(out, R"({"timestamp": )", line.milliseconds);
  append_number_field(out, R"(, "input_length": )", line.input_tokens);
  if (line.output_tokens) append_number_field(out, R"(, "output_length": )", *line.output_tokens);
  const bool has_blocks = line.block_size != 0 && line.input_tokens / line.block_size == locals.size();
  if (has_blocks) {
    append_number_field(out, R"(, "block_size": )", line.block_size);
    out += R"(, "hash_ids": [)";
    std::string_view comma;
    std::uint64_t chained = line.block_size;
    for (const tokens::LocalHash local : locals) {
      chained = numbers.chain(chained, local);
      append_number_field(out, std::exchange(comma, ", "), numbers.number_of(chained));
    }
    if (line.input_tokens % line.block_size != 0) append_number_field(out, comma, numbers.fresh());
    out += ']';
  }
  if (line.session != 0) {
    out += R"(, "session": ")";
    for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[line.session >> shift & 15];
    out += '"';
  }
  out += "}\n";
}

}  // namespace

struct TraceRecorder::State {
  State(OwnedFd opened, const Options& given, const SipHash128::Key& key, Clock::TimePoint now)
      : file(std::move(opened)),
        path(given.path),
        max_waiting(given.max_waiting_bytes),
        start(now),
        numbers(given.max_ids, key) {}

  void run() ASHLAR_EXCLUDES(mu);
  // Returns the lines that are in the file. `lines` of them are in `text`.
  std::uint64_t write_all(std::string_view text, std::uint64_t lines);

  const OwnedFd file;
  const std::string path;
  const std::size_t max_waiting;
  const Clock::TimePoint start;
  HashNumbers numbers;      // of the thread
  off_t end = 0;            // of the file, where its last whole line ends; of the thread
  bool has_warned = false;  // of the thread

  Mutex mu;
  CondVar changed;
  WaitingLines waiting ASHLAR_GUARDED_BY(mu);
  std::uint64_t taken ASHLAR_GUARDED_BY(mu) = 0;    // lines that were accepted
  std::uint64_t settled ASHLAR_GUARDED_BY(mu) = 0;  // of them, those that are written or lost
  std::uint64_t written ASHLAR_GUARDED_BY(mu) = 0;
  std::uint64_t dropped ASHLAR_GUARDED_BY(mu) = 0;
  std::uint64_t lost ASHLAR_GUARDED_BY(mu) = 0;      // dropped, because the file did not take them
  std::uint64_t reported ASHLAR_GUARDED_BY(mu) = 0;  // of them, those that flush() spoke of
  int error ASHLAR_GUARDED_BY(mu) = 0;               // of the last write that failed
  bool is_stopping ASHLAR_GUARDED_BY(mu) = false;
  std::thread thread;
};

std::uint64_t TraceRecorder::State::write_all(std::string_view text, std::uint64_t lines) {
  std::string_view rest = text;
  int failure = 0;
  while (!rest.empty() && failure == 0) {
    const ssize_t size =
        pwrite(file.get(), rest.data(), rest.size(), end + static_cast<off_t>(text.size() - rest.size()));
    if (size > 0) rest.remove_prefix(static_cast<std::size_t>(size));
    if (size <= 0 && errno != EINTR) failure = size == 0 ? ENOSPC : errno;
  }
  // Whole lines stay.
  const std::string_view kept = text.substr(0, text.substr(0, text.size() - rest.size()).rfind('\n') + 1);
  const auto kept_lines = static_cast<std::uint64_t>(std::count(kept.begin(), kept.end(), '\n'));
  ASHLAR_CHECK(kept_lines <= lines && (failure != 0 || kept_lines == lines),
               "every line ends with a line feed");
  end += static_cast<off_t>(kept.size());
  if (failure == 0) return lines;
  const bool is_whole = ftruncate(file.get(), end) == 0;
  if (!std::exchange(has_warned, true))
    ASHLAR_LOG(LogLevel::kWarn, "service", "the recording %s loses lines: %s%s", printable(path).c_str(),
               std::generic_category().message(failure).c_str(),
               is_whole ? "" : "; its last line is not whole");
  const MutexLock lock(mu);
  error = failure;
  return kept_lines;
}

void TraceRecorder::State::run() {
  WaitingLines batch;
  std::string text;
  for (;;) {
    {
      const MutexLock lock(mu);
      while (waiting.lines.empty() && !is_stopping) changed.wait(mu);
      if (waiting.lines.empty()) return;
      std::swap(batch, waiting);
    }
    text.clear();
    std::span<const tokens::LocalHash> locals = batch.locals;
    for (const WaitingLine& line : batch.lines) {
      append_line(text, line, locals.first(line.locals), numbers);
      locals = locals.subspan(line.locals);
    }
    ASHLAR_CHECK(locals.empty(), "every hash belongs to a line");
    const std::uint64_t lines = batch.lines.size();
    const std::uint64_t kept = write_all(text, lines);
    batch = {};
    const MutexLock lock(mu);
    settled += lines;
    written += kept;
    dropped += lines - kept;
    lost += lines - kept;
    changed.notify_all();
  }
}

Result<std::unique_ptr<TraceRecorder>> TraceRecorder::create(const Options& options, Clock& clock) {
  OwnedFd file(open(options.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) {
    const int failure = errno;
    return make_error(failure == EEXIST ? ErrorCode::kAlreadyExists : ErrorCode::kIo,
                      "the recording %s cannot be made: %s%s", printable(options.path).c_str(),
                      std::generic_category().message(failure).c_str(),
                      failure == EEXIST ? "; recordings are never overwritten, choose another name" : "");
  }
  SipHash128::Key key;
  ASHLAR_CHECK(getentropy(key.data(), key.size()) == 0,
               "the operating system gave no random bytes for the key of a recording: %s",
               std::generic_category().message(errno).c_str());
  auto state = std::make_unique<State>(std::move(file), options, key, clock.now());
  State* const running = state.get();
  ASHLAR_RETURN_IF_ERROR(start_thread(&state->thread, [running] { running->run(); }));
  return std::unique_ptr<TraceRecorder>(new TraceRecorder(std::move(state)));
}

TraceRecorder::TraceRecorder(std::unique_ptr<State> state) : state_(std::move(state)) {}

TraceRecorder::~TraceRecorder() {
  {
    const MutexLock lock(state_->mu);
    state_->is_stopping = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

void TraceRecorder::add(const TraceLine& line) {
  using std::chrono::milliseconds;
  const auto since = std::chrono::duration_cast<milliseconds>(line.arrived - state_->start).count();
  WaitingLine waiting;
  waiting.milliseconds = static_cast<std::uint64_t>(std::max<std::int64_t>(0, since));
  waiting.input_tokens = line.input_tokens;
  waiting.output_tokens = line.output_tokens;
  waiting.session = line.session;
  waiting.block_size = line.block_size;
  waiting.locals = static_cast<std::uint32_t>(line.locals.size());
  ASHLAR_CHECK(waiting.locals == line.locals.size(), "a prompt has fewer than 2^32 blocks");
  const std::size_t bytes = sizeof(WaitingLine) + line.locals.size_bytes();
  const MutexLock lock(state_->mu);
  WaitingLines& all = state_->waiting;
  if (all.bytes + bytes > state_->max_waiting) {
    ++state_->dropped;
    return;
  }
  all.bytes += bytes;
  all.lines.push_back(waiting);
  all.locals.insert(all.locals.end(), line.locals.begin(), line.locals.end());
  ++state_->taken;
  state_->changed.notify_all();
}

std::uint64_t TraceRecorder::written() const noexcept {
  const MutexLock lock(state_->mu);
  return state_->written;
}

std::uint64_t TraceRecorder::dropped() const noexcept {
  const MutexLock lock(state_->mu);
  return state_->dropped;
}

Result<void> TraceRecorder::flush() {
  const MutexLock lock(state_->mu);
  const std::uint64_t until = state_->taken;
  while (state_->settled < until) state_->changed.wait(state_->mu);
  const std::uint64_t lost = state_->lost - std::exchange(state_->reported, state_->lost);
  if (lost == 0) return {};
  return make_error(ErrorCode::kIo, "the recording %s lost %llu lines: %s", printable(state_->path).c_str(),
                    static_cast<unsigned long long>(lost),
                    std::generic_category().message(state_->error).c_str());
}

}  // namespace ashlar::service
