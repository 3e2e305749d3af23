// Little-endian, in the order of the functions put_*: head {magic, version, 0, total bytes}, body, then
// XXH3-64 of all bytes before it.
#include "ashlar/layout/layout_descriptor.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>

#include "ashlar/base/check.h"
#include "base/byte_io.h"
#include "base/table_seed.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::layout {

namespace {

constexpr std::array<char, 8> kMagic = {'A', 'S', 'H', 'L', 'A', 'Y', 'T', 0};
constexpr std::size_t kHeadBytes = 16;
constexpr std::size_t kChecksumBytes = 8;
// The last version without a process.
constexpr std::uint16_t kUnowned = 2;

std::atomic<std::uint64_t> process_number = 0;

void draw_process_number() noexcept {
  std::uint64_t drawn = 0;
  while (drawn == 0) drawn = random_word();
  process_number.store(drawn);
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void put_layout(ByteWriter& out, const Layout& layout) {
  const LayoutConfig& config = layout.config();
  for (const std::uint32_t field : {config.block_count, config.num_layers, config.outer_dim,
                                    config.block_size, config.num_heads, config.head_dim, config.inner_dim})
    out.put(field);
  out.put(static_cast<std::uint8_t>(config.dtype));
  out.put(static_cast<std::uint8_t>(config.opaque));
  out.put(static_cast<std::uint8_t>(layout.regions()));
  out.put(std::uint8_t{0});
  out.put(config.alignment);
  out.put(config.layer_alignment);
  const Strides& strides = layout.strides();
  for (const std::uint64_t stride :
       {strides.block, strides.layer, strides.outer, strides.token, strides.head})
    out.put(stride);
}

Result<Layout> get_layout(ByteReader& in) {
  LayoutConfig config;
  for (std::uint32_t* const field :
       {&config.block_count, &config.num_layers, &config.outer_dim, &config.block_size, &config.num_heads,
        &config.head_dim, &config.inner_dim})
    *field = in.get<std::uint32_t>();
  config.dtype = static_cast<Dtype>(in.get<std::uint8_t>());
  const auto opaque = in.get<std::uint8_t>();
  const auto regions = in.get<std::uint8_t>();
  const auto nothing = in.get<std::uint8_t>();
  if (opaque > 1 || regions > 1 || nothing != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "a flag of the layout is %u, %u or %u; they are 0 or 1, 0 or 1, 0", opaque, regions,
                      nothing);
  config.opaque = opaque == 1;
  config.alignment = in.get<std::uint64_t>();
  config.layer_alignment = in.get<std::uint64_t>();
  Strides strides;
  for (std::uint64_t* const stride :
       {&strides.block, &strides.layer, &strides.outer, &strides.token, &strides.head})
    *stride = in.get<std::uint64_t>();
  return Layout::create(config, strides, static_cast<Regions>(regions));
}

}  // namespace

std::uint64_t LayoutDescriptor::this_process() noexcept {
  static const bool drawn = [] {
    draw_process_number();
    ::pthread_atfork(nullptr, nullptr, draw_process_number);  // a child is another process
    return true;
  }();
  ASHLAR_DCHECK(drawn, "a process has a number");
  return process_number.load();
}

Result<void> LayoutDescriptor::validate() const {
  if (!is_known(storage))
    return make_error(ErrorCode::kInvalidArgument, "storage %u names no kind",
                      static_cast<unsigned>(storage));
  if ((storage == StorageKind::kDevice) != (device >= 0) || device < kNoDevice)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s storage with device %d; device storage has one from 0 on, other kinds -1",
                      std::string(to_string(storage)).c_str(), device);
  const LayoutConfig& config = layout.config();
  ASHLAR_RETURN_IF_ERROR(shard.validate());
  if (shard != Shard{} && (shard.layers.count != config.num_layers || shard.heads.count != config.num_heads))
    return make_error(ErrorCode::kInvalidArgument,
                      "a shard of %u layers and %u heads for a layout of %u and %u", shard.layers.count,
                      shard.heads.count, config.num_layers, config.num_heads);
  if (regions.size() != layout.region_count())
    return make_error(ErrorCode::kInvalidArgument, "%zu regions for a layout of %u", regions.size(),
                      layout.region_count());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].bytes < layout.region_bytes())
      return make_error(ErrorCode::kInvalidArgument, "region %zu has %llu bytes; the layout needs %llu", i,
                        static_cast<unsigned long long>(regions[i].bytes),
                        static_cast<unsigned long long>(layout.region_bytes()));
    if (regions[i].address % layout.config().alignment != 0)
      return make_error(ErrorCode::kInvalidArgument,
                        "region %zu begins at %llu, no multiple of the alignment %llu", i,
                        static_cast<unsigned long long>(regions[i].address),
                        static_cast<unsigned long long>(layout.config().alignment));
    if (regions[i].address > ~std::uint64_t{0} - regions[i].bytes)
      return make_error(ErrorCode::kInvalidArgument,
                        "region %zu begins at %llu and would end beyond the last address", i,
                        static_cast<unsigned long long>(regions[i].address));
  }
  // Layers may lie in the gaps between each other's blocks, but no closer than the length of one.
  std::uint64_t span = config.head_bytes();
  for (const Axis axis : {Axis::kOuter, Axis::kToken, Axis::kHead})
    span += layout.strides().of(axis) * (layout.extent(axis) - 1);
  std::vector<std::uint64_t> starts;
  starts.reserve(regions.size());
  for (const Region& region : regions) starts.push_back(region.address);
  std::ranges::sort(starts);
  for (std::size_t i = 1; i < starts.size(); ++i)
    if (starts[i] - starts[i - 1] < span)
      return make_error(ErrorCode::kInvalidArgument,
                        "regions at %llu and %llu overlap: a layer of a block has %llu bytes",
                        static_cast<unsigned long long>(starts[i - 1]),
                        static_cast<unsigned long long>(starts[i]), static_cast<unsigned long long>(span));
  return {};
}

