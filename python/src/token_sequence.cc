// Tokens cut into blocks as they arrive: MultimodalRun, TokenBlock and TokenSequence.
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>

#include "arrays.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/token_sequence.h"
#include "errors.h"
#include "gil.h"
#include "module.h"
#include "token_sequences.h"

namespace nb = nanobind;

namespace ashlar::python {

using tokens::MultimodalRun;
using tokens::SequenceHasher;
using tokens::TokenBlock;
using tokens::TokenSequence;

namespace {

// Tokens of a Python object; many are worth giving up the GIL, and are then a copy: another thread may write
// to the array meanwhile.
struct OwnTokens {
  explicit OwnTokens(nb::handle like) : array(like), large(array.size() >= kManyTokens) {
    if (large) copy = array.take();
    span = large ? std::span<const tokens::Token>(copy) : array.span();
  }
  TokenArray array;
  const bool large;
  std::vector<tokens::Token> copy;
  std::span<const tokens::Token> span;
};

}  // namespace

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

  nb::class_<TokenSequenceObject>(module, "TokenSequence",
                                  R"(Tokens cut into blocks and hashed as they arrive.

A call that fails changes nothing. For one thread at a time: a call while another thread extends it by many
tokens is refused.)")
      .def(
          "__init__",
          [](TokenSequenceObject* self, const TokensLike& like, std::uint32_t block_size,
             const std::optional<SequenceHasher>& hasher, const std::vector<MultimodalRun>& runs) {
            const OwnTokens tokens(like);
            new (self) TokenSequenceObject(value_or_raise(without_gil_if(tokens.large, [&] {
              return TokenSequence::create(tokens.span, block_size, hasher.value_or(SequenceHasher()), runs);
            })));
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
          [](TokenSequenceObject& self, std::uint32_t token) {
            return value_or_raise(self.get().append(tokens::Token(token)));
          },
          nb::arg("token"), "Adds one token. Returns the index of the block that it completed, or None.")
      .def(
          "extend",
          [](TokenSequenceObject& self, const TokensLike& like, const std::vector<MultimodalRun>& runs) {
            const OwnTokens tokens(like);
            const tokens::BlockRange range = value_or_raise(
                self.run(tokens.large, [&](TokenSequence& its) { return its.extend(tokens.span, runs); }));
            return std::pair(range.begin, range.end);
          },
          nb::arg("tokens"), nb::arg("runs") = nb::list(),
          nb::sig("def extend(self, tokens: numpy.typing.ArrayLike, "
                  "runs: collections.abc.Sequence[MultimodalRun] = ...) -> tuple[int, int]"),
          "Adds tokens. Returns the blocks that were completed, as (first, end).")
      .def(
          "truncate",
          [](TokenSequenceObject& self, std::size_t length) { value_or_raise(self.get().truncate(length)); },
          nb::arg("length"), "Keeps the first `length` tokens.")
      .def(
          "pop",
          [](TokenSequenceObject& self) -> std::optional<std::uint32_t> {
            const auto token = value_or_raise(self.get().pop());
            if (!token) return std::nullopt;
            return token->value();
          },
          "Removes the last token and returns it; None when there is none.")
      .def(
          "reset", [](TokenSequenceObject& self) { self.get().reset(); }, "Removes all tokens.")
      .def(
          "__len__", [](const TokenSequenceObject& self) { return self.get().size(); }, "In tokens.")
      .def_prop_ro(
          "block_size", [](const TokenSequenceObject& self) { return self.get().block_size(); }, "In tokens.")
      .def_prop_ro(
          "hasher", [](const TokenSequenceObject& self) { return self.get().hasher(); },
          "What names its blocks.")
      .def_prop_ro(
          "tokens",
          [](const TokenSequenceObject& self) {
            const std::vector<tokens::Token> all = self.get().tokens();
            return numpy_of_ids(std::span(all));
          },
          "As a new array of uint32.", nb::rv_policy::automatic)
      .def_prop_ro(
          "block_count", [](const TokenSequenceObject& self) { return self.get().blocks().size(); },
          "Full blocks.")
      .def(
          "block",
          [](const TokenSequenceObject& self, Py_ssize_t index) {
            const std::span<const TokenBlock> blocks = self.get().blocks();
            return blocks[index_in(index, blocks.size())];
          },
          nb::arg("index"), "A copy of one full block.")
      .def_prop_ro(
          "sequence_hashes",
          [](const TokenSequenceObject& self) { return HashList(self.get().sequence_hashes()); },
          "The names of the full blocks.");
}

}  // namespace ashlar::python
