// Refusals: errors in the form of OpenAI's API, and the one that a request without the token gets.
//
// Thread safety: free functions over thread-safe parts.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "service/gateway/service_parts.h"

namespace ashlar::service {

inline constexpr std::string_view kTokenHeader = "x-ashlar-token";

// The first value of a header, by any case of its name; empty if there is none.
std::string_view header_of(std::span<const HeaderView> headers, std::string_view name);

std::string error_json(std::string_view message, std::string_view type, unsigned status);
// `can_retry`: with Retry-After.
Reply openai_error(unsigned status, std::string_view type, std::string_view message, bool can_retry = false);

// The answer to a request that lacks the token; none: it has it, or needs none.
std::optional<Reply> refuse_stranger(ServiceParts& parts, const ClientRequest& request);

}  // namespace ashlar::service