std::vector<std::byte> LayoutDescriptor::serialize() const {
  const Result<void> valid = validate();
  ASHLAR_CHECK(valid, "%s", valid.error().message().c_str());
  ByteWriter out;
  for (const char letter : kMagic) out.put(letter);
  out.put(process == 0 ? kUnowned : kVersion);
  out.put(std::uint16_t{0});
  out.put(std::uint32_t{0});  // the total, patched below
  put_layout(out, layout);
  out.put(static_cast<std::uint8_t>(storage));
  for (int i = 0; i < 3; ++i) out.put(std::uint8_t{0});
  out.put(device);
  out.put(block_set);
  out.put(keys.hi());
  out.put(keys.lo());
  out.put(scheme_fingerprint);
  for (const std::uint32_t number :
       {shard.layers.first, shard.layers.count, shard.heads.first, shard.heads.count})
    out.put(number);
  out.put(static_cast<std::uint32_t>(regions.size()));
  out.put(plane);
  out.put(shard.rank);
  out.put(shard.ranks);
  if (process != 0) out.put(process);
  for (const Region& region : regions) {
    out.put(region.address);
    out.put(region.bytes);
  }
  const auto total = static_cast<std::uint32_t>(out.bytes().size() + kChecksumBytes);
  for (std::size_t i = 0; i < 4; ++i) out.bytes()[12 + i] = static_cast<std::byte>(total >> (8 * i) & 0xFF);
  out.put(checksum_of(out.bytes()));
  return std::move(out.bytes());
}

Result<LayoutDescriptor> LayoutDescriptor::deserialize(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeadBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return make_error(ErrorCode::kInvalidArgument, "these %zu bytes are no layout descriptor", bytes.size());
  ByteReader in(bytes.subspan(kMagic.size()));
  const auto version = in.get<std::uint16_t>();
  if (version == 0 || version > kVersion)
    return make_error(ErrorCode::kUnsupported,
                      "the layout descriptor has version %u; this library reads versions 1 to %u", version,
                      kVersion);
  const auto nothing = in.get<std::uint16_t>();
  const auto total = in.get<std::uint32_t>();
  if (total != bytes.size() || total < kHeadBytes + kChecksumBytes)
    return make_error(ErrorCode::kCorruption, "the layout descriptor says %u bytes, but has %zu", total,
                      bytes.size());
  ByteReader last(bytes.last(kChecksumBytes));
  if (last.get<std::uint64_t>() != checksum_of(bytes.first(bytes.size() - kChecksumBytes)))
    return make_error(ErrorCode::kCorruption,
                      "the checksum of the layout descriptor does not agree with its bytes");
  ASHLAR_TRY(const Layout layout, get_layout(in));
  LayoutDescriptor descriptor{.layout = layout};
  descriptor.storage = static_cast<StorageKind>(in.get<std::uint8_t>());
  unsigned padding = nothing;
  for (int i = 0; i < 3; ++i) padding |= in.get<std::uint8_t>();
  descriptor.device = in.get<std::int32_t>();
  descriptor.block_set = in.get<std::uint64_t>();
  const auto hi = in.get<std::uint64_t>();
  const auto lo = in.get<std::uint64_t>();
  descriptor.keys = tokens::NamespaceFingerprint::from_bits(hi, lo);
  descriptor.scheme_fingerprint = in.get<std::uint64_t>();
  for (std::uint32_t* const number : {&descriptor.shard.layers.first, &descriptor.shard.layers.count,
                                      &descriptor.shard.heads.first, &descriptor.shard.heads.count})
    *number = in.get<std::uint32_t>();
  const auto count = in.get<std::uint32_t>();
  descriptor.plane = in.get<std::uint32_t>();
  if (version > 1) {
    descriptor.shard.rank = in.get<std::uint32_t>();
    descriptor.shard.ranks = in.get<std::uint32_t>();
  }
  if (version > kUnowned) {
    descriptor.process = in.get<std::uint64_t>();
    if (descriptor.process == 0)
      return make_error(ErrorCode::kInvalidArgument, "the layout descriptor names process 0, which is none");
  }
  if (!in.ok() || padding != 0 || in.left() != kChecksumBytes + std::size_t{count} * 16)
    return make_error(ErrorCode::kInvalidArgument,
                      "the layout descriptor says %u regions, which its %u bytes do not hold", count, total);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto address = in.get<std::uint64_t>();
    descriptor.regions.push_back({address, in.get<std::uint64_t>()});
  }
  ASHLAR_RETURN_IF_ERROR(descriptor.validate());
  return descriptor;
}

}  // namespace ashlar::layout
