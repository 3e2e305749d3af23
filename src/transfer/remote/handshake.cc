#include "transfer/remote/handshake.h"

#include <sys/random.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/byte_io.h"
#include "base/wide.h"
#include "transfer/remote/frame.h"

namespace ashlar::transfer {
namespace {

constexpr std::uint32_t kHandshakeMagic = 0x31525341;  // "ASR1"
constexpr std::size_t kHandshakeHead = 8;
constexpr std::uint32_t kLeastMessageBytes = 4096;

std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}

void put_text(ByteWriter& out, std::string_view text) {
  out.put(static_cast<std::uint16_t>(text.size()));
  out.put_bytes(bytes_of(text));
}

std::string get_text(ByteReader& in) {
  const std::span<const std::byte> text = in.get_bytes(in.get<std::uint16_t>());
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

std::vector<std::byte> framed(std::span<const std::byte> message, std::span<const std::byte> proof) {
  ByteWriter out;
  out.put(kHandshakeMagic);
  out.put(static_cast<std::uint32_t>(message.size() + proof.size()));
  out.put_bytes(message);
  out.put_bytes(proof);
  return std::move(out.bytes());
}

}  // namespace

Handshake::Handshake(Role role, const AgentCard& own, std::string_view secret, const Nonce& nonce)
    : role_(role), own_(own), nonce_(nonce) {
  if (!secret.empty()) secret_.emplace(bytes_of(secret));
  if (role_ == Role::kDialer) {
    hello_ = introduce(Message::kHello);
    send(hello_);
  }
}

Result<Handshake::Nonce> Handshake::draw_nonce() {
  Nonce nonce = {};
  std::size_t drawn = 0;
  while (drawn < nonce.size()) {
    const ssize_t got = ::getrandom(nonce.data() + drawn, nonce.size() - drawn, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return make_error(ErrorCode::kIo, "the kernel gives no random numbers: %s",
                        std::generic_category().message(errno).c_str());
    drawn += static_cast<std::size_t>(got);
  }
  return nonce;
}

std::vector<std::byte> Handshake::introduce(Message kind) const {
  ByteWriter out;
  out.put(static_cast<std::uint8_t>(kind));
  out.put(std::uint8_t{secret_ ? std::uint8_t{1} : std::uint8_t{0}});
  out.put(kVersion);
  out.put(own_.max_message_bytes);
  out.put_bytes(nonce_);
  out.put(own_.identity.agent);
  out.put(own_.identity.incarnation);
  put_text(out, own_.name);
  put_text(out, own_.address);
  put_text(out, own_.transport);
  out.put(static_cast<std::uint16_t>(own_.transport_address.size()));
  out.put_bytes(own_.transport_address);
  ASHLAR_CHECK(out.bytes().size() + tokens::Sha256::kSize <= kMaxMessage, "an introduction of %zu bytes",
               out.bytes().size());
  return std::move(out.bytes());
}

void Handshake::send(std::span<const std::byte> message, std::span<const std::byte> proof) {
  const std::vector<std::byte> bytes = framed(message, proof);
  output_.insert(output_.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> Handshake::refusal(const Error& error) {
  ByteWriter out;
  out.put(static_cast<std::uint8_t>(Message::kRefusal));
  out.put_bytes(LinkFrame::error_body(error));
  return framed(out.bytes(), {});
}

Error Handshake::refuse(Error error) {
  output_ = refusal(error);
  return error;
}

MacKey::Mac Handshake::mac(std::string_view label) const {
  ByteWriter lengths;
  lengths.put(static_cast<std::uint32_t>(label.size()));
  lengths.put(static_cast<std::uint32_t>(hello_.size()));
  lengths.put(static_cast<std::uint32_t>(welcome_.size()));
  return secret_->of({lengths.bytes(), bytes_of(label), hello_, welcome_});
}

Result<void> Handshake::feed(std::span<const std::byte> bytes) {
  ASHLAR_DCHECK(!done_, "a handshake that is done takes no bytes");
  input_.insert(input_.end(), bytes.begin(), bytes.end());
  while (!done_ && input_.size() >= kHandshakeHead) {
    ByteReader in(input_);
    const auto magic = in.get<std::uint32_t>();
    const std::size_t length = in.get<std::uint32_t>();
    if (magic != kHandshakeMagic || length == 0 || length > kMaxMessage)
      return make_error(ErrorCode::kInvalidArgument,
                        "it does not speak the protocol of Ashlar's agents; is it the port of one?");
    if (input_.size() < kHandshakeHead + length) break;
    const auto end = input_.begin() + static_cast<std::ptrdiff_t>(kHandshakeHead + length);
    const std::vector<std::byte> message(input_.begin() + kHandshakeHead, end);
    input_.erase(input_.begin(), end);
    ASHLAR_RETURN_IF_ERROR(receive(message));
  }
  if (!done_ && input_.size() > kHandshakeHead + kMaxMessage)
    return make_error(ErrorCode::kInvalidArgument, "it says more than a handshake has");
  return {};
}

Result<void> Handshake::receive(std::span<const std::byte> message) {
  ByteReader in(message);
  const auto kind = static_cast<Message>(in.get<std::uint8_t>());
  if (kind == Message::kRefusal) {
    const Error reason = LinkFrame::error_of(message.subspan(1));
    return make_error(reason.code(), "it refuses: %s", reason.message().c_str());
  }
  const Message expected = role_ == Role::kDialer ? Message::kWelcome
                           : hello_.empty()       ? Message::kHello
                                                  : Message::kProof;
  if (kind != expected)
    return make_error(ErrorCode::kInvalidArgument, "it sends message %u where %u is expected",
                      static_cast<unsigned>(kind), static_cast<unsigned>(expected));
  constexpr std::string_view kAcceptorProof = "ashlar agent: proof of the acceptor";
  constexpr std::string_view kDialerProof = "ashlar agent: proof of the dialer";
  const std::size_t proof = secret_ ? tokens::Sha256::kSize : 0;
  if (expected == Message::kHello) {
    ASHLAR_RETURN_IF_ERROR(receive_card(message));
    hello_.assign(message.begin(), message.end());
    welcome_ = introduce(Message::kWelcome);
    if (secret_) {
      send(welcome_, mac(kAcceptorProof));
    } else {
      send(welcome_);
    }
    return {};
  }
  if (message.size() < proof + 1)
    return make_error(ErrorCode::kInvalidArgument, "its proof has no room in %zu bytes", message.size());
  if (expected == Message::kWelcome) {
    // What it says is believed only with its proof; but a version or secret that differs is named as such.
    ASHLAR_RETURN_IF_ERROR(receive_card(message.first(message.size() - proof)));
    welcome_.assign(message.begin(), message.end() - static_cast<std::ptrdiff_t>(proof));
  } else if (message.size() != 1 + proof) {
    return make_error(ErrorCode::kInvalidArgument, "its proof has %zu bytes", message.size() - 1);
  }
  if (secret_ &&
      !MacKey::equal(mac(expected == Message::kWelcome ? kAcceptorProof : kDialerProof), message.last(proof)))
    return refuse(make_error(ErrorCode::kInvalidArgument,
                             "the two agents know different secrets; give all agents the same one"));
  if (expected == Message::kWelcome) {
    const std::array<std::byte, 1> head = {static_cast<std::byte>(Message::kProof)};
    if (secret_) {
      send(head, mac(kDialerProof));
    } else {
      send(head);
    }
  }
  finish();
  return {};
}

Result<void> Handshake::receive_card(std::span<const std::byte> message) {
  ByteReader in(message);
  in.get<std::uint8_t>();
  const auto with_secret = in.get<std::uint8_t>();
  const auto version = in.get<std::uint16_t>();
  if (in.ok() && version != kVersion)
    return refuse(
        make_error(ErrorCode::kUnsupported,
                   "one agent speaks version %u of the protocol, the other version %u; run the same "
                   "release of Ashlar on both",
                   version, kVersion));
  if (in.ok() && (with_secret == 1) != secret_.has_value())
    return refuse(make_error(ErrorCode::kInvalidArgument,
                             "one agent has a secret, the other none; give all agents the same one"));
  peer_.max_message_bytes = in.get<std::uint32_t>();
  in.get_bytes(kNonceBytes);
  peer_.identity.agent = in.get<std::uint64_t>();
  peer_.identity.incarnation = in.get<std::uint64_t>();
  peer_.name = printable(get_text(in));
  peer_.address = get_text(in);
  peer_.transport = get_text(in);
  const std::span<const std::byte> reached = in.get_bytes(in.get<std::uint16_t>());
  peer_.transport_address.assign(reached.begin(), reached.end());
  if (!in.ok() || in.left() != 0 || with_secret > 1)
    return make_error(ErrorCode::kInvalidArgument, "its introduction does not fit its %zu bytes",
                      message.size());
  if (peer_.identity.agent == 0 || peer_.identity.incarnation == 0 ||
      peer_.name.size() > 4 * AgentCard::kMaxName || peer_.address.empty() ||
      peer_.address.size() > AgentCard::kMaxAddress || printable(peer_.address) != peer_.address ||
      peer_.transport.size() > AgentCard::kMaxTransport ||
      peer_.transport_address.size() > RemoteTransport::kMaxAddressBytes ||
      peer_.max_message_bytes < kLeastMessageBytes)
    return make_error(ErrorCode::kInvalidArgument, "its introduction has a field that no agent sends");
  if (peer_.identity == own_.identity)
    return refuse(make_error(ErrorCode::kAlreadyExists, "it is this agent itself (%s)",
                             own_.identity.to_string().c_str()));
  if (peer_.transport != own_.transport)
    return refuse(make_error(ErrorCode::kUnsupported,
                             "one agent has the transport '%s', the other '%s'; both ends need the same",
                             printable(peer_.transport).c_str(), own_.transport.c_str()));
  return {};
}

void Handshake::finish() {
  done_ = true;
  if (!secret_) return;
  const MacKey to_acceptor(mac("ashlar agent: frames to the acceptor"));
  const MacKey to_dialer(mac("ashlar agent: frames to the dialer"));
  sending_ = role_ == Role::kDialer ? to_acceptor : to_dialer;
  receiving_ = role_ == Role::kDialer ? to_dialer : to_acceptor;
}

}  // namespace ashlar::transfer
