// Questions to /tokenize and to render endpoints, and their answers.
//
// The questions of ask_text() and ask_messages() can be asked at both: their fields mean the same there.
//
// Thread safety: free functions.
// Complexity:    O(body), O(answer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"
#include "service/request/prompt_blocks.h"
#include "service/request/request_view.h"

namespace ashlar::service {

// For the text of a prompt. Requires: view.prompt is not empty.
std::string ask_text(const RequestView& view, std::string_view body);
// For messages [0, first) and [second, all). Requires: first <= second <= number of messages. `stand_in`, if
// there is one, is written in place of the first message.
std::string ask_messages(const RequestView& view, std::string_view body, std::size_t first,
                         std::size_t second, bool add_generation_prompt, bool continue_final_message,
                         std::string_view stand_in = {});

// For the request itself, at its render endpoint. The answer is to have no tensors of images. Requires: the
// body is an object.
std::string ask_render(std::string_view body);

// Errors: kCorruption.
Result<std::vector<tokens::Token>> read_tokenize_answer(std::string_view answer);
struct RenderedPrompt {
  std::vector<tokens::Token> tokens;
  std::vector<PromptItem> items;  // in the order of their offsets; they do not overlap
};
// One prompt, or a list of one. Errors: kCorruption: also of items that lie outside the prompt or overlap.
Result<RenderedPrompt> read_render_answer(std::string_view answer);

// What a message is, as far as templates tell messages apart: its role, and whether it has more than a role
// and a text. Below kMessageKinds.
inline constexpr unsigned kMessageKinds = 10;
unsigned message_kind(const RequestView& view, std::string_view body, std::size_t message);
// Of the tail that begins behind `prefix` messages: the kinds of the first message, of those between, of the
// new ones, and of the last. Below 2^44.
std::uint64_t tail_kind_of(const RequestView& view, std::string_view body, std::size_t prefix);
// A short message of that kind, which is a system's or a user's plain text; empty for others.
std::string_view stand_in_of(unsigned kind) noexcept;

}  // namespace ashlar::service
