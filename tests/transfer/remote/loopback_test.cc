// The suites of transports and of executors over the loopback transport, and what only it promises.
#include <sys/mman.h>

#include "ashlar/storage/external_storage.h"
#include "support/fake_device.h"
#include "transfer/copy/admission.h"
#include "transfer/copy/transfer_state.h"
#include "transfer/remote/loopback_address.h"
#include "transfer/remote/registration_table.h"
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
  const auto forge = [](std::span<const std::byte> bytes) {
    LoopbackKey key = LoopbackKey::decode(bytes).value();
    key.mode = storage::AccessMode::kReadWrite;
    return key.encode();
  };
  return {{.name = "Mapped",
           .transport = loopback,
           .memory = [] { return std::make_unique<storage::SharedAllocator>(); },
           .forge = forge},
          {.name = "Kernel",
           .transport = loopback,
           .memory = [] { return std::make_unique<storage::SystemAllocator>(); },
           .forge = forge}};
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

void expect_error(const auto& result, ErrorCode code, const std::string& says) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), code) << result.error();
  EXPECT_THAT(result.error().message(), ::testing::HasSubstr(says));
}

constexpr AgentIdentity kPeer{.agent = 3, .incarnation = 4};

// Two transports of this process: `ours` reads what `theirs` registers.
class LoopbackTest : public ::testing::Test {
 protected:
  static storage::RemoteMemory describe(const storage::Storage& storage,
                                        const MemoryRegistration& registration) {
    return {.kind = storage.kind(),
            .address = reinterpret_cast<std::uintptr_t>(storage.address()),
            .bytes = storage.size(),
            .device = storage.device(),
            .agent = kPeer.agent,
            .incarnation = kPeer.incarnation,
            .key = {registration.key().begin(), registration.key().end()},
            .mode = storage::AccessMode::kReadWrite};
  }
  static std::shared_ptr<LoopbackTransport> make(const LoopbackOptions& options = {}) {
    return LoopbackTransport::create(options).value();
  }
  static std::shared_ptr<const BlockSet> set_over(std::shared_ptr<storage::Storage> storage,
                                                  const layout::Layout& layout) {
    return BlockSet::create({{layout, layout::Shard::whole(layout.config()), {{std::move(storage), 0}}}})
        .value();
  }
  static layout::Layout plain() { return every_layout(small_shape(6, 3, 4))[0]; }

  storage::SharedAllocator shared_;
  storage::SystemAllocator system_;
  std::vector<std::uint32_t> blocks_ = {0, 3, 5};
};

TEST(AgentIdentityTest, IsTwoHexadecimalNumbers) {
  EXPECT_EQ((AgentIdentity{.agent = 0xa1, .incarnation = 0x5f3c000000000001}).to_string(),
            "00000000000000a1/5f3c000000000001");
}

TEST_F(LoopbackTest, OptionsAreChecked) {
  expect_error(LoopbackTransport::create({.copies = {.threads = 0}}), ErrorCode::kInvalidArgument,
               "threads is 0");
  const auto device = std::make_shared<FakeDevice>();
  expect_error(LoopbackTransport::create({.device_executor = std::make_shared<FakeDeviceExecutor>(device)}),
               ErrorCode::kInvalidArgument, "belong together");
}

