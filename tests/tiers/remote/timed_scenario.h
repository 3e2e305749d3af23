// A node for which time passes with every transfer and every read of its volume, as a test says; a peer, and
// a volume with the same blocks.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/storage/remote_storage.h"
#include "support/scratch_folder.h"
#include "support/scripted_volume.h"
#include "tiers/remote/remote_fixture.h"
#include "tiers/volume/directory_volume.h"

namespace ashlar::tiers::remote {

using std::chrono::hours;
using std::chrono::milliseconds;

inline constexpr events::TierId kDevice = events::kTierId<events::G1>;
inline constexpr events::TierId kVolumes = events::kTierId<events::G4>;

// Time passes with every transfer: what a test says.
class TimedTransport final : public transfer::RemoteTransport {
 public:
  explicit TimedTransport(ManualClock& clock)
      : inner_(transfer::LoopbackTransport::create().value()), executor_(*this), clock_(clock) {}

  std::string_view name() const noexcept override { return inner_->name(); }
  std::vector<std::byte> address() const override { return inner_->address(); }
  Result<std::unique_ptr<transfer::MemoryRegistration>> register_memory(
      std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) override {
    return inner_->register_memory(std::move(storage), mode);
  }
  Result<std::shared_ptr<transfer::RemotePath>> connect(const transfer::AgentIdentity& peer,
                                                        std::span<const std::byte> where,
                                                        std::function<void(const Error&)> on_failure,
                                                        Clock::TimePoint deadline) override {
    return inner_->connect(peer, where, std::move(on_failure), deadline);
  }
  transfer::Executor& executor() noexcept override { return executor_; }

  std::atomic<milliseconds> delay{milliseconds(0)};  // of peers that no delay is set for
  void set_delay(FleetRank& peer, milliseconds its) {
    const MutexLock lock(mu_);
    delays_[peer.kv().remote()->agent().identity().agent] = its;
  }

 private:
  milliseconds delay_of(const transfer::BlockSet& from) {
    const auto* const memory =
        dynamic_cast<const storage::RemoteStorage*>(from.planes()[0].regions[0].storage.get());
    const MutexLock lock(mu_);
    const auto found = memory == nullptr ? delays_.end() : delays_.find(memory->memory().agent);
    return found == delays_.end() ? delay.load() : found->second;
  }
  class TimedExecutor final : public transfer::Executor {
   public:
    explicit TimedExecutor(TimedTransport& owner) : owner_(owner) {}
    std::string_view name() const noexcept override { return "timed"; }
    bool handles(const transfer::BlockSet& from, const transfer::BlockSet& to) const noexcept override {
      return owner_.inner_->executor().handles(from, to);
    }
    Result<transfer::Transfer> submit(transfer::TransferRequest request) override {
      owner_.clock_.advance(owner_.delay_of(request.plan.from()));
      return owner_.inner_->executor().submit(std::move(request));
    }
    transfer::ExecutorCounters counters() const override { return owner_.inner_->executor().counters(); }

   private:
    TimedTransport& owner_;
  };

  const std::shared_ptr<transfer::LoopbackTransport> inner_;
  TimedExecutor executor_;
  ManualClock& clock_;
  Mutex mu_;
  std::map<std::uint64_t, milliseconds> delays_ ASHLAR_GUARDED_BY(mu_);  // by agent
};

// A reader with a volume, and a peer with the same blocks.
class RemoteOrVolumeTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 4;

  RemoteOrVolumeTest()
      : transport_(std::make_shared<TimedTransport>(clock_)), owner_(kModel, node(), undivided()) {
    std::filesystem::create_directories(scratch_.file("volume"));
    script_->on_call = [this](VolumeCall call) {
      if (call == VolumeCall::kGet) clock_.advance(volume_delay_.load());
    };
  }
  FleetRank& reader(
      std::vector<std::string> peers, const std::function<void(KvOptions&)>& change = [](KvOptions&) {}) {
    KvOptions options = node(std::move(peers));
    options.clock = &clock_;
    options.remote->own_agent->transport = transport_;
    options.remote->patience = hours(1);  // what these tests see has not waited so long
    VolumeRegistry kinds = VolumeRegistry::with_builtin();
    kinds.add("timed", [script = script_](const VolumeDescriptor& descriptor) {
      return DirectoryVolume::attach(descriptor).transform([&](std::unique_ptr<Volume>&& made) {
        return std::unique_ptr<Volume>(std::make_unique<ScriptedVolume>(std::move(made), script));
      });
    });
    options.g4 = VolumeShape{.block_count = 60,
                             .rest = {},
                             .volumes = {{.name = "v",
                                          .kind = "timed",
                                          .location = scratch_.file("volume"),
                                          .options = {{"sync", "false"}}}},
                             .kinds = std::move(kinds)};
    change(options);
    reader_ = std::make_unique<FleetRank>(kModel, options, undivided());
    return *reader_;
  }
  // Blocks that both have, the reader on its volume.
  Hashes both(std::uint64_t number) {
    const Hashes hashes = KvWorkload::sequence(number, kBlocks);
    reader_->store(hashes);
    store(owner_, hashes);
    return hashes;
  }
  // What onboarding from each takes.
  void measure(milliseconds of_volume, milliseconds of_remote) {
    volume_delay_ = of_volume;
    transport_->delay = of_remote;
    const Hashes on_volume = KvWorkload::sequence(++measured_, kBlocks);
    const Hashes at_peer = KvWorkload::sequence(++measured_, kBlocks);
    reader_->store(on_volume);
    store(owner_, at_peer);
    ASSERT_EQ(reader_->onboard(on_volume), kBlocks);
    ASSERT_EQ(reader_->onboard(at_peer), kBlocks);
    ASSERT_EQ(reader_->kv().status().remote->onboarded, kBlocks);
    forget();
  }
  void forget() {
    ASSERT_TRUE(reader_->kv().reset(kDevice));
    ASSERT_TRUE(reader_->kv().reset(kHost));
  }
  // How many blocks come from the peer.
  std::size_t from_peer(const Hashes& hashes, std::vector<std::string> sources = {}) {
    const std::uint64_t before = reader_->kv().status().remote->onboarded;
    const OnboardTable table = reader_->kv().onboard(hashes, {.sources = std::move(sources)});
    EXPECT_EQ(table.size(), hashes.size());
    for (std::size_t i = 0; i < table.size(); ++i)
      EXPECT_TRUE(reader_->has_bytes(table[i].block_id(), hashes[i]));
    return reader_->kv().status().remote->onboarded - before;
  }
  bool was_asked_for(const Hashes& hashes) { return reader_->kv().presence(hashes)[0].in(kRemote); }

  ManualClock clock_;
  ScratchFolder scratch_;
  std::shared_ptr<VolumeScript> script_ = std::make_shared<VolumeScript>();
  std::atomic<milliseconds> volume_delay_{milliseconds(0)};
  std::shared_ptr<TimedTransport> transport_;
  FleetRank owner_;
  std::unique_ptr<FleetRank> reader_;
  std::uint64_t measured_ = 700;
};

}  // namespace ashlar::tiers::remote
