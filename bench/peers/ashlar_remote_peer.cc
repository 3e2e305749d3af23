// Our side of run_remote: blocks between the memory of two processes over UCX (remote_blocks.md defines the
// work and the timing).
//
//   ashlar_remote_peer --transports tcp|tcp,shm --blocks BYTES[,BYTES…]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/storage/allocator.h"
#include "far_side.h"
#include "transfer_measure.h"

namespace {

using namespace ashlar;
using namespace ashlar::bench;
using backend::ucx::UcxTransport;
using transfer::BlockSet;

// As remote_blocks.md says.
constexpr std::uint64_t kRegion = std::uint64_t{64} << 20;
constexpr std::uint32_t kRounds = 4;
constexpr std::uint32_t kSingles = 1000;
constexpr std::uint32_t kSinglePlaces = 16;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr,
               "ashlar_remote_peer: %s\n"
               "usage: ashlar_remote_peer --transports tcp|tcp,shm --blocks BYTES[,BYTES...]\n",
               why.c_str());
  std::exit(2);
}

std::shared_ptr<UcxTransport> make_transport(const std::string& transports) {
  auto made = UcxTransport::create({.transports = transports});
  if (!made) give_up(made.error());
  return *std::move(made);
}

std::shared_ptr<storage::Storage> make_memory(UcxTransport& transport) {
  auto memory = transport.allocator()->allocate(kRegion, 4096);
  if (!memory) give_up(memory.error());
  return *std::move(memory);
}

// As G2 of a node: memory for processes of this machine, offered for reading.
std::shared_ptr<storage::Storage> make_tier_memory() {
  auto memory = storage::SharedAllocator().allocate(kRegion, 4096);
  if (!memory) give_up(memory.error());
  return *std::move(memory);
}

void fill(storage::Storage& memory) {
  for (std::uint64_t i = 0; i < kRegion / 8; ++i) {
    const std::uint64_t word = (i + 1) * 0x9E3779B97F4A7C15u;
    std::memcpy(memory.address() + i * 8, &word, 8);
  }
}

std::uint64_t sum_of(const storage::Storage& memory) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < kRegion / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, memory.address() + i * 8, 8);
    sum += word * (2 * i + 1);
  }
  return sum;
}

