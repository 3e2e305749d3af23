// Our side of run_vllm: whole requests hashed, allocated and freed (prompts.md defines the timing).
//
//   ashlar_sequence_peer --op hash|build|cached|cold --tokens N [--requests N] [--runs N]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "sequence_setup.h"

namespace {

using namespace ashlar;
using bench::kBlockSize;
using bench::kPool;
using bench::make_manager;
using bench::names_of;
using block::BlockManager;
using block::RegisterBlocks;
using block::RequestSequence;
using block::Sequence;
using block::SequenceManager;
using events::G1;
using tokens::SequenceHash;
using tokens::Token;

constexpr std::uint64_t kVocabulary = 128'000;
constexpr int kWrongUse = 2;

struct SequenceArguments {
  std::string op;
  std::size_t tokens = 0;
  std::size_t requests = 0;
  std::size_t runs = 15;  // a run takes milliseconds
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr,
               "ashlar_sequence_peer: %s\nusage: ashlar_sequence_peer --op hash|build|cached|cold --tokens N "
               "[--requests N] [--runs N]\n",
               why.c_str());
  std::exit(kWrongUse);
}

std::size_t number(const std::string& option, const char* text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value == 0)
    fail(option + " takes a positive number, not '" + text + "'");
  return static_cast<std::size_t>(value);
}

SequenceArguments parse(int argc, char** argv) {
  SequenceArguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) fail(option + " takes a value");
    if (option == "--op") {
      arguments.op = argv[i + 1];
    } else if (option == "--tokens") {
      arguments.tokens = number(option, argv[i + 1]);
    } else if (option == "--requests") {
      arguments.requests = number(option, argv[i + 1]);
    } else if (option == "--runs") {
      arguments.runs = number(option, argv[i + 1]);
    } else {
      fail("unknown option " + option);
    }
  }
  const std::set<std::string> ops = {"hash", "build", "cached", "cold"};
  if (!ops.contains(arguments.op)) fail("unknown operation '" + arguments.op + "'");
  if (arguments.tokens == 0 || arguments.tokens % kBlockSize != 0) fail("--tokens must be a multiple of 16");
  if (arguments.requests == 0) {
    arguments.requests = std::max<std::size_t>(2 * kPool * kBlockSize / arguments.tokens, 1);
  }
  return arguments;
}

std::vector<Token> prompt(std::size_t p, std::size_t tokens) {
  std::vector<Token> made;
  made.reserve(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::uint64_t n = (std::uint64_t{1} << 56) + (std::uint64_t{p} << 24) + i;
    const std::uint64_t z = spread_bits((n + 1) * 0x9E3779B97F4A7C15u);
    made.emplace_back(static_cast<std::uint32_t>(z % kVocabulary));
  }
  return made;
}

// How many different prompts the requests have: those that are to be cached fill half the pool.
std::size_t prompts_of(const SequenceArguments& arguments) {
  if (arguments.op != "cached") return arguments.requests;
  return std::min(std::max<std::size_t>(kPool / 2 * kBlockSize / arguments.tokens, 1), arguments.requests);
}

std::uint64_t token_sum(std::size_t prompts, std::size_t tokens) {
  std::uint64_t sum = 0;
  for (std::size_t p = 0; p < prompts; ++p) {
    const std::vector<Token> made = prompt(p, tokens);
    for (std::size_t i = 0; i < made.size(); ++i) sum += (i + 1) * made[i].value();
  }
  return sum;
}

struct SequenceOutcome {
  double ns = 0;  // of the whole loop
  std::uint64_t cached_tokens = 0;
  std::string check;
};

using SteadyClock = std::chrono::steady_clock;
double since(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::nano>(SteadyClock::now() - start).count();
}

SequenceOutcome hash(const SequenceArguments& arguments) {
  const tokens::SequenceHasher hasher;
  std::vector<std::vector<Token>> prompts;
  for (std::size_t r = 0; r < arguments.requests; ++r) prompts.push_back(prompt(r, arguments.tokens));
  const std::size_t blocks = arguments.tokens / kBlockSize;
  std::vector<std::unique_ptr<tokens::BlockHashes[]>> hashes(arguments.requests);
  std::size_t count = 0;
  SequenceOutcome outcome;
  const auto start = SteadyClock::now();
  for (std::size_t r = 0; r < prompts.size(); ++r) {
    hashes[r] = std::make_unique_for_overwrite<tokens::BlockHashes[]>(blocks);
    count += *hasher.hash_blocks(std::nullopt, prompts[r], kBlockSize, {hashes[r].get(), blocks});
  }
  outcome.ns = since(start);
  std::set<SequenceHash> distinct;
  for (const auto& each : hashes) distinct.insert(each[blocks - 1].sequence);
  outcome.check = "requests=" + std::to_string(hashes.size()) + " hashes=" + std::to_string(count) +
                  " distinct=" + std::to_string(distinct.size());
  return outcome;
}