// A pid names a process only together with its start, its boot and its namespace.
TEST_F(LoopbackTest, AnAddressIsOfOneProcess) {
  const auto ours = make();
  const auto theirs = make();
  const LoopbackAddress address = LoopbackAddress::decode(theirs->address()).value();
  EXPECT_EQ(LoopbackAddress::decode(address.encode()).value(), address);
  const auto connect = [&](const LoopbackAddress& to) { return ours->connect(kPeer, to.encode(), {}); };
  EXPECT_TRUE(connect(address));
  LoopbackAddress other = address;
  other.started += 1;
  expect_error(connect(other), ErrorCode::kUnavailable, "of this address has ended");
  other = address;
  other.boot[3] ^= std::byte{1};
  expect_error(connect(other), ErrorCode::kUnavailable, "another machine");
  other = address;
  other.pid_namespace += 1;
  expect_error(connect(other), ErrorCode::kUnavailable, "another pid namespace");
  other = address;
  other.table.descriptor = 100'000;
  expect_error(connect(other), ErrorCode::kUnavailable, "descriptor 100000");
  other = address;
  other.table.inode += 1;
  expect_error(connect(other), ErrorCode::kInvalidArgument, "is not the memory that was registered");
  other = address;
  other.table.descriptor = 0;  // standard input: nothing is opened that is not memory
  EXPECT_FALSE(connect(other));
  expect_error(ours->connect({}, address.encode(), {}), ErrorCode::kInvalidArgument, "identity");
  PeerProcess peer("Mapped");
  const std::vector<std::byte> late = peer.address();
  peer.kill();
  EXPECT_EQ(ours->connect(peer.identity(), late, {}).error().code(), ErrorCode::kUnavailable);
}

TEST_F(LoopbackTest, APeerThatIsStoppedIsReadAllTheSame) {
  for (const TransportCase& one : transport_cases()) {
    const std::shared_ptr<RemoteTransport> transport = one.transport({});
    PeerProcess peer(one.name);
    const auto path = transport->connect(peer.identity(), peer.address(), {}).value();
    const PeerSet theirs = peer.share(kLargeShape);
    const auto remote = PeerProcess::open(*path, theirs).value();
    peer.fill(theirs, 8);
    peer.process().signal(SIGSTOP);
    const auto local = BlockSet::allocate(theirs.shapes, system_).value();
    BlockImage source(*remote, 0);
    source.scramble(8);
    BlockImage expected(*local, 0);
    copy_naively(*remote, source, blocks_, *local, expected, blocks_);
    const TransferResult got =
        transport->executor().submit({.plan = plan(remote, blocks_, local, blocks_).value()}).value().wait();
    EXPECT_TRUE(got) << got.error();
    EXPECT_TRUE(BlockImage::of(*local) == expected);
    peer.process().signal(SIGCONT);
  }
}

TEST_F(LoopbackTest, WithdrawnMemoryIsReachedNoMore) {
  for (const TransportCase& one : transport_cases()) {
    const std::shared_ptr<RemoteTransport> transport = one.transport({});
    PeerProcess peer(one.name);
    const auto path = transport->connect(peer.identity(), peer.address(), {}).value();
    const PeerSet theirs = peer.share(kLargeShape);
    const auto remote = PeerProcess::open(*path, theirs).value();
    const auto local = BlockSet::allocate(theirs.shapes, system_).value();
    const auto submit = [&] {
      return transport->executor().submit({.plan = plan(local, blocks_, remote, blocks_).value()});
    };
    EXPECT_TRUE(submit().value().wait());
    peer.unregister(theirs);
    expect_error(submit(), ErrorCode::kUnavailable, "does not share this memory any more");
    expect_error(path->open(theirs.memory[0]), ErrorCode::kInvalidArgument,
                 "does not share memory by this key");
    // The entry of the table is used again, by another key.
    const PeerSet next = peer.share(kLargeShape);
    expect_error(submit(), ErrorCode::kUnavailable, "does not share this memory any more");
    EXPECT_TRUE(PeerProcess::open(*path, next));
    EXPECT_FALSE(path->failure()) << "the path is as good as before";
  }
}

