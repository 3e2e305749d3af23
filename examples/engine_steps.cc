// A request over four tiers, and a router's index that hears where its blocks are.
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/ashlar.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"

using namespace ashlar;
using block::G1;

namespace {

// A folder that goes with the program.
struct Scratch {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("ashlar_engine_steps_" + std::to_string(::getpid())))
          .string();
  ~Scratch() { std::filesystem::remove_all(path); }
};

// 64, 128, 256 and 1024 blocks of 16 tokens, for a toy model; G3 and G4 in a folder.
tiers::KvOptions four_tiers(const std::string& folder) {
  std::filesystem::create_directories(folder + "/volume");
  return {.model = {.num_layers = 2,
                    .outer_dim = 2,
                    .block_size = 16,
                    .num_heads = 1,
                    .head_dim = 64,
                    .inner_dim = 64,
                    .dtype = layout::Dtype::kBF16},
          .keys = tokens::NamespaceFingerprint({"toy", "bf16", "nhd", 16}),
          .g1 = {.block_count = 64},
          .g2 = tiers::TierShape{.block_count = 128},
          .g3 = tiers::DiskShape{.block_count = 256, .paths = {folder + "/g3"}},
          .g4 =
              tiers::VolumeShape{
                  .block_count = 1024,
                  .volumes = {{.name = "cold", .kind = "directory", .location = folder + "/volume"}}},
          .event_capacity = 4096};
}

// A router that hears of the blocks of a worker over a bus, and indexes them.
struct Router {
  explicit Router(tiers::KvBlockManager& of) : kv(of) {
    events->add_sink(bus.sink()).value();
    kv.attach_events(*events).value();
  }
  ~Router() { kv.detach_events(); }
  // How many blocks it knows, once it has heard of all.
  std::size_t known() {
    events->flush(Clock::real().now() + std::chrono::seconds(10)).value();
    while (receiver.poll({}).value() != 0) continue;
    return index.sizes().blocks;
  }

  tiers::KvBlockManager& kv;
  feed::EventBus bus;
  std::unique_ptr<events::EventManager> events =
      events::EventManager::create({.stream = {{events::WorkerId(7), 0}, 1}}).value();
  index::FlashIndex index;
  index::SinkOf<index::FlashIndex> sink{index};
  feed::IndexListener listener{sink};
  std::unique_ptr<feed::FeedSource> source = bus.subscribe();
  feed::StreamReceiver receiver{*source, listener};
};

// One request. Returns the tokens that need no computing.
std::size_t serve(tiers::KvBlockManager& kv, const std::vector<tokens::Token>& prompt) {
  auto request = block::RequestSequence<G1>::create(kv.g1(), prompt).value();
  const std::size_t cached = request.match_prefix().value();  // from whichever tier has it
  request.schedule_prefill(request.tokens_to_compute()).value();
  // … compute the KV of the new blocks of request.block_table() …
  request.apply_prefill(tokens::Token(7)).value();  // registered, offloaded, announced
  return cached;
}

}  // namespace

int main() {
  const Scratch folder;
  auto kv = tiers::KvBlockManager::create(four_tiers(folder.path)).value();
  Router router(*kv);

  const std::vector<tokens::Token> prompt(100, tokens::Token(42));
  for (const char* turn : {"first", "later"}) {
    std::printf("%s: %zu of %zu tokens came from the tiers\n", turn, serve(*kv, prompt), prompt.size());
    kv->drain();
    kv->reset(events::kTierId<G1>).value();  // as if others had taken its place
  }

  kv->shutdown().value();
  std::printf("the router knows %zu blocks\n", router.known());
}
