// Weka's agent sessions: an object per session, with its requests in order and those of its subagents inside.
//
// Numbers of blocks are the session's own (`hash_id_scope` "local"), so names are made of both. They are of a
// model too, which a request says, or its session where that lists one alone: another model's blocks are of
// no use. A session has a clock of its own as well: sessions begin session_interval_ms apart. The times of a
// subagent count from the session's start, or, where the first of them lies before the subagent's own, from
// that one.
//
// The first session says the size of blocks. Those of another size are left out and counted, since they are
// none of this size.
#include <algorithm>

#include "ashlar/base/check.h"
#include "replay/trace/json_fields.h"
#include "replay/trace/line_trace.h"
#include "replay/trace/trace_forms.h"

namespace ashlar::replay {
namespace {

// A file that is one object over many lines, rather than one per line.
bool is_one_object(std::string_view head) {
  const std::size_t end = head.find('\n');
  if (end == std::string_view::npos) return false;
  std::string_view first = head.substr(0, end);
  while (!first.empty() && (first.back() == ' ' || first.back() == '\r')) first.remove_suffix(1);
  return !first.ends_with('}');
}

class WekaTrace final : public LineTrace {
 public:
  WekaTrace(LineSource first, std::vector<std::string> files, const TraceOptions& options)
      : LineTrace(std::move(first), options, TraceFormat::kWeka),
        files_(std::move(files)),
        interval_ms_(options.session_interval_ms) {}

  Result<void> begin_file() {
    ASHLAR_TRY(const std::string_view head, lines().peek());
    is_whole_ = is_one_object(head);
    return {};
  }

 private:
  Result<bool> open_next() override {
    if (++file_ >= files_.size()) return false;
    ASHLAR_TRY(LineSource next, LineSource::open(files_[file_]));
    set_lines(std::move(next));
    ASHLAR_RETURN_IF_ERROR(begin_file());
    return true;
  }

  Result<void> parse(std::string_view line) override {
    if (!is_whole_) return parse_session(line);
    whole_.assign(line);
    whole_ += '\n';
    ASHLAR_TRY(const std::string_view rest, lines().rest());
    whole_ += rest;
    return parse_session(whole_);
  }

