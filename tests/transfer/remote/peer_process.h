// PeerProcess: another process with a transport and block sets, for tests of transports. It does as it is
// told: shares sets, fills them, shows what they hold.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/storage/allocator.h"
#include "ashlar/storage/remote_storage.h"
#include "ashlar/transfer/remote_transport.h"
#include "base/byte_io.h"
#include "base/table_seed.h"
#include "support/block_images.h"
#include "support/child_process.h"
#include "transfer/executor_conformance.h"

namespace ashlar::transfer {

struct TransportCase {
  std::string name;
  // Null where the machine lacks what it needs.
  std::function<std::shared_ptr<RemoteTransport>(const ExecutorSettings&)> transport;
  // The memory that peers share.
  std::function<std::unique_ptr<storage::Allocator>()> memory;
  // Whether open() refuses every key that was changed, not only those that make no sense.
  bool proves_keys = true;
  // Every how many layouts of this side are paired with one of the other; more where a case differs from
  // another only in how bytes reach their owner.
  std::size_t layout_step = 1;
  // A key for writing, made of one for reading, as a hostile peer would make it.
  std::function<std::vector<std::byte>(std::span<const std::byte>)> forge = {};
  // How a peer writes and reads an image where the host does not reach its memory.
  std::function<void(const BlockSet&, BlockImage&)> store = {};
  std::function<void(const BlockSet&, BlockImage&)> load = {};
};

inline void PrintTo(const TransportCase& one, std::ostream* out) {
  *out << one.name;
}

// The program that includes this names its cases: a child finds its own by the name.
std::vector<TransportCase> transport_cases();

// The sets that a peer can share, by number: every small layout, and these.
enum PeerShape : std::uint32_t { kLargeShape = 1000, kScatteredShape, kScaledShape };

inline std::vector<PlaneShape> peer_shape(std::uint32_t number) {
  const auto whole = [](const layout::LayoutConfig& config, const layout::AxisOrder& order) {
    return PlaneShape::whole(layout::Layout::create(config, order).value());
  };
  layout::LayoutConfig config = small_shape(6, 3, 4);
  switch (number) {
    case kLargeShape:
      config = small_shape(32, 3, 4);
      config.head_dim = 1024;
      config.inner_dim = 4 * 1024;
      return {whole(config, layout::order::kFullyContiguousNhd)};
    case kScatteredShape:
      config = small_shape(600, 2, 4);
      config.head_dim = 64;
      config.inner_dim = 256;
      return {whole(config, layout::order::kUniversalTp)};
    case kScaledShape: {
      config.dtype = layout::Dtype::kF8E4M3;
      layout::LayoutConfig scales = config;
      scales.dtype = layout::Dtype::kF32;
      scales.head_dim = 1;
      scales.inner_dim = 4;
      return {whole(config, layout::order::kBlockFirstHnd), whole(scales, layout::order::kBlockFirstHnd)};
    }
    default:
      return {PlaneShape::whole(every_layout(config).at(number))};
  }
}

// What a peer is told: a letter, the number of a set, and a number.
enum class PeerOrder : std::uint8_t { kShare, kShareForReading, kFill, kShow, kUnregister, kDrop };

// The role of the child.
inline int play_peer(const testing::TestChannel& channel, const std::vector<std::string>& words) {
  const std::vector<TransportCase> cases = transport_cases();
  const auto found = std::ranges::find(cases, words.at(0), &TransportCase::name);
  if (found == cases.end()) return 1;
  const std::shared_ptr<RemoteTransport> transport = found->transport({});
  const std::unique_ptr<storage::Allocator> memory = found->memory();
  struct Shared {
    std::shared_ptr<const BlockSet> set;
    std::vector<std::unique_ptr<MemoryRegistration>> registrations;
  };
  std::map<std::uint32_t, Shared> sets;
  ByteWriter hello;
  hello.put(random_word() | 1);
  hello.put_bytes(transport->address());
  channel.send(hello.bytes());
  while (const auto message = channel.receive()) {
    ByteReader in(*message);
    const auto order = static_cast<PeerOrder>(in.get<std::uint8_t>());
    const auto number = in.get<std::uint32_t>();
    const auto value = in.get<std::uint64_t>();
    ByteWriter out;
    Shared& shared = sets[number];
    switch (order) {
      case PeerOrder::kShare:
      case PeerOrder::kShareForReading: {
        const auto mode =
            order == PeerOrder::kShare ? storage::AccessMode::kReadWrite : storage::AccessMode::kRead;
        shared.set = BlockSet::allocate(peer_shape(static_cast<std::uint32_t>(value)), *memory).value();
        for (const Plane& plane : shared.set->planes())
          for (const RegionMemory& region : plane.regions) {
            shared.registrations.push_back(transport->register_memory(region.storage, mode).value());
            const std::span<const std::byte> key = shared.registrations.back()->key();
            out.put(static_cast<std::uint8_t>(region.storage->kind()));
            out.put(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(region.storage->address())));
            out.put(region.storage->size());
            out.put(region.storage->device());
            out.put(static_cast<std::uint32_t>(key.size()));
            out.put_bytes(key);
          }
        break;
      }
      case PeerOrder::kFill: {
        BlockImage image(*shared.set, 0);
        image.scramble(value);
        found->store ? found->store(*shared.set, image) : image.store(*shared.set);
        break;
      }
      case PeerOrder::kShow: {
        BlockImage image(*shared.set, 0);
        found->load ? found->load(*shared.set, image) : void(image = BlockImage::of(*shared.set));
        image.each_region(*shared.set, [&](const RegionMemory&, BlockImage::Bytes& bytes) {
          out.put_bytes(std::as_bytes(std::span(bytes)));
        });
        break;
      }
      case PeerOrder::kUnregister:
        shared.registrations.clear();
        break;
      case PeerOrder::kDrop:
        sets.erase(number);
        break;
    }
    if (!channel.send(out.bytes())) break;
  }
  return 0;
}

