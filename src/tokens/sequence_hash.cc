#include "ashlar/tokens/sequence_hash.h"

#include <charconv>
#include <cinttypes>

#include "ashlar/base/random.h"
#include "tokens/big_endian.h"
#include "tokens/hex.h"

namespace ashlar::tokens {
namespace {

constexpr std::size_t kChainDigits = 16;
constexpr std::size_t kDigestHighDigits = 10;  // 38 bits; 16 more digits follow
constexpr std::uint64_t kDigestHighMask = (std::uint64_t{1} << 38) - 1;

constexpr std::size_t fragment_digits(unsigned mode) noexcept {
  return mode == 0 ? 14 : mode == 1 ? 12 : 10;
}

Error past_last_position(std::uint64_t position) {
  return make_error(ErrorCode::kInvalidArgument,
                    "block position %" PRIu64 " exceeds the last one a name can hold, %u", position,
                    SequenceHash::kMaxPosition);
}

Error bad_text(std::string_view text) {
  return make_error(
      ErrorCode::kInvalidArgument,
      "'%s' is not a sequence hash; expected position:chain[:parent fragment] or position:digest",
      std::string(text.substr(0, 80)).c_str());
}

}  // namespace

Result<SequenceHash> SequenceHash::make(std::uint64_t position, std::uint64_t chain,
                                        std::uint64_t parent_chain) {
  if (position > kMaxPosition) return past_last_position(position);
  return chained(static_cast<std::uint32_t>(position), chain, parent_chain);
}

Result<SequenceHash> SequenceHash::make_keyed(std::uint64_t position, std::uint64_t digest_hi,
                                              std::uint64_t digest_lo) {
  if (position > kMaxPosition) return past_last_position(position);
  return from_bits(std::uint64_t{3} << 62 | position << 38 | (digest_hi & kDigestHighMask), digest_lo);
}

Result<SequenceHash> SequenceHash::child(std::uint64_t chain_hash) const {
  if (is_keyed()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "block %s has a keyed name: only a keyed hasher can name its child",
                      to_string().c_str());
  }
  return make(std::uint64_t{position()} + 1, chain_hash, chain());
}

SequenceHash SequenceHash::from_bytes(std::span<const std::uint8_t, 16> bytes) noexcept {
  return from_bits(from_big_endian(bytes.first<8>()), from_big_endian(bytes.last<8>()));
}

std::array<std::uint8_t, 16> SequenceHash::to_bytes() const noexcept {
  return to_big_endian(hi_, lo_);
}

std::optional<std::uint64_t> SequenceHash::fragment_for_child() const noexcept {
  if (is_keyed() || position() == kMaxPosition) return std::nullopt;
  return chained(position() + 1, 0, chain()).parent_fragment();
}

bool SequenceHash::can_precede(const SequenceHash& child) const noexcept {
  if (child.position() != position() + 1 || is_keyed() != child.is_keyed()) return false;
  return child.parent_fragment() == 0 || fragment_for_child() == child.parent_fragment();
}

SequenceHash SequenceHash::in_group(std::uint32_t group) const noexcept {
  if (group == 0) return *this;
  const std::uint64_t bits = spread_bits(group * 0x9E3779B97F4A7C15u);  // one odd pattern per group
  if (is_keyed()) return from_bits(hi_, lo_ ^ bits);
  // The chain hash and a child's fragment of it change alike, so a child still names its parent.
  return chained(position(), chain() ^ bits, parent_fragment() ^ bits);
}

std::string SequenceHash::to_string() const {
  std::string text = std::to_string(position());
  text += ':';
  if (is_keyed()) {
    append_hex(text, hi_ & kDigestHighMask, kDigestHighDigits);
    append_hex(text, lo_, kChainDigits);
    return text;
  }
  append_hex(text, chain(), kChainDigits);
  if (position() > 0) {
    text += ':';
    append_hex(text, parent_fragment(), static_cast<int>(fragment_digits(mode())));
  }
  return text;
}

Result<SequenceHash> SequenceHash::parse(std::string_view text) {
  std::uint64_t position = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), position);
  const auto position_digits = static_cast<std::size_t>(end - text.data());
  if (failure != std::errc() || position_digits == text.size() || text[position_digits] != ':' ||
      (text[0] == '0' && position_digits > 1)) {
    return bad_text(text);
  }
  if (position > kMaxPosition) return past_last_position(position);

  const std::string_view rest = text.substr(position_digits + 1);
  if (rest.size() == kDigestHighDigits + kChainDigits) {
    const auto hi = parse_hex(rest.substr(0, kDigestHighDigits));
    const auto lo = parse_hex(rest.substr(kDigestHighDigits));
    if (hi && lo && *hi <= kDigestHighMask) return make_keyed(position, *hi, *lo);
  }
  if (rest.size() < kChainDigits) return bad_text(text);
  const auto chain = parse_hex(rest.substr(0, kChainDigits));
  const std::string_view tail = rest.substr(kChainDigits);
  if (!chain) return bad_text(text);
  if (position == 0) return tail.empty() ? Result<SequenceHash>(root(*chain)) : bad_text(text);

  const unsigned mode = chained(static_cast<std::uint32_t>(position), 0, 0).mode();
  if (tail.size() != 1 + fragment_digits(mode) || tail[0] != ':') return bad_text(text);
  const auto fragment = parse_hex(tail.substr(1));
  if (!fragment || *fragment > fragment_mask(mode)) return bad_text(text);
  return chained(static_cast<std::uint32_t>(position), *chain, *fragment);
}

std::ostream& operator<<(std::ostream& out, const SequenceHash& hash) {
  return out << hash.to_string();
}

}  // namespace ashlar::tokens