  Result<void> parse_session(std::string_view text) {
    TraceFields fields(text);
    added_.clear();
    std::uint64_t session = 0;
    std::uint64_t block_size = 0;
    std::uint64_t model = 0;  // of requests that name none
    bool is_local = true;
    bool has_requests = false;
    bool more = false;
    std::string scope;
    if (!fields.in().begin_object("expected a JSON object, one per session")) return fields.error();
    while (fields.next_key(more) && more) {
      bool is_read = false;
      if (fields.key() == "id") {
        is_read = fields.read_session(session, "expected the name of the session");
      } else if (fields.key() == "block_size") {
        is_read = fields.read_count(block_size, "expected the tokens of a block");
      } else if (fields.key() == "hash_id_scope") {
        is_read = fields.in().read_text(scope, "expected \"local\" or \"global\"");
        is_local = scope != "global";
      } else if (fields.key() == "models") {
        is_read = read_only_model(fields, model);
      } else if (fields.key() == "requests") {
        is_read = has_requests = read_requests(fields, 0, 0);
      } else {
        is_read = fields.in().skip();
      }
      if (!is_read) return fields.error();
    }
    if (fields.in().fault() != nullptr || !fields.end()) return fields.error();
    if (!has_requests || block_size == 0 || block_size > UINT32_MAX)
      return Error(ErrorCode::kCorruption, "expected a session with block_size and requests");
    if (session == 0) session = join_names(0x5745'4B41, sessions_);
    if (facts_.block_size == 0) facts_.block_size = static_cast<std::uint32_t>(block_size);
    const bool is_other = block_size != facts_.block_size;
    ASHLAR_CHECK(session != 0, "a session without a name would share its blocks");
    const std::uint64_t start = sessions_++ * interval_ms_;
    std::ranges::sort(added_, {},
                      [](const Added& one) { return std::pair(one.request.arrival_ms, one.order); });
    for (Added& one : added_) {
      TraceRequest& request = add();
      std::swap(request, one.request);
      request.arrival_ms += start;
      request.block_size = facts_.block_size;
      request.session = one.agent == 0 ? session : join_names(session, one.agent) | 1;
      if (is_other && !request.blocks.empty()) {
        request.blocks.clear();
        ++facts_.other_size;
      }
      const std::uint64_t of = one.model == 0 ? model : one.model;
      for (std::uint64_t& name : request.blocks) {
        if (is_local) name = join_names(session, name);
        if (of != 0) name = join_names(of, name);
      }
    }
    return {};
  }

  // 0 where there are none or several.
  static bool read_only_model(TraceFields& fields, std::uint64_t& out) {
    if (fields.in().peek() != events::JsonReader::Type::kArray) return fields.in().skip();
    if (!fields.in().begin_array("expected an array of models")) return false;
    std::size_t count = 0;
    bool more = false;
    while (fields.in().next_item(more) && more) {
      ++count;
      if (fields.in().take_null()) continue;
      if (!fields.read_session(out, "expected the name of a model")) return false;
    }
    if (count != 1) out = 0;
    return fields.in().fault() == nullptr;
  }

  bool read_requests(TraceFields& fields, std::uint64_t agent, std::uint64_t agent_start_ms) {
    if (!fields.in().begin_array("expected an array of requests")) return false;
    const std::size_t first = added_.size();
    bool more = false;
    while (fields.in().next_item(more) && more)
      if (!read_entry(fields, agent)) return false;
    if (fields.in().fault() != nullptr) return false;
    if (agent == 0 || first == added_.size() || added_[first].request.arrival_ms >= agent_start_ms)
      return true;
    for (std::size_t i = first; i < added_.size(); ++i) added_[i].request.arrival_ms += agent_start_ms;
    return true;
  }

  // A request, or a subagent with requests of its own.
  bool read_entry(TraceFields& fields, std::uint64_t agent) {
    if (!fields.in().begin_object("expected a request or a subagent")) return false;
    Added one{.request = {}, .agent = agent, .model = 0, .order = order_++};
    std::uint64_t child = 0;
    bool has_length = false;
    bool is_agent = false;
    bool more = false;
    while (fields.next_key(more) && more) {
      const std::string& key = fields.key();
      bool is_read = false;
      if (fields.in().take_null()) {
        is_read = true;
      } else if (key == "t") {
        is_read = fields.read_time(one.request.arrival_ms, 1'000.0, "expected a time in seconds");
      } else if (key == "in") {
        is_read = has_length = fields.read_count(one.request.input_tokens, "expected the prompt's tokens");
      } else if (key == "out") {
        is_read = fields.read_count(one.request.output_tokens, "expected the answer's tokens");
      } else if (key == "think_time") {
        is_read = fields.read_time(one.request.delay_ms, 1'000.0, "expected a time in seconds");
      } else if (key == "hash_ids") {
        is_read =
            fields.read_hashes(one.request.blocks, "expected an array of integers, blocks of the prompt");
      } else if (key == "model") {
        is_read = fields.read_session(one.model, "expected the name of a model");
      } else if (key == "agent_id") {
        is_read = fields.read_session(child, "expected the name of the subagent");
      } else if (key == "requests") {
        is_agent = true;
        if (child == 0) child = join_names(0x4147'454E, one.order) | 1;
        is_read = read_requests(fields, child, one.request.arrival_ms);
      } else {
        is_read = fields.in().skip();
      }
      if (!is_read) return false;
    }
    if (fields.in().fault() != nullptr) return false;
    if (is_agent) return true;
    if (!has_length) return fields.in().fail("expected `in`, the tokens of the prompt");
    added_.push_back(std::move(one));
    return true;
  }

  struct Added {
    TraceRequest request;
    std::uint64_t agent = 0;
    std::uint64_t model = 0;  // 0: not said
    std::uint64_t order = 0;  // in the file
  };

  const std::vector<std::string> files_;
  const std::uint64_t interval_ms_;
  std::size_t file_ = 0;
  bool is_whole_ = false;
  std::string whole_;
  std::vector<Added> added_;
  std::uint64_t sessions_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace

Result<std::unique_ptr<TraceSource>> open_weka(std::vector<std::string> files, const TraceOptions& options) {
  ASHLAR_CHECK(files.size() > 0, "sessions are in files");
  ASHLAR_TRY(LineSource first, LineSource::open(files.front()));
  auto trace = std::make_unique<WekaTrace>(std::move(first), std::move(files), options);
  ASHLAR_RETURN_IF_ERROR(trace->begin_file());
  return std::unique_ptr<TraceSource>(std::move(trace));
}

}  // namespace ashlar::replay
