// Many blocks as one object: MutableBlocks, CompleteBlocks and ImmutableBlocks. A batch crosses into the
// library once.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "ashlar/tokens/token_sequence.h"
#include "guards.h"
#include "module.h"
#include "token_sequences.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

using block::BlockList;
using block::CompleteBlock;
using block::ImmutableBlock;
using block::KvReady;
using block::MutableBlock;
using tokens::SequenceHash;

template <class Guard>
using ListObject = GuardObject<BlockList<Guard>>;

template <class Guard>
nb::class_<ListObject<Guard>> bind_list(nb::module_& module, const char* name, const char* doc) {
  using Object = ListObject<Guard>;
  nb::class_<Object> type(module, name, doc);
  bind_guard(type);
  type.def(
          "__len__", [](Object& self) { return self.get().size(); }, "How many blocks.")
      .def_prop_ro(
          "block_ids",
          [](Object& self) {
            std::vector<std::uint32_t> ids;
            ids.reserve(self.get().size());
            for (const Guard& guard : self.get()) ids.push_back(guard.block_id().value());
            return numpy_of(std::move(ids));
          },
          "Their indexes in the pool, as a new array of uint32.", nb::rv_policy::automatic)
      .def(
          "pop",
          [](Object& self) {
            if (self.get().empty()) throw nb::index_error("pop from an empty list of blocks");
            return GuardObject<Guard>(self.manager(), self.get().take_back());
          },
          "Removes and returns the last block.")
      .def(
          "append",
          [](Object& self, GuardObject<Guard>& block) {
            if (self.manager() != block.manager()) {
              raise(Error(ErrorCode::kInvalidArgument, "the block belongs to another manager"));
            }
            self.get().reserve(self.get().size() + 1);
            self.get().push_back(std::move(block.get()));
            block.release();
          },
          nb::arg("block"), "Takes the block over.");
  return type;
}

template <class Guard>
HashList names_of(ListObject<Guard>& self) {
  std::vector<SequenceHash> names;
  names.reserve(self.get().size());
  for (const Guard& guard : self.get()) names.push_back(guard.sequence_hash());
  return HashList(std::move(names));
}

[[noreturn]] void refuse_count(std::size_t names, std::size_t blocks) {
  raise(make_error(ErrorCode::kInvalidArgument, "%zu names for %zu blocks; there must be one for each", names,
                   blocks));
}

CompleteListObject stage_all(MutableListObject& self, const HashesLike& like,
                             const std::optional<SequenceHash>& parent,
                             const std::optional<SequenceHash>& root, std::uint32_t metadata) {
  const HashArray names(like);
  if (names.size() != self.get().size()) refuse_count(names.size(), self.get().size());
  BlockList<CompleteBlock<G1>> staged;
  staged.reserve(names.size());
  ManagerPtr manager = self.manager();
  BlockList<MutableBlock<G1>> blocks = std::move(self.get());
  self.release();
  block::BlockIdentity identity{.hash = {}, .parent = parent, .root = root};
  identity.metadata = metadata;
  without_gil_if(names.size() > kLongList, [&] {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const SequenceHash& name = names.span()[i];
      if (i != 0) {
        const SequenceHash& before = names.span()[i - 1];
        identity.parent = before.can_precede(name) ? std::optional(before) : std::nullopt;
        if (!identity.parent) identity.root = std::nullopt;
      }
      if (name.position() == 0) identity.root = name;
      identity.hash = name;
      staged.push_back(std::move(blocks[i]).stage(identity, KvReady::asserted_by_caller()));
    }
  });
  return CompleteListObject(std::move(manager), std::move(staged));
}

