// Values of JSON as traces write them: times with a fraction, lists of hashes, sessions by text or number.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/base/result.h"
#include "events/json_reader.h"

namespace ashlar::replay {

// FNV-1a, spread. Never 0, which stands for no session.
inline std::uint64_t hash_text(std::string_view text, std::uint64_t start = 0xCBF2'9CE4'8422'2325) noexcept {
  for (const char c : text) start = (start ^ static_cast<unsigned char>(c)) * 0x100'0000'01B3;
  start = spread_bits(start);
  return start == 0 ? 1 : start;
}

// Two names as one.
constexpr std::uint64_t join_names(std::uint64_t first, std::uint64_t second) noexcept {
  return spread_bits(first + 0x9E37'79B9'7F4A'7C15 * (second + 1));
}

static_assert(join_names(1, 2) != join_names(2, 1), "the order of names matters");

class TraceFields {
 public:
  explicit TraceFields(std::string_view text) : text_(text), in_(text) {}

  events::JsonReader& in() noexcept { return in_; }

  // A number of 0 or more.
  bool read_real(double& out, const char* what) {
    std::string_view value;
    if (in_.peek() != events::JsonReader::Type::kNumber) return in_.fail(what);
    const std::size_t begin = in_.offset();
    if (!read_raw(value)) return false;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), out);
    // 2^53: beyond it milliseconds are no longer exact.
    const bool is_good = parsed.ec == std::errc() && out >= 0 && out < 0x1.0p53;
    return is_good || in_.fail_at(what, begin);
  }
  // `unit`: milliseconds of one.
  bool read_time(std::uint64_t& out_ms, double unit, const char* what) {
    double value = 0;
    const std::size_t begin = in_.offset();
    if (!read_real(value, what)) return false;
    if (value * unit >= 0x1.0p53) return in_.fail_at(what, begin);
    out_ms = static_cast<std::uint64_t>(std::llround(value * unit));
    return true;
  }
  // A count; some writers have a fraction of zero.
  bool read_count(std::uint64_t& out, const char* what) { return read_time(out, 1.0, what); }
  bool read_hashes(std::vector<std::uint64_t>& out, const char* what) {
    if (!in_.begin_array(what)) return false;
    bool more = false;
    while (in_.next_item(more) && more) {
      std::uint64_t hash = 0;
      if (!in_.read_bits(hash, what)) return false;
      out.push_back(hash);
    }
    return in_.fault() == nullptr;
  }
  // Text or number, as a hash.
  bool read_session(std::uint64_t& out, const char* what) {
    std::string_view value;
    const auto type = in_.peek();
    if (type != events::JsonReader::Type::kText && type != events::JsonReader::Type::kNumber)
      return in_.fail(what);
    if (!read_raw(value)) return false;
    out = hash_text(value);
    return true;
  }
  // Skips one value and gives its text.
  bool read_raw(std::string_view& out) {
    (void)in_.peek();
    const std::size_t begin = in_.offset();
    if (!in_.skip()) return false;
    out = text_.substr(begin, in_.offset() - begin);
    return true;
  }
  bool next_key(bool& more) { return in_.next_key(key_, more); }
  const std::string& key() const noexcept { return key_; }
  // Only white space is left.
  bool end() { return in_.at_end() || in_.fail("expected nothing behind the object"); }

  // After a function returned false.
  Error error() const {
    return make_error(ErrorCode::kCorruption, "column %zu: %s", in_.fault_offset() + 1,
                      in_.fault() == nullptr ? "cannot be read" : in_.fault());
  }

 private:
  std::string_view text_;
  events::JsonReader in_;
  std::string key_;
};

}  // namespace ashlar::replay
