// Layout descriptors and block sets, as their owners describe memory to others.
#include "ashlar/layout/layout_descriptor.h"
#include "inspect/inspected_file.h"
#include "transfer/remote/blockset_record.h"

namespace ashlar::inspect {
namespace {

std::vector<InspectedField> descriptor_fields(const layout::LayoutDescriptor& plane) {
  std::vector<InspectedField> fields = plane_fields(plane.layout.config(), plane.shard);
  fields.push_back({"regions", std::uint64_t{plane.regions.size()}});
  return fields;
}

std::string device_of(std::int32_t device) {
  return device == layout::LayoutDescriptor::kNoDevice ? "none" : std::to_string(device);
}

constexpr std::uint64_t kLargestDescriptor = std::uint64_t{64} << 20;

}  // namespace

std::vector<InspectedField> plane_fields(const layout::LayoutConfig& config, const layout::Shard& shard) {
  return {{"layers", std::uint64_t{config.num_layers}},
          {"outer", std::uint64_t{config.outer_dim}},
          {"block_size", std::uint64_t{config.block_size}},
          {"heads", std::uint64_t{config.num_heads}},
          {"head_dim", std::uint64_t{config.head_dim}},
          {"dtype", std::string(to_string(config.dtype))},
          {"opaque", config.opaque},
          {"shard", shard.to_string()}};
}

Result<void> inspect_layout(const InspectedFile& file, Inspection& seen) {
  seen.kind = "layout descriptor";
  ASHLAR_TRY(const std::vector<std::byte> bytes, file.read_all(kLargestDescriptor));
  const auto read = layout::LayoutDescriptor::deserialize(bytes);
  if (!read)
    return make_error(read.error().code(), "%s: %s", file.path().c_str(), read.error().message().c_str());
  seen.add("file_bytes", file.size());
  seen.add("block_set", read->block_set);
  seen.add("plane", std::uint64_t{read->plane});
  seen.add("blocks", std::uint64_t{read->layout.config().block_count});
  seen.add("block_bytes", read->layout.config().block_bytes());
  seen.add("storage", std::string(to_string(read->storage)));
  seen.add("device", device_of(read->device));
  seen.add("namespace", read->keys.to_string());
  seen.add("hash_scheme", hex_of(read->scheme_fingerprint));
  seen.add("process", hex_of(read->process));
  InspectedList list{.name = "planes"};
  list.add(descriptor_fields(*read));
  seen.lists.push_back(std::move(list));
  seen.is_verified = true;
  return {};
}

Result<void> inspect_block_set(const InspectedFile& file, Inspection& seen) {
  seen.kind = "block set";
  ASHLAR_TRY(const std::vector<std::byte> bytes, file.read_all(transfer::BlockSetRecord::kMaxBytes));
  const auto read = transfer::BlockSetRecord::deserialize(bytes);
  if (!read)
    return make_error(read.error().code(), "%s: %s", file.path().c_str(), read.error().message().c_str());
  std::uint64_t block_bytes = 0;
  InspectedList planes{.name = "planes"};
  for (const transfer::BlockSetRecord::RecordPlane& plane : read->planes) {
    block_bytes += plane.descriptor.layout.config().block_bytes();
    planes.add(descriptor_fields(plane.descriptor));
  }
  const layout::LayoutDescriptor& first = read->planes.front().descriptor;
  seen.add("file_bytes", file.size());
  seen.add("block_set", read->id);
  seen.add("owner", read->name);
  seen.add("agent", hex_of(read->owner.agent));
  seen.add("incarnation", read->owner.incarnation);
  seen.add("address", read->address);
  seen.add("transport", read->transport);
  seen.add("blocks", std::uint64_t{first.layout.config().block_count});
  seen.add("block_bytes", block_bytes);
  seen.add("storage", std::string(to_string(first.storage)));
  seen.add("device", device_of(first.device));
  seen.add("namespace", first.keys.to_string());
  seen.add("hash_scheme", hex_of(first.scheme_fingerprint));
  InspectedList memories{.name = "registrations"};
  for (const transfer::BlockSetRecord::Memory& memory : read->memories)
    memories.add(
        {{"memory_bytes", memory.bytes},
         {"access", std::string(memory.mode == storage::AccessMode::kRead ? "read" : "read and write")}});
  seen.lists.push_back(std::move(memories));
  seen.lists.push_back(std::move(planes));
  seen.is_verified = true;
  return {};
}

}  // namespace ashlar::inspect
