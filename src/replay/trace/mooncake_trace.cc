// Mooncake's form and what AIPerf and Dynamo add to it.
//
// A line has the prompt's length or its text. Text is cut into blocks of 4 bytes per token, named by a
// chained hash, so that prompts that begin alike share blocks; a list of messages is taken as it is written,
// without its closing bracket, so that a later turn begins as the one before. `tools` stand before it, as
// engines' templates put them at the head of the prompt. A line without a time follows the one before in its
// session, after its delay: how long the answer took is not known.
//
// A line may say the size of its blocks: then that of most lines at the beginning is taken, and blocks of
// another size are left out and counted, since they are none of this size. Where no line says it, lengths and
// numbers of blocks bound it: a prompt of n tokens has ceil(n / size) blocks. Of the sizes that fit the lines
// at the beginning, 512 is taken, or the smallest power of two, or the smallest; where none fits all of them,
// 512. Requests that contradict the size are counted.
#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <unordered_map>

#include "ashlar/base/check.h"
#include "replay/trace/json_fields.h"
#include "replay/trace/line_trace.h"
#include "replay/trace/trace_forms.h"

namespace ashlar::replay {
namespace {

constexpr std::uint32_t kMooncakeBlock = 512;
constexpr std::uint64_t kBytesPerToken = 4;

struct MooncakeLine {
  std::optional<std::uint64_t> timestamp;
  std::optional<std::uint64_t> input;
  std::uint64_t output = 0;
  std::uint64_t delay = 0;
  std::uint64_t session = 0;
  std::uint64_t block_size = 0;  // 0: not said
  bool has_hashes = false;
  std::string_view text;   // of a prompt without a length
  std::string_view tools;  // before it
};

// Reads one field. False: a fault in `fields`.
bool read_mooncake_field(TraceFields& fields, MooncakeLine& line, std::vector<std::uint64_t>& hashes) {
  const std::string& key = fields.key();
  if (fields.in().take_null()) return true;
  if (key == "timestamp" || key == "created_time")
    return fields.read_time(line.timestamp.emplace(), 1.0, "expected a time in milliseconds");
  if (key == "input_length" || key == "input_tokens")
    return fields.read_count(line.input.emplace(), "expected the number of prompt tokens");
  if (key == "output_length" || key == "output_tokens")
    return fields.read_count(line.output, "expected the number of answered tokens");
  if (key == "delay" || key == "delay_ms")
    return fields.read_time(line.delay, 1.0, "expected a delay in milliseconds");
  // `session`: of `ashlar serve --record` and `ashlar replay --write`, whose lines have their whole prompt.
  if (key == "session_id" || key == "session")
    return fields.read_session(line.session, "expected a session by text or number");
  if (key == "block_size") return fields.read_count(line.block_size, "expected the tokens of a block");
  if (key == "hash_ids") {
    line.has_hashes = true;
    hashes.clear();
    return fields.read_hashes(hashes, "expected an array of integers, the blocks of the prompt");
  }
  if (key == "text_input" || key == "messages" || key == "payload") {
    if (!fields.read_raw(line.text)) return false;
    if (line.text.ends_with(']') || line.text.ends_with('"')) line.text.remove_suffix(1);
    return true;
  }
  if (key == "tools") return fields.read_raw(line.tools);
  return fields.in().skip();
}

bool read_mooncake_line(TraceFields& fields, MooncakeLine& line, std::vector<std::uint64_t>& hashes) {
  if (!fields.in().begin_object("expected a JSON object")) return false;
  bool more = false;
  while (fields.next_key(more) && more)
    if (!read_mooncake_field(fields, line, hashes)) return false;
  return fields.in().fault() == nullptr && fields.end();
}

// Sizes that every line so far allows.
class SizeBounds {
 public:
  void add(std::uint64_t input, std::uint64_t blocks) {
    if (input == 0 || blocks == 0) return;
    least_ = std::max(least_, (input + blocks - 1) / blocks);
    if (blocks > 1) most_ = std::min(most_, (input - 1) / (blocks - 1));
  }
  std::uint32_t choose() const {
    if (most_ < least_ || least_ <= 1 || most_ == UINT64_MAX ||
        (least_ <= kMooncakeBlock && kMooncakeBlock <= most_))
      return kMooncakeBlock;
    const std::uint64_t power = std::bit_ceil(least_);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(power <= most_ ? power : least_, UINT32_MAX));
  }

