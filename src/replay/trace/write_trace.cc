#include <cerrno>
#include <system_error>
#include <unordered_map>

#include "ashlar/replay/generate.h"
#include "events/json_writer.h"
#include "replay/trace/replaced_file.h"
#include "replay/trace/trace_forms.h"

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
    line += ", \"session\": \"";
    events::append_number(line, number_of(sessions, request.session));
    line += '"';
  }
  line += "}\n";
}

}  // namespace

Result<std::uint64_t> write_trace(TraceSource& source, const std::string& path,
                                  const std::function<bool(std::uint64_t)>& progress) {
  constexpr std::uint64_t kStep = 64;
  const auto failed = [&] {
    return make_error(ErrorCode::kIo, "cannot write the trace %s: %s", path.c_str(),
                      std::generic_category().message(errno).c_str());
  };
  // The trace that is read may be the one that is written.
  ReplacedFile file(path);
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
  if (written == 0) return no_requests(source.facts());
  if (!file.finish()) return failed();
  return written;
}

}  // namespace ashlar::replay
