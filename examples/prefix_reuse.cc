// Shows which blocks of a prompt were reused and which were new: the smallest complete use of the library.
//
// Four prompts share a system prompt. Each is cut into blocks, the longest known prefix is matched, the rest
// is allocated, "computed" and registered, so the next prompt finds it.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "ashlar/ashlar.h"

namespace {

using namespace ashlar;
using block::BlockManager;
using block::G1;
using block::KvReady;

constexpr std::uint32_t kBlockSize = 16;

// A stand-in for a tokenizer: one token per character.
std::vector<tokens::Token> tokenize(const std::string& text) {
  std::vector<tokens::Token> tokens;
  for (const char c : text) tokens.emplace_back(static_cast<unsigned char>(c));
  return tokens;
}

}  // namespace

int main() {
  const auto registry = block::BlockRegistry::create({.frequency = block::TinyLfuOptions{}}).value();
  auto manager = BlockManager<G1>::builder()
                     .block_count(18)
                     .block_size(kBlockSize)
                     .registry(registry)
                     .with_lru_backend()
                     .build()
                     .value();

  const std::string system =
      "You are a mason. You answer in one sentence, and you name the stone you would choose. ";
  const std::vector<std::string> prompts = {
      system + "How do I dress a limestone block so that the joint is as thin as a knife blade?",
      system + "How do I dress a limestone block for a curved wall?",
      system + "Which mortar suits granite?",
      "Write a poem about rivers and the stones that they carry to the sea, and let no line of it be long.",
      system +
          "How do I dress a limestone block so that the joint is as thin as a knife blade? And how long will "
          "it last?",
  };

  std::printf("pool of %zu blocks of %u tokens, LRU eviction\n\n", manager.total_blocks(), kBlockSize);
  std::printf("%-6s %7s %7s  %-9s %7s %6s %8s  %s\n", "prompt", "tokens", "blocks", "", "reused", "new",
              "evicted", "block ids (reused in brackets)");
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const auto sequence = tokens::TokenSequence::create(tokenize(prompts[p]), kBlockSize).value();

    // Match the cached blocks.
    auto table = manager.match_blocks(sequence.blocks());
    const std::size_t reused = table.size();

    // For the others: allocate, compute, name, register.
    const auto rest = sequence.blocks().subspan(reused);
    auto fresh = manager.allocate_blocks_with_evictions(rest.size()).value();
    block::BlockList<block::CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      complete.push_back(std::move(fresh.blocks[i]).complete(rest[i], KvReady::asserted_by_caller()).value());
    }
    auto registered = manager.register_blocks(std::move(complete)).value();
    for (auto& each : registered) table.push_back(std::move(each));

    std::printf("%-6zu %7zu %7zu  %-9s %7zu %6zu %8zu  ", p + 1, prompts[p].size(), sequence.blocks().size(),
                reused == 0 ? "miss" : "hit", reused, rest.size(), fresh.evicted.size());
    for (std::size_t i = 0; i < table.size(); ++i) {
      std::printf(i < reused ? "[%u] " : "%u ", table[i].block_id().value());
    }
    std::printf("\n");
  }  // the table is dropped: its blocks stay, inactive, until their room is needed

  std::printf("\n%s\n", manager.status().to_string().c_str());
  const auto shared = tokens::TokenSequence::create(tokenize(system), kBlockSize).value();
  std::printf("the first block of the shared prefix was used %u times\n",
              registry.count(shared.blocks().front().sequence_hash()));
  return 0;
}
