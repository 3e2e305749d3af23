#include "ashlar/testing/managers.h"

#include "ashlar/block/eviction.h"

namespace ashlar::testing {

block::BlockRegistry make_registry(const block::RegistryOptions& options) {
  auto registry = block::BlockRegistry::create(options);
  ASHLAR_CHECK(registry.has_value(), "no registry: %s", registry.error().to_string().c_str());
  return *std::move(registry);
}

block::BlockRegistry make_counting_registry() {
  block::RegistryOptions options;
  options.frequency = block::TinyLfuOptions{std::size_t{1} << 16, block::TinyLfuOptions::kNever};
  return make_registry(options);
}

block::ManagerOptions manager_options(std::uint32_t block_count, std::uint32_t block_size,
                                      std::string_view backend) {
  auto eviction = block::eviction_by_name(backend);
  ASHLAR_CHECK(eviction.has_value(), "no manager: %s", eviction.error().to_string().c_str());
  block::ManagerOptions options;
  options.block_count = block_count;
  options.block_size = block_size;
  options.registry = make_registry();
  options.eviction = *std::move(eviction);
  return options;
}

std::shared_ptr<events::EventLog> make_event_log(std::size_t capacity) {
  return std::make_shared<events::EventLog>(capacity);
}

}  // namespace ashlar::testing
