#include "ashlar/tokens/salt.h"

#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {

Salt::Salt(std::string_view lora, std::string_view tenant) : lora_(lora), tenant_(tenant) {
  if (!lora.empty()) seed_ += XXH3_64bits_withSeed(lora.data(), lora.size(), 0);
  if (!tenant.empty()) seed_ += XXH3_64bits_withSeed(tenant.data(), tenant.size(), 1);
}

Salt Salt::of_seed(std::string_view lora, std::uint64_t seed) {
  Salt salt(lora, {});
  if (salt.seed_ == seed) return salt;
  salt.tenant_ = "seed " + std::to_string(seed);
  salt.seed_ = seed;
  return salt;
}

}  // namespace ashlar::tokens
