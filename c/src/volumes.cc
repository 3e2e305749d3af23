// Volumes of the C interface.
#include <string>

#include "c/src/tiers.h"

namespace ashlar::c_interface {
namespace {

Outcome<tiers::VolumeDescriptor> descriptor_of(const ashlar_volume_options& given) {
  if (given.name == nullptr) return null_pointer("name");
  if (given.kind == nullptr) return null_pointer("kind");
  if (given.location == nullptr) return null_pointer("location");
  tiers::VolumeDescriptor descriptor{.name = given.name, .kind = given.kind, .location = given.location};
  ASHLAR_TRY(const auto names, texts_of(given.option_names, given.option_count, "option_names"));
  ASHLAR_TRY(auto values, texts_of(given.option_values, given.option_count, "option_values"));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!descriptor.options.emplace(names[i], std::move(values[i])).second)
      return invalid_argument("option %s is given twice", names[i].c_str());
  }
  return descriptor;
}

}  // namespace
}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;

ashlar_status ashlar_tiers_register_volume(ashlar_tiers tiers, const ashlar_volume_options* options) {
  return waiting_call([&]() -> Outcome<> {
    if (options == nullptr) return null_pointer("options");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_volume_options"));
    ASHLAR_TRY(const auto descriptor, descriptor_of(given));
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_RETURN_IF_ERROR(entered.kv().register_volume(descriptor, {.write = given.read_only == 0}));
    return {};
  });
}

ashlar_status ashlar_tiers_unregister_volume(ashlar_tiers tiers, const char* name, uint64_t timeout_ns,
                                             size_t* forgotten) {
  return waiting_call([&]() -> Outcome<> {
    if (name == nullptr) return null_pointer("name");
    ASHLAR_TRY(const auto entered, enter_tiers(tiers));
    ASHLAR_TRY(const auto count, entered.kv().unregister_volume(name, deadline_of(timeout_ns)));
    if (forgotten != nullptr) *forgotten = count;
    return {};
  });
}
