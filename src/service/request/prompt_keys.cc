#include "service/request/prompt_keys.h"

#include <optional>

namespace ashlar::service {
namespace {

using tokens::SipHash128;

constexpr std::uint64_t kFlagsMark = 0xF1A6'0000;
constexpr std::uint64_t kStandInMark = 0x57A2'0000;

void absorb(SipHash128& hash, const std::optional<bool>& flag) {
  hash.update_u64(flag ? (*flag ? 2 : 1) : 0);
}

// A request with flags of its own has keys apart from those that can be prefixes.
PromptDigest with_flags(SipHash128 hash, bool add_generation_prompt, bool continue_final_message) {
  if (add_generation_prompt && !continue_final_message) return hash.digest();
  hash.update_u64(kFlagsMark | (add_generation_prompt ? 1 : 0) | (continue_final_message ? 2 : 0));
  return hash.digest();
}

}  // namespace

std::uint64_t model_key(const TextHash& text_hash, std::string_view model) {
  SipHash128 hash = text_hash.start();
  text_hash.absorb(hash, model);
  return hash.digest().lo;
}

PromptKeys keys_of(const TextHash& text_hash, const RequestView& view, std::string_view body) {
  PromptKeys keys;
  keys.model = model_key(text_hash, view.model);
  SipHash128 hash = text_hash.start();
  hash.update_u64(view.messages.empty() ? 1 : 2);
  text_hash.absorb(hash, view.model);
  text_hash.absorb(hash, view.template_arguments.of(body));
  text_hash.absorb(hash, view.reasoning_effort.of(body));
  text_hash.absorb(hash, view.chat_template.of(body));
  absorb(hash, view.add_special_tokens);
  keys.shape = hash.digest().lo;
  if (view.messages.empty()) {
    text_hash.absorb(hash, view.prompt.of(body));
    keys.whole = hash.digest();
    return keys;
  }
  text_hash.absorb(hash, view.tools.of(body));
  keys.frame = hash.digest();
  keys.prefixes.reserve(view.messages.size());
  for (std::size_t i = 0; i < view.messages.size(); ++i) {
    hash.update_u64(i == 0 && view.has_system ? 1 : 0);
    text_hash.absorb(hash, view.messages[i].of(body));
    keys.prefixes.push_back(hash.digest());
    if (i == 0) keys.base = with_flags(hash, false, false);
  }
  keys.whole = with_flags(hash, view.add_generation_prompt.value_or(true),
                          view.continue_final_message.value_or(false));
  return keys;
}

PromptDigest stand_in_key(const TextHash& text_hash, const PromptDigest& part, std::string_view stand_in) {
  SipHash128 hash = text_hash.start();
  hash.update_u64(kStandInMark);
  hash.update_u64(part.lo);
  hash.update_u64(part.hi);
  text_hash.absorb(hash, stand_in);
  return hash.digest();
}

}  // namespace ashlar::service
