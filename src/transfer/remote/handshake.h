// Handshake: two agents introduce themselves and prove to each other that they know the secret.
//
// docs/remote.md ("Handshake") has the messages. The dialer sends Hello, the acceptor Welcome with its proof,
// the dialer its Proof. A proof is an HMAC under the secret over the prover's role and everything both sides
// said, fresh random numbers included: no proof of another connection, role or text fits. The keys of the
// frames that follow come from the same text, one for each direction.
//
// No I/O: the agent's IO thread feeds it bytes and sends what it returns.
//
// Thread safety: confined to the agent's IO thread.
// Complexity:    linear in the bytes, which are at most kMaxMessage per message.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/transfer/remote_transport.h"
#include "transfer/remote/mac_key.h"

namespace ashlar::transfer {

// What an agent says about itself.
struct AgentCard {
  static constexpr std::size_t kMaxName = 128;
  static constexpr std::size_t kMaxAddress = 300;
  static constexpr std::size_t kMaxTransport = 64;

  AgentIdentity identity = {};
  std::string name = {};
  std::string address = {};  // where it accepts connections
  std::string transport = {};
  std::vector<std::byte> transport_address = {};
  std::uint32_t max_message_bytes = 0;  // that it accepts
};

class Handshake {
 public:
  static constexpr std::uint16_t kVersion = 1;
  static constexpr std::size_t kMaxMessage = 8192;
  static constexpr std::size_t kNonceBytes = 32;
  using Nonce = std::array<std::byte, kNonceBytes>;

  enum class Role : std::uint8_t { kDialer, kAcceptor };

  // `own` and `secret` outlive it; an empty secret proves nothing. `nonce` must be fresh and random.
  Handshake(Role role, const AgentCard& own, std::string_view secret, const Nonce& nonce);
  // From the kernel. Errors: kIo.
  static Result<Nonce> draw_nonce();
  // The message that refuses a connection.
  static std::vector<std::byte> refusal(const Error& error);

  // What to send next; empty when nothing is due.
  std::vector<std::byte> take_output() noexcept { return std::exchange(output_, {}); }
  // Takes bytes of the other side; they may come in any pieces. Errors: kInvalidArgument: rubbish, another
  // secret, or one where the other side has none; kUnsupported: another version or transport; kAlreadyExists:
  // it is the same agent; the other side's reason for a refusal. take_output() may have a refusal to send.
  Result<void> feed(std::span<const std::byte> bytes);
  // Whether the other side has proved itself. A dialer's own proof is in the output then.
  bool done() const noexcept { return done_; }

  // Once done:
  const AgentCard& peer() const noexcept { return peer_; }
  const std::optional<MacKey>& sending_key() const noexcept { return sending_; }
  const std::optional<MacKey>& receiving_key() const noexcept { return receiving_; }
  // Bytes that came after the last message: frames already.
  std::span<const std::byte> rest() const noexcept { return input_; }

 private:
  enum class Message : std::uint8_t { kHello = 1, kWelcome = 2, kProof = 3, kRefusal = 4 };

  Result<void> receive(std::span<const std::byte> message);
  Result<void> receive_card(std::span<const std::byte> message);
  std::vector<std::byte> introduce(Message kind) const;
  void send(std::span<const std::byte> message, std::span<const std::byte> proof = {});
  // Makes a refusal the output, and returns it.
  Error refuse(Error error);
  MacKey::Mac mac(std::string_view label) const;
  void finish();

  Role role_;
  const AgentCard& own_;
  std::optional<MacKey> secret_;
  Nonce nonce_;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
  std::vector<std::byte> hello_;
  std::vector<std::byte> welcome_;  // without its proof
  AgentCard peer_;
  std::optional<MacKey> sending_;
  std::optional<MacKey> receiving_;
  bool done_ = false;
};

}  // namespace ashlar::transfer
