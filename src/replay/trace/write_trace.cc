#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/replay/generate.h"
#include "events/json_writer.h"

namespace ashlar::replay {
namespace {

// In order of appearance.
std::uint64_t number_of(std::unordered_map<std::uint64_t, std::uint64_t>& numbers, std::uint64_t name) {
  return numbers.try_emplace(name, numbers.size()).first->second;
}

void put_line(std::string& line, const TraceRequest& request,
              std::unordered_map<std::uint64_t, std::uint64_t>& numbers,
              std::unordered_map<std::uint64_t, std::uint64_t>& sessions) {
  line = "{\"timestamp\": ";
  events::append_number(line, request.arrival_ms);
  line += ", \"input_length\": ";
  events::append_number(line, request.input_tokens);
  line += ", \"output_length\": ";
  events::append_number(line, request.output_tokens);
  // Before the blocks: a reader that sees only the beginning of a long line finds it.
  if (request.block_size != 0) {
    line += ", \"block_size\": ";
    events::append_number(line, request.block_size);
  }
  if (!request.blocks.empty()) {
    line += ", \"hash_ids\": [";
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      if (i > 0) line += ", ";
      events::append_number(line, number_of(numbers, request.blocks[i]));
    }
    line += ']';
  }
  if (request.session != 0) {
    line += ", \"session_id\": \"";
    events::append_number(line, number_of(sessions, request.session));
    line += '"';
  }
  line += "}\n";
}

// A file beside the one that is wanted, which takes its place when it is whole: the trace that is read may be
// the one that is written. What is no plain file (a pipe, a terminal) is written as it is.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : path_(path) {
    std::error_code ignored;
    const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
    is_beside_ = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
    // The file that a link names is written, not the link.
    if (std::filesystem::exists(status) && is_beside_)
      if (const auto real = std::filesystem::canonical(path_, ignored); !ignored) path_ = real.string();
    written_ = is_beside_ ? path_ + ".part-" + std::to_string(getpid()) : path_;
    file_ = std::fopen(written_.c_str(), "wb");
  }
  ~TraceFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (is_beside_ && !written_.empty()) std::remove(written_.c_str());
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  bool is_open() const { return file_ != nullptr; }
  bool put(std::string_view text) { return std::fwrite(text.data(), 1, text.size(), file_) == text.size(); }
  bool finish() {
    ASHLAR_CHECK(file_ != nullptr, "a trace file is finished once");
    if (std::fclose(std::exchange(file_, nullptr)) != 0) return false;
    if (is_beside_ && std::rename(written_.c_str(), path_.c_str()) != 0) return false;
    written_.clear();
    return true;
  }

 private:
  std::string path_;
  std::string written_;  // empty: nothing is to be removed
  bool is_beside_ = false;
  std::FILE* file_ = nullptr;
};

}  // namespace

Result<std::uint64_t> write_trace(TraceSource& source, const std::string& path,
                                  const std::function<bool(std::uint64_t)>& progress) {
  constexpr std::uint64_t kStep = 64;
  const auto failed = [&] {
    return make_error(ErrorCode::kIo, "cannot write the trace %s: %s", path.c_str(),
                      std::generic_category().message(errno).c_str());
  };
  TraceFile file(path);
  if (!file.is_open()) return failed();
  std::unordered_map<std::uint64_t, std::uint64_t> numbers;
  std::unordered_map<std::uint64_t, std::uint64_t> sessions;
  std::string line;
  TraceRequest request;
  std::uint64_t written = 0;
  for (;;) {
    ASHLAR_TRY(const bool more, source.next(request));
    if (!more) break;
    put_line(line, request, numbers, sessions);
    if (!file.put(line)) return failed();
    if (++written % kStep == 0 && progress && !progress(written))
      return Error(ErrorCode::kCancelled, "stopped before the trace was written");
  }
  if (!file.finish()) return failed();
  return written;
}

}  // namespace ashlar::replay
