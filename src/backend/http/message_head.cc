#include "backend/http/message_head.h"

#include <array>
#include <charconv>

namespace ashlar::backend::http {

namespace {

constexpr unsigned kBad = 400;
constexpr std::size_t kMaxHeaders = 1000;
constexpr std::size_t kUsualHeaders = 8;
// Every header is looked up in those of Connection.
constexpr std::size_t kMaxConnectionBytes = 1 << 10;

// RFC 9110 5.6.2.
constexpr std::array<bool, 256> kTokenBytes = [] {
  std::array<bool, 256> out = {};
  for (int c = '0'; c <= '9'; ++c) out[c] = true;
  for (int c = 'a'; c <= 'z'; ++c) out[c] = true;
  for (int c = 'A'; c <= 'Z'; ++c) out[c] = true;
  for (const char c : {'!', '#', '$', '%', '&', '\'', '*', '+', '-', '.', '^', '_', '`', '|', '~'})
    out[static_cast<unsigned char>(c)] = true;
  return out;
}();

bool is_token(std::string_view text) noexcept {
  for (const char c : text) {
    if (!kTokenBytes[static_cast<unsigned char>(c)]) return false;
  }
  return !text.empty();
}

bool is_control(char c) noexcept {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F;
}

bool has_control(std::string_view text) noexcept {
  for (const char c : text) {
    if (is_control(c)) return true;
  }
  return false;
}

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

// Takes a line without its CRLF off the front. False: a bare CR or LF.
bool take_line(std::string_view& text, std::string_view& line) noexcept {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || end == 0 || text[end - 1] != '\r') return false;
  line = text.substr(0, end - 1);
  text.remove_prefix(end + 1);
  return line.find('\r') == std::string_view::npos;
}

unsigned take_length(std::string_view value, MessageHead& out) noexcept {
  std::uint64_t length = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
  const bool is_number =
      !value.empty() && value.front() != '-' && error == std::errc() && end == value.data() + value.size();
  if (!is_number || (out.content_length && *out.content_length != length)) return kBad;
  out.content_length = length;
  return 0;
}

struct HeadCounts {
  unsigned hosts = 0;
  std::size_t connection_bytes = 0;
};

// What a header says about the message's own framing and connection.
unsigned take_meaning(const service::HeaderView& header, MessageHead& out, HeadCounts& counts) noexcept {
  const std::string_view name = header.name;
  switch (name.size()) {
    case 4:
      if (equal_ignoring_case(name, "host")) ++counts.hosts;
      break;
    case 6:
      if (equal_ignoring_case(name, "expect")) {
        if (!equal_ignoring_case(header.value, "100-continue")) return 417;
        out.expects_continue = true;
      }
      break;
    case 7:
      if (equal_ignoring_case(name, "upgrade")) out.upgrades = true;
      break;
    case 10:
      if (equal_ignoring_case(name, "connection")) {
        counts.connection_bytes += header.value.size() + 1;
        if (counts.connection_bytes > kMaxConnectionBytes) return kBad;
        out.says_close |= list_contains(header.value, "close");
        out.says_keep_alive |= list_contains(header.value, "keep-alive");
      }
      break;
    case 14:
      if (equal_ignoring_case(name, "content-length")) return take_length(header.value, out);
      break;
    case 17:
      if (equal_ignoring_case(name, "transfer-encoding")) {
        if (out.is_chunked || !equal_ignoring_case(header.value, "chunked")) return 501;
        out.is_chunked = true;
      }
      break;
    default:
      break;
  }
  return 0;
}

unsigned parse_headers(std::string_view text, MessageHead& out, HeadCounts& counts) {
  std::string_view line;
  out.headers.reserve(kUsualHeaders);
  for (;;) {
    if (!take_line(text, line)) return kBad;
    if (line.empty()) return text.empty() ? 0 : kBad;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return kBad;
    const service::HeaderView header{line.substr(0, colon), trimmed(line.substr(colon + 1))};
    // A folded line begins with a space, which is no token byte.
    if (!is_token(header.name) || has_control(header.value)) return kBad;
    if (out.headers.size() == kMaxHeaders) return 431;
    out.headers.push_back(header);
    if (const unsigned refusal = take_meaning(header, out, counts); refusal != 0) return refusal;
  }
}

unsigned parse_version(std::string_view text, MessageHead& out) noexcept {
  if (text.size() != 8 || !text.starts_with("HTTP/")) return kBad;
  if (text != "HTTP/1.1" && text != "HTTP/1.0") return 505;
  out.minor_version = text.back() == '1' ? 1 : 0;
  return 0;
}

// The path and query of a target: RFC 9112 3.2.
unsigned take_target(std::string_view target, MessageHead& out) noexcept {
  for (const char c : target) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7F) return kBad;
  }
  if (target.empty()) return kBad;
  if (target.front() != '/' && target != "*") {
    const std::size_t scheme = target.find("://");
    if (scheme == std::string_view::npos) return kBad;
    const std::size_t path = target.find_first_of("/?", scheme + 3);
    target = path == std::string_view::npos ? std::string_view("/") : target.substr(path);
  }
  out.target = target;
  return 0;
}

}  // namespace

