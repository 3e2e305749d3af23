// The cost of events for the thread that emits them, and the throughput of each feed in events per second.
//
//   event_bench [--here]
//
// Without --here it also runs the other feeds' programs beside it: engine_decode_bench, zmq_feed_bench and
// nats_feed_bench, each with the raw library in the same run.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/events/event_codec.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/testing/managers.h"
#include "ratio.h"

namespace ashlar::bench {
namespace {

using block::KvReady;
using events::EventManager;
using events::G1;
using events::KvEvent;
using tokens::SequenceHash;

constexpr std::size_t kBatch = 100;

// Chains of `length` blocks, each of its own sequence.
std::vector<KvEvent> chains(std::size_t blocks, std::size_t length) {
  std::vector<KvEvent> out;
  SequenceHash root;
  SequenceHash at;
  for (std::size_t i = 0; i < blocks; ++i) {
    KvEvent event;
    if (i % length == 0) {
      root = at = SequenceHash::root(i * 0x9E3779B97F4A7C15u + 1);
    } else {
      event.has_parent = true;
      event.parent_bits = at;
      at = at.child(i * 0x9E3779B97F4A7C15u + 1).value();
    }
    event.hash = at;
    event.has_root = true;
    event.root_bits = root;
    event.has_local = true;
    event.local_bits = i;
    event.bytes = 1 << 20;
    event.block = static_cast<std::uint32_t>(i);
    out.push_back(event);
  }
  return out;
}

// What the thread computed, without the time that others had the processor.
double thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct Nobody final : events::EventSink {
  void on_events(std::span<const KvEvent>) override {}
};

template <class F>
double median_of(std::size_t runs, const F& run) {
  std::vector<double> values;
  for (std::size_t i = 0; i < runs; ++i) values.push_back(run());
  return spread_of(std::move(values)).median;
}

double log_append_ns(const std::vector<KvEvent>& events) {
  events::EventLog log(events.size());
  Nobody nobody;
  return median_of(9, [&] {
    const double start = thread_ns();
    for (const KvEvent& event : events) log.append(event);
    const double spent = thread_ns() - start;
    log.drain(nobody);
    return spent / static_cast<double>(events.size());
  });
}

// Registers and evicts blocks one by one; what it costs with a log less what it costs without.
double register_ns(bool with_events, const std::vector<KvEvent>& events) {
  auto options = testing::manager_options(1024, 16);
  if (with_events) options.events = testing::make_event_log(std::size_t{1} << 19);
  Nobody nobody;
  auto manager = testing::make_manager<G1>(options);
  return median_of(9, [&] {
    const double start = thread_ns();
    for (const KvEvent& event : events) {
      auto blocks = manager.allocate_blocks(1);
      if (!blocks) std::abort();
      auto registered = manager.register_block(blocks->take_back().stage(
          {event.hash, event.parent(), event.prefix_group()}, KvReady::asserted_by_caller()));
      if (!registered) std::abort();
    }
    const double spent = thread_ns() - start;
    if (options.events) options.events->drain(nobody);
    return spent / static_cast<double>(events.size());
  });
}

double handle_ns(bool in_scope, const std::vector<KvEvent>& events) {
  auto manager = EventManager::create({.handle_capacity = std::size_t{1} << 20}).value();
  std::vector<events::PublishHandle> handles(events.size());
  return median_of(9, [&] {
    const double start = thread_ns();
    if (in_scope) {
      for (std::size_t first = 0; first < events.size(); first += kBatch) {
        events::Publisher publisher = manager->publisher();
        for (std::size_t i = first; i < std::min(first + kBatch, events.size()); ++i)
          handles[i] = publisher.publish(events[i]);
      }
    } else {
      for (std::size_t i = 0; i < events.size(); ++i) handles[i] = manager->publish(events[i]);
    }
    for (events::PublishHandle& handle : handles) handle.reset();
    const double spent = thread_ns() - start;
    manager->drain();
    return spent / static_cast<double>(2 * events.size());  // a Stored and a Removed each
  });
}

// Threads that publish and drop blocks of their own at the same time; processor time of each.
double contended_ns(std::size_t threads, const std::vector<KvEvent>& events) {
  auto manager = EventManager::create({.handle_capacity = std::size_t{1} << 20}).value();
  return median_of(5, [&] {
    std::vector<double> spent(threads);
    std::vector<std::thread> running;
    for (std::size_t t = 0; t < threads; ++t)
      running.emplace_back([&, t] {
        const std::size_t share = events.size() / threads;
        std::vector<events::PublishHandle> handles(share);
        const double start = thread_ns();
        for (std::size_t i = 0; i < share; ++i) handles[i] = manager->publish(events[t * share + i]);
        for (events::PublishHandle& handle : handles) handle.reset();
        spent[t] = (thread_ns() - start) / static_cast<double>(2 * share);
      });
    for (std::thread& thread : running) thread.join();
    manager->drain();
    return spread_of(spent).median;
  });
}

void measure_hot_path() {
  const std::vector<KvEvent> events = chains(100'000, 16);
  std::printf("ns per event on the thread that makes it (processor time, median of 9; the promise is 100)\n");
  std::printf("  append to a log             %6.1f\n", log_append_ns(events));
  const double without = register_ns(false, events);
  const double with = register_ns(true, events);
  std::printf("  register + evict a block    %6.1f without events, %.1f with: %.1f per event\n", without,
              with, (with - without) / 2);
  std::printf("  PublishHandle               %6.1f\n", handle_ns(false, events));
  std::printf("  PublishHandle, scope of %zu %6.1f\n", kBatch, handle_ns(true, events));
  std::printf("  PublishHandle, 2 threads    %6.1f\n", contended_ns(2, events));
}

void measure_codec() {
  for (const std::size_t length : {std::size_t{1}, std::size_t{16}}) {
    const std::vector<KvEvent> events = chains(kBatch, length);
    events::EventBatch batch;
    batch.events = events;
    std::vector<std::byte> bytes;
    events::OwnedBatch read;
    const double encode = median_of(51, [&] {
      const double start = thread_ns();
      for (int i = 0; i < 100; ++i) events::encode_batch(batch, bytes);
      return (thread_ns() - start) / (100.0 * kBatch);
    });
    const double decode = median_of(51, [&] {
      const double start = thread_ns();
      for (int i = 0; i < 100; ++i)
        if (!events::decode_batch(bytes, read)) std::abort();
      return (thread_ns() - start) / (100.0 * kBatch);
    });
    std::printf("  chains of %-2zu: %5.1f bytes per event, encode %5.1f ns, decode %5.1f ns\n", length,
                static_cast<double>(bytes.size()) / kBatch, encode, decode);
  }
}

class CountingListener final : public feed::StreamListener {
 public:
  void on_reset(const events::StreamId&) override {}
  void on_events(const events::EventBatch& batch) override { seen += batch.events.size(); }
  std::size_t seen = 0;
};

// From an EventManager through a feed to a listener, everything: numbering, state, batches, receiver.
void measure_bus(std::size_t count, std::size_t per_batch) {
  const std::vector<KvEvent> events = chains(count, 16);
  const double rate = median_of(5, [&] {
    feed::EventBus bus({.queue_batches = 1 << 20});
    auto manager = EventManager::create({.stream = {{events::WorkerId(1), 0}, 1}}).value();
    events::BatchProfile profile;
    profile.max_events = per_batch;
    profile.capacity = count + 1;
    if (!manager->add_sink(bus.sink(), profile)) std::abort();
    const auto source = bus.subscribe();
    CountingListener counter;
    feed::StreamReceiver receiver(*source, counter);
    auto log = std::make_shared<events::EventLog>(count);
    if (!log->claim() || !manager->add_source(log)) std::abort();
    const auto start = std::chrono::steady_clock::now();
    for (const KvEvent& event : events) log->append(event);
    manager->drain();
    while (counter.seen < count)
      if (!receiver.poll(std::chrono::milliseconds(10))) std::abort();
    return static_cast<double>(count) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  std::printf("  bus, batches of %-4zu        %6.2f M events/s\n", per_batch, rate / 1e6);
}

void measure_file(std::size_t count) {
  const std::vector<KvEvent> events = chains(count, 16);
  const std::string path = (std::filesystem::temp_directory_path() / "ashlar_event_bench").string();
  double bytes = 0;
  std::vector<double> raw;
  const double rate = median_of(5, [&] {
    std::filesystem::remove(path);
    const auto start = std::chrono::steady_clock::now();
    {
      auto sink = feed::FileSink::create({.path = path}).value();
      for (std::size_t first = 0; first < count; first += kBatch) {
        events::EventBatch batch;
        batch.first = first;
        batch.events = std::span(events).subspan(first, kBatch);
        if (!sink->publish(batch)) std::abort();
      }
    }
    auto source = feed::FileSource::create({.path = path}).value();
    CountingListener counter;
    feed::StreamReceiver receiver(*source, counter);
    while (counter.seen < count)
      if (!receiver.poll({})) std::abort();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // The same bytes, written and read with nothing done to them.
    bytes = static_cast<double>(std::filesystem::file_size(path));
    std::vector<char> plain(static_cast<std::size_t>(bytes) / (count / kBatch));
    const auto begin = std::chrono::steady_clock::now();
    FILE* file = std::fopen(path.c_str(), "w+");
    std::setvbuf(file, nullptr, _IONBF, 0);
    for (std::size_t i = 0; i < count / kBatch; ++i) std::fwrite(plain.data(), 1, plain.size(), file);
    std::rewind(file);
    for (std::size_t i = 0; i < count / kBatch; ++i)
      if (std::fread(plain.data(), 1, plain.size(), file) != plain.size()) std::abort();
    std::fclose(file);
    raw.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / seconds);
    return static_cast<double>(count) / seconds;
  });
  std::filesystem::remove(path);
  std::printf(
      "  file, batches of %zu        %6.2f M events/s, %.2f of the same bytes written and read plain\n",
      kBatch, rate / 1e6, spread_of(std::move(raw)).median);
}

int run_beside(const char* self, const char* name) {
  const std::filesystem::path program = std::filesystem::path(self).parent_path() / name;
  if (!std::filesystem::exists(program)) {
    std::printf("\n%s: not built\n", name);
    return 0;
  }
  std::printf("\n%s\n", name);
  std::fflush(stdout);
  return std::system(("'" + program.string() + "'").c_str());  // NOLINT(cert-env33-c,concurrency-mt-unsafe)
}

}  // namespace
}  // namespace ashlar::bench

int main(int argc, char** argv) {
  using namespace ashlar::bench;
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--here") != 0)) {
    std::fprintf(stderr, "usage: event_bench [--here]\n");
    return 2;
  }
  measure_hot_path();
  std::printf("\nown format, batches of %zu\n", kBatch);
  measure_codec();
  std::printf("\nfrom an EventManager to a listener\n");
  measure_bus(400'000, kBatch);
  measure_bus(400'000, 512);
  measure_file(400'000);
  if (argc == 2) return 0;
  int failed = 0;
  for (const char* name : {"engine_decode_bench", "zmq_feed_bench", "nats_feed_bench"})
    failed |= run_beside(argv[0], name);
  return failed == 0 ? 0 : 1;
}
