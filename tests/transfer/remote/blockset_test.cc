#include <unistd.h>

#include <algorithm>
#include <latch>

#include "ashlar/base/random.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/storage/external_storage.h"
#include "support/block_images.h"
#include "support/rounds.h"
#include "tokens/xxhash_inline.h"
#include "transfer/remote/agent_fixture.h"
#include "transfer/remote/blockset_record.h"

namespace ashlar::transfer {
namespace {

using ::ashlar::testing::await;
using ::ashlar::testing::fake_options;
using ::ashlar::testing::FakeTransport;
using ::ashlar::testing::make_agent;
using ::ashlar::testing::rounds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void refused_with(const auto& result, ErrorCode code, const char* says) {
  ASSERT_FALSE(result) << says;
  EXPECT_EQ(result.error().code(), code) << result.error();
  EXPECT_THAT(result.error().message(), HasSubstr(says));
}

// Keys and values of two heads, a region per layer, with one scale for all of them.
std::shared_ptr<const BlockSet> scaled_set(storage::Allocator& memory, std::uint32_t blocks = 6) {
  const std::vector<PlaneShape> shapes = {
      {layout::Layout::create(small_shape(blocks, 3, 2), layout::order::kBlockFirstNhd,
                              layout::Regions::kPerLayer)
           .value(),
       {{4, 3}, {2, 2}, 1, 2}},
      {layout::Layout::create(small_shape(blocks, 3, 1), layout::order::kFullyContiguousNhd).value(),
       {{4, 3}, {0, 1}, 1, 2}}};
  return BlockSet::allocate(shapes, memory).value();
}

std::shared_ptr<const BlockSet> scaled_set() {
  static storage::SystemAllocator memory;
  return scaled_set(memory);
}

const BlockSetNames kNames = {tokens::NamespaceFingerprint::from_bits(1, 2), 3, 4};

// The only set that an agent exports.
std::vector<std::byte> exported_bytes() {
  const auto agent = make_agent(fake_options("owner"));
  const RemoteOffer offer = agent->export_blockset(scaled_set(), kNames, 77).value();
  return agent->exports().at(0);
}

std::vector<std::byte> resealed_set(std::vector<std::byte> bytes) {
  if (bytes.size() < 8) return bytes;
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size() - 8);
  for (std::size_t i = 0; i < 8; ++i)
    bytes[bytes.size() - 8 + i] = static_cast<std::byte>(sum >> (8 * i) & 0xFF);
  return bytes;
}

TEST(BlockSetRecordTest, ComesBackAsItWas) {
  const std::vector<std::byte> bytes = exported_bytes();
  const Result<BlockSetRecord> record = BlockSetRecord::deserialize(bytes);
  ASSERT_TRUE(record) << record.error();
  EXPECT_EQ(record->id, 77u);
  EXPECT_EQ(record->name, "owner");
  EXPECT_EQ(record->transport, "fake");
  EXPECT_EQ(record->names, kNames);
  EXPECT_THAT(record->planes, SizeIs(2));
  EXPECT_THAT(record->memories, SizeIs(4));
  EXPECT_EQ(record->planes[0].descriptor.shard.rank, 1u);
  EXPECT_EQ(record->serialize(), bytes);
}

// Where the access modes of the registrations are.
std::vector<std::size_t> mode_bytes(std::span<const std::byte> bytes) {
  const auto number = [&](std::size_t at, std::size_t count) {
    std::size_t out = 0;
    for (std::size_t i = count; i-- > 0;) out = out << 8 | std::to_integer<std::size_t>(bytes[at + i]);
    return out;
  };
  std::size_t at = 72;
  for (int text = 0; text < 4; ++text) at += 2 + number(at, 2);
  std::vector<std::size_t> out(number(at, 4));
  at += 4;
  for (std::size_t& mode : out) {
    mode = at + 18 + number(at + 16, 2);
    at = mode + 1;
  }
  return out;
}

// The format is a promise: docs/formats/blockset.md.
TEST(BlockSetRecordTest, HasTheBytesOfVersionThree) {
  const std::vector<std::byte> bytes = exported_bytes();
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(::ashlar::testing::text_of(std::span(bytes).first(7)), "ASHBSET");
  EXPECT_EQ(at(8), 3);
  EXPECT_EQ(at(12) + 256 * at(13), static_cast<int>(bytes.size()));
  EXPECT_EQ(at(32), 77);  // set
  EXPECT_EQ(at(40), 1);   // namespace, high half
  EXPECT_EQ(at(48), 2);
  EXPECT_EQ(at(56), 3);  // hash scheme
  EXPECT_EQ(at(64), 4);  // prefix key
  EXPECT_EQ(at(72), 5);  // bytes of the name
  EXPECT_EQ(::ashlar::testing::text_of(std::span(bytes).subspan(74, 5)), "owner");
  for (const std::size_t mode : mode_bytes(bytes)) EXPECT_EQ(at(mode), 1) << "for reading";
  EXPECT_EQ(at(bytes.size() - 16), 1);  // generation
}

// A record of an older version: without the generation, and with the total of what is left.
std::vector<std::byte> as_version(std::vector<std::byte> bytes, int version) {
  bytes.erase(bytes.end() - 16, bytes.end() - 8);
  bytes[8] = static_cast<std::byte>(version);
  for (std::size_t i = 0; i < 4; ++i) bytes[12 + i] = static_cast<std::byte>(bytes.size() >> (8 * i) & 0xFF);
  return resealed_set(bytes);
}

TEST(BlockSetRecordTest, VersionTwoHasNoGeneration) {
  const std::vector<std::byte> bytes = exported_bytes();
  BlockSetRecord expected = BlockSetRecord::deserialize(bytes).value();
  EXPECT_NE(expected.generation, 0u);
  expected.generation = 0;
  EXPECT_EQ(BlockSetRecord::deserialize(as_version(bytes, 2)).value(), expected);
}

// Version 1 has no modes either; its owners let peers write.
TEST(BlockSetRecordTest, VersionOneIsReadAsOpenForWriting) {
  std::vector<std::byte> bytes = exported_bytes();
  const BlockSetRecord now = BlockSetRecord::deserialize(bytes).value();
  std::vector<std::size_t> modes = mode_bytes(bytes);
  ASSERT_THAT(modes, SizeIs(4));
  for (auto at = modes.rbegin(); at != modes.rend(); ++at)
    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(*at));
  const Result<BlockSetRecord> old = BlockSetRecord::deserialize(as_version(bytes, 1));
  ASSERT_TRUE(old) << old.error();
  BlockSetRecord expected = now;
  expected.generation = 0;
  for (BlockSetRecord::Memory& memory : expected.memories) memory.mode = storage::AccessMode::kReadWrite;
  EXPECT_EQ(*old, expected);
}

