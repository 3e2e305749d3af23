// Bytes per block of the whole chain from a socket's message to the index, part by part, beside the least
// that an index can keep of a block: its name and its local hash.
//
//   chain_bench [--speed] [blocks, 500000 unless given]
//
// --speed: million blocks per second on one core instead, from the bytes of a message to the index, each part
// added to those before it.
//
// Two chains, each fed with encoded messages: of an engine (EngineIngest, IndexFeeder, index) and of our own
// stream (StreamReceiver, IndexListener, index). Bytes are those asked of operator new and not freed, after
// every message was applied.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/events/engine_codec.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"
#include "counting_allocator.h"
#include "index_measure.h"

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

// --- Speed. ---

// Blocks per second of the best of several runs: the machine's other work only adds time. prepare() makes
// what a run starts with; run(state, message) takes one message.
template <class Prepare, class Step>
double blocks_per_second(std::span<const Message> messages, Prepare&& prepare, Step&& step) {
  constexpr int kRuns = 7;
  double best = 0;
  for (int i = 0; i < kRuns; ++i) {
    auto state = prepare();
    const auto start = BenchClock::now();
    for (const Message& message : messages) step(state, message);
    const double each = nanoseconds_since(start) / static_cast<double>(messages.size() * kRun);
    best = std::max(best, 1e9 / each);
  }
  return best;
}

struct EngineChain {
  EngineChain(std::size_t blocks, std::size_t expected)
      : index(std::make_unique<index::FlashIndex>(index::FlashOptions{.expected_blocks = expected})),
        sink(std::make_unique<index::SinkOf<index::FlashIndex>>(*index)),
        feeder(std::make_unique<feed::IndexFeeder>(*sink, events::WorkerId(7))),
        ingest(std::make_unique<feed::EngineIngest>(feed::EngineIngest::create({}).value())) {
    stored.reserve(std::min<std::size_t>(blocks, 1024));
  }
  void decode(const Message& message) {
    if (!events::decode_engine_batch(message, batch)) std::abort();
  }
  void take(const Message& message) {
    decode(message);
    stored.clear();
    ingest->apply(batch, stored);
  }

  std::unique_ptr<index::FlashIndex> index;
  std::unique_ptr<index::SinkOf<index::FlashIndex>> sink;
  std::unique_ptr<feed::IndexFeeder> feeder;
  std::unique_ptr<feed::EngineIngest> ingest;
  events::EngineBatch batch;
  std::vector<events::KvEvent> stored;
};

void print_speed(const char* part, double per_second) {
  std::printf("  %-46s %8.2f million blocks/s %8.1f ns\n", part, per_second / 1e6, 1e9 / per_second);
}

bool run_speed(std::size_t blocks) {
  std::vector<Message> messages;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < blocks; i += kRun) messages.push_back(engine_message(i));
  for (const Message& message : messages) bytes += message.size();
  std::printf("engine messages of %zu blocks of %u tokens, %.0f bytes per block\n", kRun, kTokens,
              static_cast<double>(bytes) / static_cast<double>(blocks));
  const auto make = [&](std::size_t expected) { return [=] { return EngineChain(blocks, expected); }; };
  print_speed("decode", blocks_per_second(messages, make(0), [](EngineChain& chain, const Message& message) {
                chain.decode(message);
              }));
  print_speed("decode, EngineIngest",
              blocks_per_second(messages, make(0),
                                [](EngineChain& chain, const Message& message) { chain.take(message); }));
  bool right = true;
  for (const std::size_t expected : {std::size_t{0}, blocks}) {
    std::size_t taken = 0;
    const auto whole = [&](EngineChain& chain, const Message& message) {
      chain.take(message);
      chain.feeder->apply(chain.stored);
      if (++taken % messages.size() == 0) right &= check(chain.index->sizes().blocks, blocks);
    };
    print_speed(expected == 0 ? "decode, EngineIngest, IndexFeeder, FlashIndex" : "the same, the index sized",
                blocks_per_second(messages, make(expected), whole));
  }

  messages.clear();
  bytes = 0;
  std::optional<tokens::SequenceHash> last;
  for (std::size_t i = 0; i < blocks; i += kRun) messages.push_back(stream_message(i, last));
  for (const Message& message : messages) bytes += message.size();
  std::printf("our own stream, batches of %zu blocks, %.0f bytes per block\n", kRun,
              static_cast<double>(bytes) / static_cast<double>(blocks));
  struct StreamChain {
    explicit StreamChain(std::size_t expected)
        : index(std::make_unique<index::FlashIndex>(index::FlashOptions{.expected_blocks = expected})),
          sink(std::make_unique<index::SinkOf<index::FlashIndex>>(*index)),
          listener(std::make_unique<feed::IndexListener>(*sink)),
          source(std::make_unique<NoSource>()),
          receiver(std::make_unique<feed::StreamReceiver>(*source, *listener)) {}
    std::unique_ptr<index::FlashIndex> index;
    std::unique_ptr<index::SinkOf<index::FlashIndex>> sink;
    std::unique_ptr<feed::IndexListener> listener;
    std::unique_ptr<NoSource> source;
    std::unique_ptr<feed::StreamReceiver> receiver;
    events::OwnedBatch batch;
  };
  const auto decode = [](StreamChain& chain, const Message& message) {
    if (!events::decode_batch(message, chain.batch)) std::abort();
  };
  print_speed("decode", blocks_per_second(messages, [] { return StreamChain(0); }, decode));
  for (const std::size_t expected : {std::size_t{0}, blocks}) {
    std::size_t taken = 0;
    const auto whole = [&](StreamChain& chain, const Message& message) {
      decode(chain, message);
      chain.receiver->on_batch(chain.batch.view());
      if (++taken % messages.size() == 0) right &= check(chain.index->sizes().blocks, blocks);
    };
    print_speed(
        expected == 0 ? "decode, StreamReceiver, IndexListener, FlashIndex" : "the same, the index sized",
        blocks_per_second(messages, [=] { return StreamChain(expected); }, whole));
  }
  return right;
}

}  // namespace
}  // namespace ashlar::bench

int main(int count, char** arguments) {
  std::size_t blocks = 500'000;
  const bool speed = count > 1 && std::strcmp(arguments[1], "--speed") == 0;
  if (speed) {
    --count;
    ++arguments;
  }
  if (count > 1) {
    const char* const text = arguments[1];
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), blocks);
    if (error != std::errc() || *end != '\0' || blocks == 0) {
      std::fprintf(stderr, "usage: chain_bench [--speed] [blocks]\n");
      return 2;
    }
  }
  blocks = (blocks + 63) / 64 * 64;
  if (speed) return ashlar::bench::run_speed(blocks) ? 0 : 1;
  ashlar::bench::start_counting_bytes();
  std::printf("%zu blocks; the least is %.0f bytes: a name and a local hash\n", blocks,
              ashlar::bench::kLeast);
  const bool engine = ashlar::bench::run_engine(blocks);
  const bool stream = ashlar::bench::run_stream(blocks);
  return engine && stream ? 0 : 1;
}
