// Block hashes as engines and routers of the field compute them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "ashlar/tokens/engine_hash.h"
#include "ashlar/tokens/salt.h"
#include "errors.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

using tokens::SglangDigest;
using tokens::VllmDigest;
using tokens::VllmExtraKeys;
using tokens::VllmHasher;

template <class Digest>
nb::bytes digest_to_python(const Digest& digest) {
  return nb::bytes(digest.data(), digest.size());
}

VllmDigest vllm_digest_of(const nb::bytes& bytes) {
  return value_or_raise(
      VllmDigest::from_bytes(std::span(reinterpret_cast<const std::uint8_t*>(bytes.c_str()), bytes.size())));
}

SglangDigest sglang_digest_of(nb::handle object, const char* what) {
  const std::vector<std::uint8_t> bytes = bytes_of(object, 32, what);
  SglangDigest digest;
  std::ranges::copy(bytes, digest.begin());
  return digest;
}

nb::bytes vllm_hash_block(const VllmHasher& hasher, const std::optional<nb::bytes>& parent,
                          const TokensLike& like,
                          const std::optional<std::pair<std::string, std::string>>& lora,
                          const std::vector<std::pair<std::string, std::int64_t>>& multimodal,
                          const std::optional<std::string>& cache_salt,
                          const std::optional<nb::bytes>& prompt_embeds) {
  VllmExtraKeys extra;
  if (lora) extra.lora = VllmExtraKeys::Lora{lora->first, lora->second};
  std::vector<VllmExtraKeys::Multimodal> items;
  for (const auto& [identifier, offset] : multimodal) items.push_back({identifier, offset});
  extra.multimodal = items;
  if (cache_salt) extra.cache_salt = *cache_salt;
  if (prompt_embeds) extra.prompt_embeds = sglang_digest_of(*prompt_embeds, "the hash of prompt embeddings");
  const TokenArray tokens(like);
  std::optional<VllmDigest> before;
  if (parent) before = vllm_digest_of(*parent);
  return digest_to_python(value_or_raise(hasher.hash_block(before, tokens.span(), extra)).bytes());
}

}  // namespace

void bind_engine_hashes(nb::module_& module) {
  nb::class_<VllmHasher>(module, "VllmHasher", R"(The block hashes of vLLM.

algorithm: sha256, sha256_cbor, xxhash or xxhash_cbor, as its own setting. hash_seed: PYTHONHASHSEED of the
engine's process; None if it is not set, which xxhash needs.)")
      .def(
          "__init__",
          [](VllmHasher* self, const std::string& algorithm, std::optional<std::string> hash_seed) {
            new (self) VllmHasher(value_or_raise(
                VllmHasher::create({.algorithm = value_or_raise(tokens::vllm_algorithm(algorithm)),
                                    .hash_seed = std::move(hash_seed)})));
          },
          nb::arg("algorithm") = "sha256", nb::arg("hash_seed") = nb::none(),
          "Unsupported for xxhash without a seed; NotFound for an unknown algorithm.")
      .def_prop_ro(
          "none_hash", [](const VllmHasher& hasher) { return digest_to_python(hasher.none_hash().bytes()); },
          "The parent of first blocks.")
      .def("hash_block", &vllm_hash_block, nb::arg("parent").none(), nb::arg("tokens"), nb::kw_only(),
           nb::arg("lora") = nb::none(), nb::arg("multimodal") = nb::list(),
           nb::arg("cache_salt") = nb::none(), nb::arg("prompt_embeds") = nb::none(),
           nb::sig("def hash_block(self, parent: bytes | None, tokens: numpy.typing.ArrayLike, *, "
                   "lora: tuple[str, str] | None = None, "
                   "multimodal: collections.abc.Sequence[tuple[str, int]] = ..., "
                   "cache_salt: str | None = None, prompt_embeds: bytes | None = None) -> bytes"),
           R"(The whole hash of a block; vllm_name() is the number that the engine publishes.

lora: (name, path). multimodal: (identifier, offset of its first token from that of the block). cache_salt: of
first blocks only.)");
  module.def(
      "vllm_name", [](const nb::bytes& digest) { return tokens::external_name(vllm_digest_of(digest)); },
      nb::arg("digest"), "The name that vLLM publishes for a block: the last 64 bits of its hash.");
  module.def(
      "sglang_hash_block",
      [](const nb::object& parent, const TokensLike& like) {
        const TokenArray tokens(like);
        std::optional<SglangDigest> before;
        if (!parent.is_none()) before = sglang_digest_of(parent, "the hash of the parent");
        return digest_to_python(tokens::sglang_hash_block(before, tokens.span()));
      },
      nb::arg("parent").none(), nb::arg("tokens"),
      nb::sig("def sglang_hash_block(parent: bytes | None, tokens: numpy.typing.ArrayLike) -> bytes"),
      "The whole hash of a block as SGLang computes it.");
  module.def(
      "sglang_name",
      [](const nb::bytes& digest) {
        return tokens::sglang_external_name(sglang_digest_of(digest, "the hash of a block"));
      },
      nb::arg("digest"), "The name that SGLang publishes for a block: a signed number.");
  module.def(
      "router_local_hash",
      [](const TokensLike& like, std::vector<std::uint64_t> mm_hashes, std::uint64_t salt_seed) {
        const TokenArray tokens(like);
        return tokens::router_local_hash(tokens.span(), mm_hashes, salt_seed).value();
      },
      nb::arg("tokens"), nb::arg("mm_hashes") = nb::list(), nb::arg("salt_seed") = tokens::Salt::kBaseSeed,
      nb::sig("def router_local_hash(tokens: numpy.typing.ArrayLike, "
              "mm_hashes: collections.abc.Sequence[int] = ..., salt_seed: int = 1337) -> int"),
      "The local hash of a block as routers of the field compute it, with the hashes of its items.");
  module.def(
      "eagle_local_hashes",
      [](const TokensLike& like, std::uint32_t block_size, std::uint64_t salt_seed) {
        const TokenArray tokens(like);
        const std::vector<tokens::LocalHash> hashes =
            value_or_raise(tokens::eagle_local_hashes(tokens.span(), block_size, salt_seed));
        return numpy_of_ids(std::span(hashes));
      },
      nb::arg("tokens"), nb::arg("block_size"), nb::arg("salt_seed") = tokens::Salt::kBaseSeed,
      "Local hashes for speculative decoding with a draft head: windows of block_size + 1 tokens.");
}

}  // namespace ashlar::python
