#include "ashlar/client/service_client.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "ashlar/base/check.h"
#include "client/plain_exchange.h"
#include "events/json_reader.h"

namespace ashlar::client {
namespace {

using events::JsonReader;

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; });
}

// Text of an answer that fits a message: visible ASCII, not long.
std::string excerpt(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 200)) shown += c >= ' ' && c < 0x7F ? c : ' ';
  return shown;
}

void append_json_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_json_field(std::string& out, std::string_view name, std::string_view value) {
  if (value.empty()) return;
  out += ",\"";
  out += name;
  out += "\":";
  append_json_text(out, value);
}

std::string escaped_query(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("-._~").find(c) != std::string_view::npos ||
        (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) != 0)) {
      out += c;
    } else {
      char escaped[4];
      std::snprintf(escaped, sizeof escaped, "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    }
  }
  return out;
}

// The object of one instance behind its number.
bool read_score(JsonReader& in, RouteScore& score) {
  std::string key;
  bool more = false;
  if (!in.begin_object("an instance")) return false;
  while (in.next_key(key, more) && more) {
    bool read = false;
    if (key == "longest_matched") {
      read = in.read_unsigned(score.longest, UINT64_MAX, "tokens");
    } else if (key == "gpu") {
      read = in.read_unsigned(score.device, UINT64_MAX, "tokens");
    } else if (key == "cpu") {
      read = in.read_unsigned(score.host, UINT64_MAX, "tokens");
    } else if (key == "disk") {
      read = in.read_unsigned(score.disk, UINT64_MAX, "tokens");
    } else {
      read = in.skip();
    }
    if (!read) return false;
  }
  return in.fault() == nullptr;
}

bool read_instances(JsonReader& in, std::vector<RouteScore>& scores) {
  std::string key;
  bool more = false;
  if (!in.begin_object("instances")) return false;
  while (in.next_key(key, more) && more) {
    RouteScore score;
    const auto number = std::from_chars(key.data(), key.data() + key.size(), score.instance);
    if (number.ec != std::errc() || number.ptr != key.data() + key.size())
      return in.fail("an instance that is no number");
    if (!read_score(in, score)) return false;
    scores.push_back(score);
  }
  return in.fault() == nullptr;
}

bool read_answer(JsonReader& in, std::vector<RouteScore>& scores) {
  std::string key;
  bool more = false;
  bool found = false;
  if (!in.begin_object("an object")) return false;
  while (in.next_key(key, more) && more) {
    if (key == "instances") {
      found = true;
      if (!read_instances(in, scores)) return false;
    } else if (!in.skip()) {
      return false;
    }
  }
  if (in.fault() == nullptr && !found) return in.fail("no instances");
  return in.fault() == nullptr && in.at_end();
}

// Host and port of an address.
Result<std::pair<std::string, std::string>> split_address(std::string_view rest) {
  constexpr std::string_view kScheme = "http://";
  if (rest.starts_with("https://"))
    return make_error(ErrorCode::kUnsupported,
                      "this client speaks plain HTTP; ask from the machine of the service, or use curl");
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find('@') != std::string_view::npos)
    return make_error(ErrorCode::kInvalidArgument, "the address has a user; give the token by itself");
  if (rest.empty() || rest.find_first_of("/?#") != std::string_view::npos)
    return make_error(ErrorCode::kInvalidArgument, "a service is named http://HOST:PORT, without a path");
  const std::size_t bracket = rest.find(']');
  const std::size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string host(rest.substr(0, colon));
  std::string port = colon == std::string_view::npos ? "80" : std::string(rest.substr(colon + 1));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  std::uint16_t number = 0;
  const auto read = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || !is_plain(host) || read.ec != std::errc() || read.ptr != port.data() + port.size() ||
      number == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "the address has no host, or a port that is none from 1 to 65535");
  return std::pair(std::move(host), std::move(port));
}

ErrorCode code_of_status(int status) {
  if (status == 404) return ErrorCode::kNotFound;
  if (status == 429 || status >= 500) return ErrorCode::kUnavailable;
  return ErrorCode::kInvalidArgument;
}

Error refused(const std::string& where, std::string_view target, const ServiceAnswer& answer) {
  if (answer.status == 401 || answer.status == 403)
    return make_error(ErrorCode::kInvalidArgument, "%s%s: the token is missing or wrong (status %d)",
                      where.c_str(), std::string(target).c_str(), answer.status);
  return make_error(code_of_status(answer.status), "%s%s: status %d; is it an ashlar serve? %s",
                    where.c_str(), std::string(target).c_str(), answer.status, excerpt(answer.body).c_str());
}

}  // namespace

