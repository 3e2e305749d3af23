#include "ashlar/transfer/remote_agent.h"

#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "transfer/remote/agent_core.h"
#include "transfer/remote/peer_link.h"
#include "transfer/remote/socket_address.h"

namespace ashlar::transfer {

Result<void> AgentOptions::validate() const {
  const auto millis = [](Clock::Duration duration) {
    return static_cast<long long>(duration / std::chrono::milliseconds(1));
  };
  if (name.size() > AgentCard::kMaxName || printable(name) != name)
    return make_error(ErrorCode::kInvalidArgument,
                      "name has %zu bytes; it has at most %zu, without control characters", name.size(),
                      AgentCard::kMaxName);
  if (id && *id == 0)
    return make_error(ErrorCode::kInvalidArgument, "id is 0; leave it empty, or choose one");
  ASHLAR_RETURN_IF_ERROR(SocketAddress::check(listen));
  if (!advertise.empty()) ASHLAR_RETURN_IF_ERROR(SocketAddress::check(advertise));
  if (heartbeat < std::chrono::milliseconds(1) || heartbeat > std::chrono::hours(1))
    return make_error(ErrorCode::kInvalidArgument, "heartbeat is %lld ms; it lies between 1 ms and 1 h",
                      millis(heartbeat));
  if (silence < 2 * heartbeat || silence > std::chrono::hours(24))
    return make_error(ErrorCode::kInvalidArgument,
                      "silence is %lld ms; it is at least twice the heartbeat (%lld ms), and at most 24 h",
                      millis(silence), millis(heartbeat));
  if (call_limit <= Clock::Duration::zero() || call_limit > std::chrono::hours(24))
    return make_error(ErrorCode::kInvalidArgument, "call_limit is %lld ms; it lies between 0 and 24 h",
                      millis(call_limit));
  if (handler_threads == 0 || handler_threads > 1024)
    return make_error(ErrorCode::kInvalidArgument, "handler_threads is %u; it is 1 to 1024", handler_threads);
  if (max_peers == 0) return make_error(ErrorCode::kInvalidArgument, "max_peers is 0; it is at least 1");
  constexpr std::uint32_t kLeast = 4096;
  constexpr std::uint32_t kMost = std::uint32_t{1} << 30;
  if (max_message_bytes < kLeast || max_message_bytes > kMost)
    return make_error(ErrorCode::kInvalidArgument, "max_message_bytes is %u; it is %u to %u",
                      max_message_bytes, kLeast, kMost);
  return {};
}

RemotePeer::RemotePeer(std::shared_ptr<PeerLink> link) noexcept : link_(std::move(link)) {}
RemotePeer::~RemotePeer() = default;

const AgentIdentity& RemotePeer::identity() const noexcept {
  return link_->card().identity;
}
const std::string& RemotePeer::name() const noexcept {
  return link_->card().name;
}
const std::string& RemotePeer::address() const noexcept {
  return link_->card().address;
}
bool RemotePeer::alive() const {
  return link_->alive();
}
std::optional<Error> RemotePeer::failure() const {
  return link_->failure();
}
std::size_t RemotePeer::max_message_bytes() const {
  return link_->largest();
}
const std::shared_ptr<RemotePath>& RemotePeer::path() const noexcept {
  return link_->path();
}
Result<std::vector<std::byte>> RemotePeer::call(std::uint16_t method, std::span<const std::byte> request,
                                                const RemoteCallLimits& limits, LateAnswer late) {
  return link_->call(method, request, limits, std::move(late));
}
Result<void> RemotePeer::notify(std::uint16_t method, std::span<const std::byte> request) {
  return link_->notify(method, request);
}
void RemotePeer::close(const Error& why) {
  link_->die(why);
  link_->path()->close(why);  // now, not when its callbacks run
}
void RemotePeer::on_closed(std::function<void(const Error&)> callback) {
  link_->on_closed(std::move(callback));
}

Result<std::shared_ptr<RemoteAgent>> RemoteAgent::create(AgentOptions options) {
  ASHLAR_TRY(std::shared_ptr<AgentCore> core, AgentCore::create(std::move(options)));
  return std::shared_ptr<RemoteAgent>(new RemoteAgent(std::move(core)));
}

RemoteAgent::RemoteAgent(std::shared_ptr<AgentCore> core) noexcept : core_(std::move(core)) {}
RemoteAgent::~RemoteAgent() {
  core_->shutdown();
}

const AgentIdentity& RemoteAgent::identity() const noexcept {
  return core_->card().identity;
}
const std::string& RemoteAgent::name() const noexcept {
  return core_->card().name;
}
const std::string& RemoteAgent::address() const noexcept {
  return core_->card().address;
}
RemoteTransport& RemoteAgent::transport() noexcept {
  return core_->transport();
}
Result<std::shared_ptr<RemotePeer>> RemoteAgent::connect(std::string_view address,
                                                         const RemoteCallLimits& limits) {
  return core_->connect(address, limits);
}
std::vector<std::shared_ptr<RemotePeer>> RemoteAgent::peers() const {
  return core_->peers();
}
Result<RemoteOffer> RemoteAgent::serve(std::uint16_t method, RemoteHandler handler) {
  return core_->serve(method, std::move(handler));
}
Result<RemoteOffer> RemoteAgent::on_peer(std::function<void(const std::shared_ptr<RemotePeer>&)> callback) {
  return core_->on_peer(std::move(callback));
}
Result<RemoteOffer> RemoteAgent::export_blockset(std::shared_ptr<const BlockSet> set,
                                                 const BlockSetNames& names, std::uint64_t id,
                                                 storage::AccessMode mode) {
  return core_->export_blockset(std::move(set), names, id, mode);
}
std::vector<std::vector<std::byte>> RemoteAgent::exports() const {
  return core_->exports();
}
Result<std::shared_ptr<const RemoteBlockSet>> RemoteAgent::import_remote_blockset(
    std::span<const std::byte> bytes, const RemoteCallLimits& limits) {
  return core_->import(bytes, limits);
}
Result<std::vector<std::shared_ptr<const RemoteBlockSet>>> RemoteAgent::exchange(
    const std::shared_ptr<RemotePeer>& peer, const RemoteCallLimits& limits, bool again,
    const LateAnswer& late) {
  return core_->exchange(peer, limits, again, late);
}
Result<BlockSetOwner> RemoteAgent::owner_of_blockset(std::span<const std::byte> bytes) {
  ASHLAR_TRY(const BlockSetRecord record, BlockSetRecord::deserialize(bytes));
  return BlockSetOwner{record.owner, record.id};
}
std::vector<std::shared_ptr<const RemoteBlockSet>> RemoteAgent::remote_blocksets() const {
  return core_->remote_blocksets();
}
bool RemoteAgent::drop_remote_blockset(const AgentIdentity& owner, std::uint64_t id) {
  return core_->drop({owner, id});
}
bool RemoteAgent::is_dropped(const BlockSetOwner& set) const {
  return core_->is_dropped(set);
}

}  // namespace ashlar::transfer
