// Two nodes: one computes blocks, the other pulls them, through shared memory of one machine.
//
// The program starts itself again: that process is the prefill node, two tensor-parallel ranks with four of
// the eight KV heads each. This process is the decode node, four ranks with two heads each. Every rank has a
// KvBlockManager and, in it, an agent. A decode rank asks all agents of the prefill node and takes the heads
// it needs from the one that has them; nobody tells it which one that is.
//
// Between two machines the same program needs an address and a secret for each agent, and the transport of
// ashlar::ucx.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "ashlar/tokens/token_sequence.h"

using namespace ashlar;
using block::G1;

namespace {

constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint32_t kLayers = 4;
constexpr std::uint32_t kHeads = 8;
constexpr std::uint32_t kHeadDim = 64;
constexpr std::uint32_t kBlocks = 64;
constexpr std::uint32_t kPrefillRanks = 2;
constexpr std::uint32_t kDecodeRanks = 4;

// One rank of a node; it holds some heads of every layer. `peers` are the agents it may ask.
Result<std::unique_ptr<tiers::KvBlockManager>> make_rank(const std::string& name, const layout::Shard& shard,
                                                         std::vector<std::string> peers) {
  return tiers::KvBlockManager::create(
      {.model = {.block_count = 1,
                 .num_layers = kLayers,
                 .outer_dim = 2,  // K and V
                 .block_size = kBlockSize,
                 .num_heads = shard.heads.count,
                 .head_dim = kHeadDim,
                 .inner_dim = shard.heads.count * kHeadDim,
                 .dtype = layout::Dtype::kBF16,
                 .alignment = 4096},
       .shard = shard,
       .block_size = kBlockSize,
       .keys = tokens::NamespaceFingerprint(tokens::NamespaceFields{
           .model = "example", .dtype = "bf16", .layout = "nhd", .block_size = kBlockSize}),
       .g1 = {.block_count = kBlocks, .order = layout::order::kBlockSecondNhd},
       .g2 = tiers::TierShape{.block_count = kBlocks},  // what peers read, and where their blocks arrive
       .remote = tiers::RemoteShape{.own_agent = transfer::AgentOptions{.name = name},
                                    .peers = std::move(peers),
                                    .call_limit = std::chrono::seconds(30)}});
}

// The prompt, as both nodes get it, with digests that they can compare.
tokens::TokenSequence prompt(const tiers::KvBlockManager& kv) {
  Random random(7);
  std::vector<std::uint32_t> text;
  for (std::uint32_t i = 0; i < kBlocks * kBlockSize; ++i)
    text.push_back(static_cast<std::uint32_t>(random.below(50'000)));
  return tokens::TokenSequence::create(text, kBlockSize, kv.hasher()).value();
}

// Stands for the model. Calls visit(address, value) for each 8 bytes of a block in G1; the value follows from
// the block's name and the place in the undivided model, so it does not depend on who computed it.
template <class F>
void each_value(const tiers::KvBlockManager& kv, std::uint32_t slot, const tokens::SequenceHash& hash,
                F&& visit) {
  const transfer::BlockSet& memory = *kv.g1_blocks();
  const transfer::Plane& plane = memory.planes()[0];
  for (std::uint32_t head = 0; head < plane.shard.heads.count; ++head) {
    Random random(hash.chain() + plane.shard.heads.first + head);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      for (std::uint32_t outer = 0; outer < 2; ++outer)
        for (std::uint32_t token = 0; token < kBlockSize; ++token) {
          std::byte* at = memory.address(0, plane.layout.place({slot, layer, outer, token, head}));
          for (std::size_t i = 0; i < plane.layout.config().head_bytes(); i += sizeof(std::uint64_t))
            visit(at + i, random.next());
        }
  }
}

std::vector<layout::Shard> ranks(std::uint32_t count) {
  return layout::Shard::tensor_ranks(count, kHeads, {0, kLayers}).value();
}

int fail(const char* what, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.to_string().c_str());
  return 1;
}

// Computes the prompt on every rank, says on stdout where its agents are, and serves until stdin ends.
int prefill_node() {
  std::vector<std::unique_ptr<tiers::KvBlockManager>> node;
  for (const layout::Shard& shard : ranks(kPrefillRanks)) {
    auto made = make_rank("prefill-" + std::to_string(shard.rank), shard, {});
    if (!made) return fail("prefill", made.error());
    tiers::KvBlockManager& kv = *node.emplace_back(*std::move(made));
    const tokens::TokenSequence text = prompt(kv);
    auto fresh = kv.get_mutable_blocks(kBlocks).value();
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const tokens::TokenBlock& block = text.blocks()[i];
      each_value(kv, fresh[i].block_id().value(), block.sequence_hash(),
                 [](std::byte* at, std::uint64_t value) { std::memcpy(at, &value, sizeof value); });
      complete.push_back(std::move(fresh[i]).complete(block, block::KvReady::asserted_by_caller()).value());
    }
    const auto registered = kv.register_blocks(std::move(complete)).value();
    kv.drain();  // until they are in G2
    std::printf("%s\n", kv.remote()->agent().address().c_str());
  }
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

// Pulls the prompt into every rank and compares every byte.
int decode_node(const std::vector<std::string>& peers) {
  std::uint64_t bytes = 0;
  std::uint64_t wrong = 0;
  for (const layout::Shard& shard : ranks(kDecodeRanks)) {
    auto made = make_rank("decode-" + std::to_string(shard.rank), shard, peers);
    if (!made) return fail("decode", made.error());
    tiers::KvBlockManager& kv = **made;
    const tokens::TokenSequence text = prompt(kv);
    const std::vector<tokens::SequenceHash> hashes = text.sequence_hashes();
    tiers::OnboardOptions how;  // with digests: other tokens under one of these names are a miss
    for (const tokens::TokenBlock& block : text.blocks()) how.prefixes.push_back(block.prefix_digest());
    const tiers::OnboardTable table = kv.onboard(hashes, how);
    for (std::size_t i = 0; i < table.size(); ++i)
      each_value(kv, table[i].block_id().value(), hashes[i], [&](const std::byte* at, std::uint64_t value) {
        bytes += sizeof value;
        if (std::memcmp(at, &value, sizeof value) != 0) wrong += sizeof value;
      });
    std::printf("  decode rank %u, heads %u to %u: %zu of %zu blocks", shard.rank, shard.heads.first,
                shard.heads.first + shard.heads.count - 1, table.size(), hashes.size());
    for (const tiers::RemotePeerStatus& peer : kv.remote()->status().peers)
      if (peer.got != 0)
        std::printf(", %llu from %s at %s", static_cast<unsigned long long>(peer.got), peer.name.c_str(),
                    peer.address.c_str());
    std::printf("\n");
    if (table.size() != hashes.size()) return 1;
  }
  std::printf("  %.1f MiB pulled; %llu of %llu bytes compared are wrong\n",
              static_cast<double>(bytes) / (1 << 20), static_cast<unsigned long long>(wrong),
              static_cast<unsigned long long>(bytes));
  return wrong == 0 ? 0 : 1;
}

// This program as another process, which reads what is written to `to` and is read through `from`.
struct Child {
  pid_t process = 0;
  FILE* from = nullptr;
  int to = -1;
};

bool start_prefill(Child& child) {
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string name = "two_nodes";
  std::string role = "prefill";
  char* arguments[] = {name.data(), role.data(), nullptr};
  const int failed = ::posix_spawn(&child.process, "/proc/self/exe", &actions, nullptr, arguments, ::environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  child.to = in[1];
  child.from = ::fdopen(out[0], "r");
  return failed == 0 && child.from != nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::string_view(arguments[1]) == "prefill") return prefill_node();

  Child prefill;
  if (!start_prefill(prefill)) {
    std::perror("the prefill node cannot be started");
    return 1;
  }
  std::vector<std::string> peers;
  char line[256];
  while (peers.size() < kPrefillRanks && std::fgets(line, sizeof line, prefill.from) != nullptr)
    peers.emplace_back(line, std::strcspn(line, "\n"));
  int result = 1;
  if (peers.size() == kPrefillRanks) {
    std::printf("process %d, TP=%u, computed %u blocks of %u tokens; process %d, TP=%u, pulls them\n",
                static_cast<int>(prefill.process), kPrefillRanks, kBlocks, kBlockSize,
                static_cast<int>(::getpid()), kDecodeRanks);
    result = decode_node(peers);
  }
  ::close(prefill.to);  // the end of its stdin
  std::fclose(prefill.from);
  int status = 0;
  ::waitpid(prefill.process, &status, 0);
  return result != 0 || status != 0 ? 1 : 0;
}