Result<ServiceClient> ServiceClient::create(ServiceClientOptions options) {
  ASHLAR_TRY(auto address, split_address(options.url));
  if (!is_plain(options.token))
    return make_error(ErrorCode::kInvalidArgument, "the token has spaces, line breaks or no ASCII");
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  if (options.timeout.count() <= 0 || options.timeout > kLongest)
    return make_error(ErrorCode::kInvalidArgument, "a timeout of %lld ms; it is 1 ms to 24 hours",
                      static_cast<long long>(options.timeout.count()));
  if (options.max_bytes == 0)
    return make_error(ErrorCode::kInvalidArgument, "max_bytes is 0: no answer is so short");
  ServiceClient client;
  client.host_ = std::move(address.first);
  client.port_ = std::move(address.second);
  client.token_ = std::move(options.token);
  client.timeout_ = options.timeout;
  client.max_bytes_ = options.max_bytes;
  return client;
}

std::string ServiceClient::shown() const {
  return "http://" + (host_.find(':') == std::string::npos ? host_ : "[" + host_ + "]") + ":" + port_;
}

Result<ServiceAnswer> ServiceClient::request(std::string_view method, std::string_view target,
                                             std::string_view body) const {
  if (method.empty() || !std::ranges::all_of(method, [](char c) { return c >= 'A' && c <= 'Z'; }))
    return make_error(ErrorCode::kInvalidArgument, "a method of HTTP is a word in capital letters");
  if (!target.starts_with('/') || !is_plain(target))
    return make_error(ErrorCode::kInvalidArgument, "a target begins with '/' and has no spaces");
  const std::string where = shown();
  std::string text(method);
  text += ' ';
  text += target;
  text += " HTTP/1.1\r\nhost: " + where.substr(7) + "\r\nconnection: close\r\n";
  if (!token_.empty()) text += "x-ashlar-token: " + token_ + "\r\n";
  if (!body.empty() || method == "POST")
    text += "content-type: application/json\r\ncontent-length: " + std::to_string(body.size()) + "\r\n";
  text += "\r\n";
  text += body;
  PlainExchange exchange{.host = host_,
                         .port = port_,
                         .service = where,
                         .shown = where + std::string(target),
                         .deadline = std::chrono::steady_clock::now() + timeout_,
                         .max_bytes = max_bytes_,
                         .has_body = method != "HEAD"};
  auto answer = exchange.run(text);
  ASHLAR_DCHECK(!answer || answer->body.size() <= max_bytes_,
                "an answer of %zu bytes passed the limit of %zu", answer->body.size(), max_bytes_);
  return answer;
}

Result<std::string> ServiceClient::get(std::string_view target) const {
  ASHLAR_TRY(ServiceAnswer answer, request("GET", target));
  if (answer.status != 200) return refused(shown(), target, answer);
  return std::move(answer.body);
}

Result<void> ServiceClient::check_health() const {
  ASHLAR_RETURN_IF_ERROR(get("/health"));
  return {};
}

Result<bool> ServiceClient::is_ready() const {
  ASHLAR_TRY(const ServiceAnswer answer, request("GET", "/ready"));
  if (answer.status == 200) return true;
  if (answer.status == 503) return false;
  return refused(shown(), "/ready", answer);
}

Result<std::string> ServiceClient::workers(std::string_view model) const {
  return get(model.empty() ? std::string("/workers") : "/workers?model_name=" + escaped_query(model));
}

Result<std::string> ServiceClient::decision(std::string_view id) const {
  if (id.empty())
    return make_error(ErrorCode::kInvalidArgument, "a decision has a number; this one has none");
  return get("/decisions/" + escaped_query(id));
}

Result<std::vector<RouteScore>> ServiceClient::query(const RouteQuery& query) const {
  std::string body = "{\"model_name\":";
  append_json_text(body, query.model);
  body.reserve(body.size() + query.tokens.size() * 7 + 128);
  body += ",\"token_ids\":[";
  for (std::size_t i = 0; i < query.tokens.size(); ++i) {
    if (i != 0) body += ',';
    char number[16];
    const auto end = std::to_chars(number, number + sizeof number, query.tokens[i].value());
    body.append(number, end.ptr);
  }
  body += ']';
  append_json_field(body, "routing_group", query.routing_group);
  append_json_field(body, "lora_name", query.lora);
  append_json_field(body, "cache_salt", query.cache_salt);
  body += '}';
  ASHLAR_TRY(const ServiceAnswer answer, request("POST", "/query", body));
  if (answer.status != 200) return refused(shown(), "/query", answer);
  std::vector<RouteScore> scores;
  JsonReader in(answer.body);
  if (!read_answer(in, scores))
    return make_error(ErrorCode::kCorruption, "%s/query: byte %zu: %s", shown().c_str(), in.fault_offset(),
                      in.fault() == nullptr ? "more than an object" : in.fault());
  return scores;
}

}  // namespace ashlar::client
