// One small file of every format that `ashlar inspect` knows, as its writer makes it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/events/event_codec.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/service/journal.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/tiers/volume_registry.h"
#include "ashlar/transfer/host_executors.h"
#include "service/route/random_routes.h"
#include "support/block_images.h"
#include "support/volume_objects.h"
#include "tiers/disk/g3_file.h"
#include "tiers/volume/volume_object.h"
#include "transfer/remote/blockset_record.h"

namespace ashlar::inspect {

using InspectedBytes = std::vector<std::byte>;

inline InspectedBytes read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  InspectedBytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline void write_bytes(const std::string& path, const InspectedBytes& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline const tokens::NamespaceFingerprint kSampleKeys = tokens::NamespaceFingerprint::from_bits(1, 2);

inline tokens::SequenceHash sample_hash(std::uint64_t number) {
  return tokens::SequenceHash::root(number * 0x9E3779B97F4A7C15ull + 1);
}

// A block of host memory with some content.
inline std::shared_ptr<const transfer::BlockSet> sample_block(const layout::LayoutConfig& shape,
                                                              std::uint64_t seed) {
  static storage::SystemAllocator memory;
  layout::LayoutConfig one = shape;
  one.block_count = 1;
  one.alignment = 1;
  const auto set = transfer::BlockSet::allocate(
                       layout::Layout::create(one, layout::order::kFullyContiguousNhd).value(), memory)
                       .value();
  Random random(seed + 1);
  for (std::uint64_t i = 0; i < one.block_bytes(); ++i)
    set->address(0, {})[i] = static_cast<std::byte>(random.next());
  return set;
}

// `filled` blocks of 8, in the slots 0, 1, …; the blocks lie as `order` says.
inline void write_g3(const std::string& path, const layout::AxisOrder& order, std::uint32_t filled) {
  layout::LayoutConfig config = transfer::small_shape(8, 2, 2);
  const layout::Layout layout = layout::Layout::create(config, order).value();
  const auto file = tiers::G3File::open({.path = path,
                                         .planes = {transfer::PlaneShape::whole(layout)},
                                         .keys = kSampleKeys,
                                         .scheme_fingerprint = 77})
                        .value();
  const auto executor = transfer::FileExecutor::create({.threads = 1}).value();
  for (std::uint32_t slot = 0; slot < filled; ++slot) {
    const auto block = sample_block(config, slot);
    const std::uint64_t before = file->failed_syncs();
    const std::uint32_t zero = 0;
    ASSERT_TRUE(
        executor
            ->submit(
                {.plan =
                     transfer::plan(block, std::span(&zero, 1), file->blocks(), std::span(&slot, 1)).value()})
            .value()
            .wait());
    const tiers::G3File::Entry entry{
        slot,
        {.hash = sample_hash(slot),
         .checksum = transfer::checksum_block(*block, 0, {sample_hash(slot), kSampleKeys}).value()}};
    ASSERT_TRUE(file->commit(std::span(&entry, 1), before));
  }
  tiers::RemovalLog log;
  const tokens::SequenceHash gone = sample_hash(100);
  log.add(std::span(&gone, 1), 5);
  ASSERT_TRUE(file->invalidate({}, &log));
}

inline tiers::VolumeObject sample_object(const transfer::BlockSet& block, std::uint64_t number) {
  tiers::VolumeObject object = tiers::VolumeObject::describe(block, kSampleKeys, 77, 0);
  object.hash = sample_hash(number);
  object.checksum = transfer::checksum_block(block, 0, {object.hash, kSampleKeys}).value();
  return object;
}

// Three objects in a volume of kind "file" or "directory".
inline void fill_volume(const std::string& kind, const std::string& location) {
  const auto volume =
      tiers::VolumeRegistry::with_builtin().attach({.name = "v", .kind = kind, .location = location}).value();
  tiers::Writes writes;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const auto block = sample_block(transfer::small_shape(1, 2, 2), i);
    const tiers::VolumeObject object = sample_object(*block, i);
    const auto head = object.encode();
    tiers::Bytes bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), block->address(0, {}), block->address(0, {}) + object.payload_bytes);
    writes.add(object.key(), std::move(bytes));
  }
  for (const Result<void>& put : volume->put(writes.objects(), {})) ASSERT_TRUE(put) << put.error();
}

inline void write_file_volume(const std::string& path) {
  write_bytes(path, InspectedBytes(8192 + 6 * 4096));
  ASSERT_TRUE(tiers::provision_file_volume(path, {.slot_bytes = 4096, .slots = 6}));
  fill_volume("file", path);
}

inline void write_events(const std::string& path, const std::string& location = "cold") {
  auto sink = feed::FileSink::create({.path = path}).value();
  for (std::uint64_t i = 0; i < 4; ++i) {
    events::OwnedBatch batch;
    batch.head.stream = {{events::WorkerId(7), 0}, 3};
    batch.head.keys.block_size = 16;
    batch.head.first = i * 2;
    batch.locations = {{1, location}};
    for (std::uint64_t block = 0; block < 2; ++block) {
      events::KvEvent event;
      event.hash = sample_hash(i * 2 + block);
      event.kind = i == 3 ? events::KvEventKind::kRemoved : events::KvEventKind::kStored;
      event.location = 1;
      batch.events.push_back(event);
    }
    ASSERT_TRUE(sink->publish(batch.view()));
  }
}

inline void write_dump(const std::string& path) {
  events::DumpWriter writer;
  events::BlocksStored event;
  event.worker = {events::WorkerId(1), 0};
  event.start_position = 0;
  const std::vector<events::StoredBlock> blocks = {
      {.local = tokens::LocalHash(1), .name = events::BlockName(2)}};
  event.blocks = blocks;
  writer.store(event);
  write_bytes(path, std::move(writer).finish().value());
}

// A folder with a journal and its key. After `file_bytes` the next file begins.
inline void write_journal(const std::string& folder, std::uint64_t file_bytes = 1 << 20, int steps = 60) {
  const auto key = service::load_journal_key(folder + "/key", true).value();
  auto journal = service::JournalWriter::create({.path = folder + "/a.journal",
                                                 .key = key,
                                                 .run = 0xABC,
                                                 .router = service::RandomRoutes::tight_options(),
                                                 .file_bytes = file_bytes})
                     .value();
  service::RandomRoutes routes(1, journal.get());
  routes.run(steps);
  ASSERT_TRUE(journal->flush());
}

inline layout::LayoutDescriptor sample_descriptor() {
  return sample_block(transfer::small_shape(1, 2, 2), 1)->describe(0, 9, kSampleKeys, 77);
}

inline transfer::BlockSetRecord sample_record() {
  transfer::BlockSetRecord record;
  record.owner = {.agent = 5, .incarnation = 6};
  record.name = "owner";
  record.address = "127.0.0.1:1";
  record.transport = "loopback";
  record.id = 9;
  record.names = {kSampleKeys, 77, 0};
  const layout::LayoutDescriptor plane = sample_descriptor();
  record.memories = {{.address = plane.regions[0].address, .bytes = plane.regions[0].bytes, .key = {}}};
  record.planes = {{plane, {0}}};
  return record;
}

}  // namespace ashlar::inspect