TEST(BlockSetRecordTest, EveryCutAndEveryChangedBitIsSeen) {
  const std::vector<std::byte> bytes = exported_bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(BlockSetRecord::deserialize(std::span(bytes).first(length))) << length;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> changed = bytes;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(BlockSetRecord::deserialize(changed)) << bit;
  }
  std::vector<std::byte> newer = bytes;
  newer[8] = std::byte{BlockSetRecord::kVersion + 1};
  EXPECT_EQ(BlockSetRecord::deserialize(resealed_set(newer)).error().code(), ErrorCode::kUnsupported);
}

// What a record is rebuilt over: storage that only remembers its range.
Result<std::shared_ptr<const BlockSet>> rebuild(const BlockSetRecord& record) {
  std::vector<std::shared_ptr<storage::RemoteStorage>> opened;
  for (std::size_t i = 0; i < record.memories.size(); ++i) {
    ASHLAR_TRY(auto storage,
               storage::RemoteStorage::create(record.memory(i), std::make_shared<storage::RemoteAccess>()));
    opened.push_back(std::move(storage));
  }
  return record.build(opened);
}

// No byte of a block lies outside the registrations, and no two blocks share one.
void expect_inside(const BlockSetRecord& record, const BlockSet& set) {
  for (std::size_t p = 0; p < set.planes().size(); ++p) {
    const Plane& plane = set.planes()[p];
    const layout::LayoutConfig& config = plane.layout.config();
    for (const std::uint32_t block : {std::uint32_t{0}, config.block_count - 1})
      for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        const layout::Place place = plane.layout.place(
            {block, layer, config.outer_dim - 1, config.block_size - 1, config.num_heads - 1});
        const RegionMemory& region = plane.regions[place.region];
        ASSERT_LE(region.offset + place.offset + config.head_bytes(), region.storage->size());
        const std::uint64_t address =
            reinterpret_cast<std::uintptr_t>(region.storage->address()) + region.offset + place.offset;
        ASSERT_TRUE(std::ranges::any_of(record.memories, [&](const BlockSetRecord::Memory& memory) {
          return address >= memory.address && address + config.head_bytes() <= memory.address + memory.bytes;
        }));
      }
  }
}

