// Runs one operation of BlockManager on a workload file and prints one JSON line.
//
// README.md defines each operation, its timing and `check`; kvbm/src/main.rs does the same to the rival, step
// by step.

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/events/event_log.h"
#include "peers/arguments.h"
#include "peers/workload.h"

namespace ashlar::peers {
namespace {

using block::BlockList;
using block::BlockRegistry;
using events::G1;
using Manager = block::BlockManager<G1>;
using Held = BlockList<block::ImmutableBlock<G1>>;
using SteadyClock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr int kWrongUse = 2;
constexpr int kNoSuchBackend = 3;  // the driver shows the rival alone

// Keeps the compiler from seeing through a value.
template <class T>
void keep(T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

[[noreturn]] void fail(int status, const std::string& message) {
  std::fprintf(stderr, "ashlar_block_peer: %s\n", message.c_str());
  std::exit(status);
}

// What one operation measured. `units` are blocks, or calls for match_miss.
struct Outcome {
  nanoseconds elapsed{0};
  std::uint64_t units = 0;
  std::string check;
};

// Counts what the event log delivers.
class ChainSubscriber final : public events::EventSink {
 public:
  // Room for all events of one chain, so that none is lost.
  explicit ChainSubscriber(std::size_t chain_length)
      : log_(std::make_shared<events::EventLog>(std::max<std::size_t>(4 * chain_length, 1024))) {}

  const std::shared_ptr<events::EventLog>& log() const { return log_; }
  void drain() { log_->drain(*this); }
  void on_events(std::span<const events::KvEvent> events) override {
    for (const events::KvEvent& event : events) {
      stored_ += event.kind == events::KvEventKind::kStored;
      removed_ += event.kind == events::KvEventKind::kRemoved;
    }
  }
  std::string check() const {
    return " stored=" + std::to_string(stored_) + " removed=" + std::to_string(removed_);
  }

 private:
  std::shared_ptr<events::EventLog> log_;
  std::uint64_t stored_ = 0;
  std::uint64_t removed_ = 0;
};

Manager build_manager(const Arguments& arguments, const Workload& workload,
                      const std::optional<ChainSubscriber>& subscriber) {
  block::RegistryOptions registry_options;
  if (arguments.frequency)
    registry_options.frequency = block::TinyLfuOptions{.capacity = std::size_t{1} << 21};
  auto registry = BlockRegistry::create(registry_options);
  if (!registry) fail(kWrongUse, registry.error().to_string());

  auto builder = Manager::builder();
  builder.block_count(static_cast<std::uint32_t>(workload.pool))
      .block_size(workload.block_size)
      .registry(*registry);
  if (subscriber) builder.event_log(subscriber->log());
  if (arguments.backend == "lru") {
    builder.with_lru_backend();
  } else if (arguments.backend == "hashmap") {
    builder.with_hashmap_backend();
  } else {
    auto backend = block::eviction_by_name(arguments.backend);
    if (!backend) fail(kNoSuchBackend, backend.error().to_string());
    builder.with_backend(*std::move(backend));
  }
  auto manager = builder.build();
  if (!manager) fail(kWrongUse, manager.error().to_string());
  return *std::move(manager);
}

class BlockPeer {
 public:
  BlockPeer(const Arguments& arguments, Workload workload)
      : workload_(std::move(workload)),
        subscriber_(arguments.events ? std::optional<ChainSubscriber>(workload_.chain_length) : std::nullopt),
        manager_(build_manager(arguments, workload_, subscriber_)),
        threads_(arguments.threads),
        rounds_(arguments.rounds),
        exact_policy_(arguments.backend != "multi_lru") {}

  Outcome cycle();
  Outcome match_inactive();
  Outcome match_active(bool shared);
  Outcome bulk_drop();
  Outcome match_miss();

 private:
  std::size_t rounds_or(std::size_t fallback) const { return rounds_ == 0 ? fallback : rounds_; }

  // Allocates, completes and registers one chain.
  Held put(std::size_t chain) {
    const std::vector<tokens::TokenBlock>& blocks = workload_.chains[chain];
    auto empty = manager_.allocate_blocks(blocks.size());
    ASHLAR_CHECK(empty.has_value(), "the pool has no room for chain %zu", chain);
    BlockList<block::CompleteBlock<G1>> complete;
    complete.reserve(blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      complete.push_back(
          std::move((*empty)[i]).complete(blocks[i], block::KvReady::asserted_by_caller()).value());
    }
    return manager_.register_blocks(std::move(complete)).value();
  }
  Held match(std::size_t chain) { return manager_.match_blocks(workload_.hashes[chain]); }
  std::vector<Held> hold_residents() {
    std::vector<Held> held;
    for (std::size_t chain = 0; chain < workload_.resident().size(); ++chain) held.push_back(match(chain));
    return held;
  }

  void drain_events() {
    if (subscriber_) subscriber_->drain();
  }

  // Fills the pool, passes the churn chains through it, then leaves the resident chains in it, all inactive.
  void prepare_residents() {
    for (std::size_t chain = workload_.churn().begin; chain < workload_.churn().end; ++chain) {
      put(chain).clear();
      drain_events();
    }
    std::vector<Held> held;
    for (std::size_t chain = 0; chain < workload_.resident().end; ++chain) {
      held.push_back(put(chain));
      drain_events();
    }
  }

  // Matches every chain of `chains` once, untimed.
  std::string survey(ChainRange chains) {
    Fingerprint found;
    for (std::size_t chain = chains.begin; chain < chains.end; ++chain) {
      const Held held = match(chain);
      for (std::size_t i = 0; i < held.size(); ++i) found.add(i, held[i].sequence_hash());
    }
    return found.to_string();
  }

  // The part of `check` that every operation has: the names of all blocks, and the events where they are on.
  std::string common_check() {
    drain_events();
    Fingerprint names;
    for (const auto& chain : workload_.hashes) {
      for (std::size_t i = 0; i < chain.size(); ++i) names.add(i, chain[i]);
    }
    std::string check =
        " names=" + names.to_string() + " available=" + std::to_string(manager_.available_blocks());
    if (exact_policy_ && subscriber_) check += subscriber_->check();
    return check;
  }

  Workload workload_;
  std::optional<ChainSubscriber> subscriber_;
  Manager manager_;
  std::size_t threads_;
  std::size_t rounds_;
  // Two sides agree on which blocks survive only where the policy does not rest on an estimate.
  bool exact_policy_;
};

Outcome BlockPeer::cycle() {
  const std::size_t all = workload_.chains.size();
  for (std::size_t chain = all - workload_.chains_in_pool(); chain < all; ++chain) {
    put(chain).clear();
    drain_events();
  }
  const std::uint64_t evicted_before = manager_.counters().evictions;
  Outcome outcome;
  for (std::size_t round = 0; round < rounds_or(3); ++round) {
    if (!subscriber_) {
      const auto start = SteadyClock::now();
      for (std::size_t chain = 0; chain < all; ++chain) {
        Held held = put(chain);
        keep(held);
        outcome.units += held.size();
      }
      outcome.elapsed += SteadyClock::now() - start;
      continue;
    }
    for (std::size_t chain = 0; chain < all; ++chain) {
      const auto start = SteadyClock::now();
      {
        Held held = put(chain);
        keep(held);
        outcome.units += held.size();
      }
      outcome.elapsed += SteadyClock::now() - start;
      drain_events();
    }
  }
  const std::uint64_t evicted = manager_.counters().evictions - evicted_before;
  outcome.check = "registered=" + std::to_string(outcome.units) + common_check();
  if (exact_policy_) {
    outcome.check += " evicted=" + std::to_string(evicted) + " resident=" + survey(workload_.all());
  }
  return outcome;
}

Outcome BlockPeer::match_inactive() {
  prepare_residents();
  const std::string found = survey(workload_.resident());
  Outcome outcome;
  const auto start = SteadyClock::now();
  for (std::size_t round = 0; round < rounds_or(40); ++round) {
    for (std::size_t chain = 0; chain < workload_.resident().end; ++chain) {
      Held held = match(chain);
      keep(held);
      outcome.units += held.size();
    }
  }
  outcome.elapsed = SteadyClock::now() - start;
  outcome.check = "matched=" + std::to_string(outcome.units) + " found=" + found + common_check();
  return outcome;
}

// Matches chains that are held elsewhere. Each thread has its own share of them; when `shared`, all have the
// first.
Outcome BlockPeer::match_active(bool shared) {
  prepare_residents();
  const std::vector<Held> held = hold_residents();
  const std::string found = survey(workload_.resident());
  const std::size_t per_thread = workload_.resident().size() / threads_;
  if (per_thread == 0) fail(kWrongUse, "there are more threads than resident chains");
  const std::size_t rounds = rounds_or(100);

  struct Part {
    SteadyClock::time_point start;
    SteadyClock::time_point end;
    std::uint64_t units = 0;
  };
  std::vector<Part> parts(threads_);
  std::barrier barrier(static_cast<std::ptrdiff_t>(threads_));
  {
    std::vector<std::jthread> workers;
    for (std::size_t thread = 0; thread < threads_; ++thread) {
      workers.emplace_back([&, thread] {
        std::uint64_t units = 0;
        barrier.arrive_and_wait();
        const auto start = SteadyClock::now();
        for (std::size_t round = 0; round < rounds; ++round) {
          for (std::size_t i = 0; i < per_thread; ++i) {
            Held matched = match(shared ? 0 : thread * per_thread + i);
            keep(matched);
            units += matched.size();
          }
        }
        parts[thread] = {start, SteadyClock::now(), units};
      });
    }
  }
  Outcome outcome;
  auto start = parts.front().start;
  auto end = parts.front().end;
  for (const Part& part : parts) {
    start = std::min(start, part.start);
    end = std::max(end, part.end);
    outcome.units += part.units;
  }
  outcome.elapsed = end - start;
  outcome.check = "matched=" + std::to_string(outcome.units) + " found=" + found + common_check();
  return outcome;
}

Outcome BlockPeer::bulk_drop() {
  prepare_residents();
  Outcome outcome;
  for (std::size_t round = 0; round < rounds_or(40); ++round) {
    std::vector<Held> held = hold_residents();
    for (const Held& list : held) outcome.units += list.size();
    keep(held);
    const auto start = SteadyClock::now();
    held.clear();
    outcome.elapsed += SteadyClock::now() - start;
  }
  outcome.check =
      "dropped=" + std::to_string(outcome.units) + " found=" + survey(workload_.resident()) + common_check();
  return outcome;
}

Outcome BlockPeer::match_miss() {
  prepare_residents();
  const ChainRange absent = workload_.absent();
  Outcome outcome;
  std::uint64_t matched = 0;
  const auto start = SteadyClock::now();
  for (std::size_t round = 0; round < rounds_or(20'000); ++round) {
    for (std::size_t chain = absent.begin; chain < absent.end; ++chain) {
      Held held = match(chain);
      keep(held);
      matched += held.size();
      ++outcome.units;
    }
  }
  outcome.elapsed = SteadyClock::now() - start;
  outcome.check =
      "calls=" + std::to_string(outcome.units) + " matched=" + std::to_string(matched) + common_check();
  return outcome;
}

Outcome run(const Arguments& arguments, BlockPeer& bench) {
  if (arguments.op == "cycle") return bench.cycle();
  if (arguments.op == "match_inactive") return bench.match_inactive();
  if (arguments.op == "match_active") return bench.match_active(/*shared=*/false);
  if (arguments.op == "match_shared") return bench.match_active(/*shared=*/true);
  if (arguments.op == "bulk_drop") return bench.bulk_drop();
  if (arguments.op == "match_miss") return bench.match_miss();
  fail(kWrongUse, "unknown operation " + arguments.op + "\n" + Arguments::usage());
}

}  // namespace
}  // namespace ashlar::peers

int main(int argc, char** argv) {
  using namespace ashlar::peers;
  const auto arguments = Arguments::parse(std::span<char*>(argv, static_cast<std::size_t>(argc)).subspan(1));
  if (!arguments) fail(kWrongUse, arguments.error().message() + "\n" + Arguments::usage());
  auto workload = Workload::read(arguments->workload);
  if (!workload) fail(kWrongUse, workload.error().message());
  BlockPeer bench(*arguments, *std::move(workload));
  const Outcome outcome = run(*arguments, bench);
  const double ns_per_block =
      static_cast<double>(outcome.elapsed.count()) / static_cast<double>(outcome.units);
  std::printf(
      "{\"peer\":\"ashlar "
      "%s\",\"op\":\"%s\",\"backend\":\"%s\",\"threads\":%zu,\"ns_per_block\":%.3f,\"blocks\":%llu,"
      "\"check\":\"%s\"}\n",
      ASHLAR_VERSION, arguments->op.c_str(), arguments->backend.c_str(), arguments->threads, ns_per_block,
      static_cast<unsigned long long>(outcome.units), outcome.check.c_str());
}
