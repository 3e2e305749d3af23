// An engine in two processes: its scheduler has the tiers, its worker has G1 and copies to and from G2, which
// both map.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/tiers/host_store.h"

using namespace ashlar;
using tiers::HostAnswer;

namespace {

constexpr std::uint32_t kSlots = 64;
constexpr std::uint32_t kBytes = 4096;

// A block by the engine's own digest of its tokens and all before them.
tiers::HostBlock named(std::uint64_t digest) {
  return {tokens::SequenceHash::make_keyed(0, digest, ~digest).value(),
          tokens::PrefixDigest::known(digest, digest)};
}

// The worker: another process that shares nothing but the memory of G2.
template <class F>
void in_worker(F&& copy) {
  const pid_t child = fork();
  if (child == 0) {
    copy();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
}

}  // namespace

int main() {
  auto* const host = static_cast<std::byte*>(
      mmap(nullptr, std::size_t{kSlots} * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (host == MAP_FAILED) return 1;
  tiers::TierShape g2{.block_count = kSlots};
  g2.memory = {{.regions = {{.address = host, .bytes = std::uint64_t{kSlots} * kBytes}}}};
  const auto kv = tiers::KvBlockManager::create({.model = {.num_layers = 1,
                                                           .outer_dim = 1,
                                                           .block_size = 1,
                                                           .num_heads = 1,
                                                           .head_dim = kBytes,
                                                           .inner_dim = kBytes,
                                                           .dtype = layout::Dtype::kU8},
                                                 .block_size = 1,
                                                 .g1 = {.block_count = 1},
                                                 .g2 = g2})
                      .value();
  const auto store = tiers::HostStore::create(*kv, {}).value();

  const std::vector<tiers::HostBlock> prompt = {named(1), named(2), named(3)};
  const auto stored = store->begin_store(prompt).value();
  in_worker([&] {
    for (const block::BlockId slot : stored.slots)
      std::memset(host + std::size_t{slot.value()} * kBytes, 7, kBytes);
  });
  if (!store->end_job(stored.job, true)) return 1;

  const auto request = store->begin_request();
  for (const tiers::HostBlock& block : prompt)
    std::printf("block %s: %s\n", block.hash.to_string().c_str(),
                std::string(to_string(store->lookup(request, block))).c_str());
  const auto load = store->begin_load(request, prompt).value();
  in_worker([&] {
    for (const block::BlockId slot : load.slots)
      std::printf("slot %u has %d\n", slot.value(),
                  static_cast<int>(host[std::size_t{slot.value()} * kBytes]));
    std::fflush(stdout);
  });
  if (!store->end_job(load.job, true)) return 1;
  store->end_request(request);
  return 0;
}
