// What every transport promises, over UCX. The other side is this program again.
#include "transfer/remote/transport_conformance.h"

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/storage/external_storage.h"
#include "backend/ucx/framing.h"
#include "support/fake_device.h"

namespace ashlar::transfer {

namespace {

std::vector<TransportCase> host_cases() {
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

// Device memory, copied through buffers; the host that touches it by its address dies.
TransportCase device_case() {
  static const auto device = std::make_shared<FakeDevice>(std::uint64_t{1} << 30);
  class DeviceMemory final : public storage::Allocator {
   public:
    StorageKind kind() const noexcept override { return StorageKind::kDevice; }
    Result<std::shared_ptr<storage::Storage>> allocate(std::uint64_t bytes, std::uint64_t) override {
      return storage::ExternalStorage::create(device->allocate(bytes)).transform([](auto&& made) {
        return std::shared_ptr<storage::Storage>(made);
      });
    }
  };
  const auto copy = [](const BlockSet& set, BlockImage& image, bool store) {
    image.each_region(set, [&](const RegionMemory& region, BlockImage::Bytes& bytes) {
      std::byte* const there = region.storage->address() + region.offset;
      auto* const here = reinterpret_cast<std::byte*>(bytes.data());
      store ? device->copy(there, here, bytes.size()) : device->copy(here, there, bytes.size());
    });
  };
  TransportCase one = host_cases()[0];
  one.name = "TcpDevice";
  one.layout_step = 5;
  one.transport = [](const ExecutorSettings& settings) -> std::shared_ptr<RemoteTransport> {
    return backend::ucx::UcxTransport::create(
               {.inline_bytes = 4096,
                .strip_bytes = 8192,
                .window = settings.threads * 4,
                .connect_limit = std::chrono::minutes(2),
                .device_executor = std::make_shared<FakeDeviceExecutor>(device),
                .bounce_buffers = 3,
                .limits = settings.limits,
                .clock = settings.clock})
        .value();
  };
  one.memory = [] { return std::make_unique<DeviceMemory>(); };
  one.store = [copy](const BlockSet& set, BlockImage& image) { copy(set, image, true); };
  one.load = [copy](const BlockSet& set, BlockImage& image) { copy(set, image, false); };
  return one;
}

}  // namespace

std::vector<TransportCase> transport_cases() {
  std::vector<TransportCase> cases = host_cases();
  cases.push_back(device_case());
  return cases;
}

namespace {

std::vector<ExecutorCase> executor_cases() {
  std::vector<ExecutorCase> cases;
  for (const TransportCase& one : host_cases()) cases.push_back(executor_case(one));
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
