// Tokens of the HTTP face: a token per byte, and one for each role of a chat.
//
// A chat is written message after message: the token of the role, then the bytes of the content. So the
// prompt of a turn begins with the prompt and the reply of the turn before. The model says printable ASCII
// only: its text has one token per character, and is the same tokens again when a client sends it back.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "tiny_engine/json.h"
#include "tiny_engine/model.h"

namespace tiny_engine {

// A small model over bytes and roles.
ModelShape byte_model(std::uint64_t seed = 1);

std::vector<Token> byte_tokens(std::string_view text);
// Roles as "<|user|>".
std::string byte_text(std::span<const Token> tokens);

// A conversation as the endpoints and /tokenize have it. Null where a request does not say it.
struct Chat {
  const Json* system = nullptr;  // in front of the messages (instructions, system)
  const Json* messages = nullptr;
  const Json* tools = nullptr;
  bool add_generation_prompt = true;
};
// Errors: kInvalidArgument: no messages, an unknown role, content that is no text.
ashlar::Result<std::vector<Token>> chat_tokens(const Chat& chat);

}  // namespace tiny_engine
