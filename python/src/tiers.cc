// KvBlockManager: made from keyword arguments, and what concerns all of its tiers. transfers.cc has the ways
// between tiers, memory.cc the bytes of G1, events.cc the events.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/base/metrics.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "devices.h"
#include "errors.h"
#include "events.h"
#include "gil.h"
#include "guards.h"
#include "kv.h"
#include "kv_signature.h"
#include "memory.h"
#include "module.h"
#include "paths.h"
#include "remote.h"
#include "tier_names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {

std::optional<Clock::TimePoint> deadline_of(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  if (!(*seconds >= 0))
    raise(Error(ErrorCode::kInvalidArgument, "a timeout is a number of seconds from 0 on"));
  return Clock::real().now() + seconds_of(*seconds);
}

namespace {

// A manager, and whether its threads that call Python have ended.
struct LivingKv {
  std::weak_ptr<tiers::KvBlockManager> kv;
  std::shared_ptr<std::atomic<bool>> ended;
};

struct LivingKvs {
  std::mutex mutex;
  std::vector<LivingKv> all;
};

// Never destroyed: managers may end after it would be.
LivingKvs& living_kvs() {
  return once_per_process<LivingKvs>();
}

}  // namespace

KvPtr share_kv(std::unique_ptr<tiers::KvBlockManager> kv) {
  destroy_idle_managers();
  auto ended = std::make_shared<std::atomic<bool>>(false);
  tiers::KvBlockManager* const last = kv.release();
  const auto end = [last, ended] {
    destroy_when_idle([last, ended, stopped = false]() mutable {
      if (python_ended() && !ended->load()) return true;  // left to the end of the process
      // No one can call it any more. What is on its way down holds blocks of G1 for another moment.
      constexpr auto kPatience = std::chrono::seconds(5);
      if (!std::exchange(stopped, true)) {
        static_cast<void>(last->shutdown(Clock::real().now()));
        static_cast<void>(last->drain(Clock::real().now() + kPatience));
        ended->store(true);
      }
      if (!is_idle(last->g1().status())) return false;
      delete last;
      return true;
    });
  };
  KvPtr shared(last, EndInItsProcess{{}, end});
  const std::lock_guard lock(living_kvs().mutex);
  std::erase_if(living_kvs().all, [](const LivingKv& one) { return one.kv.expired(); });
  living_kvs().all.push_back({shared, std::move(ended)});
  return shared;
}

bool end_living_kvs() {
  struct Ending {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t left = 0;
  };
  // Threads of their own, because a callback may take longer than the patience.
  constexpr auto kPatience = std::chrono::seconds(2);
  std::vector<LivingKv> living;
  {
    const std::lock_guard lock(living_kvs().mutex);
    living.swap(living_kvs().all);
  }
  const auto ending = std::make_shared<Ending>();
  for (LivingKv& one : living) {
    KvPtr kv = one.kv.lock();
    if (kv == nullptr) continue;
    {
      const std::lock_guard lock(ending->mutex);
      ++ending->left;
    }
    const auto ended = [ending] {
      const std::lock_guard lock(ending->mutex);
      --ending->left;
      ending->changed.notify_all();
    };
    try {
      std::thread([ended, its = std::move(one.ended), kv]() mutable {
        static_cast<void>(kv->shutdown(Clock::real().now()));
        its->store(true);
        kv.reset();
        ended();
      }).detach();
    } catch (const std::system_error&) {
      ended();
    }
  }
  return without_gil([&] {
    std::unique_lock lock(ending->mutex);
    return ending->changed.wait_for(lock, kPatience, [&] { return ending->left == 0; });
  });
}

namespace {

using tiers::KvOptions;

layout::Dtype dtype_by_name(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < layout::kDtypes; ++i) {
    const auto dtype = static_cast<layout::Dtype>(i);
    if (name == to_string(dtype)) return dtype;
    known += (known.empty() ? "" : ", ") + std::string(to_string(dtype));
  }
  refuse("dtype is '" + std::string(name) + "'; it must be one of " + known);
}

layout::AxisOrder order_by_name(std::string_view name) {
  std::string known;
  for (const layout::order::NamedOrder& order : layout::order::kAll) {
    if (name == order.name) return order.order;
    known += (known.empty() ? "" : ", ") + std::string(order.name);
  }
  refuse("g1_order is '" + std::string(name) + "'; it must be one of " + known);
}