// Whether this kernel can keep others from mapping a file of memory for writing: Linux since 5.1.
bool kernel_seals() {
  const OwnedFd file(memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return fcntl(file.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0;
}

// A process that goes around its transport: it opens the owner's memory itself.
TEST_F(LoopbackTest, TheKernelKeepsMemoryThatIsMappedForReading) {
  if (!kernel_seals()) GTEST_SKIP() << "this kernel has no F_SEAL_FUTURE_WRITE";
  PeerProcess peer("Mapped");
  const auto ours = make();
  const auto path = ours->connect(peer.identity(), peer.address(), {}).value();
  const PeerSet theirs = peer.share(kLargeShape, storage::AccessMode::kRead);
  const auto remote = PeerProcess::open(*path, theirs).value();
  peer.fill(theirs, 6);
  BlockImage source(*remote, 0);
  source.scramble(6);
  const LoopbackKey key = LoopbackKey::decode(theirs.memory[0].key).value();
  const std::int32_t pid = LoopbackAddress::decode(peer.address()).value().pid;
  const OwnedFd file = open_memory_file(pid, key.file, key.bytes, O_RDWR).value();
  EXPECT_EQ(mmap(nullptr, key.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0), MAP_FAILED);
  void* const mapped = mmap(nullptr, key.bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_NE(mprotect(mapped, key.bytes, PROT_READ | PROT_WRITE), 0);
  munmap(mapped, key.bytes);
  EXPECT_LT(pwrite(file.get(), "other", 5, 0), 0);
  EXPECT_TRUE(peer.show(theirs, *remote) == source);
  peer.fill(theirs, 7);
  source.scramble(7);
  EXPECT_TRUE(peer.show(theirs, *remote) == source) << "the owner writes as before";
}

TEST_F(LoopbackTest, SharedMemoryThatIsSealedForReadingIsNotOfferedForWriting) {
  if (!kernel_seals()) GTEST_SKIP() << "this kernel has no F_SEAL_FUTURE_WRITE";
  const auto ours = make();
  const auto theirs = make();
  const auto path = ours->connect(kPeer, theirs->address(), {}).value();
  const auto sealed = shared_.allocate(4096, 4096).value();
  const auto first = theirs->register_memory(sealed, storage::AccessMode::kRead).value();
  EXPECT_TRUE(theirs->register_memory(sealed, storage::AccessMode::kRead));
  expect_error(theirs->register_memory(sealed, storage::AccessMode::kReadWrite), ErrorCode::kUnsupported,
               "was registered for reading");
  // The other way round the first registration stays what it was.
  const auto open = shared_.allocate(4096, 4096).value();
  const auto writable = theirs->register_memory(open, storage::AccessMode::kReadWrite).value();
  const auto readable = theirs->register_memory(open, storage::AccessMode::kRead).value();
  EXPECT_TRUE(path->open(describe(*open, *writable)));
  expect_error(path->open(describe(*open, *readable)), ErrorCode::kInvalidArgument, "for reading");
  EXPECT_TRUE(theirs->register_memory(open, storage::AccessMode::kReadWrite));
}

// A peer inside a kernel copy may write to addresses of this process: they stay memory until it is out.
TEST_F(LoopbackTest, WithdrawnMemoryLivesWhileAPeerCopiesIt) {
  const auto theirs = make();
  std::shared_ptr<storage::Storage> memory = system_.allocate(4096, 4096).value();
  const std::weak_ptr<storage::Storage> watched = memory;
  std::unique_ptr<MemoryRegistration> registration =
      theirs->register_memory(std::move(memory), storage::AccessMode::kReadWrite).value();
  const LoopbackKey key = LoopbackKey::decode(registration->key()).value();
  EXPECT_EQ(key.access, PeerAccess::kKernel);
  const LoopbackAddress address = LoopbackAddress::decode(theirs->address()).value();
  SlotLock peer(PeerTable::open_again(address.pid, address.table).value(), key.slot);
  SlotLock idle(PeerTable::open_again(address.pid, address.table).value(), key.slot + 1);
  ASSERT_TRUE(peer.enter() && peer.enter() && idle.enter());
  registration.reset();
  EXPECT_FALSE(watched.expired());
  // The entry is taken, so that a peer's lock is not on another's memory.
  const auto other =
      theirs->register_memory(system_.allocate(4096, 4096).value(), storage::AccessMode::kReadWrite).value();
  EXPECT_NE(LoopbackKey::decode(other->key()).value().slot, key.slot);
  peer.leave();
  EXPECT_FALSE(watched.expired()) << "one thread of the peer is still inside";
  peer.leave();
  while (!watched.expired()) std::this_thread::yield();
  idle.leave();
}

TEST_F(LoopbackTest, MemoryThatItsOwnerUnmappedIsATypedError) {
  const auto ours = make({.copies = {.inline_bytes = 1 << 20}});
  const auto theirs = make();
  const auto path = ours->connect(kPeer, theirs->address(), {}).value();
  layout::LayoutConfig config = small_shape(64, 3, 4);
  config.head_dim = 64;
  config.inner_dim = 256;
  const layout::Layout layout = layout::Layout::create(config, layout::order::kFullyContiguousNhd).value();
  const std::uint64_t bytes = layout.region_bytes();
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 0x5A, bytes);
  const auto memory =
      storage::ExternalStorage::create({.address = static_cast<std::byte*>(mapped), .bytes = bytes}).value();
  const auto registration = theirs->register_memory(memory, storage::AccessMode::kReadWrite).value();
  const auto remote = set_over(path->open(describe(*memory, *registration)).value(), layout);
  const auto local = BlockSet::allocate(layout, system_).value();
  std::vector<std::uint32_t> all(64);
  std::iota(all.begin(), all.end(), 0u);
  const auto get = [&] {
    return ours->executor().submit({.plan = plan(remote, all, local, all).value()}).value().wait();
  };
  EXPECT_TRUE(get());
  // The first half is still there: the kernel copies it, and then finds nothing.
  const std::uint64_t half = bytes / 2 / 4096 * 4096;
  munmap(static_cast<std::byte*>(mapped) + half, bytes - half);
  expect_error(get(), ErrorCode::kUnavailable, "cannot be reached");
  munmap(mapped, half);
  expect_error(get(), ErrorCode::kUnavailable, "cannot be reached");
  expect_error(path->open(describe(*memory, *registration)), ErrorCode::kUnavailable, "has no memory at");
  EXPECT_EQ(ours->executor().counters().failed, 2u);
}

// Another user may see the process, but not its memory.
TEST_F(LoopbackTest, AnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only the superuser can become another user";
  const auto theirs = make();
  testing::ChildProcess child("stranger");
  ASSERT_TRUE(child.channel().send(theirs->address()));
  const auto answer = child.channel().receive();
  ASSERT_TRUE(answer);
  const std::string text(reinterpret_cast<const char*>(answer->data()), answer->size());
  EXPECT_THAT(text, ::testing::HasSubstr("unavailable: "));
  EXPECT_THAT(text, ::testing::HasSubstr("run both processes as one user; it runs as user 0, this process"));
}

TEST_F(LoopbackTest, RegistrationsHaveALimitAndComeBack) {
  const auto theirs = make();
  const auto memory = shared_.allocate(4096, 4096).value();
  std::vector<std::unique_ptr<MemoryRegistration>> all;
  for (std::uint32_t i = 0; i < RegistrationTable::kSlots; ++i)
    all.push_back(theirs->register_memory(memory, storage::AccessMode::kReadWrite).value());
  expect_error(theirs->register_memory(memory, storage::AccessMode::kReadWrite), ErrorCode::kCapacity,
               "8192 regions are registered");
  all.resize(10);
  EXPECT_TRUE(theirs->register_memory(memory, storage::AccessMode::kReadWrite));
  expect_error(theirs->register_memory(nullptr, storage::AccessMode::kReadWrite), ErrorCode::kInvalidArgument,
               "no storage");
  const ScratchFolder folder;
  storage::DiskAllocator disk({.path = folder.file("x"), .remove = true});
  expect_error(theirs->register_memory(disk.allocate(4096, 1).value(), storage::AccessMode::kReadWrite),
               ErrorCode::kUnsupported, "cannot be shared");
}

TEST_F(LoopbackTest, WhatOutlivesItsTransportIsHarmless) {
  auto ours = make();
  auto theirs = make();
  auto path = ours->connect(kPeer, theirs->address(), {}).value();
  const layout::Layout layout = plain();
  const auto memory = shared_.allocate(layout.region_bytes(), 4096).value();
  auto registration = theirs->register_memory(memory, storage::AccessMode::kReadWrite).value();
  const auto remote = set_over(path->open(describe(*memory, *registration)).value(), layout);
  const auto local = BlockSet::allocate(layout, system_).value();
  const auto submit = [&] {
    return ours->executor().submit({.plan = plan(remote, blocks_, local, blocks_).value()});
  };
  theirs.reset();
  EXPECT_TRUE(submit()) << "the registration keeps what it needs";
  registration.reset();
  expect_error(submit(), ErrorCode::kUnavailable, "does not share");
  path.reset();
  expect_error(submit(), ErrorCode::kUnavailable, "was dropped");
  path = ours->connect(kPeer, make()->address(), {}).value();
  ours.reset();
  EXPECT_FALSE(path->failure());
  path->close(Error(ErrorCode::kCancelled, "late"));
  EXPECT_TRUE(path->failure());
}

// Handles are addresses of this process.
class FakeSharing final : public DeviceSharing {
 public:
  Result<std::vector<std::byte>> share(const storage::Storage& storage) override {
    ByteWriter out;
    out.put(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(storage.address())));
    return std::move(out.bytes());
  }
  Result<std::shared_ptr<storage::Storage>> open(std::span<const std::byte> handle, std::uint64_t bytes,
                                                 std::int32_t device) override {
    return storage::ExternalStorage::create(
               {.kind = StorageKind::kDevice,
                .address = reinterpret_cast<std::byte*>(ByteReader(handle).get<std::uint64_t>()),
                .bytes = bytes,
                .device = device})
        .transform([](auto&& made) { return std::shared_ptr<storage::Storage>(made); });
  }
};

// Ends its transfers when the test says so.
class HeldExecutor final : public Executor {
 public:
  std::string_view name() const noexcept override { return "held"; }
  bool handles(const BlockSet&, const BlockSet&) const noexcept override { return true; }
  Result<Transfer> submit(TransferRequest request) override {
    ASHLAR_TRY(const std::shared_ptr<TransferState> state,
               TransferState::admit(std::move(request), admission_));
    held_.push_back(state);
    return Transfer(state);
  }
  ExecutorCounters counters() const override { return admission_.counters(); }
  void end_all() {
    for (const std::shared_ptr<TransferState>& state : std::exchange(held_, {})) {
      state->moved({.bytes = state->may_continue() ? state->bytes_total() : 0});
      state->finish();
    }
  }

 private:
  Admission admission_{{}, Clock::real()};
  std::vector<std::shared_ptr<TransferState>> held_;
};

TEST_F(LoopbackTest, DeviceMemoryIsCopiedByTheDevice) {
  const auto device = std::make_shared<FakeDevice>();
  const LoopbackOptions options{.devices = std::make_shared<FakeSharing>(),
                                .device_executor = std::make_shared<FakeDeviceExecutor>(device)};
  const auto ours = make(options);
  const auto theirs = make(options);
  const auto path = ours->connect(kPeer, theirs->address(), {}).value();
  const layout::Layout layout = plain();
  const std::shared_ptr<storage::Storage> memory =
      storage::ExternalStorage::create(device->allocate(layout.region_bytes())).value();
  const auto registration = theirs->register_memory(memory, storage::AccessMode::kReadWrite).value();
  const auto remote = set_over(path->open(describe(*memory, *registration)).value(), layout);
  const auto local = BlockSet::allocate(layout, system_).value();
  const auto back = BlockSet::allocate(layout, system_).value();
  BlockImage source(*local, 0);
  source.scramble(4);
  source.store(*local);
  BlockImage expected(*back, 0);
  copy_naively(*local, source, blocks_, *back, expected, blocks_);
  const auto run = [&](const auto& from, const auto& to) {
    const TransferResult done =
        ours->executor().submit({.plan = plan(from, blocks_, to, blocks_).value()}).value().wait();
    EXPECT_TRUE(done) << done.error();
  };
  run(local, remote);
  run(remote, back);
  EXPECT_TRUE(BlockImage::of(*back) == expected);
  EXPECT_EQ(ours->executor().counters().completed, 2u);
  // Host memory of the peer and device memory of this process.
  const auto host = shared_.allocate(layout.region_bytes(), 4096).value();
  const auto hosts = theirs->register_memory(host, storage::AccessMode::kReadWrite).value();
  const auto remote_host = set_over(path->open(describe(*host, *hosts)).value(), layout);
  const auto on_device =
      set_over(storage::ExternalStorage::create(device->allocate(layout.region_bytes())).value(), layout);
  run(local, remote_host);
  run(remote_host, on_device);
  BlockImage(*back, 0).store(*back);
  const auto there =
      theirs->register_memory(on_device->planes()[0].regions[0].storage, storage::AccessMode::kReadWrite)
          .value();
  const auto remote_device =
      set_over(path->open(describe(*on_device->planes()[0].regions[0].storage, *there)).value(), layout);
  run(remote_device, back);
  EXPECT_TRUE(BlockImage::of(*back) == expected);
  // What the kernel copies has no address that a device could use.
  const auto pageable = system_.allocate(layout.region_bytes(), 4096).value();
  const auto pageables = theirs->register_memory(pageable, storage::AccessMode::kReadWrite).value();
  const auto remote_pageable = set_over(path->open(describe(*pageable, *pageables)).value(), layout);
  expect_error(ours->executor().submit({.plan = plan(remote_pageable, blocks_, on_device, blocks_).value()}),
               ErrorCode::kUnsupported, "storage::SharedAllocator");
  // Without a device executor there is no way.
  const auto without = make();
  expect_error(without->register_memory(memory, storage::AccessMode::kReadWrite), ErrorCode::kUnsupported,
               "LoopbackOptions::devices");
  const auto blind = without->connect(kPeer, theirs->address(), {}).value();
  expect_error(blind->open(describe(*memory, *registration)), ErrorCode::kUnsupported,
               "LoopbackOptions::devices");
}

TEST_F(LoopbackTest, ClosingAPathEndsWhatADeviceCopies) {
  const auto device = std::make_shared<FakeDevice>();
  const auto held = std::make_shared<HeldExecutor>();
  const auto ours = make({.devices = std::make_shared<FakeSharing>(), .device_executor = held});
  const auto theirs = make({.devices = std::make_shared<FakeSharing>(), .device_executor = held});
  const auto path = ours->connect(kPeer, theirs->address(), {}).value();
  const layout::Layout layout = plain();
  const std::shared_ptr<storage::Storage> memory =
      storage::ExternalStorage::create(device->allocate(layout.region_bytes())).value();
  const auto registration = theirs->register_memory(memory, storage::AccessMode::kReadWrite).value();
  const auto remote = set_over(path->open(describe(*memory, *registration)).value(), layout);
  const auto local = BlockSet::allocate(layout, system_).value();
  const auto submit = [&] {
    return ours->executor().submit({.plan = plan(remote, blocks_, local, blocks_).value()}).value();
  };
  const Transfer first = submit();
  held->end_all();
  EXPECT_TRUE(first.wait());
  const Transfer cancelled = submit();
  cancelled.cancel();
  held->end_all();
  expect_error(cancelled.wait_for_end(), ErrorCode::kCancelled, "cancelled");
  const Transfer second = submit();
  path->close(Error(ErrorCode::kCancelled, "enough"));
  EXPECT_FALSE(second.done());
  held->end_all();
  expect_error(second.wait_for_end(), ErrorCode::kUnavailable, "enough");
  EXPECT_EQ(ours->executor().counters().in_flight, 0u);
}

}  // namespace

// Tries to reach the process whose address it gets, as a user without rights.
static int play_stranger(const testing::TestChannel& channel, const std::vector<std::string>&) {
  const auto address = channel.receive();
  if (!address || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) return 1;
  const auto connected = LoopbackTransport::create().value()->connect(kPeer, *address, {});
  const std::string text = connected ? "connected" : connected.error().to_string();
  return channel.send(std::as_bytes(std::span(text))) ? 0 : 1;
}

}  // namespace ashlar::transfer

int main(int argc, char** argv) {
  return ashlar::testing::run_tests(
      argc, argv,
      {{"remote_peer", ashlar::transfer::play_peer}, {"stranger", ashlar::transfer::play_stranger}});
}
