#include <cstdio>
#include <vector>

#include "ashlar/ashlar.h"

using namespace ashlar;
using block::G1;

int main() {
  const auto registry = block::BlockRegistry::create().value();
  auto pool = block::BlockManager<G1>::builder().block_count(1024).registry(registry).build().value();
  const block::SequenceManager<G1> sequences(pool);
  const std::vector prompt(100, tokens::Token(42));  // token ids: six full blocks of 16 and a partial one

  for (const char* turn : {"first", "second"}) {
    auto chat = sequences.make_sequence(prompt).value();
    const std::size_t cached = sequences.allocate(chat).value();  // shares the cached prefix, takes the rest
    std::printf("%s time: %zu tokens cached, %zu to compute\n", turn, cached, chat.size() - cached);
    // ... compute the KV of the other tokens into the blocks of chat.block_table() ...
    sequences.computed(chat, chat.size()).value();  // now other sequences find the full blocks
  }  // the sequence returns its blocks; they stay cached until their room is needed
}