std::string_view MessageHead::header(std::string_view name) const noexcept {
  for (const service::HeaderView& header : headers) {
    if (equal_ignoring_case(header.name, name)) return header.value;
  }
  return {};
}

unsigned parse_request_head(std::string_view text, MessageHead& out) {
  std::string_view line;
  if (!take_line(text, line)) return kBad;
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return kBad;
  out.method = line.substr(0, first);
  if (!is_token(out.method)) return kBad;
  if (const unsigned refusal = parse_version(line.substr(last + 1), out); refusal != 0) return refusal;
  if (out.method == "CONNECT") return 501;
  if (const unsigned refusal = take_target(line.substr(first + 1, last - first - 1), out); refusal != 0)
    return refusal;
  HeadCounts counts;
  if (const unsigned refusal = parse_headers(text, out, counts); refusal != 0) return refusal;
  if (out.is_chunked && (out.content_length || out.minor_version == 0)) return kBad;
  if (counts.hosts > 1 || (counts.hosts == 0 && out.minor_version == 1)) return kBad;
  // A client may offer HTTP/2 without insisting; such an offer is ignored.
  if (out.upgrades && !equal_ignoring_case(out.header("upgrade"), "h2c")) return 501;
  return 0;
}

unsigned parse_answer_head(std::string_view text, MessageHead& out) {
  std::string_view line;
  if (!take_line(text, line) || line.size() < 12 || line[8] != ' ') return kBad;
  if (const unsigned refusal = parse_version(line.substr(0, 8), out); refusal != 0) return refusal;
  const std::string_view status = line.substr(9, 3);
  const auto [end, error] = std::from_chars(status.data(), status.data() + 3, out.status);
  if (error != std::errc() || end != status.data() + 3 || out.status < 100) return kBad;
  if (line.size() > 12 && line[12] != ' ') return kBad;
  out.reason = line.size() > 13 ? line.substr(13) : std::string_view();
  if (has_control(out.reason)) return kBad;
  HeadCounts counts;
  if (const unsigned refusal = parse_headers(text, out, counts); refusal != 0) return refusal;
  return out.is_chunked && out.content_length ? kBad : 0;
}

std::size_t find_head_end(std::string_view text, std::size_t from) noexcept {
  const std::size_t found = text.find("\r\n\r\n", from > 3 ? from - 3 : 0);
  return found == std::string_view::npos ? 0 : found + 4;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

bool list_contains(std::string_view list, std::string_view member) noexcept {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (equal_ignoring_case(trimmed(list.substr(0, comma)), member)) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

bool is_hop_by_hop(const MessageHead& head, std::string_view name) noexcept {
  switch (name.size()) {
    case 2:
      if (equal_ignoring_case(name, "te")) return true;
      break;
    case 7:
      if (equal_ignoring_case(name, "trailer") || equal_ignoring_case(name, "upgrade")) return true;
      break;
    case 10:
      if (equal_ignoring_case(name, "connection") || equal_ignoring_case(name, "keep-alive")) return true;
      break;
    case 14:
      if (equal_ignoring_case(name, "http2-settings")) return true;
      break;
    case 17:
      if (equal_ignoring_case(name, "transfer-encoding")) return true;
      break;
    default:
      break;
  }
  if (name.size() > 6 && equal_ignoring_case(name.substr(0, 6), "proxy-")) return true;
  for (const service::HeaderView& header : head.headers) {
    if (header.name.size() == 10 && equal_ignoring_case(header.name, "connection") &&
        list_contains(header.value, name))
      return true;
  }
  return false;
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  if (!is_token(name)) return;
  out.append(name).append(": ");
  const std::size_t begin = out.size();
  out.append(value).append("\r\n");
  if (!has_control(value)) return;
  for (std::size_t i = begin; i + 2 < out.size(); ++i) {
    if (is_control(out[i])) out[i] = ' ';
  }
}

std::string_view reason_of(unsigned status) noexcept {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

void append_status_line(std::string& out, unsigned status, std::string_view reason) {
  out.append("HTTP/1.1 ").append(std::to_string(status)).append(" ").append(reason).append("\r\n");
}

}  // namespace ashlar::backend::http
