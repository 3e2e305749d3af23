// The other side of the tests: a process with registered memory. It prints what a peer needs, in hexadecimal,
// and then obeys one-line commands: "fill N", "check N" (answers with the number of bytes that differ), and
// the end of its input. Or a process that reads the memory of another again and again, and prints a line for
// each time.
//
//   ucx_owner TRANSPORTS BYTES
//   ucx_owner TRANSPORTS BYTES ADDRESS KEY PLACE DEVICE
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <string>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/block_set.h"
#include "backend/ucx/hex_text.h"
#include "backend/ucx/owner_bytes.h"

namespace ashlar::backend::ucx {
namespace {

int serve(const std::string& transports, std::uint64_t size) {
  auto transport = UcxTransport::create({.transports = transports, .connect_limit = std::chrono::minutes(2)});
  if (!transport) {
    std::cerr << transport.error() << "\n";
    return 1;
  }
  storage::SystemAllocator allocator;
  const std::shared_ptr<storage::Storage> memory = allocator.allocate(size, 4096).value();
  const auto registration = (*transport)->register_memory(memory, storage::AccessMode::kReadWrite).value();
  std::cout << to_hex((*transport)->address()) << " " << to_hex(registration->key()) << " "
            << reinterpret_cast<std::uintptr_t>(memory->address()) << std::endl;
  std::string verb;
  std::uint64_t seed = 0;
  while (std::cin >> verb >> seed) {
    if (verb == "fill") fill_bytes({memory->address(), size}, seed);
    std::cout << (verb == "check" ? count_other_bytes({memory->address(), size}, seed) : 0) << std::endl;
  }
  return 0;
}

std::shared_ptr<const transfer::BlockSet> one_block(std::shared_ptr<storage::Storage> memory) {
  const auto bytes = static_cast<std::uint32_t>(memory->size());
  const layout::Layout layout = layout::Layout::create({.block_count = 1,
                                                        .num_layers = 1,
                                                        .outer_dim = 1,
                                                        .block_size = 1,
                                                        .num_heads = 1,
                                                        .head_dim = bytes,
                                                        .inner_dim = bytes,
                                                        .dtype = layout::Dtype::kU8},
                                                       layout::order::kFullyContiguousNhd)
                                    .value();
  std::vector<transfer::Plane> planes;
  planes.push_back({layout, layout::Shard::whole(layout.config()), {{std::move(memory), 0}}});
  return transfer::BlockSet::create(std::move(planes)).value();
}

int read_for_ever(const std::string& transports, std::uint64_t size, char** values) {
  const auto transport =
      UcxTransport::create({.transports = transports, .connect_limit = std::chrono::minutes(2)}).value();
  const auto path = transport->connect({1, 1}, from_hex(values[0]), {}).value();
  const int device = std::atoi(values[3]);  // -1: host memory
  const auto theirs = one_block(path->open({.kind = device < 0 ? StorageKind::kSystem : StorageKind::kDevice,
                                            .address = std::strtoull(values[2], nullptr, 10),
                                            .bytes = size,
                                            .device = device,
                                            .agent = 1,
                                            .incarnation = 1,
                                            .key = from_hex(values[1])})
                                    .value());
  storage::SystemAllocator allocator;
  const std::vector<std::uint32_t> block = {0};
  std::vector<std::byte> expected(size);
  fill_bytes(expected, 4);
  // Always a few in flight, so that a signal finds them so.
  std::deque<std::pair<std::shared_ptr<const transfer::BlockSet>, transfer::Transfer>> running;
  for (;;) {
    while (running.size() < 4) {
      const auto mine = one_block(allocator.allocate(size, 4096).value());
      running.emplace_back(
          mine,
          transport->executor().submit({.plan = transfer::plan(theirs, block, mine, block).value()}).value());
    }
    if (!running.front().second.wait()) break;
    std::cout << (std::memcmp(running.front().first->address(0, {}), expected.data(), size) == 0 ? 0 : 1)
              << std::endl;
    running.pop_front();
  }
  return 1;
}

}  // namespace
}  // namespace ashlar::backend::ucx

int main(int count, char** values) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::uint64_t bytes = count < 3 ? 0 : std::strtoull(values[2], nullptr, 10);
  if (count == 3) return ashlar::backend::ucx::serve(values[1], bytes);
  // What is on its way to a reader that is stopped waits in its owner.
  if (count == 7) setenv("UCX_TCP_RCVBUF", "64k", 1);  // NOLINT(concurrency-mt-unsafe)
  if (count == 7) return ashlar::backend::ucx::read_for_ever(values[1], bytes, values + 3);
  return 2;
}
