// OtherShards: objects that ranks of another division of the model wrote, and how a block of this rank is
// made from them.
//
// A rank of four takes its heads out of one object of two ranks; a rank of two puts two objects of four ranks
// together. In general a recipe divides this rank's layers and heads among the objects that are present, so
// that every head of every layer comes from exactly one of them: largest parts first, then in the order of
// the options. An object counts only if its header agrees with the request and its checksum with all of its
// bytes, also with those that are not copied.
//
// Blocks are in canonical form here, as in objects (volume_object.h).
//
// Thread safety: thread-safe.
// Complexity:    a recipe is computed once for each set of present objects; take() is one pass over the
//                object and one over the part that is copied.
// Invariant:     a recipe writes every byte of a block exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/layout/shard.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/copy_plan.h"
#include "tiers/volume/volume_object.h"

namespace ashlar::tiers {

class OtherShards {
 public:
  struct Copy {
    std::size_t plane = 0;
    transfer::CopyPlan plan;
  };
  // What is copied out of the object of one source.
  struct Part {
    std::size_t source = 0;
    std::vector<std::vector<Copy>> copies;  // by shape of the source
  };
  struct Recipe {
    std::vector<Part> parts;
  };

  // `own` describes the objects of this rank, whose blocks are like those of `blocks`. Shards that have
  // nothing in common with this rank's, and its own, are left out. Null when none is left. Errors:
  // kInvalidArgument: a shard without layers or heads, or larger than a layout can be; kUnsupported: more
  // than 8 planes of scales, where this rank has one head and the other several.
  static Result<std::shared_ptr<const OtherShards>> create(const transfer::BlockSet& blocks,
                                                           const VolumeObject& own,
                                                           std::span<const layout::Shard> shards);

  // Sources are numbered from 0.
  std::size_t size() const noexcept { return sources_.size(); }
  const layout::Shard& shard(std::size_t source) const { return sources_[source].shard; }
  std::string key(std::size_t source, const tokens::SequenceHash& hash) const;
  // Bytes that an object may have behind its header. Several, where a plane with one head at this rank may
  // have one or as many as the first plane at the source.
  std::span<const std::uint64_t> payload_bytes(std::size_t source) const { return sources_[source].sizes; }

  // How to make a block from those sources whose object is present. Errors: kNotFound: a head of a layer that
  // no present object has; kUnsupported: content that cannot be divided like this.
  Result<std::shared_ptr<const Recipe>> recipe(const std::vector<bool>& present) const;

  // Checks an object, header and payload, and copies its part into a block of this rank. Returns its header.
  // Errors: kCorruption: damaged, or another block's; kUnsupported: of another version; kInvalidArgument: of
  // another shape.
  Result<VolumeObject> take(const Part& part, const tokens::SequenceHash& hash, std::span<std::byte> object,
                            std::span<std::byte> block) const;

 private:
  // A block in canonical form: one after the other, the planes.
  struct Shape {
    VolumeObject object;  // without hash and checksum
    std::vector<transfer::PlaneShape> planes;
    std::vector<std::uint64_t> offsets;  // of the planes
  };
  struct Source {
    layout::Shard shard;
    std::vector<Shape> shapes;
    std::vector<std::uint64_t> sizes;
  };

  OtherShards(Shape own, std::vector<Source> sources) : own_(std::move(own)), sources_(std::move(sources)) {}
  static Result<Shape> shape_of(const VolumeObject& like, const std::vector<layout::LayoutConfig>& configs,
                                const layout::Shard& shard);
  // The planes over memory of their own, or over `memory`.
  static Result<std::shared_ptr<const transfer::BlockSet>> set_of(const Shape& shape,
                                                                  std::span<std::byte> memory = {});
  Result<std::shared_ptr<const Recipe>> make_recipe(const std::vector<bool>& present) const;
  Result<std::vector<Copy>> copies_from(const Shape& shape,
                                        std::span<const transfer::ShardSource> rectangles) const;

  const Shape own_;
  const std::vector<Source> sources_;
  mutable Mutex mu_;
  mutable std::map<std::vector<bool>, Result<std::shared_ptr<const Recipe>>> recipes_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