SequenceOutcome build(const SequenceArguments& arguments, BlockManager<G1>& manager) {
  std::vector<std::vector<Token>> prompts;
  for (std::size_t r = 0; r < arguments.requests; ++r) prompts.push_back(prompt(r, arguments.tokens));
  std::vector<RequestSequence<G1>> requests;
  requests.reserve(arguments.requests);
  std::size_t hashes = 0;
  SequenceOutcome outcome;
  const auto start = SteadyClock::now();
  for (std::vector<Token>& tokens : prompts) {
    requests.push_back(*RequestSequence<G1>::create(manager, std::move(tokens)));
    hashes += requests.back().sequence_hashes().size();
  }
  outcome.ns = since(start);
  std::set<SequenceHash> distinct;
  for (auto& request : requests) distinct.insert(request.sequence_hashes().back());
  outcome.check = "requests=" + std::to_string(requests.size()) + " hashes=" + std::to_string(hashes) +
                  " distinct=" + std::to_string(distinct.size());
  return outcome;
}

SequenceOutcome serve(const SequenceArguments& arguments, BlockManager<G1>& manager) {
  manager.reset_inactive_pool();
  const SequenceManager<G1> sequences(manager, {.register_blocks = RegisterBlocks::kAtOnce});
  const bool cached = arguments.op == "cached";
  const std::size_t prompts = prompts_of(arguments);
  std::vector<Sequence<G1>> requests;
  std::vector<std::vector<SequenceHash>> names;
  for (std::size_t r = 0; r < arguments.requests; ++r) {
    std::vector<Token> tokens = prompt(r % prompts, arguments.tokens);
    if (r < prompts) names.push_back(names_of(tokens));
    requests.push_back(*sequences.make_sequence(std::move(tokens), names[r % prompts]));
    (void)sequences.can_allocate(requests.back());  // the digests are made now, as the names were
  }
  const auto turn = [&](Sequence<G1>& request) {
    const auto found = sequences.allocate(request);
    ASHLAR_CHECK(found.has_value(), "the pool has room");
    ASHLAR_CHECK(sequences.deallocate(request).has_value(), "it has blocks");
    return *found;
  };
  if (cached) {
    for (std::size_t p = 0; p < prompts; ++p) turn(requests[p]);
  }
  const std::uint64_t allocated = manager.counters().allocations;
  SequenceOutcome outcome;
  const auto start = SteadyClock::now();
  for (Sequence<G1>& request : requests) outcome.cached_tokens += turn(request);
  outcome.ns = since(start);

  std::size_t resident = 0;
  for (const auto& each : names) {
    const std::span<const SequenceHash> all_but_last(each.data(), (arguments.tokens - 1) / kBlockSize);
    resident += manager.match_blocks(all_but_last).size() * kBlockSize;
  }
  outcome.check = "requests=" + std::to_string(requests.size()) +
                  " allocated=" + std::to_string(manager.counters().allocations - allocated) +
                  " free=" + std::to_string(manager.available_blocks()) +
                  " resident=" + std::to_string(resident);
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  const SequenceArguments arguments = parse(argc, argv);
  // As in a process that has run for a while: memory that was used once is used again, not returned to the
  // kernel.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  auto manager = make_manager();
  std::vector<double> times;
  SequenceOutcome outcome;
  for (std::size_t run = 0; run < arguments.runs; ++run) {
    outcome = arguments.op == "hash"    ? hash(arguments)
              : arguments.op == "build" ? build(arguments, manager)
                                        : serve(arguments, manager);
    times.push_back(outcome.ns / static_cast<double>(arguments.requests));
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const std::size_t blocks = arguments.tokens / kBlockSize;
  std::printf(
      "{\"peer\":\"ashlar %s\",\"op\":\"%s\",\"tokens\":%zu,\"ns_per_request\":%.1f,\"ns_per_block\":%.2f,"
      "\"blocks\":%zu,\"cached_tokens\":%llu,\"check\":\"%s token_sum=%llu\"}\n",
      ASHLAR_VERSION, arguments.op.c_str(), arguments.tokens, median, median / static_cast<double>(blocks),
      arguments.requests * blocks, static_cast<unsigned long long>(outcome.cached_tokens),
      outcome.check.c_str(),
      static_cast<unsigned long long>(token_sum(prompts_of(arguments), arguments.tokens)));
}