// Every block once, in an order that jumps. Requires: count is a power of two, factor odd.
std::vector<std::uint32_t> places(std::uint32_t count, std::uint32_t factor) {
  std::vector<std::uint32_t> out(count);
  for (std::uint32_t i = 0; i < count; ++i) out[i] = (i * factor + 1) % count;
  return out;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Ends {
  std::shared_ptr<const BlockSet> far;
  std::shared_ptr<const BlockSet> near;
};

void print(const std::string& op, std::uint64_t bytes, double microseconds, std::uint64_t check) {
  std::printf(
      "{\"peer\":\"ashlar %s\",\"op\":\"%s\",\"block_bytes\":%llu,\"us_per_block\":%.3f,"
      "\"check\":\"sum=%016llx\"}\n",
      ASHLAR_VERSION, op.c_str(), static_cast<unsigned long long>(bytes), microseconds,
      static_cast<unsigned long long>(check));
}

// All blocks in one transfer, several times; the first is not timed.
double bulk(transfer::Executor& executor, const Ends& ends, bool puts, std::uint32_t count) {
  const std::vector<std::uint32_t> far = places(count, 5);
  const std::vector<std::uint32_t> near = places(count, 11);
  const auto once = [&] {
    if (puts) {
      move(executor, ends.near, near, ends.far, far);
    } else {
      move(executor, ends.far, far, ends.near, near);
    }
  };
  once();
  const auto start = std::chrono::steady_clock::now();
  for (std::uint32_t round = 0; round < kRounds; ++round) once();
  return seconds_since(start) / kRounds / count * 1e6;
}

// One block at a time: the median.
double single(transfer::Executor& executor, const Ends& ends, bool puts) {
  std::vector<double> times;
  for (std::uint32_t i = 0; i < kSingles; ++i) {
    const std::vector<std::uint32_t> block = {i % kSinglePlaces};
    const auto start = std::chrono::steady_clock::now();
    if (puts) {
      move(executor, ends.near, block, ends.far, block);
    } else {
      move(executor, ends.far, block, ends.near, block);
    }
    times.push_back(seconds_since(start) * 1e6);
  }
  return spread_of(times).median;
}

// Reads from memory that its owner offers as a node offers its G2.
void run_tier(const std::string& transports, const std::vector<std::uint64_t>& sizes) {
  const std::shared_ptr<UcxTransport> transport = make_transport(transports);
  FarSide far(transport, {"--own-tier", transports}, {.bytes = kRegion}, storage::AccessMode::kRead);
  const std::shared_ptr<storage::Storage> near = make_tier_memory();
  fill(*near);
  const std::uint64_t right = sum_of(*near);
  for (const std::uint64_t bytes : sizes) {
    const auto count = static_cast<std::uint32_t>(kRegion / bytes);
    const layout::Layout layout = block_pieces(bytes, count);
    const Ends ends = {set_over(layout, far.memory()), set_over(layout, near)};
    const std::vector<std::uint32_t> all = places(count, 1);
    const auto check = [&] {
      std::memset(near->address(), 0, kRegion);
      move(far.executor(), ends.far, all, ends.near, all);
      if (sum_of(*near) != right) fail("other bytes came from memory that is offered for reading");
    };
    const double read = bulk(far.executor(), ends, false, count);
    check();
    print("read_tier", bytes, read, right);
    const double read_one = single(far.executor(), ends, false);
    check();
    print("read_tier_one", bytes, read_one, right);
  }
}

void run(const std::string& transports, const std::vector<std::uint64_t>& sizes) {
  const std::shared_ptr<UcxTransport> transport = make_transport(transports);
  FarSide far(transport, {"--own", transports}, {.bytes = kRegion});
  const std::shared_ptr<storage::Storage> near = make_memory(*transport);
  for (const std::uint64_t bytes : sizes) {
    const auto count = static_cast<std::uint32_t>(kRegion / bytes);
    const layout::Layout layout = block_pieces(bytes, count);
    const Ends ends = {set_over(layout, far.memory()), set_over(layout, near)};
    transfer::Executor& executor = far.executor();
    std::memset(near->address(), 0, kRegion);
    const double read = bulk(executor, ends, false, count);
    print("read", bytes, read, sum_of(*near));
    // What is written is read back, and sum_of() sees both.
    fill(*near);
    const double write = bulk(executor, ends, true, count);
    std::memset(near->address(), 0, kRegion);
    bulk(executor, ends, false, count);
    print("write", bytes, write, sum_of(*near));
    const double read_one = single(executor, ends, false);
    print("read_one", bytes, read_one, sum_of(*near));
    const double write_one = single(executor, ends, true);
    print("write_one", bytes, write_one, sum_of(*near));
    // The owner's bytes as they were.
    fill(*near);
    const std::vector<std::uint32_t> all = places(count, 1);
    move(executor, ends.near, all, ends.far, all);
  }
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> words(values + 1, values + count);
  if (words.size() == 2 && words[0] == "--own") {
    const auto transport = make_transport(words[1]);
    const auto memory = make_memory(*transport);
    fill(*memory);
    return own_memory(*transport, memory);
  }
  if (words.size() == 2 && words[0] == "--own-tier") {
    const auto transport = make_transport(words[1]);
    const auto memory = make_tier_memory();
    fill(*memory);
    return own_memory(*transport, memory, storage::AccessMode::kRead);
  }
  if (words.size() != 4 || words[0] != "--transports" || words[2] != "--blocks") fail("wrong arguments");
  std::vector<std::uint64_t> sizes;
  for (std::size_t at = 0; at <= words[3].size();) {
    const std::size_t end = std::min(words[3].find(',', at), words[3].size());
    const std::uint64_t bytes = std::strtoull(words[3].substr(at, end - at).c_str(), nullptr, 10);
    if (bytes < 4096 || kRegion % bytes != 0 || bytes > kRegion / kSinglePlaces || (bytes & (bytes - 1)) != 0)
      fail("a block has 4096 bytes to 4 MiB and is a power of two, not '" + words[3].substr(at, end - at) +
           "'");
    sizes.push_back(bytes);
    at = end + 1;
  }
  run(words[1], sizes);
  run_tier(words[1], sizes);
  return 0;
}
