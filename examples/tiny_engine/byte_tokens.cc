#include "tiny_engine/byte_tokens.h"

#include <algorithm>
#include <array>

namespace tiny_engine {
namespace {

using ashlar::Error;
using ashlar::ErrorCode;
using ashlar::Result;

constexpr std::uint32_t kBytes = 256;
// Token 256 and after.
constexpr std::array<std::string_view, 5> kMarks = {"system", "user", "assistant", "tool", "tools"};

Result<Token> mark_of(std::string_view role) {
  if (role == "developer") role = "system";
  const auto found = std::find(kMarks.begin(), kMarks.end() - 1, role);
  if (found == kMarks.end() - 1)
    return Error(ErrorCode::kInvalidArgument,
                 "'" + std::string(role) + "' is no role; use system, user, assistant or tool");
  return Token(kBytes + static_cast<std::uint32_t>(found - kMarks.begin()));
}

void append_bytes(std::vector<Token>& out, std::string_view text) {
  for (const char byte : text) out.push_back(Token(static_cast<unsigned char>(byte)));
}

// A text, or a list of parts that have one.
Result<void> append_content(std::vector<Token>& out, const Json& content) {
  if (content.is(Json::Kind::kNull)) return {};
  if (content.is(Json::Kind::kText)) {
    append_bytes(out, content.text);
    return {};
  }
  if (!content.is(Json::Kind::kList))
    return Error(ErrorCode::kInvalidArgument, "the content of a message must be a text or a list of parts");
  for (const Json& part : content.items) {
    if (part.is(Json::Kind::kText)) {
      append_bytes(out, part.text);
    } else if (part["text"].is(Json::Kind::kText)) {
      append_bytes(out, part["text"].text);
    } else {
      return Error(ErrorCode::kInvalidArgument,
                   "a part of a message has no text; this model reads nothing else");
    }
  }
  return {};
}

Result<void> append_message(std::vector<Token>& out, const Json& message) {
  const Json& role = message["role"];
  if (!role.is(Json::Kind::kText)) return Error(ErrorCode::kInvalidArgument, "a message needs a role");
  ASHLAR_TRY(const Token mark, mark_of(role.text));
  out.push_back(mark);
  ASHLAR_RETURN_IF_ERROR(append_content(out, message["content"]));
  if (const Json& calls = message["tool_calls"]; calls.is(Json::Kind::kList)) {
    std::string text;
    calls.write(text);
    append_bytes(out, text);
  }
  return {};
}

}  // namespace

ModelShape byte_model(std::uint64_t seed) {
  ModelShape shape;
  shape.layers = 2;
  shape.heads = 2;
  shape.hidden = 32;
  shape.seed = seed;
  shape.vocabulary = kBytes + static_cast<std::uint32_t>(kMarks.size());
  shape.say_begin = ' ';
  shape.say_end = '~' + 1;
  return shape;
}

std::vector<Token> byte_tokens(std::string_view text) {
  std::vector<Token> out;
  append_bytes(out, text);
  return out;
}

std::string byte_text(std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) {
    if (token.value() < kBytes) {
      text += static_cast<char>(token.value());
    } else if (token.value() < kBytes + kMarks.size()) {
      text += "<|" + std::string(kMarks[token.value() - kBytes]) + "|>";
    }
  }
  return text;
}

Result<std::vector<Token>> chat_tokens(const Chat& chat) {
  std::vector<Token> out;
  if (chat.tools != nullptr && !chat.tools->items.empty()) {
    out.push_back(Token(kBytes + static_cast<std::uint32_t>(kMarks.size()) - 1));
    std::string text;
    chat.tools->write(text);
    append_bytes(out, text);
  }
  if (chat.system != nullptr && !chat.system->is(Json::Kind::kNull)) {
    ASHLAR_TRY(const Token mark, mark_of("system"));
    out.push_back(mark);
    ASHLAR_RETURN_IF_ERROR(append_content(out, *chat.system));
  }
  if (chat.messages == nullptr || !chat.messages->is(Json::Kind::kList) || chat.messages->items.empty())
    return Error(ErrorCode::kInvalidArgument, "messages must be a list with at least one message");
  for (const Json& message : chat.messages->items) ASHLAR_RETURN_IF_ERROR(append_message(out, message));
  if (chat.add_generation_prompt) {
    ASHLAR_TRY(const Token mark, mark_of("assistant"));
    out.push_back(mark);
  }
  return out;
}

}  // namespace tiny_engine
