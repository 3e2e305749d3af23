// Bytes per block of the whole chain from a socket's message to the index, part by part, beside the least
// that an index can keep of a block: its name and its local hash.
//
//   chain_bench [blocks, 500000 unless given]
//
// Two chains, each fed with encoded messages: of an engine (EngineIngest, IndexFeeder, index) and of our own
// stream (StreamReceiver, IndexListener, index). Bytes are those asked of operator new and not freed, after
// every message was applied.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"
#include "counting_allocator.h"

namespace ashlar::bench {
namespace {

using Message = std::vector<std::byte>;

constexpr double kLeast = sizeof(events::StoredBlock);  // a name and a local hash
constexpr std::size_t kSequence = 64;                   // blocks of one sequence
constexpr std::size_t kRun = 16;                        // blocks of one store
constexpr std::uint32_t kTokens = 16;                   // of a block

std::uint64_t number(std::uint64_t i) {
  return (i + 1) * 0x9E3779B97F4A7C15u ^ i >> 3;
}

// The message of an engine that stores blocks [first, first + kRun).
Message engine_message(std::size_t first) {
  events::EngineBatch batch;
  events::EngineEvent event;
  event.kind = events::EngineEventKind::kStored;
  event.block_size = kTokens;
  event.medium = "GPU";
  event.names = {0, kRun};
  event.tokens = {0, kRun * kTokens};
  if (first % kSequence != 0) event.parent = events::BlockName(number(first - 1));
  for (std::size_t i = first; i < first + kRun; ++i) {
    batch.names.push_back(events::BlockName(number(i)));
    for (std::uint32_t t = 0; t < kTokens; ++t)
      batch.tokens.push_back(tokens::Token(static_cast<std::uint32_t>(number(i) >> 32) ^ t));
  }
  batch.events.push_back(event);
  Message out;
  events::encode_engine_batch(batch, out);
  return out;
}

// The same blocks as a batch of our own stream.
Message stream_message(std::size_t first, std::optional<tokens::SequenceHash>& last) {
  std::vector<events::KvEvent> stored;
  for (std::size_t i = first; i < first + kRun; ++i) {
    events::KvEvent event;
    if (i % kSequence == 0) last.reset();
    event.hash = last ? last->child(number(i)).value() : tokens::SequenceHash::root(number(i));
    event.set_parent(last);
    event.set_local(tokens::LocalHash(number(i)));
    last = event.hash;
    stored.push_back(event);
  }
  const events::EventBatch batch{
      .stream = {.worker = {events::WorkerId(7), 0}, .incarnation = 1}, .first = first, .events = stored};
  Message out;
  events::encode_batch(batch, out);
  return out;
}

// Messages come by call.
class NoSource final : public feed::FeedSource {
 public:
  Result<std::size_t> poll(feed::BatchConsumer&, Clock::Duration) override { return std::size_t{0}; }
  Result<bool> recover(const events::StreamId&, std::uint64_t, feed::BatchConsumer&) override {
    return false;
  }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "no source"; }
};

void print(const char* part, std::int64_t bytes, std::size_t blocks) {
  const double each = static_cast<double>(bytes) / static_cast<double>(blocks);
  std::printf("  %-30s %8.1f bytes per block   %6.2f x the least\n", part, each, each / kLeast);
}

bool check(std::size_t held, std::size_t blocks) {
  if (held == blocks) return true;
  std::fprintf(stderr, "the index holds %zu blocks of %zu\n", held, blocks);
  return false;
}

bool run_engine(std::size_t blocks) {
  std::printf("engine messages: EngineIngest, IndexFeeder, FlashIndex\n");
  const std::int64_t start = live_bytes();
  auto ingest = std::make_unique<feed::EngineIngest>(feed::EngineIngest::create({}).value());
  auto index = std::make_unique<index::FlashIndex>();
  auto sink = std::make_unique<index::SinkOf<index::FlashIndex>>(*index);
  auto feeder = std::make_unique<feed::IndexFeeder>(*sink, events::WorkerId(7));
  {
    events::EngineBatch batch;
    std::vector<events::KvEvent> stored;
    for (std::size_t i = 0; i < blocks; i += kRun) {
      const Message message = engine_message(i);
      if (!events::decode_engine_batch(message, batch)) std::abort();
      stored.clear();
      ingest->apply(batch, stored);
      feeder->apply(stored);
    }
  }
  const std::int64_t all = live_bytes() - start;
  const auto of_index = static_cast<std::int64_t>(index->sizes().bytes);
  const bool right = check(index->sizes().blocks, blocks);
  const std::int64_t with_ingest = live_bytes();
  ingest.reset();
  const std::int64_t of_ingest = with_ingest - live_bytes();
  print("EngineIngest", of_ingest, blocks);
  print("IndexFeeder", all - of_ingest - of_index, blocks);
  print("FlashIndex", of_index, blocks);
  print("the chain", all, blocks);
  return right;
}

bool run_stream(std::size_t blocks) {
  std::printf("our own stream: StreamReceiver, IndexListener, FlashIndex\n");
  const std::int64_t start = live_bytes();
  auto index = std::make_unique<index::FlashIndex>();
  index::SinkOf<index::FlashIndex> sink(*index);
  auto listener = std::make_unique<feed::IndexListener>(sink);
  NoSource source;
  feed::StreamReceiver receiver(source, *listener);
  {
    events::OwnedBatch batch;
    std::optional<tokens::SequenceHash> last;
    for (std::size_t i = 0; i < blocks; i += kRun) {
      const Message message = stream_message(i, last);
      if (!events::decode_batch(message, batch)) std::abort();
      receiver.on_batch(batch.view());
    }
  }
  const std::int64_t all = live_bytes() - start;
  const auto of_index = static_cast<std::int64_t>(index->sizes().bytes);
  const bool right = check(index->sizes().blocks, blocks);
  print("receiver and listener", all - of_index, blocks);
  print("FlashIndex", of_index, blocks);
  print("the chain", all, blocks);
  return right;
}

}  // namespace
}  // namespace ashlar::bench

int main(int count, char** arguments) {
  std::size_t blocks = 500'000;
  if (count > 1) {
    const char* const text = arguments[1];
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), blocks);
    if (error != std::errc() || *end != '\0' || blocks == 0) {
      std::fprintf(stderr, "usage: chain_bench [blocks]\n");
      return 2;
    }
  }
  blocks = (blocks + 63) / 64 * 64;
  ashlar::bench::start_counting_bytes();
  std::printf("%zu blocks; the least is %.0f bytes: a name and a local hash\n", blocks,
              ashlar::bench::kLeast);
  const bool engine = ashlar::bench::run_engine(blocks);
  const bool stream = ashlar::bench::run_stream(blocks);
  return engine && stream ? 0 : 1;
}
