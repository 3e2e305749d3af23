// ModelShape: what the KV cache of a model takes per token.
//
// Layers come in groups: full attention keeps every token, a sliding window the last ones, and MLA one latent
// vector per token that every rank of tensor parallelism holds whole. Shapes come from a table of public
// models, from a config.json of Hugging Face, or from numbers.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::replay {

struct LayerGroup {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;  // 0: MLA
  std::uint32_t head_dim = 0;  // of MLA: elements of the latent vector and the rotary part
  std::uint32_t window = 0;    // tokens that are kept; 0: all

  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

struct ModelShape {
  std::string name;
  std::vector<LayerGroup> groups;
  double weights_gb = 0;            // 1e9 bytes, as published; 0: unknown
  std::uint32_t element_bytes = 2;  // of the cache
  std::string note = {};            // what a name or a configuration leaves open, and how it was taken

  // Errors: kInvalidArgument, with the field.
  Result<void> validate() const;
  // Of one rank of `tp`. Heads that cannot be divided are replicated, as engines do. Requires: validate(),
  // tp > 0.
  std::uint64_t bytes_per_token(std::uint32_t tp = 1) const;
  // The same beyond all windows: what a long prompt costs per further token.
  std::uint64_t bytes_per_far_token(std::uint32_t tp = 1) const;
  std::uint32_t layers() const;
  bool has_windows() const { return bytes_per_token() != bytes_per_far_token(); }

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// The table, by name.
std::span<const ModelShape> known_models();
// By name, in any case, with or without what stands before a slash, and with endings of tuning,
// precision and version; where the precision is another than that of the weights, the note says so.
// Errors: kNotFound, naming what is near.
Result<ModelShape> find_model(std::string_view name);
// The text of a config.json. Errors: kInvalidArgument: no JSON object, or a field is missing, which is named.
Result<ModelShape> parse_model_config(std::string_view name, std::string_view json);
// 1, 2, 4 or 8. Errors: kInvalidArgument: a name that is no type of elements.
Result<std::uint32_t> element_bytes_of(std::string_view dtype);

}  // namespace ashlar::replay
