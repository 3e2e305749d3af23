#include <cstdio>
#include <vector>

#include "ashlar/ashlar.h"

using namespace ashlar;
using block::G1;
using block::KvReady;

int main() {
  const auto registry = block::BlockRegistry::create().value();
  auto manager =
      block::BlockManager<G1>::builder().block_count(1024).block_size(16).registry(registry).build().value();

  const std::vector<std::uint32_t> prompt(100, 42);  // token ids: six full blocks of 16
  const auto sequence = tokens::TokenSequence::create(prompt, 16).value();

  for (const char* turn : {"first", "second"}) {
    auto table = manager.match_blocks(sequence.blocks());  // the longest prefix that is cached
    const auto missing = sequence.blocks().subspan(table.size());
    std::printf("%s time: %zu blocks cached, %zu to compute\n", turn, table.size(), missing.size());

    auto fresh = manager.allocate_blocks(missing.size()).value();  // evicts what was released longest ago
    for (std::size_t i = 0; i < missing.size(); ++i) {
      // ... compute the KV of block fresh[i].block_id() ...
      auto complete = std::move(fresh[i]).complete(missing[i], KvReady::asserted_by_caller()).value();
      table.push_back(manager.register_block(std::move(complete)).value());
    }
  }  // the table goes: its blocks stay cached until their room is needed
}
