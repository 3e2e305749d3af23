#include "service/gateway/api.h"

#include <algorithm>
#include <charconv>

#include "ashlar/base/log.h"
#include "service/gateway/json_text.h"
#include "service/gateway/refusals.h"

namespace ashlar::service {

namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Percent-decoded; of a query + is a space.
std::string decoded(std::string_view text, bool is_query) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit_of(text[i + 1]) >= 0 && digit_of(text[i + 2]) >= 0) {
      out += static_cast<char>(digit_of(text[i + 1]) * 16 + digit_of(text[i + 2]));
      i += 2;
    } else {
      out += is_query && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

Reply answer_models(ServiceParts& parts) {
  JsonText out;
  out.object([&] {
    out.field("object", "list");
    out.field("data", [&] {
      out.array([&] {
        for (const std::string& entry : parts.fleet->model_entries()) out.raw(entry);
      });
    });
  });
  return json_reply(200, out.take());
}

Reply answer_model(ServiceParts& parts, std::string_view id) {
  const std::string name = decoded(id, false);
  const std::optional<std::string> entry = parts.fleet->model_entry(name);
  if (!entry)
    return openai_error(
        404, "not_found_error",
        "the model '" + printable(name) + "' is not served here; GET /v1/models lists those that are");
  return json_reply(200, *entry);
}

Reply answer_ready(ServiceParts& parts) {
  const bool is_ready = !parts.is_draining.load(std::memory_order_relaxed) && parts.fleet->is_ready();
  JsonText out;
  out.object([&] { out.field("status", is_ready ? "ready" : "not ready"); });
  return json_reply(is_ready ? 200 : 503, out.take());
}

struct Path {
  std::string_view path;
  std::string_view query;
};

Path split(std::string_view target) {
  const std::size_t mark = target.find('?');
  if (mark == std::string_view::npos) return {.path = target, .query = {}};
  return {.path = target.substr(0, mark), .query = target.substr(mark + 1)};
}

// A page in a browser is not an operator, even on this machine.
bool has_origin(const ClientRequest& request) {
  return std::ranges::any_of(request.headers, [](const HeaderView& header) {
    return header.name.size() == 6 && (header.name[0] | 0x20) == 'o' && (header.name[1] | 0x20) == 'r' &&
           (header.name[2] | 0x20) == 'i';
  });
}

Reply wrong_method(std::string_view allowed) {
  Reply reply = json_reply(405, R"({"error":"this path takes )" + std::string(allowed) + "\"}");
  reply.headers.emplace_back("Allow", allowed);
  return reply;
}

}  // namespace

Reply json_reply(unsigned status, std::string body) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = std::move(body)};
}

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view item = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const std::size_t sign = item.find('=');
    if (item.substr(0, sign) != name || sign == std::string_view::npos) continue;
    return decoded(item.substr(sign + 1), true);
  }
  return {};
}

Result<std::size_t> query_number(std::string_view query, std::string_view name, std::size_t standard,
                                 std::size_t most) {
  const std::string text = query_value(query, name);
  if (text.empty()) return std::min(standard, most);
  std::size_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ptr != text.data() + text.size() || read.ec == std::errc::invalid_argument)
    return Error(ErrorCode::kInvalidArgument, std::string(name) + " is a number");
  return read.ec == std::errc() ? std::min(number, most) : most;
}

bool is_public_path(std::string_view method, std::string_view target) {
  const std::string_view path = split(target).path;
  return (method == "GET" || method == "HEAD") &&
         (path == "/health" || path == "/ready" || is_page_path(path));
}

bool is_slow_api(const ClientRequest& request) {
  const std::string_view path = split(request.target).path;
  if (path == "/dump" || path == "/tree" || (path.starts_with("/past/") && !is_page_path(path)))
    return request.method == "GET" || request.method == "HEAD";
  return request.method == "POST" && (path == "/register" || path == "/unregister") && !has_origin(request);
}

std::optional<Reply> answer_api(ServiceParts& parts, const ClientRequest& request) {
  const auto [path, query] = split(request.target);
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  const bool is_post = request.method == "POST";
  if (is_post && (path == "/register" || path == "/unregister") && has_origin(request))
    return json_reply(403, R"({"error":"requests of web pages (Origin) cannot register workers"})");
  if (path == "/query" || path == "/query_by_hash")
    return is_post ? answer_query(parts, path, request.body) : wrong_method("POST");
  if (path == "/register") return is_post ? answer_register(parts, request.body) : wrong_method("POST");
  if (path == "/unregister") return is_post ? answer_unregister(parts, request.body) : wrong_method("POST");
  if (path.starts_with("/decisions/"))
    return is_get ? answer_decision(parts, path.substr(11)) : wrong_method("GET");
  if (path.starts_with("/v1/models/"))
    return is_get ? answer_model(parts, path.substr(11)) : wrong_method("GET");
  if (path.starts_with("/past/") && !is_page_path(path))
    return is_get ? answer_past(parts, request) : wrong_method("GET");
  if (path == "/health" || path == "/ready" || path == "/metrics" || path == "/openapi.json" ||
      path == "/workers" || path == "/dump" || path == "/fleet" || path == "/live" || path == "/tree" ||
      path == "/decisions" || path == "/v1/models" || is_page_path(path)) {
    if (!is_get) return wrong_method("GET");
    if (is_page_path(path)) return answer_page(path, !parts.options.token.empty());
    if (path == "/health") return json_reply(200, R"({"status":"ok"})");
    if (path == "/ready") return answer_ready(parts);
    if (path == "/openapi.json") return json_reply(200, std::string(openapi_text()));
    if (path == "/workers") return answer_workers(parts, query);
    if (path == "/dump") return answer_dump(parts);
    if (path == "/fleet") return answer_fleet(parts);
    if (path == "/tree") return answer_tree(parts, query);
    if (path == "/live") return answer_live(parts, query);
    if (path == "/decisions") return answer_decisions(parts, query);
    if (path == "/v1/models") return answer_models(parts);
    return Reply{.status = 200,
                 .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                 .body = parts.metrics.prometheus_text() + worker_metrics_text(parts)};
  }
  return std::nullopt;
}

}  // namespace ashlar::service
