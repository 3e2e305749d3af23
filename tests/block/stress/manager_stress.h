// ManagerStress: threads that use one manager at random, and an oracle that knows what they hold.
//
// Every block has a cell of plain memory, which stands for its KV: its owner writes the hash there before the
// block is registered, and everyone who holds a guard reads it. A missing happens-before edge is then a data
// race that ThreadSanitizer reports, and a block that changed under its readers shows the wrong hash. Between
// rounds, when all threads rest, what they hold adds up to what the manager says, to the last reference.
//
// Thread safety: run_round() starts its own threads; the rest is confined.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/block_manager.h"
#include "ashlar/testing/event_sinks.h"

namespace ashlar::block::stress {

struct StressOptions {
  std::size_t threads = 4;
  std::uint32_t blocks = 24;
  std::size_t hashes = 32;  // distinct names; more than blocks, so that eviction never rests
  DuplicatePolicy duplicates = DuplicatePolicy::kAllow;
  std::string backend = "lru";
  std::uint64_t seed = 1;
};

class ManagerStress {
 public:
  explicit ManagerStress(const StressOptions& options);
  ~ManagerStress();

  // All threads at once, `operations` each; they keep their guards.
  void run_round(std::size_t operations);
  // Compares the manager with what the threads hold. Requires: no round runs.
  void check();
  // Gives everything back and checks that the manager is whole.
  void finish();
  // The first thing that a thread saw and should not have.
  std::string problem() const;
  std::uint64_t operations() const noexcept { return operations_.load(); }
  ManagerCounters counters() const { return manager_.counters(); }

 private:
  using Tier = events::G1;
  using Hash = tokens::SequenceHash;
  using Shared = ImmutableBlock<Tier>;

  // What one thread holds, and what it has counted.
  struct Worker {
    explicit Worker(Random own) : random(own) {}
    Random random;
    std::vector<MutableBlock<Tier>> mutables;
    std::vector<CompleteBlock<Tier>> completes;
    std::vector<Shared> shared;
    std::vector<WeakBlock<Tier>> weaks;
    std::vector<Pin> pins;
    ManagerCounters counted;
  };

  void work(Worker& worker, std::size_t operations);
  void step(Worker& worker);
  void allocate(Worker& worker);
  void complete(Worker& worker);
  void register_some(Worker& worker);
  void match(Worker& worker);
  void share(Worker& worker);
  void drop(Worker& worker);
  void fly(Worker& worker);
  void pin(Worker& worker);
  void hold(Worker& worker, Shared guard);
  void read(const Shared& guard);
  void must_hit(Worker& worker, const Shared& guard);
  void signal_one(Random& random);
  void fail(const std::string& what);

  StressOptions options_;
  std::vector<Hash> names_;
  std::shared_ptr<events::EventLog> log_;
  testing::PresenceMirror mirror_;
  BlockManager<Tier> manager_;
  std::vector<Hash> cells_;  // plain memory, one per block
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<std::uint64_t> operations_{0};

  mutable std::mutex mu_;
  std::vector<FenceSignal> signals_;  // under mu_: computations in flight
  std::string problem_;               // under mu_
};

}  // namespace ashlar::block::stress
