// Conversations on the tiny engine, over the tiers that the command line names. Every reply is compared with
// what the model says without a cache.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/random.h"
#include "tiny_engine/engine.h"
#include "tiny_engine/options.h"
#ifdef TINY_ENGINE_EVENTS
#include "tiny_engine/vllm_events.h"
#endif

using namespace tiny_engine;
using namespace ashlar;

namespace {

constexpr std::string_view kUsage =
    "usage: tiny_engine [options]\n"
    "  --users N          conversations (default 8)\n"
    "  --turns N          turns of each (default 6)\n"
    "  --ranks N          tensor-parallel ranks: 1, 2 or 4 (default 1)\n"
    "  --g1 N --g2 N --g3 N   blocks of G1, G2 and G3 (default 64, 96, 256; 0: no such tier)\n"
    "  --folder PATH      for G3 and a volume; kept, so that a second run starts warm\n"
    "                     (default: a temporary one, removed at the end)\n"
#ifdef TINY_ENGINE_EVENTS
    "  --events ENDPOINT  publish KV events as vLLM does, such as tcp://*:5557\n"
    "  --replay ENDPOINT  and replay them, such as tcp://*:5558\n"
#endif
    "  --help\n";

struct Arguments {
  bool help = false;
  std::uint32_t users = 8;
  std::uint32_t turns = 6;
  std::uint32_t ranks = 1;
  std::uint32_t g1 = 64;
  std::uint32_t g2 = 96;
  std::uint32_t g3 = 256;
  std::string folder;
  std::string events;
  std::string replay;
};

Result<Arguments> parse(int count, char** words) {
  Arguments arguments;
  const auto number = [](std::uint32_t& out) { return number_option<std::uint32_t>(out, 1'000'000); };
  OptionTable table;
  table.values = {{"--users", number(arguments.users)},
                  {"--turns", number(arguments.turns)},
                  {"--ranks", number(arguments.ranks)},
                  {"--g1", number(arguments.g1)},
                  {"--g2", number(arguments.g2)},
                  {"--g3", number(arguments.g3)},
#ifdef TINY_ENGINE_EVENTS
                  {"--events", text_option(arguments.events)},
                  {"--replay", text_option(arguments.replay)},
#endif
                  {"--folder", text_option(arguments.folder)}};
  ASHLAR_TRY(arguments.help, read_options(count, words, table));
  if (!arguments.help && !arguments.replay.empty() && arguments.events.empty())
    return Error(ErrorCode::kInvalidArgument, "--replay needs --events");
  return arguments;
}

EngineOptions options_of(const Arguments& arguments, const std::string& folder) {
  EngineOptions options;
  options.ranks = arguments.ranks;
  options.kv.g1.block_count = arguments.g1;
  if (!arguments.events.empty()) options.kv.event_capacity = 1 << 16;
  if (arguments.g2 == 0) return options;  // what lies below stands on it
  options.kv.g2 = tiers::TierShape{.block_count = arguments.g2};
  if (arguments.g3 > 0)
    options.kv.g3 = tiers::DiskShape{.block_count = arguments.g3, .paths = {folder + "/g3"}};
  options.kv.g4 = tiers::VolumeShape{
      .block_count = 100'000,
      .volumes = {{.name = "shared", .kind = "directory", .location = folder + "/volume"}}};
  return options;
}

// A turn of every user at once. Returns how many replies were right.
std::size_t take_turns(Engine& engine, std::vector<std::vector<Token>>& said, Random& random) {
  std::vector<Request> requests;
  std::vector<Engine::RequestId> ids;
  for (std::vector<Token>& history : said) {
    for (std::uint64_t n = 8 + random.below(24); n > 0; --n)
      history.push_back(Token(static_cast<std::uint32_t>(random.below(TinyModel::kVocabulary))));
    requests.push_back({.prompt = history, .new_tokens = 16});
    ids.push_back(engine.submit(requests.back()).value());
  }
  engine.run();
  std::size_t right = 0;
  for (std::size_t i = 0; i < said.size(); ++i) {
    const Reply reply = engine.take(ids[i]).at(0);
    if (!reply.error.empty()) std::fprintf(stderr, "user %zu: %s\n", i, reply.error.c_str());
    const TinyModel::Speech speech = engine.model().say(requests[i].prompt, requests[i].new_tokens);
    right += reply.tokens == speech.tokens && reply.logits == speech.logits;
    said[i].insert(said[i].end(), reply.tokens.begin(), reply.tokens.end());
  }
  return right;
}

void print_tier(const char* name, const tiers::TierStatus& tier) {
  std::printf("  %-3s %6zu of %6zu blocks full %8llu brought up %8llu evicted\n", name,
              tier.pool.total - tier.pool.reset, tier.pool.total,
              static_cast<unsigned long long>(tier.onboarded),
              static_cast<unsigned long long>(tier.evictions));
}

int refused(const Error& error) {
  std::fprintf(stderr, "tiny_engine: %s\n", error.to_string().c_str());
  return 2;
}

int run(const Arguments& arguments, const std::string& folder) {
  std::filesystem::create_directories(folder + "/volume");
  auto made = Engine::create(options_of(arguments, folder));
  if (!made) return refused(made.error());
  Engine& engine = **made;
#ifdef TINY_ENGINE_EVENTS
  std::unique_ptr<VllmEvents> events;
  if (!arguments.events.empty()) {
    auto published =
        VllmEvents::create(engine, {.endpoint = arguments.events, .replay_endpoint = arguments.replay});
    if (!published) return refused(published.error());
    events = std::move(*published);
    std::printf("events at %s\n", events->publisher().endpoint().c_str());
  }
#endif
  Random random(1);
  std::vector<std::vector<Token>> said(arguments.users,
                                       tokens_of("You are a tiny engine. Answer in letters."));
  std::size_t right = 0;
  for (std::uint32_t turn = 0; turn < arguments.turns; ++turn) right += take_turns(engine, said, random);
  for (std::uint32_t rank = 0; rank < engine.rank_count(); ++rank) engine.kv(rank).shutdown().value();

  const EngineCounters& counters = engine.counters();
  if (!said.empty())
    std::printf("the first user heard: %s\n",
                text_of(std::span(said[0]).last(std::min<std::size_t>(16, said[0].size()))).c_str());
  std::printf("%llu tokens computed, %llu found in the cache; %llu preemptions in %llu steps\n",
              static_cast<unsigned long long>(counters.computed_tokens),
              static_cast<unsigned long long>(counters.cached_tokens),
              static_cast<unsigned long long>(counters.preemptions),
              static_cast<unsigned long long>(counters.steps));
  const tiers::KvStatus status = engine.kv().status();
  print_tier("G1", status.g1);
  if (status.g2) print_tier("G2", *status.g2);
  if (status.g3) print_tier("G3", *status.g3);
  if (status.g4) print_tier("G4", *status.g4);
  const std::size_t replies = std::size_t{arguments.users} * arguments.turns;
  std::printf("%zu of %zu replies are what the model says without a cache, bit for bit\n", right, replies);
  return right == replies ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const Result<Arguments> arguments = parse(count, words);
  if (!arguments) {
    std::fputs(kUsage.data(), stderr);
    return refused(arguments.error());
  }
  if (arguments->help) {
    std::fputs(kUsage.data(), stdout);
    return 0;
  }
  if (!arguments->folder.empty()) return run(*arguments, arguments->folder);
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("ashlar_tiny_engine_" + std::to_string(::getpid())))
          .string();
  const int result = run(*arguments, folder);
  std::filesystem::remove_all(folder);
  return result;
}
