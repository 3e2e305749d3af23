// One request from its prompt to its last token, and a second one that finds its prefix: the steps of a
// scheduler.
//
// The engine is a comment here: between schedule and apply it computes the KV of the scheduled tokens into
// the blocks of the table and samples a token.
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "ashlar/ashlar.h"

namespace {

using namespace ashlar;
using block::BlockManager;
using block::G1;
using block::RequestSequence;
using tokens::Token;

std::vector<Token> prompt(std::uint32_t question) {
  std::vector<Token> tokens;
  tokens.reserve(90);
  for (std::uint32_t i = 0; i < 70; ++i) tokens.emplace_back(i);  // what every request begins with
  for (std::uint32_t i = 0; i < 20; ++i) tokens.emplace_back(1000 * question + i);
  return tokens;
}

void show(const char* step, const RequestSequence<G1>& request) {
  std::printf("%-34s %3zu tokens, %3zu computed, blocks", step, request.size(), request.computed_tokens());
  for (const block::BlockId id : request.block_table()) std::printf(" %u", id.value());
  std::printf("\n");
}

}  // namespace

int main() {
  const auto registry = block::BlockRegistry::create().value();
  auto manager =
      BlockManager<G1>::builder().block_count(32).block_size(16).registry(registry).build().value();

  auto first = RequestSequence<G1>::create(manager, prompt(1), {.max_tokens = 128}).value();
  std::printf("first request: %zu of %zu tokens are cached\n", first.match_prefix().value(), first.size());
  while (first.tokens_to_compute() > 0 && first.size() == first.prompt_size()) {  // chunks of 40 tokens
    const std::size_t chunk = std::min<std::size_t>(first.tokens_to_compute(), 40);
    const bool last = chunk == first.tokens_to_compute();
    first.schedule_prefill(chunk).value();
    // … the engine computes `chunk` tokens …
    first.apply_prefill(last ? std::optional(Token(7)) : std::nullopt).value();
    show(last ? "prefill, the last chunk" : "prefill, a chunk", first);
  }
  for (std::uint32_t i = 0; i < 7; ++i) {
    first.schedule_decode().value();
    first.apply_decode(Token(8 + i)).value();
  }
  show("seven tokens later", first);
  first.schedule_speculative(3).value();  // three guesses, of which one is right
  const std::vector<Token> accepted = {Token(20), Token(21)};
  first.apply_speculative(accepted).value();
  show("one draft accepted", first);

  auto beam = first.fork(Token(99)).value();  // the same but for its last token
  const auto plan = beam.schedule_decode().value();
  for (const auto& copy : plan.copies) {
    std::printf("the fork writes to a shared block: copy %u to %u first\n", copy.source.value(),
                copy.destination.value());
  }
  beam.apply_decode(Token(100)).value();
  show("the fork", beam);
  beam.release();

  auto second = RequestSequence<G1>::create(manager, prompt(2), {.max_tokens = 128}).value();
  std::printf("second request: %zu of %zu tokens are cached\n", second.match_prefix().value(), second.size());
  show("its table", second);
  first.preempt().value();
  std::printf("the first request was preempted, and finds %zu tokens when it resumes\n",
              first.resume().value());
  return 0;
}