// A set of the peer, as this process knows it.
struct PeerSet {
  std::uint32_t number = 0;
  std::vector<PlaneShape> shapes;
  std::vector<storage::RemoteMemory> memory;  // of all regions, plane by plane
};

class PeerProcess {
 public:
  explicit PeerProcess(const std::string& name) : child_("remote_peer", {name}) {
    const auto hello = child_.channel().receive();
    EXPECT_TRUE(hello) << "the peer did not start";
    if (!hello) return;
    ByteReader in(*hello);
    identity_ = {.agent = 7, .incarnation = in.get<std::uint64_t>()};
    const std::span<const std::byte> address = in.get_bytes(in.left());
    address_.assign(address.begin(), address.end());
  }

  const AgentIdentity& identity() const noexcept { return identity_; }
  const std::vector<std::byte>& address() const noexcept { return address_; }
  testing::ChildProcess& process() noexcept { return child_; }
  void kill() { child_.kill(); }

  PeerSet share(std::uint32_t shape, storage::AccessMode mode = storage::AccessMode::kReadWrite) {
    PeerSet set{.number = next_++, .shapes = peer_shape(shape), .memory = {}};
    const std::vector<std::byte> answer =
        ask(mode == storage::AccessMode::kRead ? PeerOrder::kShareForReading : PeerOrder::kShare, set.number,
            shape);
    for (ByteReader in(answer); in.left() > 0;) {
      storage::RemoteMemory one{.kind = static_cast<StorageKind>(in.get<std::uint8_t>()),
                                .address = in.get<std::uint64_t>(),
                                .bytes = in.get<std::uint64_t>(),
                                .device = in.get<std::int32_t>(),
                                .agent = identity_.agent,
                                .incarnation = identity_.incarnation};
      const std::span<const std::byte> key = in.get_bytes(in.get<std::uint32_t>());
      one.key.assign(key.begin(), key.end());
      one.mode = mode;
      set.memory.push_back(std::move(one));
    }
    return set;
  }
  void fill(const PeerSet& set, std::uint64_t seed) { ask(PeerOrder::kFill, set.number, seed); }
  void unregister(const PeerSet& set) { ask(PeerOrder::kUnregister, set.number); }
  void drop(const PeerSet& set) { ask(PeerOrder::kDrop, set.number); }
  // What the peer's memory holds now; `remote` has the shape.
  BlockImage show(const PeerSet& set, const BlockSet& remote) {
    const std::vector<std::byte> answer = ask(PeerOrder::kShow, set.number);
    ByteReader in(answer);
    BlockImage image(remote, 0);
    image.each_region(remote, [&](const RegionMemory&, BlockImage::Bytes& bytes) {
      const std::span<const std::byte> part = in.get_bytes(bytes.size());
      std::ranges::copy(part, std::as_writable_bytes(std::span(bytes)).begin());
    });
    EXPECT_TRUE(in.ok() && in.left() == 0);
    return image;
  }

  // The set over remote storage.
  static Result<std::shared_ptr<const BlockSet>> open(RemotePath& path, const PeerSet& set) {
    std::vector<Plane> planes;
    std::size_t next = 0;
    for (const PlaneShape& shape : set.shapes) {
      Plane plane{shape.layout, shape.shard, {}};
      for (std::uint32_t i = 0; i < shape.layout.region_count(); ++i) {
        ASHLAR_TRY(auto storage, path.open(set.memory.at(next++)));
        plane.regions.push_back({std::move(storage), 0});
      }
      planes.push_back(std::move(plane));
    }
    return BlockSet::create(std::move(planes));
  }

 private:
  std::vector<std::byte> ask(PeerOrder order, std::uint32_t set, std::uint64_t value = 0) {
    ByteWriter out;
    out.put(static_cast<std::uint8_t>(order));
    out.put(set);
    out.put(value);
    EXPECT_TRUE(child_.channel().send(out.bytes()));
    const auto answer = child_.channel().receive();
    EXPECT_TRUE(answer) << "the peer does not answer";
    return answer.value_or(std::vector<std::byte>());
  }

  testing::ChildProcess child_;
  AgentIdentity identity_;
  std::vector<std::byte> address_;
  std::uint32_t next_ = 0;
};

}  // namespace ashlar::transfer
