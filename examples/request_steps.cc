// One request from its prompt to its last token, and a second one that finds its prefix: the steps of a
// scheduler.
//
// The engine is a comment here: between schedule and apply it computes the KV of the scheduled tokens into
// the blocks of the table and samples a token.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "ashlar/ashlar.h"

namespace {

using namespace ashlar;
using block::BlockManager;
using block::RequestSequence;
using block::RequestState;
using events::G1;
using tokens::Token;

template <class T, class E>
T must(Result<T, E> result, const char* what) {
  if (!result) {
    std::fprintf(stderr, "request_steps: %s failed\n", what);
    std::abort();
  }
  return *std::move(result);
}

std::vector<Token> prompt(std::uint32_t question) {
  std::vector<Token> tokens;
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
  const auto registry = must(block::BlockRegistry::create(), "the registry");
  auto manager = must(BlockManager<G1>::builder().block_count(32).block_size(16).registry(registry).build(),
                      "the manager");

  auto first = must(RequestSequence<G1>::create(manager, prompt(1), {.max_tokens = 128}), "the request");
  std::printf("first request: %zu of %zu tokens are cached\n", must(first.match_prefix(), "the match"),
              first.size());
  while (first.tokens_to_compute() > 0 && first.size() == first.prompt_size()) {  // chunks of 40 tokens
    const std::size_t chunk = std::min<std::size_t>(first.tokens_to_compute(), 40);
    const bool last = chunk == first.tokens_to_compute();
    must(first.schedule_prefill(chunk), "schedule_prefill");
    // … the engine computes `chunk` tokens …
    must(first.apply_prefill(last ? std::optional(Token(7)) : std::nullopt), "apply_prefill");
    show(last ? "prefill, the last chunk" : "prefill, a chunk", first);
  }
  for (std::uint32_t i = 0; i < 7; ++i) {
    must(first.schedule_decode(), "schedule_decode");
    must(first.apply_decode(Token(8 + i)), "apply_decode");
  }
  show("seven tokens later", first);
  must(first.schedule_speculative(3), "schedule_speculative");  // three guesses, of which one is right
  const std::vector<Token> accepted = {Token(20), Token(21)};
  must(first.apply_speculative(accepted), "apply_speculative");
  show("one draft accepted", first);

  auto beam = must(first.fork(Token(99)), "the fork");  // the same but for its last token
  const auto plan = must(beam.schedule_decode(), "schedule_decode");
  for (const auto& copy : plan.copies) {
    std::printf("the fork writes to a shared block: copy %u to %u first\n", copy.source.value(),
                copy.destination.value());
  }
  must(beam.apply_decode(Token(100)), "apply_decode");
  show("the fork", beam);
  beam.release();

  auto second = must(RequestSequence<G1>::create(manager, prompt(2), {.max_tokens = 128}), "the request");
  std::printf("second request: %zu of %zu tokens are cached\n", must(second.match_prefix(), "the match"),
              second.size());
  show("its table", second);
  if (auto preempted = first.preempt(); !preempted) std::abort();
  std::printf("the first request was preempted, and finds %zu tokens when it resumes\n",
              must(first.resume(), "resume"));
  return 0;
}
