#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <unordered_map>

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

}  // namespace

Result<std::uint64_t> write_trace(TraceSource& source, const std::string& path) {
  const auto failed = [&] {
    return make_error(ErrorCode::kIo, "cannot write the trace %s: %s", path.c_str(),
                      std::generic_category().message(errno).c_str());
  };
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) return failed();
  std::unordered_map<std::uint64_t, std::uint64_t> numbers;
  std::unordered_map<std::uint64_t, std::uint64_t> sessions;
  std::string line;
  TraceRequest request;
  std::uint64_t written = 0;
  for (;;) {
    ASHLAR_TRY(const bool more, source.next(request));
    if (!more) break;
    put_line(line, request, numbers, sessions);
    if (std::fwrite(line.data(), 1, line.size(), file.get()) != line.size()) return failed();
    ++written;
  }
  if (std::fclose(file.release()) != 0) return failed();
  return written;
}

}  // namespace ashlar::replay
