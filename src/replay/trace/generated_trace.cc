// Sessions in a queue by the time of their next request. A new one begins whenever its time comes first. A
// text is a row of pieces, each a number and a length; blocks are named by what they hold of which pieces,
// chained, so that texts that begin with the same pieces share names.
#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "ashlar/replay/generate.h"
#include "replay/trace/json_fields.h"

namespace ashlar::replay {
namespace {

// Both ends included.
struct DrawRange {
  std::uint32_t least = 0;
  std::uint32_t most = 0;
};

// What the sessions of a kind are like.
struct SessionShape {
  std::uint32_t shared = 1;    // system prompts, tools or documents that they begin with
  DrawRange shared_tokens;     // of each
  DrawRange turns;             // requests
  DrawRange question;          // tokens
  DrawRange answer;            // tokens
  DrawRange pause_ms;          // after an answer
  std::uint32_t long_percent;  // of pauses that are long
  DrawRange long_pause_ms;
};

constexpr std::uint32_t kAnswerMsPerToken = 25;

constexpr SessionShape kShapes[] = {
    {.shared = 24,
     .shared_tokens = {200, 2'000},
     .turns = {2, 12},
     .question = {20, 400},
     .answer = {60, 600},
     .pause_ms = {5'000, 60'000},
     .long_percent = 20,
     .long_pause_ms = {180'000, 900'000}},
    {.shared = 64,
     .shared_tokens = {500, 4'000},
     .turns = {1, 1},
     .question = {20, 600},
     .answer = {10, 300},
     .pause_ms = {0, 0},
     .long_percent = 0,
     .long_pause_ms = {0, 0}},
    {.shared = 8,
     .shared_tokens = {8'000, 20'000},
     .turns = {5, 40},
     .question = {100, 3'000},
     .answer = {30, 300},
     .pause_ms = {200, 10'000},
     .long_percent = 8,
     .long_pause_ms = {60'000, 300'000}},
    {.shared = 400,
     .shared_tokens = {4'000, 48'000},
     .turns = {1, 5},
     .question = {20, 120},
     .answer = {60, 400},
     .pause_ms = {5'000, 60'000},
     .long_percent = 10,
     .long_pause_ms = {180'000, 600'000}},
};
constexpr std::size_t kShapeCount = std::size(kShapes);
static_assert(kShapeCount == static_cast<std::size_t>(WorkloadKind::kMix), "a shape per kind, and the mix");

constexpr std::string_view kKindNames[] = {"chat", "prompts", "agents", "documents", "mix"};

class GeneratedText {
 public:
  void append(std::uint64_t piece, std::uint32_t tokens, std::uint32_t block_size) {
    std::uint32_t offset = 0;
    while (offset < tokens) {
      const std::uint32_t taken = std::min(tokens - offset, block_size - filled_);
      state_ = join_names(join_names(state_, piece), (std::uint64_t{offset} << 32) | taken);
      offset += taken;
      filled_ += taken;
      length_ += taken;
      if (filled_ < block_size) continue;
      names_.push_back(state_);
      filled_ = 0;
    }
  }
  std::uint64_t length() const noexcept { return length_; }
  void names(std::vector<std::uint64_t>& out) const {
    out.assign(names_.begin(), names_.end());
    if (filled_ > 0) out.push_back(join_names(state_, filled_));  // another name than any full block's
  }

 private:
  std::vector<std::uint64_t> names_;
  std::uint64_t state_ = 1;
  std::uint64_t length_ = 0;
  std::uint32_t filled_ = 0;  // tokens of the last block
};

struct GeneratedSession {
  std::uint64_t at_ms = 0;  // its next request
  std::uint64_t number = 0;
  std::uint64_t delay_ms = 0;
  const SessionShape* shape = nullptr;
  std::uint32_t turns = 0;  // left
  GeneratedText text;

  // Of std::push_heap: the next one is the greatest.
  friend bool operator<(const GeneratedSession& a, const GeneratedSession& b) {
    return std::pair(a.at_ms, a.number) > std::pair(b.at_ms, b.number);
  }
};

class GeneratedTrace final : public TraceSource {
 public:
  explicit GeneratedTrace(const GeneratorOptions& options) : options_(options), random_(options.seed) {
    ASHLAR_CHECK(options.validate().has_value(), "options that validate() refuses");
    facts_.format = TraceFormat::kGenerated;
    facts_.block_size = options.block_size;
  }

  Result<bool> next(TraceRequest& out) override {
    if (facts_.requests == options_.requests) return false;
    while (sessions_.empty() || next_session_us_ / 1'000 <= sessions_.front().at_ms) begin_session();
    std::pop_heap(sessions_.begin(), sessions_.end());
    GeneratedSession& session = sessions_.back();
    ASHLAR_CHECK(session.at_ms >= last_ms_ && session.turns > 0,
                 "requests come in order, of sessions that go on");
    last_ms_ = session.at_ms;
    ask(session, out);
    if (--session.turns == 0) {
      sessions_.pop_back();
    } else {
      std::push_heap(sessions_.begin(), sessions_.end());
    }
    ++facts_.requests;
    return true;
  }
  const TraceFacts& facts() const noexcept override { return facts_; }

 private:
  std::uint32_t draw(const DrawRange& range) { return random_.between(range.least, range.most); }

  // One of `count`, the k-th as likely as 1/k.
  std::uint32_t draw_popular(std::uint32_t count) {
    constexpr std::uint64_t kScale = 1'000'000;
    std::uint64_t total = 0;
    for (std::uint32_t k = 1; k <= count; ++k) total += kScale / k;
    std::uint64_t at = random_.below(total);
    std::uint32_t k = 1;
    while (at >= kScale / k) at -= kScale / k++;
    return k;
  }

  void begin_session() {
    const std::size_t kind = options_.kind == WorkloadKind::kMix ? random_.below(kShapeCount)
                                                                 : static_cast<std::size_t>(options_.kind);
    const SessionShape& shape = kShapes[kind];
    GeneratedSession session;
    session.at_ms = next_session_us_ / 1'000;
    session.number = ++begun_;
    session.shape = &shape;
    session.turns = draw(shape.turns);
    // A shared text has its length by its number alone: whoever draws it gets the same.
    const std::uint64_t shared = (kind + 1) * 100'000 + draw_popular(shape.shared);
    Random length(join_names(options_.seed, shared));
    session.text.append(shared, length.between(shape.shared_tokens.least, shape.shared_tokens.most),
                        options_.block_size);
    sessions_.push_back(std::move(session));
    std::push_heap(sessions_.begin(), sessions_.end());
    next_session_us_ += draw_gap(shape);
  }

  // Sessions come as often as the rate and their length say; gaps are even between nothing and twice the
  // mean. Long ones are whole milliseconds. Short ones are finer: rounded they would be shorter than they
  // should be, or nothing, and sessions would begin without end.
  std::uint64_t draw_gap(const SessionShape& shape) {
    constexpr std::uint64_t kShortGap = 100'000;
    const std::uint64_t turns = (std::uint64_t{shape.turns.least} + shape.turns.most + 1) / 2;
    const std::uint64_t most = 2 * turns * 1'000'000 / options_.rate;
    ASHLAR_DCHECK(most > 0, "sessions that all begin at once have no end");
    return most < kShortGap ? random_.below(most + 1) : 1'000 * random_.below(most / 1'000 + 1);
  }

  void ask(GeneratedSession& session, TraceRequest& out) {
    const SessionShape& shape = *session.shape;
    session.text.append(unique_piece(), draw(shape.question), options_.block_size);
    out.arrival_ms = session.at_ms;
    out.session = session.number;
    out.input_tokens = session.text.length();
    out.output_tokens = draw(shape.answer);
    out.delay_ms = session.delay_ms;
    out.block_size = options_.block_size;
    session.text.names(out.blocks);
    session.text.append(unique_piece(), static_cast<std::uint32_t>(out.output_tokens), options_.block_size);
    const bool is_long = random_.below(100) < shape.long_percent;
    session.delay_ms = draw(is_long ? shape.long_pause_ms : shape.pause_ms);
    session.at_ms += out.output_tokens * kAnswerMsPerToken + session.delay_ms;
  }

  // Shared ones are below 2^32.
  std::uint64_t unique_piece() { return (std::uint64_t{1} << 32) + ++pieces_; }

  const GeneratorOptions options_;
  Random random_;
  TraceFacts facts_;
  std::vector<GeneratedSession> sessions_;  // a heap
  std::uint64_t next_session_us_ = 0;
  std::uint64_t last_ms_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t pieces_ = 0;
};

Result<std::uint64_t> number_in(std::string_view name, std::string_view text, std::uint64_t most) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value > most)
    return make_error(ErrorCode::kInvalidArgument,
                      "%.*s of the generator is \"%.*s\"; a whole number is expected",
                      static_cast<int>(name.size()), name.data(), static_cast<int>(text.size()), text.data());
  return value;
}

}  // namespace

std::string_view to_string(WorkloadKind kind) noexcept {
  return kKindNames[static_cast<std::size_t>(kind)];
}

Result<void> GeneratorOptions::validate() const {
  if (requests == 0) return Error(ErrorCode::kInvalidArgument, "requests of the generator must be 1 or more");
  if (block_size == 0 || block_size > 65'536)
    return make_error(ErrorCode::kInvalidArgument,
                      "block of the generator is %u; 1 to 65536 tokens are possible", block_size);
  if (rate == 0 || rate > 1'000'000)
    return make_error(ErrorCode::kInvalidArgument, "rate of the generator is %u; 1 to 1000000 are possible",
                      rate);
  return {};
}

Result<GeneratorOptions> parse_generator(std::string_view text) {
  GeneratorOptions options;
  bool has_kind = false;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const std::size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    if (equals == std::string_view::npos) {
      const auto* kind = std::ranges::find(kKindNames, name);
      if (kind == std::end(kKindNames) || has_kind)
        return Error(ErrorCode::kInvalidArgument,
                     "\"" + std::string(part) +
                         "\" is no workload; one of chat, prompts, agents, documents and mix is expected");
      options.kind = static_cast<WorkloadKind>(kind - std::begin(kKindNames));
      has_kind = true;
      continue;
    }
    const std::string_view value = part.substr(equals + 1);
    if (name == "seed") {
      ASHLAR_TRY(options.seed, number_in(name, value, UINT64_MAX));
    } else if (name == "requests") {
      ASHLAR_TRY(options.requests, number_in(name, value, UINT64_MAX));
    } else if (name == "block") {
      ASHLAR_TRY(const std::uint64_t block, number_in(name, value, UINT32_MAX));
      options.block_size = static_cast<std::uint32_t>(block);
    } else if (name == "rate") {
      ASHLAR_TRY(const std::uint64_t rate, number_in(name, value, UINT32_MAX));
      options.rate = static_cast<std::uint32_t>(rate);
    } else {
      return Error(ErrorCode::kInvalidArgument, "the generator has no \"" + std::string(name) +
                                                    "\"; it has seed, requests, block and rate");
    }
  }
  if (!has_kind)
    return Error(ErrorCode::kInvalidArgument,
                 "a workload is missing: one of chat, prompts, agents, documents and mix");
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return options;
}

std::unique_ptr<TraceSource> generate_trace(const GeneratorOptions& options) {
  return std::make_unique<GeneratedTrace>(options);
}

}  // namespace ashlar::replay