 private:
  std::uint64_t least_ = 1;
  std::uint64_t most_ = UINT64_MAX;
};

// What lines say themselves. One that names no blocks says little: it counts where no other says anything.
class SaidSizes {
 public:
  void add(const MooncakeLine& line) {
    if (line.block_size == 0) return;
    Votes& votes = sizes_[size_of(line)];
    ++(line.has_hashes ? votes.with_blocks : votes.without);
  }
  static std::uint32_t size_of(const MooncakeLine& line) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(line.block_size, UINT32_MAX));
  }
  // 0: none was said.
  std::uint32_t choose() const {
    const auto most = std::ranges::max_element(
        sizes_, {}, [](const auto& one) { return std::pair(one.second.with_blocks, one.second.without); });
    return most == sizes_.end() ? 0 : most->first;
  }

 private:
  struct Votes {
    std::uint64_t with_blocks = 0;
    std::uint64_t without = 0;
  };
  std::map<std::uint32_t, Votes> sizes_;
};

std::uint32_t infer_block_size(std::string_view head) {
  SizeBounds bounds;
  SaidSizes said;
  std::vector<std::uint64_t> hashes;
  while (!head.empty()) {
    const std::size_t end = head.find('\n');
    TraceFields fields(head.substr(0, end));
    MooncakeLine line;
    const bool is_whole = read_mooncake_line(fields, line, hashes) && end != std::string_view::npos;
    // The last line may go on behind the head, after its size.
    if (is_whole || end == std::string_view::npos) said.add(line);
    if (is_whole && line.input && line.has_hashes) bounds.add(*line.input, hashes.size());
    if (end == std::string_view::npos) break;
    head.remove_prefix(end + 1);
  }
  const std::uint32_t size = said.choose();
  return size != 0 ? size : bounds.choose();
}

class MooncakeTrace final : public LineTrace {
 public:
  MooncakeTrace(LineSource lines, const TraceOptions& options, std::uint32_t block_size)
      : LineTrace(std::move(lines), options, TraceFormat::kMooncake), is_asked_(options.block_size != 0) {
    ASHLAR_CHECK(block_size > 0, "a block has a token");
    facts_.block_size = block_size;
  }

 private:
  Result<void> parse(std::string_view text) override {
    TraceFields fields(text);
    MooncakeLine line;
    TraceRequest& request = add();
    if (!read_mooncake_line(fields, line, request.blocks)) return fields.error();
    request.block_size = facts_.block_size;
    if (!line.input && line.text.empty() && !line.has_hashes)
      return Error(ErrorCode::kCorruption,
                   "expected one of input_length, hash_ids, text_input, messages and payload");
    const bool is_other = line.block_size != 0 && !is_asked_ && SaidSizes::size_of(line) != facts_.block_size;
    if (line.input) {
      request.input_tokens = *line.input;
    } else if (line.has_hashes) {
      request.input_tokens =
          request.blocks.size() * std::uint64_t{is_other ? SaidSizes::size_of(line) : facts_.block_size};
    } else {
      cut_text(line, request);
    }
    if (is_other && line.has_hashes && !request.blocks.empty()) {
      request.blocks.clear();
      ++facts_.other_size;
    } else if (line.has_hashes && !request.blocks.empty()) {
      const std::uint64_t full = request.input_tokens / facts_.block_size;
      const bool has_rest = request.input_tokens % facts_.block_size != 0;
      if (request.blocks.size() < full || request.blocks.size() > full + (has_rest ? 1 : 0))
        ++facts_.contradicting;
    }
    request.output_tokens = line.output;
    request.delay_ms = line.delay;
    request.session = line.session;
    request.arrival_ms = line.timestamp ? *line.timestamp : last_arrival(line.session) + line.delay;
    last_ = request.arrival_ms;
    if (line.session != 0) sessions_[line.session] = request.arrival_ms;
    return {};
  }

  std::uint64_t last_arrival(std::uint64_t session) const {
    if (session == 0) return last_;
    const auto found = sessions_.find(session);
    return found == sessions_.end() ? last_ : found->second;
  }

  void cut_text(const MooncakeLine& line, TraceRequest& request) {
    ++facts_.from_text;
    std::string_view text = line.text;
    if (!line.tools.empty() && line.tools != "[]") {
      joined_.assign(line.tools).append(line.text);
      text = joined_;
    }
    request.input_tokens = (text.size() + kBytesPerToken - 1) / kBytesPerToken;
    std::uint64_t name = 1;
    const std::size_t step = std::size_t{facts_.block_size} * kBytesPerToken;
    for (std::size_t at = 0; at < text.size(); at += step) {
      name = join_names(name, hash_text(text.substr(at, step)));
      request.blocks.push_back(name);
    }
  }

  const bool is_asked_;  // the size of a block, whatever lines say
  std::string joined_;
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> sessions_;  // when the last request of each came
};

}  // namespace

Result<std::unique_ptr<TraceSource>> open_mooncake(LineSource lines, const TraceOptions& options) {
  std::uint32_t block_size = options.block_size;
  if (block_size == 0) {
    ASHLAR_TRY(const std::string_view head, lines.peek());
    block_size = infer_block_size(head);
  }
  return std::unique_ptr<TraceSource>(std::make_unique<MooncakeTrace>(std::move(lines), options, block_size));
}

}  // namespace ashlar::replay
