// The names under which the parts of a request are remembered: keyed hashes of their texts.
//
// Thread safety: free functions.
// Complexity:    O(body).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "service/request/prompt_cache.h"
#include "service/request/request_view.h"
#include "service/request/text_hash.h"

namespace ashlar::service {

struct PromptKeys {
  std::uint64_t model = 0;
  std::uint64_t shape = 0;  // everything but tools and messages
  PromptDigest whole = {};
  PromptDigest base = {};              // T[m0]
  PromptDigest frame = {};             // everything but messages
  std::vector<PromptDigest> prefixes;  // [i]: of the first i + 1 messages, as a client asks for them
};

std::uint64_t model_key(const TextHash& text_hash, std::string_view model);
PromptKeys keys_of(const TextHash& text_hash, const RequestView& view, std::string_view body);
// Of what is known of a part, once a message stands in for another in it.
PromptDigest stand_in_key(const TextHash& text_hash, const PromptDigest& part, std::string_view stand_in);

}  // namespace ashlar::service
