#include "transfer/remote/mac_key.h"

#include <algorithm>

namespace ashlar::transfer {
namespace {

std::span<const std::uint8_t> octets(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

MacKey::MacKey(std::span<const std::byte> key) noexcept {
  constexpr std::size_t kBlockBytes = 64;
  std::array<std::uint8_t, kBlockBytes> padded = {};
  if (key.size() > kBlockBytes) {
    std::ranges::copy(tokens::Sha256::of(octets(key)), padded.begin());
  } else {
    std::ranges::copy(octets(key), padded.begin());
  }
  for (std::uint8_t& octet : padded) octet ^= 0x36;
  inner_.update(padded);
  for (std::uint8_t& octet : padded) octet ^= 0x36 ^ 0x5c;
  outer_.update(padded);
}

MacKey::Mac MacKey::of(std::initializer_list<std::span<const std::byte>> parts) const noexcept {
  tokens::Sha256 inner = inner_;
  for (const std::span<const std::byte> part : parts) inner.update(octets(part));
  tokens::Sha256 outer = outer_;
  const tokens::Sha256::Digest digest = outer.update(inner.finish()).finish();
  Mac mac;
  std::ranges::transform(digest, mac.begin(), [](std::uint8_t octet) { return std::byte{octet}; });
  return mac;
}

bool MacKey::equal(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  if (a.size() != b.size()) return false;
  volatile unsigned difference = 0;  // volatile: every byte is looked at
  for (std::size_t i = 0; i < a.size(); ++i) difference = difference | std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace ashlar::transfer
