// Qwen-Bailian's form: a chat names the one that it goes on from; the first of them is the session.
#include <unordered_map>

#include "replay/trace/json_fields.h"
#include "replay/trace/line_trace.h"
#include "replay/trace/trace_forms.h"

namespace ashlar::replay {
namespace {

class BailianTrace final : public LineTrace {
 public:
  BailianTrace(LineSource lines, const TraceOptions& options)
      : LineTrace(std::move(lines), options, TraceFormat::kBailian) {
    facts_.block_size = options.block_size == 0 ? 16 : options.block_size;
  }

 private:
  Result<void> parse(std::string_view text) override {
    TraceFields fields(text);
    TraceRequest& request = add();
    request.block_size = facts_.block_size;
    std::uint64_t chat = 0;
    std::uint64_t parent = kNoChat;
    bool has_chat = false;
    bool has_hashes = false;
    bool more = false;
    if (!fields.in().begin_object("expected a JSON object")) return fields.error();
    while (fields.next_key(more) && more) {
      const std::string& key = fields.key();
      bool is_read = false;
      if (key == "chat_id") {
        is_read = has_chat = fields.in().read_bits(chat, "expected the number of the chat");
      } else if (key == "parent_chat_id") {
        is_read = fields.in().read_bits(parent, "expected the number of the chat before, or -1");
      } else if (key == "timestamp") {
        is_read = fields.read_time(request.arrival_ms, 1'000.0, "expected a time in seconds");
      } else if (key == "input_length") {
        is_read = fields.read_count(request.input_tokens, "expected the number of prompt tokens");
      } else if (key == "output_length") {
        is_read = fields.read_count(request.output_tokens, "expected the number of answered tokens");
      } else if (key == "hash_ids") {
        request.blocks.clear();
        is_read = has_hashes =
            fields.read_hashes(request.blocks, "expected an array of integers, the blocks of the prompt");
      } else {
        is_read = fields.in().skip();
      }
      if (!is_read) return fields.error();
    }
    if (fields.in().fault() != nullptr || !fields.end()) return fields.error();
    if (!has_chat || !has_hashes)
      return Error(ErrorCode::kCorruption, "expected chat_id and hash_ids; or is this another --format?");
    std::uint64_t root = join_names(kNoChat, chat) | 1;
    if (parent != kNoChat) {
      const auto found = roots_.find(parent);
      root = found == roots_.end() ? join_names(kNoChat, parent) | 1 : found->second;
    }
    roots_[chat] = root;
    request.session = root;
    return {};
  }

  static constexpr std::uint64_t kNoChat = UINT64_MAX;      // -1
  std::unordered_map<std::uint64_t, std::uint64_t> roots_;  // sessions by chat
};

}  // namespace

Result<std::unique_ptr<TraceSource>> open_bailian(LineSource lines, const TraceOptions& options) {
  return std::unique_ptr<TraceSource>(std::make_unique<BailianTrace>(std::move(lines), options));
}

}  // namespace ashlar::replay