CompleteListObject complete_all(MutableListObject& self, const TokenSequenceObject& given,
                                std::size_t first) {
  const std::size_t count = self.get().size();
  const tokens::TokenSequence& sequence = given.get();
  const std::size_t full = sequence.blocks().size();
  if (first > full || full - first < count) {
    raise(make_error(ErrorCode::kInvalidArgument,
                     "%zu blocks from block %zu on of a sequence that has %zu full ones", count, first,
                     full));
  }
  if (sequence.block_size() != self.manager()->block_size()) {
    raise(make_error(ErrorCode::kInvalidArgument, "a sequence in blocks of %u tokens; the manager has %u",
                     sequence.block_size(), self.manager()->block_size()));
  }
  const std::span<const tokens::TokenBlock> all = sequence.blocks().subspan(first, count);
  // A copy for the work without the GIL: another thread may change the sequence meanwhile.
  std::vector<tokens::TokenBlock> kept;
  if (count > kLongList) kept.assign(all.begin(), all.end());
  BlockList<CompleteBlock<G1>> completed;
  completed.reserve(count);
  ManagerPtr manager = self.manager();
  BlockList<MutableBlock<G1>> blocks = std::move(self.get());
  self.release();
  const auto complete = [&](std::span<const tokens::TokenBlock> with) -> Result<void> {
    for (std::size_t i = 0; i < count; ++i) {
      auto done = std::move(blocks[i]).complete(with[i], KvReady::asserted_by_caller());
      if (!done) return done.error().error;
      completed.push_back(std::move(done).value());
    }
    return {};
  };
  // Its size is the one reason to refuse a block, and was compared above.
  value_or_raise(kept.empty() ? complete(all) : without_gil([&] { return complete(kept); }));
  return CompleteListObject(std::move(manager), std::move(completed));
}

ImmutableListObject share_slice(ImmutableListObject& self, Py_ssize_t start, std::size_t length,
                                Py_ssize_t step) {
  BlockList<ImmutableBlock<G1>> shared;
  shared.reserve(length);
  for (std::size_t i = 0; i < length; ++i) {
    shared.push_back(
        copy_of(self.get()[static_cast<std::size_t>(start + static_cast<Py_ssize_t>(i) * step)]));
  }
  return ImmutableListObject(self.manager(), std::move(shared));
}

}  // namespace

void bind_block_lists(nb::module_& module) {
  bind_list<MutableBlock<G1>>(module, "MutableBlocks", R"(Empty blocks that the caller owns.

Made by BlockManager.allocate(). stage() and complete() lead to CompleteBlocks, for all of them or none.)")
      .def("stage", &stage_all, nb::arg("hashes"), nb::kw_only(), nb::arg("parent") = nb::none(),
           nb::arg("root") = nb::none(), nb::arg("metadata") = 0,
           R"(Completes all by name, one name for each; names and KV are trusted.

A name that can follow the one before it is its child. `parent` is the block before the first, `root` the
first of its sequence.)")
      .def("complete", &complete_all, nb::arg("sequence"), nb::arg("first") = 0,
           "Completes all with the full blocks of a sequence, from its block `first` on.");

  bind_list<CompleteBlock<G1>>(module, "CompleteBlocks", R"(Full blocks that no one else can find yet.

BlockManager.register() makes them ImmutableBlocks.)")
      .def_prop_ro("sequence_hashes", &names_of<CompleteBlock<G1>>, "Their names.");

  bind_list<ImmutableBlock<G1>>(module, "ImmutableBlocks", R"(Shared references to registered blocks.

Releasing them leaves the blocks cached, the end of the list to be evicted first.)")
      .def_prop_ro("sequence_hashes", &names_of<ImmutableBlock<G1>>, "Their names.")
      .def(
          "__getitem__",
          [](ImmutableListObject& self, Py_ssize_t index) {
            const std::size_t at = index_in(index, self.get().size());
            return ImmutableObject(self.manager(), copy_of(self.get()[at]));
          },
          nb::arg("index"), "One more reference to a block of the list.")
      .def(
          "__getitem__",
          [](ImmutableListObject& self, const nb::slice& slice) {
            const auto [start, step, length] = range_of(slice, [&] { return self.get().size(); });
            return share_slice(self, start, length, step);
          },
          nb::arg("slice"), "More references to a part of the list.")
      .def(
          "copy", [](ImmutableListObject& self) { return share_slice(self, 0, self.get().size(), 1); },
          "One more reference to each.")
      .def(
          "truncate", [](ImmutableListObject& self, std::size_t length) { self.get().truncate(length); },
          nb::arg("length"), "Releases the blocks after the first `length`.");
}

}  // namespace ashlar::python
