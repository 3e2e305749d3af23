#include "service/gateway/refusals.h"

#include <algorithm>
#include <cctype>

#include "service/gateway/api.h"
#include "service/gateway/json_text.h"

namespace ashlar::service {

namespace {

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

// Takes as long for a wrong token as for the right one.
bool equal_secrets(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b[i % std::max<std::size_t>(1, b.size())]);
  return difference == 0 && !b.empty();
}

}  // namespace

std::string_view header_of(std::span<const HeaderView> headers, std::string_view name) {
  for (const HeaderView& header : headers)
    if (same_name(header.name, name)) return header.value;
  return {};
}

std::string error_json(std::string_view message, std::string_view type, unsigned status) {
  JsonText out;
  out.object([&] {
    out.field("error", [&] {
      out.object([&] {
        out.field("message", message);
        out.field("type", type);
        out.field("param", [&] { out.null(); });
        out.field("code", status);
      });
    });
  });
  return out.take();
}

Reply openai_error(unsigned status, std::string_view type, std::string_view message, bool can_retry) {
  Reply reply{.status = status, .headers = {{"Content-Type", "application/json"}}};
  if (can_retry) reply.headers.emplace_back("Retry-After", "1");
  reply.body = error_json(message, type, status);
  return reply;
}

std::optional<Reply> refuse_stranger(ServiceParts& parts, const ClientRequest& request) {
  if (parts.options.token.empty() || is_public_path(request.method, request.target) ||
      equal_secrets(header_of(request.headers, kTokenHeader), parts.options.token))
    return std::nullopt;
  parts.counters.refused.add();
  return openai_error(401, "authentication_error", "this address needs its token in x-ashlar-token");
}

}  // namespace ashlar::service
