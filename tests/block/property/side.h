// Side: one manager in lockstep with its naive model.
//
// Every operation goes to both, and what they answer is compared at once; compare() then compares everything
// that can be seen from outside. Guards are kept here; the model knows blocks by id.
//
// Thread safety: confined.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ashlar/block/block_manager.h"
#include "ashlar/testing/event_sinks.h"
#include "ashlar/testing/managers.h"
#include "block/property/naive_manager.h"
#include "block/property/world.h"

namespace ashlar::block::property {

struct SideOptions {
  NaiveOptions model;
  std::string backend;
  bool order_is_known = true;  // the model predicts the backend's order; else it follows the manager's
};

template <events::Tier Tier>
class Side {
 public:
  Side(const SideOptions& options, World& world)
      : options_(options),
        world_(world),
        trace_(world.trace()),
        random_(world.random()),
        log_(testing::make_event_log()),
        manager_(make(options)),
        model_(options.model, world.model()) {
    model_.advance(world.clock().now().time_since_epoch());
  }

  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  // Blocks in flight must land before the manager goes.
  ~Side() {
    for (FencePair& pair : fences_) std::move(pair.signal).signal();
  }

  void step();
  void advance_model(Clock::Duration by) { model_.advance(by); }
  // `pools`: also what makes the manager notice pins whose time is over.
  void compare(bool pools);
  void drop_everything();

 private:
  using Immutable = ImmutableBlock<Tier>;
  struct Partial {
    PartialBlock<Tier> guard;
    World::Pick aim;
    Tokens tokens;
    std::uint32_t computed = 0;
    bool prefix_known = true;  // the digest of the block before was given
  };
  struct Scheduled {
    ScheduledBlock<Tier> guard;
    Partial rest;
  };
  struct Inflight {
    InflightBlock<Tier> guard;
    Partial rest;
    std::shared_ptr<NaiveFence> fence;
  };
  struct Weak {
    WeakBlock<Tier> guard;
    NaiveManager::Weak model;
  };
  struct PinPair {
    Pin guard;
    NaiveManager::PinKey model;
  };
  struct FencePair {
    Fence fence;
    FenceSignal signal;
    std::shared_ptr<NaiveFence> model;
  };

  BlockManager<Tier> make(const SideOptions& options) {
    ManagerOptions manager =
        testing::manager_options(options.model.block_count, world_.block_size(), options.backend);
    manager.registry = world_.registry();
    manager.duplicates = options.model.duplicates;
    manager.events = log_;
    manager.clock = &world_.clock();
    manager.default_reset_on_release = options.model.default_reset_on_release;
    manager.max_pins = options.model.max_pins;
    manager.watermarks = options.model.watermarks;
    manager.on_pressure = [this](Pressure now, std::size_t available) {
      pressure_calls_.emplace_back(now, available);
    };
    if (options.model.last_in_first_out) {
      manager.reset_allocator = [](std::uint32_t n) { return std::make_unique<LifoResetAllocator>(n); };
    }
    return testing::make_manager<Tier>(manager);
  }

  static std::string text(Id id) { return std::to_string(id); }
  static Id id_of(const auto& guard) { return guard.block_id().value(); }
  void add(const std::string& operation) { trace_.add(std::string(Tier::kName) + " " + operation); }
  // Takes a random element out.
  template <class T>
  T take(std::vector<T>& from) {
    std::swap(from[random_.below(from.size())], from.back());
    T taken = std::move(from.back());
    from.pop_back();
    return taken;
  }
  void expect_same(const PoolStatus& manager, const PoolStatus& model);
  void expect_same(const ManagerCounters& manager, const ManagerCounters& model);
  void keep(Immutable guard) { shared_.push_back(std::move(guard)); }

  void allocate();
  void expect_refusal(const std::optional<AllocationRefusal>& refused, const NaiveManager::Allocation& model,
                      std::size_t n);
  void complete();
  void stage();
  void reset_complete();
  void drop_owned();
  template <class T>
  bool drop_one(std::vector<T>& guards, const char* what);
  void register_one();
  void register_many();
  void match_prefix();
  void match_scattered();
  void scan();
  void match_verified();
  void copy();
  void drop_shared();
  void drop_many();
  void downgrade();
  void upgrade();
  void pin();
  void end_pin();
  void set_reset_on_release();
  void reset_inactive();
  void ask();
  NaiveIdentity identity_of(const Partial& partial) const;
  void begin_partial();
  void change_tokens();
  void schedule();
  void commit();
  void launch_or_cancel();
  void compute_done();
  void signal_fence();
  void release_after();
  FencePair& some_fence();

  SideOptions options_;
  World& world_;
  Trace& trace_;
  Random& random_;
  std::vector<std::pair<Pressure, std::size_t>> pressure_calls_;
  std::shared_ptr<events::EventLog> log_;
  testing::EventRecorder recorder_;
  std::size_t compared_events_ = 0;
  BlockManager<Tier> manager_;
  NaiveManager model_;

  std::vector<MutableBlock<Tier>> mutables_;
  std::vector<CompleteBlock<Tier>> completes_;
  std::vector<Partial> partials_;
  std::vector<Scheduled> scheduled_;
  std::vector<Inflight> inflight_;
  std::vector<Immutable> shared_;
  std::vector<Weak> weaks_;
  std::vector<PinPair> pins_;
  std::vector<FencePair> fences_;
};

}  // namespace ashlar::block::property

#include "block/property/side_observation.h"  // step(), compare()
#include "block/property/side_operations.h"   // the operations
