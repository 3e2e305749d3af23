// Tokens cut into blocks as they arrive: MultimodalRun, TokenBlock and TokenSequence.
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "arrays.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/token_sequence.h"
#include "errors.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {

using tokens::MultimodalRun;
using tokens::SequenceHasher;
using tokens::TokenBlock;
using tokens::TokenSequence;

void bind_token_sequence(nb::module_& module) {
  nb::class_<MultimodalRun>(module, "MultimodalRun", R"(A run of placeholder tokens that stands for one item.

An image, a sound or the like; the placeholder ids do not enter the hash, the item's hash does.)")
      .def(nb::init<std::uint64_t, std::uint64_t, std::uint32_t>(), nb::arg("mm_hash"), nb::arg("offset"),
           nb::arg("length"), "`offset` counts from the start of the sequence, `length` is in tokens.")
      .def_ro("mm_hash", &MultimodalRun::mm_hash, "Identifies the item's content.")
      .def_ro("offset", &MultimodalRun::offset, "The first token, from the start of the sequence.")
      .def_ro("length", &MultimodalRun::length, "In tokens.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));

  nb::class_<TokenBlock>(module, "TokenBlock", R"(A full block of tokens with its hashes.

Made by TokenSequence, so its hashes always belong to its tokens.)")
      .def_prop_ro(
          "tokens", [](const TokenBlock& block) { return numpy_of_ids(block.tokens()); },
          "As a new array of uint32.", nb::rv_policy::automatic)
      .def_prop_ro("block_size", &TokenBlock::block_size, "In tokens.")
      .def_prop_ro(
          "local_hash", [](const TokenBlock& block) { return block.local_hash().value(); },
          "Of these tokens alone.")
      .def_prop_ro("sequence_hash", &TokenBlock::sequence_hash, nb::rv_policy::copy, "Its name.")
      .def_prop_ro("prefix_digest", &TokenBlock::prefix_digest, nb::rv_policy::copy,
                   "Of all tokens up to its end.")
      .def_prop_ro("position", &TokenBlock::position, "Its index in the sequence.")
      .def_prop_ro("parent", &TokenBlock::parent, "The block before it; None at position 0.")
      .def_prop_ro("root", &TokenBlock::root, nb::rv_policy::copy, "The first block of the sequence.");

  nb::class_<TokenSequence>(module, "TokenSequence", R"(Tokens cut into blocks and hashed as they arrive.

A call that fails changes nothing.)")
      .def(
          "__init__",
          [](TokenSequence* self, const TokensLike& like, std::uint32_t block_size,
             const std::optional<SequenceHasher>& hasher, const std::vector<MultimodalRun>& runs) {
            const TokenArray tokens(like);
            new (self) TokenSequence(value_or_raise(
                TokenSequence::create(tokens.span(), block_size, hasher.value_or(SequenceHasher()), runs)));
          },
          nb::arg("tokens"), nb::arg("block_size") = 16, nb::arg("hasher") = nb::none(),
          nb::arg("runs") = nb::list(),
          nb::sig(
              "def __init__(self, tokens: numpy.typing.ArrayLike, block_size: int = 16, "
              "hasher: SequenceHasher | None = None, runs: collections.abc.Sequence[MultimodalRun] = ...) "
              "-> None"),
          "`runs`: the multimodal items among the tokens, by offset, without overlap.")
      .def(
          "append",
          [](TokenSequence& self, std::uint32_t token) {
            return value_or_raise(self.append(tokens::Token(token)));
          },
          nb::arg("token"), "Adds one token. Returns the index of the block that it completed, or None.")
      .def(
          "extend",
          [](TokenSequence& self, const TokensLike& like, const std::vector<MultimodalRun>& runs) {
            const TokenArray tokens(like);
            const tokens::BlockRange range = value_or_raise(self.extend(tokens.span(), runs));
            return std::pair(range.begin, range.end);
          },
          nb::arg("tokens"), nb::arg("runs") = nb::list(),
          nb::sig("def extend(self, tokens: numpy.typing.ArrayLike, "
                  "runs: collections.abc.Sequence[MultimodalRun] = ...) -> tuple[int, int]"),
          "Adds tokens. Returns the blocks that were completed, as (first, end).")
      .def(
          "truncate", [](TokenSequence& self, std::size_t length) { value_or_raise(self.truncate(length)); },
          nb::arg("length"), "Keeps the first `length` tokens.")
      .def(
          "pop",
          [](TokenSequence& self) -> std::optional<std::uint32_t> {
            const auto token = value_or_raise(self.pop());
            if (!token) return std::nullopt;
            return token->value();
          },
          "Removes the last token and returns it; None when there is none.")
      .def("reset", &TokenSequence::reset, "Removes all tokens.")
      .def("__len__", &TokenSequence::size, "In tokens.")
      .def_prop_ro("block_size", &TokenSequence::block_size, "In tokens.")
      .def_prop_ro("hasher", &TokenSequence::hasher, nb::rv_policy::copy, "What names its blocks.")
      .def_prop_ro(
          "tokens",
          [](const TokenSequence& self) {
            const std::vector<tokens::Token> all = self.tokens();
            return numpy_of_ids(std::span(all));
          },
          "As a new array of uint32.", nb::rv_policy::automatic)
      .def_prop_ro(
          "block_count", [](const TokenSequence& self) { return self.blocks().size(); }, "Full blocks.")
      .def(
          "block",
          [](const TokenSequence& self, Py_ssize_t index) {
            return self.blocks()[index_in(index, self.blocks().size())];
          },
          nb::arg("index"), "A copy of one full block.")
      .def_prop_ro(
          "sequence_hashes", [](const TokenSequence& self) { return HashList(self.sequence_hashes()); },
          "The names of the full blocks.");
}

}  // namespace ashlar::python
