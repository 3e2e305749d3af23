// Tokens and hashing: Salt, HashScheme, SequenceHasher and the names that it gives.
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <array>
#include <string>

#include "arrays.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "errors.h"
#include "gil.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

using tokens::BlockBefore;
using tokens::BlockHashes;
using tokens::HashScheme;
using tokens::PrefixDigest;
using tokens::PrefixKey;
using tokens::Salt;
using tokens::SequenceHash;
using tokens::SequenceHasher;

template <std::size_t kSize>
std::array<std::uint8_t, kSize> array_of(nb::handle object, const char* what) {
  const std::vector<std::uint8_t> bytes = bytes_of(object, kSize, what);
  std::array<std::uint8_t, kSize> array;
  std::copy_n(bytes.begin(), kSize, array.begin());
  return array;
}

template <class Bytes>
nb::bytes to_python(const Bytes& bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

// The hashes of several blocks, one array per kind.
struct HashedBlocks {
  std::vector<BlockHashes> blocks;
  // Made when they are first asked for; never changed afterwards, because arrays show them.
  std::optional<HashList> names = {};
  std::vector<std::uint64_t> locals = {};
  std::vector<PrefixDigest> prefixes = {};
};

HashedBlocks hash_blocks(const SequenceHasher& hasher, const TokensLike& like, std::uint32_t block_size,
                         const std::optional<SequenceHash>& parent, const PrefixDigest& parent_prefix) {
  const TokenArray tokens(like);
  value_or_raise(tokens::validate_block_size(block_size));
  std::vector<BlockHashes> hashes(tokens.size() / block_size);
  value_or_raise(without_gil_if(tokens.size() >= kManyTokens, [&] {
    return hasher.hash_blocks(BlockBefore(parent, parent_prefix), tokens.span(), block_size, hashes);
  }));
  return {std::move(hashes)};
}

HashList names_of_blocks(HashedBlocks& hashes) {
  if (!hashes.names) {
    std::vector<SequenceHash> names(hashes.blocks.size());
    std::ranges::transform(hashes.blocks, names.begin(), &BlockHashes::sequence);
    hashes.names.emplace(std::move(names));
  }
  return *hashes.names;
}

nb::ndarray<nb::numpy, const std::uint64_t, nb::ndim<1>> local_array(nb::handle_t<HashedBlocks> self) {
  HashedBlocks& hashes = nb::cast<HashedBlocks&>(self);
  if (hashes.locals.empty()) {
    hashes.locals.resize(hashes.blocks.size());
    std::ranges::transform(hashes.blocks, hashes.locals.begin(),
                           [](const BlockHashes& block) { return block.local.value(); });
  }
  return {hashes.locals.data(), {hashes.locals.size()}, self};
}

nb::ndarray<nb::numpy, const std::uint64_t, nb::shape<-1, 2>> prefix_array(nb::handle_t<HashedBlocks> self) {
  static_assert(sizeof(PrefixDigest) == 16);
  HashedBlocks& hashes = nb::cast<HashedBlocks&>(self);
  if (hashes.prefixes.empty()) {
    hashes.prefixes.resize(hashes.blocks.size());
    std::ranges::transform(hashes.blocks, hashes.prefixes.begin(), &BlockHashes::prefix);
  }
  return {reinterpret_cast<const std::uint64_t*>(hashes.prefixes.data()), {hashes.prefixes.size(), 2}, self};
}

void bind_schemes(nb::module_& module) {
  nb::class_<Salt>(module, "Salt", R"(What separates the names of equal tokens: LoRA adapter and tenant.

An empty string counts as absent.)")
      .def(
          "__init__",
          [](Salt* self, const std::string& lora, const std::string& tenant) {
            new (self) Salt(lora, tenant);
          },
          nb::arg("lora") = "", nb::arg("tenant") = "", "Both may be empty.")
      .def_prop_ro("lora", &Salt::lora, "The name of the LoRA adapter.")
      .def_prop_ro("tenant", &Salt::tenant, "The tenant's cache salt.")
      .def_prop_ro("seed", &Salt::seed, "The seed of unkeyed hashes; 1337 for the empty salt.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def(
          "__hash__", [](const Salt& salt) { return std::hash<std::uint64_t>()(salt.seed()); },
          "Equal salts have equal hashes.")
      .def(
          "__repr__",
          [](const Salt& salt) {
            return nb::str("Salt(lora={!r}, tenant={!r})").format(salt.lora(), salt.tenant());
          },
          "For people.");

  nb::class_<HashScheme>(module, "HashScheme",
                         R"(How tokens become names: xxh3_chain, xxh64_int64 or keyed128.

keyed128 takes a secret of 16 bytes; without it names can neither be predicted nor be made to collide.)")
      .def(
          "__init__",
          [](HashScheme* self, const std::string& name, const nb::object& key) {
            std::vector<std::uint8_t> bytes;
            if (!key.is_none()) bytes = bytes_of(key, HashScheme::kKeySize, "the key of a hash scheme");
            new (self) HashScheme(value_or_raise(HashScheme::by_name(name, bytes)));
          },
          nb::arg("name") = "xxh3_chain", nb::arg("key") = nb::none(),
          nb::sig("def __init__(self, name: str = 'xxh3_chain', key: bytes | None = None) -> None"),
          "The scheme by its name; `key` is for keyed128 only.")
      .def_prop_ro("name", &HashScheme::name, "xxh3_chain, xxh64_int64 or keyed128.")
      .def_prop_ro("fingerprint", &HashScheme::fingerprint,
                   "Of the rule and its parameters; peers whose fingerprints differ share no blocks.")
      .def_prop_ro("is_keyed", &HashScheme::is_keyed, "Whether it has a secret.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def(
          "__hash__", [](const HashScheme& scheme) { return scheme.fingerprint(); },
          "Equal schemes have equal hashes.")
      .def(
          "__repr__",
          [](const HashScheme& scheme) {
            return "<HashScheme " + std::string(scheme.name()) + (scheme.is_keyed() ? ", with a key>" : ">");
          },
          "For people; never shows a key.");

  nb::class_<PrefixDigest>(module, "PrefixDigest", R"(128 bits that stand for all tokens up to a block's end.

Computed under a secret, so that equal digests mean equal tokens even where a client crafts names. Comparable
only under one key.)")
      .def(
          "__init__",
          [](PrefixDigest* self, std::uint64_t hi, std::uint64_t lo) {
            new (self) PrefixDigest(PrefixDigest::from_bits(hi, lo));
          },
          nb::arg("hi") = 0, nb::arg("lo") = 0, "From the values of `hi` and `lo`; without them: unknown.")
      .def_prop_ro("hi", &PrefixDigest::hi, "The high 64 bits.")
      .def_prop_ro("lo", &PrefixDigest::lo, "The low 64 bits.")
      .def_prop_ro("is_known", &PrefixDigest::is_known, "False for a block known by name alone.")
      .def("agrees_with", &PrefixDigest::agrees_with, nb::arg("other"),
           "False only when both are known and differ: the tokens are not the same.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def(
          "__hash__", [](const PrefixDigest& digest) { return digest.lo(); },
          "Equal digests have equal hashes.");
}

}  // namespace

