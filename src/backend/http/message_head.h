// MessageHead: the start line and headers of a request or an answer, as views into its bytes.
//
// Strict where two readers of one message could disagree about its end: Content-Length beside
// Transfer-Encoding, lengths that differ, folded lines, bare CR or LF, spaces before a colon and control
// characters are refused. Beast's parser joins folded lines and holds the head of a chunk back until it is
// whole, so it is not used.
//
// Thread safety: thread-compatible.
// Complexity:    parsing is one pass; the vector of headers is the only allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/service/passage.h"

namespace ashlar::backend::http {

using HeaderPairs = std::vector<std::pair<std::string, std::string>>;

struct MessageHead {
  std::string_view method;  // of a request
  std::string_view target;  // path and query; of an absolute one without a path the query alone
  unsigned status = 0;      // of an answer
  std::string_view reason;
  unsigned minor_version = 1;  // of HTTP/1
  std::vector<service::HeaderView> headers;
  std::optional<std::uint64_t> content_length;
  bool is_chunked = false;
  bool says_close = false;
  bool says_keep_alive = false;
  bool expects_continue = false;
  bool upgrades = false;

  // Whether the connection is for another message after this one.
  bool keeps_alive() const noexcept { return !says_close && (minor_version == 1 || says_keep_alive); }
  // The first value of a header; empty if there is none.
  std::string_view header(std::string_view name) const noexcept;
};

// Each takes a whole head, with the empty line at its end. Returns the status to refuse it with; 0: none.
unsigned parse_request_head(std::string_view text, MessageHead& out);
unsigned parse_answer_head(std::string_view text, MessageHead& out);

// Where the head at the beginning of `text` ends, behind its empty line; 0: it has no end yet. Looks from
// `from` on.
std::size_t find_head_end(std::string_view text, std::size_t from) noexcept;

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept;
// Whether a list as in "a, b" has this member, in any case.
bool list_contains(std::string_view list, std::string_view member) noexcept;
// Whether a header belongs to one connection, so that it is never passed on: the known ones and those that
// Connection names.
bool is_hop_by_hop(const MessageHead& head, std::string_view name) noexcept;

// Adds "name: value\r\n". A name that is no token leaves it out; control characters become spaces.
void append_header(std::string& out, std::string_view name, std::string_view value);
// The usual words for a status.
std::string_view reason_of(unsigned status) noexcept;
// "HTTP/1.1 200 OK\r\n".
void append_status_line(std::string& out, unsigned status, std::string_view reason);

}  // namespace ashlar::backend::http
