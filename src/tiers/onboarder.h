// Onboarder: brings prefixes up into G1, or into G2 for a prefetch.
//
// Whoever wants a block claims it first; others who want it wait, and find it in G1 afterwards. So a block is copied once.
//
// Thread safety: thread-safe. Takes no lock while blocks move.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <unordered_set>
#include <vector>

#include "ashlar/base/mutex.h"
#include "tiers/onboard_call.h"
#include "tiers/tier_stack.h"

namespace ashlar::tiers {

class Onboarder {
 public:
  struct Options {
    std::uint32_t threads = 2;  // for calls that nobody runs himself
    std::uint32_t block_size = 16;
    bool probe = true;
    // Blocks have come into G1, or into G2.
    std::function<void()> arrived = {};
  };
  Onboarder(TierStack& stack, Options options) : stack_(stack), options_(std::move(options)) {}
  ~Onboarder() { stop(); }
  // Cancels what was started and is not done, waits for what runs, and starts nothing more.
  void stop();

  std::vector<TierRun> find(std::span<const tokens::SequenceHash> hashes);
  // On the caller's thread.
  void run(const std::shared_ptr<OnboardCall>& call);
  // On a thread of the onboarder. Errors: kCapacity: no thread; kCancelled: after stop().
  Result<void> start(std::shared_ptr<OnboardCall> call);

 private:
  // What a batch was worth.
  struct Batch {
    std::size_t arrived = 0;  // of the first
    Miss why = Miss::kNone;   // the next did not
  };

  void work();
  void run_up(OnboardCall& call, std::size_t wanted);
  void run_prefetch(OnboardCall& call, std::size_t wanted);
  // Brings some blocks that are not in G1 up.
  Batch bring_up(OnboardCall& call, std::span<const tokens::SequenceHash> hashes, const OnboardTable& table);
  // Brings blocks from below into G2. Why each is not there; kNone: it is.
  std::vector<Miss> bring_to_host(OnboardCall& call, std::span<const tokens::SequenceHash> hashes);
  bool volumes_are_faster() const;
  MoveOptions move_options(OnboardCall& call) const;
  bool foreign(const OnboardCall& call, TierPool& pool, const tokens::SequenceHash& hash) const;
  std::size_t batch_size(const OnboardCall& call, std::size_t left) const;
  // False when the call was cancelled or is late.
  bool claim(const OnboardCall& call, std::span<const tokens::SequenceHash> hashes);
  void release(std::span<const tokens::SequenceHash> hashes);

  TierStack& stack_;
  const Options options_;
  Mutex mu_;
  CondVar released_;
  std::unordered_set<tokens::SequenceHash> coming_ ASHLAR_GUARDED_BY(mu_);  // on their way up

  Mutex queue_mu_;
  CondVar queued_;
  std::deque<std::shared_ptr<OnboardCall>> queue_ ASHLAR_GUARDED_BY(queue_mu_);
  std::vector<std::shared_ptr<OnboardCall>> running_ ASHLAR_GUARDED_BY(queue_mu_);
  std::vector<std::thread> threads_ ASHLAR_GUARDED_BY(queue_mu_);
  bool stopping_ ASHLAR_GUARDED_BY(queue_mu_) = false;
};

}  // namespace ashlar::tiers
