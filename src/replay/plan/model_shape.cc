// The shapes are those of the published configurations; weights are in the precision they are published in.
#include "replay/plan/model_shape.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <optional>

#include "ashlar/base/check.h"

namespace ashlar::replay {
namespace {

constexpr std::uint32_t kMostLayers = 4096;
constexpr std::uint32_t kMostHeads = 65'536;
constexpr std::uint32_t kMostDim = 65'536;

std::string lower_name(std::string_view text) {
  text.remove_prefix(std::min(text.rfind('/') + 1, text.size()));
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

ModelShape even(std::string name, std::uint32_t layers, std::uint32_t heads, std::uint32_t dim, double gb) {
  return {.name = std::move(name), .groups = {{layers, heads, dim, 0}}, .weights_gb = gb};
}

// Some layers with full attention, the others with a window.
ModelShape windowed(std::string name, std::uint32_t full, std::uint32_t local, std::uint32_t window,
                    std::uint32_t heads, std::uint32_t dim, double gb) {
  return {.name = std::move(name),
          .groups = {{full, heads, dim, 0}, {local, heads, dim, window}},
          .weights_gb = gb};
}

bool is_version(std::string_view text) {
  if (text.starts_with('v')) text.remove_prefix(1);
  return !text.empty() && text.front() != '.' && text.back() != '.' &&
         std::ranges::all_of(text, [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

constexpr std::array<std::string_view, 12> kPrecisions = {"fp8",  "bf16", "fp16", "int4", "int8",  "awq",
                                                          "gptq", "gguf", "4bit", "8bit", "nvfp4", "mxfp4"};

// "-instruct-fp8", "-v0.1", "-2507": tuning, precision and version change no shape. Any other ending may be
// another model: "-mini", "-distill-llama-70b".
bool keeps_shape(std::string_view ending) {
  constexpr std::array<std::string_view, 6> kTunings = {"instruct", "it", "base", "chat", "thinking", "hf"};
  while (!ending.empty()) {
    if (ending.front() != '-') return false;
    ending.remove_prefix(1);
    const std::string_view part = ending.substr(0, ending.find('-'));
    if (std::ranges::find(kTunings, part) == kTunings.end() &&
        std::ranges::find(kPrecisions, part) == kPrecisions.end() && !is_version(part))
      return false;
    ending.remove_prefix(part.size());
  }
  return true;
}

// Of the weights as they were published.
bool is_published(std::string_view known, std::string_view precision) {
  if (known.starts_with("kimi-k2-thinking")) return precision == "int4";
  if (known.starts_with("deepseek") || known.starts_with("kimi")) return precision == "fp8";
  if (known.starts_with("gpt-oss")) return precision == "mxfp4";
  return precision == "bf16" || precision == "fp16";
}

// The last precision that an ending names, where it is another than that of the published weights.
std::string_view other_precision(std::string_view known, std::string_view ending) {
  std::string_view named;
  while (!ending.empty()) {
    ending.remove_prefix(1);
    const std::string_view part = ending.substr(0, ending.find('-'));
    if (std::ranges::find(kPrecisions, part) != kPrecisions.end()) named = part;
    ending.remove_prefix(part.size());
  }
  return is_published(known, named) ? "" : named;
}

// Other names of repositories that hold an entry's shape and weights, before their endings.
struct ModelAlias {
  std::string_view name;
  std::string_view known;
};
constexpr ModelAlias kAliases[] = {
    {"mistral-7b-instruct-v0.3", "Mistral-7B-v0.3"},
    {"mistral-7b-instruct-v0.2", "Mistral-7B-v0.3"},
    {"mistral-7b-instruct-v0.1", "Mistral-7B-v0.1"},
    {"mistral-nemo", "Mistral-Nemo-12B"},
    {"mistral-large-instruct-2407", "Mistral-Large-2"},
    {"mistral-large-instruct-2411", "Mistral-Large-2"},
    {"mistral-small-3.1-24b", "Mistral-Small-3.2-24B"},
    {"devstral-small-2505", "Mistral-Small-24B"},
    {"devstral-small-2507", "Mistral-Small-24B"},
    {"magistral-small-2506", "Mistral-Small-24B"},
    {"magistral-small-2507", "Mistral-Small-24B"},
    {"qwen2-7b", "Qwen2.5-7B"},
    {"qwen2-72b", "Qwen2.5-72B"},
    {"qwen2.5-coder-0.5b", "Qwen2.5-0.5B"},
    {"qwen2.5-coder-1.5b", "Qwen2.5-1.5B"},
    {"qwen2.5-coder-3b", "Qwen2.5-3B"},
    {"qwen2.5-coder-7b", "Qwen2.5-7B"},
    {"qwen2.5-coder-14b", "Qwen2.5-14B"},
    {"qwen2.5-coder-32b", "Qwen2.5-32B"},
    {"qwq-32b", "Qwen2.5-32B"},
    {"qwen3-coder-30b-a3b", "Qwen3-30B-A3B"},
    {"deepseek-v3.1", "DeepSeek-V3"},
    {"deepseek-v3.1-terminus", "DeepSeek-V3"},
    {"deepseek-r1-distill-llama-8b", "Llama-3.1-8B"},
    {"deepseek-r1-distill-llama-70b", "Llama-3.3-70B"},
    {"deepseek-r1-distill-qwen-7b", "Qwen2.5-7B"},
    {"deepseek-r1-distill-qwen-14b", "Qwen2.5-14B"},
    {"deepseek-r1-distill-qwen-32b", "Qwen2.5-32B"},
    {"phi-4-reasoning", "Phi-4"},
    {"phi-4-reasoning-plus", "Phi-4"},
};

// What stands behind `known` in a name, if it changes no shape.
std::optional<std::string_view> kept_ending(std::string_view wanted, std::string_view known) {
  if (!wanted.starts_with(known) || !keeps_shape(wanted.substr(known.size()))) return std::nullopt;
  return wanted.substr(known.size());
}

std::string gigabytes_text(double gb) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GB", gb);
  return text.data();
}

std::uint64_t group_bytes(const LayerGroup& group, std::uint32_t element_bytes, std::uint32_t tp) {
  // The latent vector of MLA is held by every rank, and has no K and V apart.
  if (group.kv_heads == 0) return std::uint64_t{group.layers} * group.head_dim * element_bytes;
  const std::uint32_t heads = (group.kv_heads + tp - 1) / tp;
  return std::uint64_t{2} * group.layers * heads * group.head_dim * element_bytes;
}

}  // namespace

Result<void> ModelShape::validate() const {
  if (groups.empty())
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has no layers; give --layers, --kv-heads and --head-dim", name.c_str());
  for (const LayerGroup& group : groups)
    if (group.layers == 0 || group.layers > kMostLayers || group.kv_heads > kMostHeads ||
        group.head_dim == 0 || group.head_dim > kMostDim)
      return make_error(ErrorCode::kInvalidArgument,
                        "%s has %u layers with %u KV heads of %u elements, which no model has", name.c_str(),
                        group.layers, group.kv_heads, group.head_dim);
  if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8)
    return make_error(ErrorCode::kInvalidArgument, "elements of %u bytes; 1, 2, 4 and 8 are known",
                      element_bytes);
  return {};
}

std::uint64_t ModelShape::bytes_per_token(std::uint32_t tp) const {
  ASHLAR_CHECK(tp > 0, "a model has at least one rank, not %u", tp);
  std::uint64_t bytes = 0;
  for (const LayerGroup& group : groups) bytes += group_bytes(group, element_bytes, tp);
  ASHLAR_DCHECK(bytes > 0, "%s takes nothing per token", name.c_str());
  return bytes;
}

std::uint64_t ModelShape::bytes_per_far_token(std::uint32_t tp) const {
  ASHLAR_CHECK(tp > 0, "a model has at least one rank, not %u", tp);
  std::uint64_t bytes = 0;
  for (const LayerGroup& group : groups)
    if (group.window == 0) bytes += group_bytes(group, element_bytes, tp);
  return bytes;
}

std::uint32_t ModelShape::layers() const {
  std::uint32_t count = 0;
  for (const LayerGroup& group : groups) count += group.layers;
  return count;
}

std::span<const ModelShape> known_models() {
  static const std::array<ModelShape, 55> kModels = {{
      even("Llama-3.2-1B", 16, 8, 64, 2.5),
      even("Llama-3.2-3B", 28, 8, 128, 6.4),
      even("Llama-3.1-8B", 32, 8, 128, 16.1),
      even("Llama-3.1-70B", 80, 8, 128, 141.1),
      even("Llama-3.3-70B", 80, 8, 128, 141.1),
      even("Llama-3.1-405B", 126, 8, 128, 811.7),
      even("Llama-2-7B", 32, 32, 128, 13.5),
      even("Llama-2-13B", 40, 40, 128, 26.0),
      even("Llama-2-70B", 80, 8, 128, 138.0),
      even("Llama-3-8B", 32, 8, 128, 16.1),
      even("Llama-3-70B", 80, 8, 128, 141.1),
      windowed("Llama-4-Scout-17B-16E", 12, 36, 8192, 8, 128, 217.3),
      windowed("Llama-4-Maverick-17B-128E", 12, 36, 8192, 8, 128, 803.2),
      even("Qwen2.5-0.5B", 24, 2, 64, 1.0),
      even("Qwen2.5-1.5B", 28, 2, 128, 3.1),
      even("Qwen2.5-3B", 36, 2, 128, 6.2),
      even("Qwen2.5-7B", 28, 4, 128, 15.2),
      even("Qwen2.5-14B", 48, 8, 128, 29.5),
      even("Qwen2.5-32B", 64, 8, 128, 65.5),
      even("Qwen2.5-72B", 80, 8, 128, 145.4),
      even("Qwen3-0.6B", 28, 8, 128, 1.5),
      even("Qwen3-1.7B", 28, 8, 128, 4.1),
      even("Qwen3-4B", 36, 8, 128, 8.0),
      even("Qwen3-8B", 36, 8, 128, 16.4),
      even("Qwen3-14B", 40, 8, 128, 29.5),
      even("Qwen3-32B", 64, 8, 128, 65.5),
      even("Qwen3-30B-A3B", 48, 4, 128, 61.1),
      even("Qwen3-235B-A22B", 94, 4, 128, 470.2),
      even("Qwen3-Coder-480B-A35B", 62, 8, 128, 960.3),
      even("Qwen3-Next-80B-A3B", 12, 2, 256, 162.7),  // the other 36 layers keep no blocks
      {.name = "Mistral-7B-v0.1", .groups = {{32, 8, 128, 4096}}, .weights_gb = 14.5},
      even("Mistral-7B-v0.3", 32, 8, 128, 14.5),
      even("Mistral-Nemo-12B", 40, 8, 128, 24.5),
      even("Mistral-Small-24B", 40, 8, 128, 47.1),
      even("Mistral-Small-3.2-24B", 40, 8, 128, 48.0),
      even("Mistral-Large-2", 88, 8, 128, 245.2),
      even("Mixtral-8x7B", 32, 8, 128, 93.4),
      even("Mixtral-8x22B", 56, 8, 128, 281.2),
      even("Phi-4", 40, 10, 128, 29.3),
      windowed("Gemma-2-9B", 21, 21, 4096, 8, 256, 18.5),
      windowed("Gemma-2-27B", 23, 23, 4096, 16, 128, 54.5),
      windowed("Gemma-3-4B", 5, 29, 1024, 4, 256, 8.6),
      windowed("Gemma-3-12B", 8, 40, 1024, 8, 256, 24.4),
      windowed("Gemma-3-27B", 10, 52, 1024, 16, 128, 54.9),
      windowed("gpt-oss-20b", 12, 12, 128, 8, 64, 13.8),
      windowed("gpt-oss-120b", 18, 18, 128, 8, 64, 65.2),
      even("DeepSeek-V3", 61, 0, 576, 688.6),
      even("DeepSeek-R1", 61, 0, 576, 688.6),
      even("Kimi-K2-Thinking", 61, 0, 576, 594.0),
      even("Kimi-K2", 61, 0, 576, 1029.0),
      even("GLM-4-9B", 40, 2, 128, 18.8),
      even("GLM-4-32B", 61, 2, 128, 65.1),
      even("GLM-4.5", 92, 8, 128, 716.7),
      even("GLM-4.5-Air", 46, 8, 128, 220.9),
      even("GLM-4.6", 92, 8, 128, 713.6),
  }};
  return kModels;
}

Result<ModelShape> find_model(std::string_view name) {
  std::string wanted = lower_name(name);
  if (wanted.starts_with("meta-llama")) wanted.erase(0, 5);
  const auto known_as = [](const ModelShape& model, std::string_view ending) {
    ModelShape found = model;
    const std::string_view precision = other_precision(lower_name(model.name), ending);
    if (!precision.empty())
      found.note = "the weights are counted as those of " + model.name + " were published, " +
                   gigabytes_text(model.weights_gb) + "; give --weights for " + std::string(precision);
    return found;
  };
  std::string near;
  for (const ModelShape& model : known_models()) {
    const std::string known = lower_name(model.name);
    if (const auto ending = kept_ending(wanted, known)) return known_as(model, *ending);
    for (const ModelAlias& alias : kAliases)
      if (alias.known == model.name)
        if (const auto ending = kept_ending(wanted, alias.name)) return known_as(model, *ending);
    if (!wanted.empty() && known.starts_with(wanted.substr(0, wanted.find('-'))))
      near += (near.empty() ? "" : ", ") + model.name;
  }
  return make_error(
      ErrorCode::kNotFound,
      "no model %s is in the table%s%s; ashlar plan --models lists it; or name a config.json, or "
      "give --layers, --kv-heads and --head-dim",
      std::string(name).c_str(), near.empty() ? "" : "; there are ", near.c_str());
}

Result<std::uint32_t> element_bytes_of(std::string_view dtype) {
  const std::string name = lower_name(dtype);
  if (name.starts_with("fp8") || name.starts_with("float8") || name.starts_with("f8") || name == "int8" ||
      name == "u8")
    return 1u;
  if (name == "bf16" || name == "bfloat16" || name == "f16" || name == "fp16" || name == "float16" ||
      name == "auto")
    return 2u;
  if (name == "f32" || name == "fp32" || name == "float32") return 4u;
  return make_error(ErrorCode::kInvalidArgument,
                    "%s is no type of cache elements; there are fp8, bf16, fp16, fp32",
                    std::string(dtype).c_str());
}

}  // namespace ashlar::replay
