// Bytes of an agent for a way that anybody may write to. docs/remote_finding.md has
// the format.
#include <string>
#include <utility>

#include "ashlar/base/check.h"
#include "base/byte_io.h"
#include "transfer/remote/agent_core.h"
#include "transfer/remote/handshake.h"
#include "transfer/remote/mac_key.h"

namespace ashlar::transfer {
namespace {

constexpr std::uint32_t kSealMagic = 0x31535341;  // "ASS1"
constexpr std::uint16_t kSealVersion = 1;
constexpr std::size_t kSealHead = 24;

// A key of its own: nothing that a handshake proves fits here, or the other way round.
MacKey seal_key(std::string_view secret) {
  constexpr std::string_view kPurpose = "ashlar agent: sealed bytes";
  return MacKey(MacKey(std::as_bytes(std::span(secret))).of({std::as_bytes(std::span(kPurpose))}));
}

MacKey::Mac seal_mac(std::string_view secret, std::string_view label, std::span<const std::byte> challenge,
                     std::span<const std::byte> head_and_bytes) {
  ByteWriter lengths;
  lengths.put(static_cast<std::uint64_t>(label.size()));
  lengths.put(static_cast<std::uint64_t>(challenge.size()));
  return seal_key(secret).of({lengths.bytes(), std::as_bytes(std::span(label)), challenge, head_and_bytes});
}

}  // namespace

std::vector<std::byte> AgentCore::seal(std::string_view label, std::span<const std::byte> bytes,
                                       std::span<const std::byte> challenge) const {
  ByteWriter out;
  out.put(kSealMagic);
  out.put(kSealVersion);
  out.put(std::uint16_t{options_.secret.empty() ? std::uint16_t{0} : std::uint16_t{1}});
  out.put(card_.identity.agent);
  out.put(card_.identity.incarnation);
  ASHLAR_DCHECK(out.bytes().size() == kSealHead, "the head of sealed bytes has %zu", out.bytes().size());
  out.put_bytes(bytes);
  if (!options_.secret.empty()) out.put_bytes(seal_mac(options_.secret, label, challenge, out.bytes()));
  return std::move(out.bytes());
}

Result<SealedBytes> AgentCore::unseal(std::string_view label, std::span<const std::byte> sealed,
                                      std::span<const std::byte> challenge) const {
  ByteReader in(sealed);
  const auto magic = in.get<std::uint32_t>();
  const auto version = in.get<std::uint16_t>();
  const auto with_secret = in.get<std::uint16_t>();
  const AgentIdentity author{.agent = in.get<std::uint64_t>(), .incarnation = in.get<std::uint64_t>()};
  if (!in.ok() || magic != kSealMagic)
    return make_error(ErrorCode::kCorruption, "%zu bytes that no agent has sealed", sealed.size());
  if (version != kSealVersion)
    return make_error(
        ErrorCode::kUnsupported,
        "bytes sealed in version %u; this agent knows version %u. Run the same release of Ashlar "
        "on all nodes",
        version, kSealVersion);
  if (with_secret > 1 || author.agent == 0 || author.incarnation == 0)
    return make_error(ErrorCode::kCorruption, "sealed bytes with a field that no agent writes");
  if ((with_secret == 1) == options_.secret.empty())
    return make_error(ErrorCode::kInvalidArgument,
                      "agent %s has %s secret, this agent has %s; give all agents the same one",
                      author.to_string().c_str(), with_secret == 1 ? "a" : "no",
                      with_secret == 1 ? "none" : "one");
  const std::size_t proof = with_secret == 1 ? tokens::Sha256::kSize : 0;
  if (in.left() < proof)
    return make_error(ErrorCode::kCorruption, "%zu sealed bytes have no room for their proof", sealed.size());
  const std::span<const std::byte> signed_part = sealed.first(sealed.size() - proof);
  if (proof != 0 &&
      !MacKey::equal(seal_mac(options_.secret, label, challenge, signed_part), sealed.last(proof)))
    return make_error(
        ErrorCode::kInvalidArgument,
        "what agent %s is said to have sealed has a wrong proof: another secret, changed bytes, "
        "or an old message; give all agents the same secret",
        author.to_string().c_str());
  const std::span<const std::byte> bytes = signed_part.subspan(kSealHead);
  return SealedBytes{.author = author, .bytes = {bytes.begin(), bytes.end()}};
}

std::vector<std::byte> RemoteAgent::seal(std::string_view label, std::span<const std::byte> bytes,
                                         std::span<const std::byte> challenge) const {
  return core_->seal(label, bytes, challenge);
}
Result<SealedBytes> RemoteAgent::unseal(std::string_view label, std::span<const std::byte> sealed,
                                        std::span<const std::byte> challenge) const {
  return core_->unseal(label, sealed, challenge);
}
Result<std::vector<std::byte>> RemoteAgent::draw_challenge() {
  ASHLAR_TRY(const Handshake::Nonce nonce, Handshake::draw_nonce());
  return std::vector<std::byte>(nonce.begin(), nonce.end());
}

}  // namespace ashlar::transfer
