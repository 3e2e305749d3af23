// Salt: what separates the names of equal tokens: the LoRA adapter and the tenant's cache salt.
//
// seed() starts at 1337 and grows, modulo 2^64, by XXH3-64(LoRA name, seed 0) and by XXH3-64(tenant, seed 1).
// An empty string counts as absent and adds nothing. The seed is not a secret and sums can be made to
// collide: tenants that distrust each other use HashScheme::keyed128(), where the strings themselves enter
// every hash.
//
// Thread safety: immutable value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ashlar/tokens/namespace_fingerprint.h"

namespace ashlar::tokens {

class Salt {
 public:
  // No LoRA adapter, no tenant: the seed of the default hasher.
  static constexpr std::uint64_t kBaseSeed = 1337;

  Salt() = default;
  Salt(std::string_view lora, std::string_view tenant);
  // A salt whose tenant is known by the seed alone: tenant() is a text in its place. It makes the same hashes
  // wherever only the seed enters them.
  static Salt of_seed(std::string_view lora, std::uint64_t seed);

  const std::string& lora() const noexcept { return lora_; }
  const std::string& tenant() const noexcept { return tenant_; }
  std::uint64_t seed() const noexcept { return seed_; }
  bool empty() const noexcept { return lora_.empty() && tenant_.empty(); }

  friend bool operator==(const Salt&, const Salt&) = default;

 private:
  std::string lora_;
  std::string tenant_;
  std::uint64_t seed_ = kBaseSeed;
};

// SaltFingerprint: 128 bits over both names of a salt. They already enter the hash of a block; the
// fingerprint tells two salts apart where their hashes collide. Zero: the salt is unknown,
// and is never compared.
using SaltFingerprint = NamespaceFingerprint;

// Returns: the same bits for the same salt in every process. O(length of the names).
inline SaltFingerprint salt_fingerprint(const Salt& salt) {
  return SaltFingerprint(
      NamespaceFields{.model = salt.lora(), .dtype = salt.tenant(), .layout = "salt", .block_size = 0});
}

}  // namespace ashlar::tokens