void bind_tokens(nb::module_& module) {
  bind_schemes(module);
  nb::class_<HashedBlocks>(module, "BlockHashes", R"(The hashes of consecutive blocks, one array per kind.

Made by SequenceHasher.hash_blocks().)")
      .def(
          "__len__", [](const HashedBlocks& hashes) { return hashes.blocks.size(); }, "How many blocks.")
      .def_prop_ro("sequence", &names_of_blocks, "The names.")
      .def_prop_ro("local", &local_array,
                   "The hashes of each block's own tokens: a read-only view as an array of uint64.")
      .def_prop_ro("prefix", &prefix_array,
                   "The prefix digests: a read-only view as an array of uint64 with the shape (n, 2).")
      .def(
          "prefix_at",
          [](const HashedBlocks& hashes, Py_ssize_t index) {
            return hashes.blocks[index_in(index, hashes.blocks.size())].prefix;
          },
          nb::arg("index"), "The prefix digest of one block.");

  nb::class_<SequenceHasher>(module, "SequenceHasher", R"(A hash scheme bound to a salt: tokens in, names out.

Immutable; copying one is cheap. Requests share blocks only if their hashers are equal.)")
      .def(
          "__init__",
          [](SequenceHasher* self, const std::optional<HashScheme>& scheme, const std::optional<Salt>& salt,
             const nb::object& prefix_key) {
            const PrefixKey key = prefix_key.is_none()
                                      ? PrefixKey::of_process()
                                      : PrefixKey(array_of<PrefixKey::kSize>(prefix_key, "a prefix key"));
            new (self) SequenceHasher(scheme.value_or(HashScheme::xxh3_chain()), salt.value_or(Salt()), key);
          },
          nb::arg("scheme") = nb::none(), nb::arg("salt") = nb::none(), nb::arg("prefix_key") = nb::none(),
          nb::sig("def __init__(self, scheme: HashScheme | None = None, salt: Salt | None = None, "
                  "prefix_key: bytes | None = None) -> None"),
          "By default xxh3_chain without a salt; `prefix_key`: 16 bytes, the process's own if none are "
          "given.")
      .def_prop_ro("scheme", &SequenceHasher::scheme, nb::rv_policy::copy, "How tokens become names.")
      .def_prop_ro("salt", &SequenceHasher::salt, nb::rv_policy::copy, "LoRA adapter and tenant.")
      .def(
          "local_hash",
          [](const SequenceHasher& hasher, const TokensLike& like) {
            const TokenArray tokens(like);
            return hasher.local_hash(tokens.span()).value();
          },
          nb::arg("tokens"), "The hash of a block's own tokens, independent of its place.")
      .def("hash_blocks", &hash_blocks, nb::arg("tokens"), nb::arg("block_size"),
           nb::arg("parent") = nb::none(), nb::arg("parent_prefix") = PrefixDigest(),
           nb::sig("def hash_blocks(self, tokens: numpy.typing.ArrayLike, block_size: int, "
                   "parent: SequenceHash | None = None, parent_prefix: PrefixDigest = ...) -> BlockHashes"),
           R"(The hashes of every full block of `tokens`, which follow the block `parent`.

Tokens after the last full block are left out. With a parent whose digest is not given, digests are
unknown.)")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def(
          "__hash__",
          [](const SequenceHasher& hasher) { return hasher.scheme().fingerprint() ^ hasher.salt().seed(); },
          "Equal hashers have equal hashes.");
}

}  // namespace ashlar::python
