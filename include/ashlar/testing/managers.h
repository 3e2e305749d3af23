// Registries and managers for tests, in one line each.
//
//   auto manager = make_manager<G1>(8);                        // 8 blocks of 4 tokens, LRU, its own registry
//   auto options = manager_options(8, 4, "hashmap_fifo");      // change what the test is about …
//   options.clock = &clock;
//   auto manager = make_manager<G2>(options);                  // … and build
//
// A manager that cannot be built stops the process with its error.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "ashlar/block/block_manager.h"
#include "ashlar/block/block_registry.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/events/event_log.h"
#include "ashlar/events/tier.h"

namespace ashlar::testing {

// A registry without a frequency tracker, unless the options ask for one.
block::BlockRegistry make_registry(const block::RegistryOptions& options = {});
// A registry that counts uses, exact for the number of hashes in tests.
block::BlockRegistry make_counting_registry();

// Options of a manager with its own registry and the eviction backend of that name.
block::ManagerOptions manager_options(std::uint32_t block_count, std::uint32_t block_size = 4,
                                      std::string_view backend = "lru");

// A log large enough to lose nothing in a test.
std::shared_ptr<events::EventLog> make_event_log(std::size_t capacity = std::size_t{1} << 16);

// A manager with these options, in the tier of the type.
template <events::Tier Tier>
block::BlockManager<Tier> make_manager(const block::ManagerOptions& options) {
  return block::BlockManager<Tier>::create(options).value();
}
// The same with manager_options().
template <events::Tier Tier>
block::BlockManager<Tier> make_manager(std::uint32_t block_count, std::uint32_t block_size = 4,
                                       std::string_view backend = "lru") {
  return make_manager<Tier>(manager_options(block_count, block_size, backend));
}

}  // namespace ashlar::testing
