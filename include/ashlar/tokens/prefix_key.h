// PrefixKey: the secret under which prefix digests are made (prefix_digest.h).
//
// Digests can be compared where their keys are equal. Inside one process the key of the process serves
// everyone. Processes that exchange digests, or keep them across restarts, are given one key. Nothing prints
// a key.
//
// Thread safety: immutable. Copying copies a pointer; making one takes microseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ashlar::tokens {

struct PrefixSecret;

class PrefixKey {
 public:
  static constexpr std::size_t kSize = 16;
  using Bytes = std::array<std::uint8_t, kSize>;

  // 16 bytes from a cryptographic source.
  explicit PrefixKey(const Bytes& bytes);
  // Drawn from the operating system when it is first asked for; the same for the life of the process.
  static const PrefixKey& of_process();

  const Bytes& bytes() const noexcept { return bytes_; }
  // What is derived from it, for the hasher.
  const PrefixSecret& secret() const noexcept { return *secret_; }

  friend bool operator==(const PrefixKey& a, const PrefixKey& b) noexcept { return a.bytes_ == b.bytes_; }

 private:
  Bytes bytes_;
  std::shared_ptr<const PrefixSecret> secret_;
};

}  // namespace ashlar::tokens
