// Requests to an object store and their responses, as carried by http_loop.h.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/base/check.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::s3 {

using TimePoint = std::chrono::steady_clock::time_point;

// A range over the bytes of several spans, read in order and rewindable.
class Body {
 public:
  Body() = default;
  Body(std::span<const std::span<const std::byte>> spans, std::uint64_t from, std::uint64_t size)
      : spans_(spans), from_(from), size_(size) {
    ASHLAR_DCHECK(from + size <= total(spans), "bytes %llu to %llu of spans that have %llu",
                  static_cast<unsigned long long>(from), static_cast<unsigned long long>(from + size),
                  static_cast<unsigned long long>(total(spans)));
    seek(0);
  }

  std::uint64_t size() const noexcept { return size_; }

  // Requires: position <= size().
  void seek(std::uint64_t position) noexcept {
    position_ = position;
    at_ = 0;
    within_ = from_ + position;
    while (at_ < spans_.size() && within_ >= spans_[at_].size()) within_ -= spans_[at_++].size();
  }

  // Reads the next bytes, at most `most`; 0 at the end.
  std::size_t read(char* into, std::size_t most) noexcept {
    std::size_t done = 0;
    while (done < most && position_ < size_) {
      const std::span<const std::byte> rest = spans_[at_].subspan(static_cast<std::size_t>(within_));
      const auto now =
          static_cast<std::size_t>(std::min<std::uint64_t>({rest.size(), most - done, size_ - position_}));
      if (now > 0) std::memcpy(into + done, rest.data(), now);
      done += now;
      position_ += now;
      within_ += now;
      if (within_ == spans_[at_].size()) {
        ++at_;
        within_ = 0;
      }
    }
    return done;
  }

 private:
  static std::uint64_t total(std::span<const std::span<const std::byte>> spans) noexcept {
    std::uint64_t bytes = 0;
    for (const std::span<const std::byte>& span : spans) bytes += span.size();
    return bytes;
  }

  std::span<const std::span<const std::byte>> spans_;
  std::uint64_t from_ = 0;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
  std::size_t at_ = 0;        // the current span,
  std::uint64_t within_ = 0;  // from this byte
};

struct Response {
  long status = 0;               // HTTP status; 0: no response
  std::string failure;           // why there was no response
  std::string text;              // first bytes of an error, or of a response that is not an object
  std::string etag;              // as sent, in quotes
  std::int64_t size = -1;        // of the object, if sent
  bool other_size = false;       // the object's size differs from Request::parts
  std::optional<Error> stopped;  // the call's limits came before the response
  std::uint64_t attempts = 0;
  std::chrono::milliseconds took{};
  TimePoint deadline;  // Request::deadline, or the one set at the start

  bool answered() const noexcept { return status != 0; }
  bool ok() const noexcept { return status >= 200 && status < 300; }
};

enum class Method : std::uint8_t { kGet, kHead, kPut, kPost, kDelete };

struct Request {
  Method method = Method::kGet;
  std::string_view key;
  std::string query = {};  // sorted, every name with a '=', as signatures require
  bool if_none_match = false;
  bool error_in_body = false;  // a response with status 200 may hold an error
  Body body = {};
  std::span<const std::span<std::byte>> parts = {};  // destination of a kGet
  std::optional<TimePoint> deadline = {};            // none: set when the request starts
  std::function<void(Response&)> done = {};          // once; may submit requests
};

// The raw text of an XML element; empty without one.
inline std::string_view xml_text(std::string_view document, std::string_view element) {
  const std::string opening = "<" + std::string(element) + ">";
  const std::size_t start = document.find(opening);
  if (start == std::string_view::npos) return {};
  const std::size_t end = document.find("</", start + opening.size());
  if (end == std::string_view::npos) return {};
  return document.substr(start + opening.size(), end - start - opening.size());
}

}  // namespace ashlar::backend::s3