// Bytes made on purpose, checksums included: of the record, and of the descriptors in it.
TEST(BlockSetRecordTest, HostileBytesNeverMakeASetThatReachesOutside) {
  Random random(11);
  const std::vector<std::byte> good = exported_bytes();
  const BlockSetRecord known = BlockSetRecord::deserialize(good).value();
  std::vector<std::size_t> descriptors;  // where they begin
  for (std::size_t i = 0; i + 8 <= good.size(); ++i)
    if (std::memcmp(good.data() + i, "ASHLAYT", 8) == 0) descriptors.push_back(i);
  ASSERT_THAT(descriptors, SizeIs(2));
  std::size_t accepted = 0;
  std::size_t built = 0;
  const std::uint64_t all = rounds(200'000);
  for (std::uint64_t round = 0; round < all; ++round) {
    std::vector<std::byte> bytes = good;
    for (std::uint64_t changes = 1 + random.below(6); changes-- > 0;) {
      const std::size_t at = 10 + random.below(bytes.size() - 18);
      const std::uint64_t kind = random.below(4);
      bytes[at] = kind == 0   ? std::byte{0xFF}
                  : kind == 1 ? std::byte{0}
                  : kind == 2 ? bytes[at] ^ (std::byte{1} << random.below(8))
                              : static_cast<std::byte>(random.below(256));
    }
    if (random.below(2) == 0)
      for (const std::size_t at : descriptors) {
        const std::size_t size = known.planes[at == descriptors[0] ? 0 : 1].descriptor.serialize().size();
        const std::vector<std::byte> sealed =
            resealed_set({bytes.begin() + static_cast<std::ptrdiff_t>(at),
                          bytes.begin() + static_cast<std::ptrdiff_t>(at + size)});
        std::ranges::copy(sealed, bytes.begin() + static_cast<std::ptrdiff_t>(at));
      }
    if (random.below(20) == 0) bytes.resize(random.below(bytes.size() + 1));
    bytes = resealed_set(std::move(bytes));
    const Result<BlockSetRecord> record = BlockSetRecord::deserialize(bytes);
    if (!record) continue;
    ++accepted;
    ASSERT_TRUE(record->validate());
    ASSERT_EQ(record->serialize(), bytes);
    const auto set = rebuild(*record);
    if (!set) continue;
    ++built;
    expect_inside(*record, **set);
  }
  EXPECT_GT(accepted, all / 2000);
  EXPECT_GT(built, all / 2000);
}

TEST(BlockSetRecordTest, WhatDoesNotHoldTogetherIsNamed) {
  const BlockSetRecord good = BlockSetRecord::deserialize(exported_bytes()).value();
  const auto says = [&](const std::function<void(BlockSetRecord&)>& change, const char* words) {
    BlockSetRecord record = good;
    change(record);
    refused_with(record.validate(), ErrorCode::kInvalidArgument, words);
  };
  says([](BlockSetRecord& r) { r.owner.incarnation = 0; }, "names no owner");
  says([](BlockSetRecord& r) { r.address.clear(); }, "that no agent has");
  says([](BlockSetRecord& r) { r.planes.clear(); }, "0 planes");
  says([](BlockSetRecord& r) { r.id = 78; }, "block set 77; plane 0 of set 78");
  says([](BlockSetRecord& r) { std::swap(r.planes[0], r.planes[1]); }, "of plane 1");
  says([](BlockSetRecord& r) { r.names.scheme_fingerprint = 9; }, "fingerprints");
  says([](BlockSetRecord& r) { r.names.keys = {}; }, "fingerprints");
  says([](BlockSetRecord& r) { r.planes[1].descriptor.storage = StorageKind::kPinned; }, "pinned");
  says([](BlockSetRecord& r) { ++r.planes[1].descriptor.process; }, "of process");
  says([](BlockSetRecord& r) { r.planes[0].memories.pop_back(); }, "3 regions in 2");
  says([](BlockSetRecord& r) { r.planes[0].memories[1] = 4; }, "registration 4 of 4");
  says([](BlockSetRecord& r) { r.planes[0].memories[1] = 0; }, "reaches outside");
  says([](BlockSetRecord& r) { r.memories[2].bytes -= 1; }, "reaches outside");
  says([](BlockSetRecord& r) { r.memories[2].address += 64; }, "reaches outside");
  says([](BlockSetRecord& r) { r.memories[0].bytes = ~std::uint64_t{0}; }, "that is none");
  says([](BlockSetRecord& r) { r.memories[0].key.resize(5000); }, "key of 5000 bytes");
  says([](BlockSetRecord& r) { r.memories[1].mode = storage::AccessMode{2}; }, "access mode 2");
  // Two planes over the same bytes, each in a registration of its own.
  BlockSetRecord twice = good;
  twice.memories.push_back(twice.memories[0]);
  twice.planes[1].memories[0] = 4;
  twice.planes[1].descriptor.regions[0] = {twice.memories[0].address,
                                           twice.planes[1].descriptor.layout.region_bytes()};
  twice.memories[4].bytes = twice.planes[1].descriptor.regions[0].bytes;
  ASSERT_TRUE(twice.validate());
  refused_with(rebuild(twice), ErrorCode::kInvalidArgument, "overlap");
}

TEST(RemoteBlockSetTest, SetsAreExchangedListedAndDropped) {
  AgentOptions options = fake_options("owner");
  const auto transport = std::make_shared<FakeTransport>();
  options.transport = transport;
  const auto owner = make_agent(options);
  const auto reader = make_agent(fake_options("reader"));
  const auto set = scaled_set();
  RemoteOffer first = owner->export_blockset(set, kNames, 5).value();
  RemoteOffer second = owner->export_blockset(scaled_set(), kNames).value();
  EXPECT_EQ(*transport->registered, 8);
  refused_with(owner->export_blockset(set, kNames, 5), ErrorCode::kAlreadyExists,
               "set 5 is exported already");
  EXPECT_EQ(*transport->registered, 8);
  EXPECT_THAT(owner->exports(), SizeIs(2));
  const auto peer = reader->connect(owner->address()).value();
  const auto sets = reader->exchange(peer).value();
  ASSERT_THAT(sets, SizeIs(2));
  EXPECT_EQ(reader->exchange(peer).value(), sets);  // nothing new
  EXPECT_EQ(reader->remote_blocksets(), sets);
  EXPECT_THAT(owner->remote_blocksets(), IsEmpty());
  const auto& five = *sets[0];
  EXPECT_EQ(five.id(), 5u);
  EXPECT_EQ(five.names(), kNames);
  EXPECT_EQ(five.peer(), peer);
  EXPECT_EQ(five.shard(), set->planes()[0].shard);
  EXPECT_EQ(five.blocks()->kind(), StorageKind::kRemote);
  ASSERT_THAT(five.blocks()->planes(), SizeIs(2));
  for (std::size_t p = 0; p < 2; ++p)
    for (std::size_t r = 0; r < set->planes()[p].regions.size(); ++r) {
      const RegionMemory& its = five.blocks()->planes()[p].regions[r];
      const RegionMemory& own = set->planes()[p].regions[r];
      EXPECT_EQ(its.storage->address() + its.offset, own.storage->address() + own.offset);
      const auto& remote = static_cast<const storage::RemoteStorage&>(*its.storage);
      EXPECT_EQ(remote.memory().agent, owner->identity().agent);
      EXPECT_EQ(remote.memory().incarnation, owner->identity().incarnation);
    }
  EXPECT_TRUE(reader->drop_remote_blockset(owner->identity(), 5));
  EXPECT_FALSE(reader->drop_remote_blockset(owner->identity(), 5));
  EXPECT_THAT(reader->remote_blocksets(), SizeIs(1));
  // What was dropped stays so until it is asked for.
  EXPECT_THAT(reader->exchange(peer).value(), SizeIs(1));
  EXPECT_TRUE(reader->is_dropped({owner->identity(), 5}));
  EXPECT_THAT(reader->exchange(peer, {}, true).value(), SizeIs(2));
  EXPECT_FALSE(reader->is_dropped({owner->identity(), 5}));
  EXPECT_TRUE(reader->drop_remote_blockset(owner->identity(), 5));
  for (const std::vector<std::byte>& bytes : owner->exports()) {
    const BlockSetOwner described = RemoteAgent::owner_of_blockset(bytes).value();
    EXPECT_EQ(described.owner, owner->identity());
    if (described.id == 5) {
      ASSERT_TRUE(reader->import_remote_blockset(bytes));
    }
  }
  EXPECT_THAT(reader->exchange(peer).value(), SizeIs(2));
  // A set that its owner withdraws is gone from both lists.
  second = {};
  EXPECT_EQ(*transport->registered, 4);
  await([&] { return reader->remote_blocksets().size() == 1; });
  EXPECT_EQ(reader->remote_blocksets()[0]->id(), 5u);
  EXPECT_THAT(owner->exports(), SizeIs(1));
}

TEST(RemoteBlockSetTest, ASetThatIsOfferedAnewIsNotTheOneThatWasDropped) {
  const auto owner = make_agent(fake_options("owner"));
  const auto reader = make_agent(fake_options("reader"));
  RemoteOffer offer = owner->export_blockset(scaled_set(), kNames, 5).value();
  const auto peer = reader->connect(owner->address()).value();
  ASSERT_THAT(reader->exchange(peer).value(), SizeIs(1));
  EXPECT_TRUE(reader->drop_remote_blockset(owner->identity(), 5));
  EXPECT_THAT(reader->exchange(peer).value(), IsEmpty());
  offer = {};
  offer = owner->export_blockset(scaled_set(), kNames, 5).value();
  await([&] { return !reader->exchange(peer).value().empty(); });
}

// Where the memory of a set is.
const void* place_of(const BlockSet& set) {
  return set.planes()[0].regions[0].storage->address();
}

// Its owner has withdrawn it, and a reader that heard of it too early keeps it not.
TEST(RemoteBlockSetTest, ASetThatIsWithdrawnWhileItIsImportedIsNotImported) {
  for (const bool by_bytes : {false, true}) {
    const auto owner = make_agent(fake_options("owner"));
    AgentOptions options = fake_options("reader");
    const auto transport = std::make_shared<FakeTransport>();
    std::latch opening(1);
    std::latch withdrawn(1);
    std::atomic<bool> first = true;
    transport->on_open = [&] {
      if (!first.exchange(false)) return;
      opening.count_down();
      withdrawn.wait();
    };
    options.transport = transport;
    options.handler_threads = 1;  // one message after the other
    const auto reader = make_agent(options);
    const RemoteOffer echo = ::ashlar::testing::serve_echo(*reader);
    const auto set = scaled_set();
    RemoteOffer offer = owner->export_blockset(set, kNames, 5).value();
    const std::vector<std::byte> bytes = owner->exports().at(0);
    const auto peer = reader->connect(owner->address()).value();
    std::thread importing([&] {
      if (by_bytes) {
        refused_with(reader->import_remote_blockset(bytes), ErrorCode::kNotFound, "set 5 of agent");
      } else {
        EXPECT_THAT(reader->exchange(peer).value(), IsEmpty());
      }
    });
    opening.wait();
    offer = {};
    ASSERT_TRUE(owner->peers().at(0)->call(::ashlar::testing::kEcho, {}));  // the reader has heard of it
    withdrawn.count_down();
    importing.join();
    EXPECT_THAT(reader->remote_blocksets(), IsEmpty());
    const auto next = scaled_set();
    offer = owner->export_blockset(next, kNames, 5).value();
    const auto sets = reader->exchange(peer).value();
    ASSERT_THAT(sets, SizeIs(1));
    EXPECT_EQ(place_of(*sets[0]->blocks()), place_of(*next));
  }
}

// Bytes travel any way, and may be older than the withdrawal of their set.
TEST(RemoteBlockSetTest, AnExchangeReplacesAndForgetsSetsThatAreNoLongerOffered) {
  const auto owner = make_agent(fake_options("owner"));
  const auto reader = make_agent(fake_options("reader"));
  const auto first = scaled_set();
  RemoteOffer offer = owner->export_blockset(first, kNames, 5).value();
  const std::vector<std::byte> old = owner->exports().at(0);
  offer = {};
  const auto peer = reader->connect(owner->address()).value();
  const auto imported = reader->import_remote_blockset(old).value();
  EXPECT_THAT(reader->remote_blocksets(), SizeIs(1));
  EXPECT_THAT(reader->exchange(peer).value(), IsEmpty());
  ASSERT_TRUE(reader->import_remote_blockset(old));
  const auto second = scaled_set();
  offer = owner->export_blockset(second, kNames, 5).value();
  const auto sets = reader->exchange(peer).value();
  ASSERT_THAT(sets, SizeIs(1));
  EXPECT_EQ(place_of(*sets[0]->blocks()), place_of(*second));
  EXPECT_GT(sets[0]->generation(), imported->generation());
  refused_with(reader->import_remote_blockset(old), ErrorCode::kAlreadyExists, "was imported before");
  // By bytes too.
  offer = {};
  await([&] { return reader->remote_blocksets().empty(); });
  ASSERT_TRUE(reader->import_remote_blockset(old));
  offer = owner->export_blockset(second, kNames, 5).value();
  EXPECT_EQ(place_of(*reader->import_remote_blockset(owner->exports().at(0)).value()->blocks()),
            place_of(*second));
  EXPECT_THAT(reader->remote_blocksets(), SizeIs(1));
}

// A peer cannot make a reader open memory without end.
TEST(RemoteBlockSetTest, OnePeerSharesSoManySetsAndNoMore) {
  const auto owner = make_agent(fake_options("owner"));
  const auto other = make_agent(fake_options("other"));
  const auto reader = make_agent(fake_options("reader"));
  std::vector<RemoteOffer> offers;
  for (std::uint64_t id = 1; id <= RemoteAgent::kMaxSetsPerPeer + 1; ++id)
    offers.push_back(owner->export_blockset(scaled_set(), kNames, id).value());
  const auto peer = reader->connect(owner->address()).value();
  refused_with(reader->exchange(peer), ErrorCode::kCapacity, "more than 64 block sets");
  EXPECT_THAT(reader->remote_blocksets(), SizeIs(RemoteAgent::kMaxSetsPerPeer));
  refused_with(reader->import_remote_blockset(owner->exports().back()), ErrorCode::kCapacity, "drop some");
  // Others are not affected, and room is made by dropping.
  const RemoteOffer theirs = other->export_blockset(scaled_set(), kNames, 1).value();
  EXPECT_THAT(reader->exchange(reader->connect(other->address()).value()).value(), SizeIs(1));
  EXPECT_TRUE(reader->drop_remote_blockset(owner->identity(), 1));
  EXPECT_THAT(reader->exchange(peer).value(), SizeIs(RemoteAgent::kMaxSetsPerPeer));
}

// More sets than one answer holds.
TEST(RemoteBlockSetTest, ManySetsComeInSeveralAnswers) {
  AgentOptions options = fake_options("owner");
  options.max_message_bytes = 16 << 10;
  const auto owner = make_agent(options);
  const auto reader = make_agent(fake_options("reader"));
  std::vector<RemoteOffer> offers;
  for (std::uint64_t id = 1; id <= 40; ++id)
    offers.push_back(owner->export_blockset(scaled_set(), kNames, id).value());
  const auto sets = reader->exchange(reader->connect(owner->address()).value()).value();
  ASSERT_THAT(sets, SizeIs(40));
  for (std::uint64_t id = 1; id <= 40; ++id) EXPECT_EQ(sets[id - 1]->id(), id);
}

TEST(RemoteBlockSetTest, ImportsConnectAndRefuseWhatTheyMust) {
  AgentOptions options = fake_options("owner");
  auto owner = make_agent(options);
  options.listen = owner->address();
  const auto reader = make_agent(fake_options("reader"));
  RemoteOffer offer = owner->export_blockset(scaled_set(), kNames, 5).value();
  const std::vector<std::byte> bytes = owner->exports().at(0);
  const auto set = reader->import_remote_blockset(bytes).value();
  EXPECT_EQ(set->peer()->identity(), owner->identity());
  refused_with(reader->import_remote_blockset(bytes), ErrorCode::kAlreadyExists, "imported before");
  refused_with(owner->import_remote_blockset(bytes), ErrorCode::kAlreadyExists, "this agent's own");
  refused_with(reader->import_remote_blockset({}), ErrorCode::kInvalidArgument, "no block set");
  AgentOptions foreign = fake_options("foreign");
  foreign.transport = std::make_shared<FakeTransport>("pigeons");
  refused_with(make_agent(foreign)->import_remote_blockset(bytes), ErrorCode::kUnsupported, "'pigeons'");
  BlockSetRecord record = BlockSetRecord::deserialize(bytes).value();
  record.id = 6;
  for (auto& plane : record.planes) plane.descriptor.block_set = 6;
  BlockSetRecord moved = record;
  moved.transport_address.pop_back();
  refused_with(reader->import_remote_blockset(moved.serialize()), ErrorCode::kInvalidArgument,
               "that is not its owner's");
  BlockSetRecord locked = record;
  locked.memories[1].key.clear();
  refused_with(reader->import_remote_blockset(locked.serialize()), ErrorCode::kInvalidArgument, "not a key");
  BlockSetRecord stale = record;
  ++stale.owner.incarnation;
  refused_with(reader->import_remote_blockset(stale.serialize()), ErrorCode::kUnavailable,
               "Exchange sets again");
  EXPECT_THAT(reader->remote_blocksets(), SizeIs(1));
  // A restart on the same address: what is old is refused, what is new is taken.
  offer = {};
  owner.reset();
  await([&] { return !set->peer()->alive(); });
  EXPECT_THAT(reader->remote_blocksets(), IsEmpty());
  refused_with(reader->import_remote_blockset(bytes), ErrorCode::kUnavailable, "");
  options.transport = std::make_shared<FakeTransport>();
  owner = make_agent(options);
  refused_with(reader->import_remote_blockset(bytes), ErrorCode::kUnavailable, "Exchange sets again");
  refused_with(owner->import_remote_blockset(bytes), ErrorCode::kUnavailable, "this agent's now");
  offer = owner->export_blockset(scaled_set(), kNames, 5).value();
  ASSERT_TRUE(reader->import_remote_blockset(owner->exports().at(0)));
  EXPECT_THAT(reader->remote_blocksets(), SizeIs(1));
}

TEST(RemoteBlockSetTest, ImportedSetsOutliveTheAgents) {
  auto owner = make_agent(fake_options("owner"));
  auto reader = make_agent(fake_options("reader"));
  RemoteOffer offer = owner->export_blockset(scaled_set(), kNames, 5).value();
  const auto set = reader->exchange(reader->connect(owner->address()).value()).value().at(0);
  reader.reset();
  owner.reset();
  EXPECT_FALSE(set->peer()->alive());
  EXPECT_TRUE(set->peer()->path()->failure());
  EXPECT_EQ(set->blocks()->block_count(), 6u);
}

// Bytes, over the real transport: what the reader pulls is what the owner has.
TEST(RemoteBlockSetTest, BlocksComeOverTheLoopbackTransport) {
  storage::SharedAllocator shared;
  storage::SystemAllocator local;
  AgentOptions options;
  options.name = "owner";
  const auto owner = make_agent(options);
  options.name = "reader";
  const auto reader = make_agent(options);
  const auto theirs = scaled_set(shared);
  BlockImage image(*theirs, 0);
  image.number(*theirs);
  image.store(*theirs);
  RemoteOffer offer = owner->export_blockset(theirs, kNames).value();
  const auto seen = reader->exchange(reader->connect(owner->address()).value()).value().at(0);
  const auto mine = scaled_set(local);
  const std::vector<std::uint32_t> blocks = {0, 1, 2, 3, 4, 5};
  auto pull = plan(seen->blocks(), blocks, mine, blocks);
  ASSERT_TRUE(pull) << pull.error();
  const auto done = reader->executor().submit({.plan = *std::move(pull)}).value().wait();
  ASSERT_TRUE(done) << done.error();
  EXPECT_TRUE(BlockImage::of(*mine) == image);
  // It is offered for reading, unless its owner says otherwise.
  refused_with(plan(mine, blocks, seen->blocks(), blocks), ErrorCode::kInvalidArgument,
               "its owner offers it for reading");
  const auto target = scaled_set(shared);
  RemoteOffer landing = owner->export_blockset(target, kNames, 0, storage::AccessMode::kReadWrite).value();
  const auto sets = reader->exchange(seen->peer()).value();
  ASSERT_THAT(sets, SizeIs(2));
  for (const auto& set : sets) {
    if (set->id() == seen->id()) continue;
    const auto put =
        reader->executor().submit({.plan = plan(mine, blocks, set->blocks(), blocks).value()}).value();
    ASSERT_TRUE(put.wait());
    EXPECT_TRUE(BlockImage::of(*target) == image);
  }
  // After the peer's death nothing moves.
  seen->peer()->close(make_error(ErrorCode::kCancelled, "enough"));
  auto late = plan(seen->blocks(), blocks, mine, blocks);
  ASSERT_TRUE(late) << late.error();
  const auto refused = reader->executor().submit({.plan = *std::move(late)});
  refused_with(refused ? refused->wait() : TransferResult(refused.error()), ErrorCode::kUnavailable,
               "enough");
}

}  // namespace
}  // namespace ashlar::transfer
