// Bytes per block of the whole chain from a socket's message to the index, part by part, beside the least
// that an index can keep of a block: its name and its local hash.
//
//   chain_bench [--speed] [blocks, 500000 unless given]
//
// --speed: million blocks per second on one core instead, from the bytes of a message to the index, each part
// added to those before it. At the end the index is asked for a sequence, and the answer checked.
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
#include "ashlar/tokens/sequence_hasher.h"
#include "chain_messages.h"
#include "counting_allocator.h"
#include "index_measure.h"

namespace ashlar::bench {
namespace {

constexpr double kLeast = sizeof(events::StoredBlock);  // a name and a local hash

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
    feed::IndexChanges changes;
    for (std::size_t i = 0; i < blocks; i += kRun) {
      const Message message = engine_message(i);
      if (!events::decode_engine_batch(message, batch)) std::abort();
      changes.clear();
      ingest->apply(batch, changes);
      feeder->apply(changes);
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

// Messages as a source hands them over: received before the run.
class ReadySource final : public feed::EngineSource {
 public:
  explicit ReadySource(std::span<const Message> messages) {
    for (const Message& message : messages)
      messages_.push_back({.topic = "kv", .sequence = messages_.size(), .payload = message});
  }
  Result<std::optional<feed::EngineMessage>> receive(Clock::Duration) override {
    return std::optional(std::move(messages_[next_++]));
  }
  Result<feed::EngineReplay> replay(std::uint64_t) override { return feed::EngineReplay(); }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "messages in memory"; }

 private:
  std::vector<feed::EngineMessage> messages_;
  std::size_t next_ = 0;
};

// Blocks per second of the best of several runs: the machine's other work only adds time. prepare() makes
// what a run starts with; step(state, message) takes one message; finish(state) is not timed.
template <class Prepare, class Step, class Finish>
double blocks_per_second(std::span<const Message> messages, Prepare&& prepare, Step&& step, Finish&& finish) {
  constexpr int kRuns = 7;
  double best = 0;
  for (int i = 0; i < kRuns; ++i) {
    auto state = prepare();
    const auto start = BenchClock::now();
    for (const Message& message : messages) step(state, message);
    const double each = nanoseconds_since(start) / static_cast<double>(messages.size() * kRun);
    best = std::max(best, 1e9 / each);
    finish(state);
  }
  return best;
}

// Up to EngineIngest.
struct EngineParts {
  void decode(const Message& message) {
    if (!events::decode_engine_batch(message, batch)) std::abort();
  }
  void take(const Message& message) {
    decode(message);
    changes.clear();
    ingest->apply(batch, changes);
  }

  std::unique_ptr<feed::EngineIngest> ingest =
      std::make_unique<feed::EngineIngest>(feed::EngineIngest::create({}).value());
  events::EngineBatch batch;
  feed::IndexChanges changes;
};

struct EngineChain {
  EngineChain(std::span<const Message> messages, std::size_t expected)
      : index(std::make_unique<index::FlashIndex>(index::FlashOptions{.expected_blocks = expected})),
        sink(std::make_unique<index::SinkOf<index::FlashIndex>>(*index)),
        feeder(std::make_unique<feed::IndexFeeder>(*sink, events::WorkerId(7))),
        session(std::make_unique<feed::EngineSession>(
            feed::EngineSession::create(std::make_unique<ReadySource>(messages),
                                        {.ingest = {.expected_blocks = expected}})
                .value())) {}
  void step() {
    changes.clear();
    if (session->step(Clock::Duration(0), changes).value() != 1) std::abort();
    feeder->apply(changes);
  }

  std::unique_ptr<index::FlashIndex> index;
  std::unique_ptr<index::SinkOf<index::FlashIndex>> sink;
  std::unique_ptr<feed::IndexFeeder> feeder;
  std::unique_ptr<feed::EngineSession> session;
  feed::IndexChanges changes;
};

// Whether the sequence of block `first` is found whole, by the hashes of its tokens.
bool finds(const index::FlashIndex& index, std::size_t first) {
  std::vector<tokens::LocalHash> locals;
  const tokens::SequenceHasher hasher;
  for (std::size_t i = first; i < first + kSequence; ++i) locals.push_back(hasher.local_hash(tokens_of(i)));
  index::MatchScores scores;
  index.find_matches(locals, scores, {});
  std::uint32_t depth = 0;
  scores.for_each([&](const index::Worker&, const index::Score& score) { depth = score.depth; });
  if (depth == kSequence) return true;
  std::fprintf(stderr, "%u blocks of the sequence at block %zu are found\n", depth, first);
  return false;
}

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
  const auto make = [] { return EngineParts(); };
  const auto nothing = [](const auto&) {};
  print_speed("decode",
              blocks_per_second(
                  messages, make, [](EngineParts& parts, const Message& message) { parts.decode(message); },
                  nothing));
  print_speed(
      "decode, EngineIngest",
      blocks_per_second(
          messages, make, [](EngineParts& parts, const Message& message) { parts.take(message); }, nothing));
  bool right = true;
  const auto check_index = [&](const auto& chain) { right &= check(chain.index->sizes().blocks, blocks); };
  for (const std::size_t expected : {std::size_t{0}, blocks})
    print_speed(expected == 0 ? "EngineSession, IndexFeeder, FlashIndex" : "the same, ingest and index sized",
                blocks_per_second(
                    messages, [&] { return EngineChain(messages, expected); },
                    [](EngineChain& chain, const Message&) { chain.step(); },
                    [&](const EngineChain& chain) {
                      check_index(chain);
                      right &= finds(*chain.index, 0) && finds(*chain.index, blocks - kSequence);
                    }));

  // A cache that is full: the oldest blocks leave as others come.
  std::vector<Message> full = messages;
  for (std::size_t i = 0; i < blocks; i += kRun) {
    full.push_back(removal_message(i));
    full.push_back(engine_message(blocks + i));
  }
  print_speed("the same, one evicted for each that is stored",
              blocks_per_second(
                  messages,
                  [&] {
                    EngineChain chain(full, blocks);
                    for (std::size_t i = 0; i < messages.size(); ++i) chain.step();
                    check_index(chain);
                    return chain;
                  },
                  [](EngineChain& chain, const Message&) {
                    chain.step();
                    chain.step();
                  },
                  [&](const EngineChain& chain) {
                    check_index(chain);
                    right &= finds(*chain.index, blocks) && finds(*chain.index, 2 * blocks - kSequence);
                  }));

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
  const auto empty = [] { return StreamChain(0); };
  print_speed("decode", blocks_per_second(messages, empty, decode, nothing));
  for (const std::size_t expected : {std::size_t{0}, blocks})
    print_speed(
        expected == 0 ? "decode, StreamReceiver, IndexListener, FlashIndex" : "the same, the index sized",
        blocks_per_second(
            messages, [=] { return StreamChain(expected); },
            [&](StreamChain& chain, const Message& message) {
              decode(chain, message);
              chain.receiver->on_batch(chain.batch.view());
            },
            check_index));
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
