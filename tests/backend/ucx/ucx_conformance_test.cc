// What every transport promises, over UCX. The other side is this program again.
#include "transfer/remote/transport_conformance.h"

#include "ashlar/backend/ucx/ucx_transport.h"
#include "backend/ucx/framing.h"

namespace ashlar::transfer {

std::vector<TransportCase> transport_cases() {
  const auto over = [](const char* list) {
    return [list](const ExecutorSettings& settings) -> std::shared_ptr<RemoteTransport> {
      return backend::ucx::UcxTransport::create({.transports = list,
                                                 .inline_bytes = 4096,
                                                 .strip_bytes = 8192,
                                                 .window = settings.threads * 4,
                                                 .connect_limit = std::chrono::minutes(2),
                                                 .limits = settings.limits,
                                                 .clock = settings.clock})
          .value();
    };
  };
  const auto system = [] { return std::make_unique<storage::SystemAllocator>(); };
  const auto forge = [](std::span<const std::byte> bytes) {
    backend::ucx::MemoryKey key = backend::ucx::decode_key(bytes).value();
    key.packed.resize(key.packed.size() - backend::ucx::kPadding);
    key.mode = storage::AccessMode::kReadWrite;
    return backend::ucx::encode(key);
  };
  return {{.name = "Tcp", .transport = over("tcp"), .memory = system, .forge = forge},
          {.name = "TcpShm", .transport = over("tcp,shm"), .memory = system, .forge = forge}};
}

namespace {

std::vector<ExecutorCase> executor_cases() {
  std::vector<ExecutorCase> cases;
  for (const TransportCase& one : transport_cases()) cases.push_back(executor_case(one));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportTest, ::testing::ValuesIn(transport_cases()),
                         [](const ::testing::TestParamInfo<TransportCase>& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Ucx, ExecutorTest, ::testing::ValuesIn(executor_cases()),
                         [](const ::testing::TestParamInfo<ExecutorCase>& test) { return test.param.name; });

}  // namespace
}  // namespace ashlar::transfer

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(argc, argv, {{"remote_peer", ashlar::transfer::play_peer}});
}