tiers::Trigger trigger_by_name(std::string_view name) {
  if (name == "on_arrival") return tiers::Trigger::kOnArrival;
  if (name == "near_eviction") return tiers::Trigger::kNearEviction;
  if (name == "on_call") return tiers::Trigger::kOnCall;
  refuse("offload is '" + std::string(name) + "'; it must be on_arrival, near_eviction or on_call");
}

// What the constructor takes about the model.
struct Shape {
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t block_size = 16;
  std::uint32_t outer = 2;
};

layout::LayoutConfig model_of(const Shape& shape, std::string_view dtype) {
  layout::LayoutConfig model;
  model.num_layers = shape.layers;
  model.outer_dim = shape.outer;
  model.block_size = shape.block_size;
  model.num_heads = shape.heads;
  model.head_dim = shape.head_dim;
  if (std::uint64_t{shape.heads} * shape.head_dim > 0xFFFF'FFFFu) refuse("heads x head_dim is too large");
  model.inner_dim = shape.heads * shape.head_dim;
  model.dtype = dtype_by_name(dtype);
  model.block_count = 1;  // each tier sets its own; for validate() alone
  value_or_raise(model.validate());
  return model;
}

tiers::VolumeDescriptor descriptor_of(const std::string& name, const std::string& kind,
                                      const std::string& location,
                                      const std::map<std::string, std::string>& options) {
  return {.name = name, .kind = kind, .location = location, .options = options};
}

std::vector<std::string> paths_of(nb::handle paths) {
  std::vector<std::string> out;
  if (paths.is_none()) return out;
  if (nb::isinstance<nb::list>(paths) || nb::isinstance<nb::tuple>(paths)) {
    for (nb::handle path : nb::borrow<nb::sequence>(paths)) out.push_back(path_of(path));
  } else {
    out.push_back(path_of(paths));
  }
  return out;
}

struct Tiers {
  std::uint32_t g1 = 0;
  std::uint32_t g2 = 0;
  std::uint32_t g3 = 0;
  std::uint32_t g4 = 0;
};

KvPtr make_kv(const Shape& shape, std::string_view dtype, const std::string& model_name, const Tiers& tiers,
              nb::object g1_memory, std::optional<std::int32_t> device, std::string_view g1_order,
              nb::object g2_memory, nb::object remote, nb::object g3_paths, bool survive_power_loss,
              const std::string& eviction, std::string_view offload, std::string_view duplicates,
              bool keep_tokens, std::size_t max_pins, std::size_t event_capacity, std::uint32_t threads,
              const tokens::HashScheme& scheme, nb::object prefix_key, const tiers::ModelRank& rank) {
  KvOptions options;
  options.model = model_of(shape, dtype);
  options.block_size = shape.block_size;
  options.scheme_fingerprint = scheme.fingerprint();
  if (!prefix_key.is_none()) {
    const auto bytes = bytes_of(prefix_key, tokens::PrefixKey::kSize, "prefix_key");
    std::array<std::uint8_t, tokens::PrefixKey::kSize> key{};
    std::copy(bytes.begin(), bytes.end(), key.begin());
    options.prefix_key = tokens::PrefixKey(key);
  }
  options.g1.block_count = tiers.g1;
  options.g1.order = order_by_name(g1_order);
  options.g1.eviction = eviction;
  if (duplicates != "allow" && duplicates != "reject")
    refuse("duplicates is '" + std::string(duplicates) + "'; it must be allow or reject");
  options.g1.pool.duplicates =
      duplicates == "allow" ? block::DuplicatePolicy::kAllow : block::DuplicatePolicy::kReject;
  options.g1.pool.keep_tokens = keep_tokens;
  options.g1.pool.max_pins = max_pins;
  std::optional<transfer::DeviceSupport> support;
  if (!g1_memory.is_none()) {
    if (device) refuse("give g1_device or g1_memory, not both: memory has its device");
    BroughtMemory brought = memory_of(g1_memory, options.model, "g1_memory");
    if (tiers.g1 == 0) options.g1.block_count = brought.block_count;
    if (options.g1.block_count == 0)
      refuse("g1_blocks is not given, and the shape of g1_memory does not say it");
    if (brought.block_count != 0 && options.g1.block_count > brought.block_count) {
      refuse("g1_blocks is " + std::to_string(options.g1.block_count) + ", but g1_memory has " +
             std::to_string(brought.block_count) + " blocks");
    }
    if (brought.device) device = brought.device;
    options.g1.memory.push_back(std::move(brought.plane));
  }
  if (device) {
    support = value_or_raise(without_gil([&] { return device_support(*device); }));
    options.executor = support->executor;
    if (g1_memory.is_none()) options.g1.allocator = support->memory;
  }
  if (tiers.g2 != 0) {
    tiers::TierShape g2;
    if (support) g2.allocator = support->host;
    g2.block_count = tiers.g2;
    g2.eviction = eviction;
    g2.pool.max_pins = max_pins;
    if (!g2_memory.is_none()) {
      BroughtMemory brought = memory_of(g2_memory, options.model, "g2_memory");
      if (brought.device) refuse("g2_memory is on a device; G2 is host memory");
      if (brought.block_count != 0 && tiers.g2 > brought.block_count) {
        refuse("g2_blocks is " + std::to_string(tiers.g2) + ", but g2_memory has " +
               std::to_string(brought.block_count) + " blocks");
      }
      g2.allocator = nullptr;
      g2.memory.push_back(std::move(brought.plane));
    }
    options.g2 = std::move(g2);
  }
  if (tiers.g2 == 0 && !g2_memory.is_none()) refuse("g2_memory needs g2_blocks: how many blocks it holds");
  if (tiers.g3 != 0) {
    tiers::DiskShape g3;
    g3.block_count = tiers.g3;
    g3.paths = paths_of(g3_paths);
    if (g3.paths.empty()) refuse("g3_blocks needs g3_path: one file, or a list of them");
    g3.eviction = eviction;
    g3.survive_power_loss = survive_power_loss;
    g3.pool.max_pins = max_pins;
    options.g3 = std::move(g3);
  } else if (!g3_paths.is_none()) {
    refuse("g3_path needs g3_blocks: how many blocks its files hold");
  }
  if (tiers.g4 != 0) {
    tiers::VolumeShape g4;
    g4.block_count = tiers.g4;
    g4.eviction = eviction;
    g4.pool.max_pins = max_pins;
    options.g4 = std::move(g4);
  }
  if (!remote.is_none()) options.remote = remote_of(remote);
  value_or_raise(rank.describe(model_name, options));
  const tiers::Trigger trigger = trigger_by_name(offload);
  options.to_g2.trigger = options.to_g3.trigger = options.to_g4.trigger = trigger;
  check_event_capacity(event_capacity);
  options.event_capacity = event_capacity;
  options.onboard_threads = threads;
  auto made = run_interruptibly(
      [its = std::move(options)]() mutable { return tiers::KvBlockManager::create(std::move(its)); });
  return share_kv(value_or_raise(std::move(made)));
}

// Refuses another scheme than that of the manager.
tokens::SequenceHasher hasher_of_kv(const KvRef& self, const std::optional<tokens::Salt>& salt,
                                    const std::optional<tokens::HashScheme>& scheme) {
  const KvPtr kv = self.get();
  const tokens::SequenceHasher wanted(scheme.value_or(self.scheme), salt.value_or(tokens::Salt()));
  return kv->hasher(ManagerObject{g1_of(kv), self.scheme}.hasher_or(wanted).salt(), self.scheme);
}

nb::object tier_dict(const std::optional<tiers::TierStatus>& status) {
  if (!status) return nb::none();
  nb::dict out;
  out["pool"] = nb::cast(status->pool);
  out["hits"] = status->hits;
  out["onboarded"] = status->onboarded;
  out["evictions"] = status->evictions;
  out["damaged"] = status->damaged;
  out["failed"] = status->failed;
  return out;
}

nb::object route_dict(const std::optional<tiers::OffloadCounters>& seen) {
  if (!seen) return nb::none();
  nb::dict out;
  out["batches"] = seen->batches;
  out["arrived"] = seen->arrived;
  out["present"] = seen->present;
  out["filtered"] = seen->filtered;
  out["gone"] = seen->gone;
  out["damaged"] = seen->damaged;
  out["failed"] = seen->failed;
  out["stopped"] = seen->stopped;
  out["bytes"] = seen->bytes;
  out["blocked"] = seen->blocked;
  out["waiting"] = seen->queue.waiting;
  out["in_flight"] = seen->queue.in_flight;
  return out;
}

nb::dict status_of(const KvRef& self) {
  const KvPtr kv = self.get();
  const tiers::KvStatus status = without_gil([&] { return kv->status(); });
  nb::dict out;
  out["g1"] = tier_dict(status.g1);
  out["g2"] = tier_dict(status.g2);
  out["g3"] = tier_dict(status.g3);
  out["g4"] = tier_dict(status.g4);
  out["remote"] = tier_dict(status.remote);
  nb::dict misses;
  for (std::size_t i = 1; i < tiers::kMisses; ++i)
    misses[nb::str(std::string(to_string(static_cast<tiers::Miss>(i))).c_str())] = status.misses[i];
  out["misses"] = misses;
  out["to_g2"] = route_dict(status.to_g2);
  out["to_g3"] = route_dict(status.to_g3);
  out["to_g4"] = route_dict(status.to_g4);
  nb::list volumes;
  for (const tiers::VolumeStatus& volume : status.volumes) {
    nb::dict one;
    one["name"] = volume.name;
    one["describes"] = text_of(volume.describes);
    one["write"] = volume.write;
    one["blocks"] = volume.block_count;
    one["put"] = volume.put;
    one["got"] = volume.got;
    one["failed"] = volume.failed;
    volumes.append(one);
  }
  out["volumes"] = volumes;
  return out;
}

nb::object describe(const KvRef& self, const tokens::SequenceHash& hash) {
  const KvPtr kv = self.get();
  const auto known = without_gil([&] { return kv->describe(hash); });
  if (!known) return nb::none();
  nb::dict out;
  out["hash"] = nb::cast(known->hash);
  out["parent"] = nb::cast(known->identity.parent);
  out["metadata"] = known->identity.metadata;
  out["priority"] = known->retention.priority;
  out["pins"] = known->pins;
  nb::list tiers;
  for (const tiers::TierBlock& block : known->tiers) {
    nb::dict one;
    one["tier"] = tier_name(block.tier);
    one["block_id"] = block.block.id.value();
    one["state"] = std::string(to_string(block.block.state));
    one["references"] = block.block.references;
    one["pins"] = block.block.pins;
    one["bytes"] = block.bytes;
    one["location"] = text_of(block.location);
    one["being_written"] = block.being_written;
    tiers.append(one);
  }
  out["tiers"] = tiers;
  return out;
}

std::string metrics_text(const KvRef& self, const std::map<std::string, std::string>& labels) {
  const KvPtr kv = self.get();
  return value_or_raise(without_gil([&]() -> Result<std::string> {
    MetricRegistry registry;
    ASHLAR_TRY(const auto registered, kv->add_metrics(registry, {labels.begin(), labels.end()}));
    return registry.prometheus_text();
  }));
}

void shutdown(KvRef& self, std::optional<double> timeout) {
  const KvPtr kv = self.get();
  const auto until = deadline_of(timeout);
  value_or_raise(run_interruptibly([kv, until] { return kv->shutdown(until); }));
}

void close(KvRef& self, std::optional<double> timeout) {
  if (self.kv == nullptr) return;
  if (is_of_parent(self.kv)) return self.kv.reset();
  const auto until = deadline_of(timeout);
  KvPtr kv = std::exchange(self.kv, nullptr);
  // Interrupted, it goes on: the manager ends when its offloads have.
  auto done = run_interruptibly([kv = std::move(kv), until] { return kv->shutdown(until); });
  value_or_raise(std::move(done));
}

void bind_tier_calls(nb::class_<KvRef>& type) {
  type.def(
          "reset",
          [](const KvRef& self, std::string_view tier, std::optional<double> timeout) {
            const events::TierId id = tier_id_of(tier);
            const auto until = deadline_of(timeout);
            const KvPtr kv = self.get();
            return value_or_raise(run_interruptibly([kv, id, until] { return kv->reset(id, until); }));
          },
          "tier"_a, nb::kw_only(), "timeout"_a = nb::none(),
          "Evicts every unused block of a tier; for G3 and G4 permanently. Returns how many.")
      .def(
          "reset_blocks",
          [](const KvRef& self, const HashesLike& like, std::optional<double> timeout) {
            const HashArray hashes(like);
            const auto until = deadline_of(timeout);
            const KvPtr kv = self.get();
            value_or_raise(run_interruptibly(
                [kv, names = hashes.take(), until] { return kv->reset_blocks(names, until); }));
          },
          "hashes"_a, nb::kw_only(), "timeout"_a = nb::none(),
          "Removes blocks from every tier permanently, after their in-flight copies have ended.")
      .def(
          "register_volume",
          [](const KvRef& self, const std::string& name, const std::string& kind, const PathLike& location,
             const std::map<std::string, std::string>& settings, bool write) {
            const KvPtr kv = self.get();
            const tiers::VolumeDescriptor descriptor = descriptor_of(name, kind, path_of(location), settings);
            value_or_raise(run_interruptibly(
                [kv, descriptor, write] { return kv->register_volume(descriptor, {.write = write}); }));
          },
          "name"_a, "kind"_a, "location"_a, nb::kw_only(), "options"_a = std::map<std::string, std::string>(),
          "write"_a = true,
          "Attaches a volume that the operator provisioned: kind \"directory\" or \"file\". Needs g4_blocks.")
      .def(
          "unregister_volume",
          [](const KvRef& self, const std::string& name, std::optional<double> timeout) {
            const auto until = deadline_of(timeout);
            const KvPtr kv = self.get();
            return value_or_raise(
                run_interruptibly([kv, name, until] { return kv->unregister_volume(name, until); }));
          },
          "name"_a, nb::kw_only(), "timeout"_a = nb::none(),
          "Waits until the volume is unused, then forgets its blocks, whose objects stay. Returns how many.")
      .def("shutdown", &shutdown, nb::kw_only(), "timeout"_a = nb::none(),
           "Accepts no more offloads, waits for the queued ones, cancels onboarding. Timeout says how many "
           "blocks were dropped; those that had arrived are safe.")
      .def(
          "close", &close, nb::kw_only(), "timeout"_a = 30.0,
          "shutdown(), and gives the manager up: this object raises UsedGuard from now on. Guards, views and "
          "handles stay valid; what they need ends with the last of them. Does nothing the second time.")
      .def(
          "__enter__",
          [](nb::handle_t<KvRef> self) {
            nb::cast<KvRef&>(self).get();
            return nb::borrow<nb::object>(self);
          },
          nb::sig("def __enter__(self) -> typing.Self"), "For `with`: itself.")
      .def(
          "__exit__", [](KvRef& self, nb::args) { close(self, 30.0); },
          nb::sig("def __exit__(self, *args: object) -> None"), "For `with`: close().")
      .def_prop_ro(
          "closed", [](const KvRef& self) { return self.kv == nullptr; }, "True after close().")
      .def_prop_ro("status", &status_of, nb::sig("def status(self) -> dict[str, typing.Any]"),
                   "Counters of all tiers, routes and volumes, by name.")
      .def("describe", &describe, "hash"_a,
           nb::sig("def describe(self, hash: SequenceHash) -> dict[str, object] | None"),
           "Everything known of a name, the fastest tier first; None when no tier has it.")
      .def("metrics", &metrics_text, "labels"_a = std::map<std::string, std::string>(),
           "Every counter of the manager as Prometheus reads it.")
      .def("hasher", &hasher_of_kv, "salt"_a = nb::none(), "scheme"_a = nb::none(),
           "The hasher whose digests every tier keeps, of the manager's scheme.")
      .def_prop_ro(
          "remote_address",
          [](const KvRef& self) -> std::optional<std::string> {
            tiers::RemoteNode* const remote = self.get()->remote();
            if (remote == nullptr) return std::nullopt;
            return remote->agent().address();
          },
          "HOST:PORT at which other nodes reach this one; None without `remote`.")
      .def_prop_ro(
          "g1", [](const KvRef& self) { return ManagerObject{g1_of(self.get()), self.scheme}; },
          "G1: allocates, fills, registers and matches blocks. Blocks registered there go down as the "
          "options say.");
}

}  // namespace

