#include "transfer/remote/transport_conformance.h"

namespace ashlar::transfer {

std::vector<TransportCase> transport_cases() {
  const auto loopback = [](const ExecutorSettings& settings) -> std::shared_ptr<RemoteTransport> {
    return LoopbackTransport::create({.copies = {.threads = settings.threads,
                                                 .inline_bytes = 4096,
                                                 .strip_bytes = 8192,
                                                 .limits = settings.limits,
                                                 .clock = settings.clock}})
        .value();
  };
  return {{"Mapped", loopback, [] { return std::make_unique<storage::SharedAllocator>(); }},
          {"Kernel", loopback, [] { return std::make_unique<storage::SystemAllocator>(); }}};
}

namespace {

std::vector<ExecutorCase> executor_cases() {
  std::vector<ExecutorCase> cases;
  for (const TransportCase& one : transport_cases()) cases.push_back(executor_case(one));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Loopback, TransportTest, ::testing::ValuesIn(transport_cases()),
                         [](const ::testing::TestParamInfo<TransportCase>& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Loopback, ExecutorTest, ::testing::ValuesIn(executor_cases()),
                         [](const ::testing::TestParamInfo<ExecutorCase>& test) { return test.param.name; });

}  // namespace
}  // namespace ashlar::transfer

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(argc, argv, {{"remote_peer", ashlar::transfer::play_peer}});
}
