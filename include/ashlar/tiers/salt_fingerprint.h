// SaltFingerprint: 128 bits over the LoRA name and the tenant of a request.
//
// Both already enter the hash of a block; the fingerprint tells two salts apart where their hashes collide.
// Zero means that the salt is unknown, and is never compared.
//
// Thread safety: immutable value.
// Complexity:    salt_fingerprint() is linear in the two names.
#pragma once

#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/salt.h"

namespace ashlar::tiers {

using SaltFingerprint = tokens::NamespaceFingerprint;

// Returns: the same bits for the same salt in every process.
inline SaltFingerprint salt_fingerprint(const tokens::Salt& salt) {
  return SaltFingerprint(tokens::NamespaceFields{
      .model = salt.lora(), .dtype = salt.tenant(), .layout = "salt", .block_size = 0});
}

}  // namespace ashlar::tiers
