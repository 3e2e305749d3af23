#include "ashlar/transfer/remote_transport.h"
namespace ashlar::transfer {
class LoopbackTransport::Impl {};
LoopbackTransport::~LoopbackTransport() = default;
Result<std::shared_ptr<LoopbackTransport>> LoopbackTransport::create(const LoopbackOptions&) {
  return make_error(ErrorCode::kUnsupported, "no loopback transport in this build");
}
std::vector<std::byte> LoopbackTransport::address() const {
  return {};
}
Result<std::unique_ptr<MemoryRegistration>> LoopbackTransport::register_memory(
    std::shared_ptr<storage::Storage>) {
  return make_error(ErrorCode::kUnsupported, "no loopback transport in this build");
}
Result<std::shared_ptr<RemotePath>> LoopbackTransport::connect(const AgentIdentity&,
                                                               std::span<const std::byte>,
                                                               std::function<void(const Error&)>) {
  return make_error(ErrorCode::kUnsupported, "no loopback transport in this build");
}
Executor& LoopbackTransport::executor() noexcept {
  std::abort();
}
}  // namespace ashlar::transfer