void bind_tiers(nb::module_& module) {
  nb::class_<KvRef> type(module, "KvBlockManager", R"(The KV blocks of a model over several tiers.

G1 is where blocks are computed, G2 host memory, G3 files, G4 volumes. Blocks registered in G1 are offloaded
by policy or by call; blocks that a request needs are onboarded again. Thread-safe; every call that may take
long releases the GIL.)");
  type.def(
      "__init__",
      [](KvRef* self, std::uint32_t layers, std::uint32_t heads, std::uint32_t head_dim,
         std::uint32_t block_size, std::uint32_t outer, std::string_view dtype, const std::string& model,
         std::uint32_t g1_blocks, nb::object g1_memory, std::optional<std::int32_t> g1_device,
         std::string_view g1_order, std::uint32_t g2_blocks, nb::object g2_memory, std::uint32_t g3_blocks,
         nb::object g3_path, bool survive_power_loss, std::uint32_t g4_blocks, const std::string& eviction,
         std::string_view offload, std::string_view duplicates, bool keep_tokens, std::size_t max_pins,
         std::size_t events, std::uint32_t onboard_threads, const std::optional<tokens::HashScheme>& scheme,
         nb::object prefix_key, std::uint32_t rank, std::uint32_t ranks, std::uint32_t model_heads,
         std::uint32_t first_layer, std::uint32_t model_layers, std::vector<std::uint32_t> other_ranks,
         nb::object remote) {
        const tokens::HashScheme its_scheme = scheme.value_or(tokens::HashScheme());
        const tiers::ModelRank its_rank{rank,        ranks,        model_heads,
                                        first_layer, model_layers, std::move(other_ranks)};
        new (self)
            KvRef{make_kv({layers, heads, head_dim, block_size, outer}, dtype, model,
                          {g1_blocks, g2_blocks, g3_blocks, g4_blocks}, std::move(g1_memory), g1_device,
                          g1_order, std::move(g2_memory), std::move(remote), std::move(g3_path),
                          survive_power_loss, eviction, offload, duplicates, keep_tokens, max_pins, events,
                          onboard_threads, its_scheme, std::move(prefix_key), its_rank),
                  its_scheme};
      },
      nb::kw_only(), "layers"_a, "heads"_a, "head_dim"_a, "block_size"_a = 16, "outer"_a = 2,
      "dtype"_a = "bf16", "model"_a = "", "g1_blocks"_a = 0, "g1_memory"_a = nb::none(),
      "g1_device"_a = nb::none(), "g1_order"_a = "fully_contiguous_nhd", "g2_blocks"_a = 0,
      "g2_memory"_a = nb::none(), "g3_blocks"_a = 0, "g3_path"_a = nb::none(), "survive_power_loss"_a = true,
      "g4_blocks"_a = 0, "eviction"_a = "lru", "offload"_a = "on_arrival", "duplicates"_a = "reject",
      "keep_tokens"_a = false, "max_pins"_a = 0, "events"_a = 0, "onboard_threads"_a = 2,
      "scheme"_a = nb::none(), "prefix_key"_a = nb::none(), "rank"_a = 0, "ranks"_a = 1, "model_heads"_a = 0,
      "first_layer"_a = 0, "model_layers"_a = 0, "other_ranks"_a = std::vector<std::uint32_t>(),
      "remote"_a = nb::none(), nb::sig(kKvSignature),
      R"(A block has `layers` x `outer` (2: K and V) x `block_size` tokens x `heads` x `head_dim` elements of
`dtype` (u8, f8_e4m3, f8_e5m2, f16, bf16, f32, f64), as far as this rank holds it. `model` names the weights:
managers of different models share no files.

g1_memory: memory of the caller's that becomes G1 without a copy and is kept alive: a writable array or
buffer, or a tensor with __dlpack__ on the host or a GPU; of the shape (blocks, layers, outer, tokens, heads,
dim) with any strides, or contiguous in g1_order. A list has one per layer. Without it G1 is host memory of
g1_blocks, or memory of the GPU g1_device. g2_memory: the same for G2, on the host, for g2_blocks.

Tiers with 0 blocks are left out. g3_path: a file, or a list of files on devices of their own. offload:
on_arrival, near_eviction or on_call. events: how many events each tier buffers for an EventStream or
drain_events(). scheme, prefix_key: how names and digests are made.

rank, ranks: of a tensor-parallel model, of which `heads` are this rank's KV heads. Ranks that share volumes
or peers must say so. model_heads: of the whole model, where ranks replicate heads; 0: heads x ranks.
first_layer, model_layers: of a pipeline stage. other_ranks: how many ranks other fleets have that share the
volumes; their blocks are cut or put together where this rank has none of its own.

remote: blocks in the G2 of other processes, as a dict: listen (HOST:PORT, for them), peers (a list of
HOST:PORT), secret (shared by all; needed beyond this machine), advertise, name, blocks (how many are
tracked), serve (False: read only), transport ("loopback" within a machine, "ucx" between machines) and
ucx_transports ("tcp", or "tcp,shm"). UCX serves this machine alone unless the variable UCX_NET_DEVICES
names devices of a network in which everyone is trusted: who reaches its ports can write all memory of the
process.)");
  bind_tier_calls(type);
  bind_transfers(module, type);
  bind_memory(module, type);
  bind_kv_events(type);
}

}  // namespace ashlar::python
