// config.json of Hugging Face: the fields that decide the shape of the cache. Models of several parts keep
// those of the language model in `text_config`.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "events/json_reader.h"
#include "replay/plan/model_shape.h"

namespace ashlar::replay {
namespace {

using events::JsonReader;

// Others may be anything, also fractions and numbers below 0.
constexpr std::array<std::string_view, 10> kConfigNumbers = {"num_hidden_layers",
                                                             "num_attention_heads",
                                                             "num_key_value_heads",
                                                             "hidden_size",
                                                             "head_dim",
                                                             "kv_lora_rank",
                                                             "qk_rope_head_dim",
                                                             "sliding_window",
                                                             "sliding_window_pattern",
                                                             "attention_chunk_size"};

constexpr std::array<std::string_view, 2> kFullTypes = {"full_attention", "attention"};
constexpr std::array<std::string_view, 2> kLocalTypes = {"sliding_attention", "chunked_attention"};
// A state of fixed size each, and no blocks.
constexpr std::array<std::string_view, 3> kLinearTypes = {"linear_attention", "mamba", "conv"};
constexpr std::size_t kMostUnknownTypes = 8;  // that a message names

struct ConfigFields {
  std::map<std::string, std::uint64_t> numbers;
  std::map<std::string, bool> flags;
  std::uint64_t full_layers = 0;  // of layer_types
  std::uint64_t local_layers = 0;
  std::uint64_t linear_layers = 0;
  std::vector<std::string> unknown_types;
};

bool read_layer_types(JsonReader& in, ConfigFields& fields) {
  bool more = false;
  if (!in.begin_array("layer_types")) return false;
  while (in.next_item(more) && more) {
    std::string type;
    if (!in.read_text(type, "a layer type")) return false;
    const auto is_of = [&](const auto& names) { return std::ranges::find(names, type) != names.end(); };
    if (is_of(kFullTypes)) {
      ++fields.full_layers;
    } else if (is_of(kLocalTypes)) {
      ++fields.local_layers;
    } else if (is_of(kLinearTypes)) {
      ++fields.linear_layers;
    } else if (!is_of(fields.unknown_types) && fields.unknown_types.size() < kMostUnknownTypes) {
      fields.unknown_types.push_back(type);
    }
  }
  return in.fault() == nullptr;
}

bool read_config(JsonReader& in, ConfigFields& fields, bool is_inner) {
  std::string key;
  bool more = false;
  if (!in.begin_object("the configuration")) return false;
  while (in.next_key(key, more) && more) {
    bool is_read = false;
    if (key == "text_config" && !is_inner && in.peek() == JsonReader::Type::kObject) {
      is_read = read_config(in, fields, true);
    } else if (key == "layer_types" && in.peek() == JsonReader::Type::kArray) {
      is_read = read_layer_types(in, fields);
    } else if (std::ranges::find(kConfigNumbers, key) != kConfigNumbers.end() &&
               in.peek() == JsonReader::Type::kNumber) {
      std::uint64_t number = 0;
      is_read = in.read_unsigned(number, UINT32_MAX, "a number of the configuration");
      fields.numbers[key] = number;
    } else if (key == "use_sliding_window" && in.peek() == JsonReader::Type::kBool) {
      bool flag = false;
      is_read = in.read_bool(flag, "use_sliding_window");
      fields.flags[key] = flag;
    } else {
      is_read = in.skip();
    }
    if (!is_read) return false;
  }
  return in.fault() == nullptr;
}

}  // namespace

Result<ModelShape> parse_model_config(std::string_view name, std::string_view json) {
  JsonReader in(json);
  ConfigFields fields;
  if (!read_config(in, fields, false))
    return make_error(ErrorCode::kInvalidArgument, "%s is no config.json: %s at byte %zu",
                      std::string(name).c_str(), in.fault() == nullptr ? "not an object" : in.fault(),
                      in.fault_offset());
  const auto number = [&](const char* key) -> std::uint32_t {
    const auto found = fields.numbers.find(key);
    return found == fields.numbers.end() ? 0 : static_cast<std::uint32_t>(found->second);
  };
  const auto missing = [&](const char* key) {
    return make_error(ErrorCode::kInvalidArgument,
                      "%s does not say %s; give --layers, --kv-heads and --head-dim",
                      std::string(name).c_str(), key);
  };
  ModelShape shape;
  shape.name = std::string(name);
  std::uint32_t layers = number("num_hidden_layers");
  if (layers == 0) return missing("num_hidden_layers");
  if (!fields.unknown_types.empty()) {
    std::string names;
    for (const std::string& type : fields.unknown_types) names += (names.empty() ? "" : ", ") + type;
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has layer_types that are not known: %s; give --layers, --kv-heads and --head-dim",
                      std::string(name).c_str(), names.c_str());
  }
  const std::uint64_t typed = fields.local_layers + fields.full_layers + fields.linear_layers;
  if (typed != 0 && typed != layers)
    shape.note = shape.name + " has the types of " + std::to_string(typed) + " layers and " +
                 std::to_string(layers) + " layers; all are counted as full attention";
  const bool has_types = typed == layers;
  if (has_types) layers -= static_cast<std::uint32_t>(fields.linear_layers);
  if (layers == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has linear attention in all layers, which keep no blocks per token",
                      std::string(name).c_str());
  if (const std::uint32_t rank = number("kv_lora_rank"); rank != 0) {
    shape.groups = {{layers, 0, rank + number("qk_rope_head_dim"), 0}};
    ASHLAR_RETURN_IF_ERROR(shape.validate());
    return shape;
  }
  const std::uint32_t heads = number("num_attention_heads");
  const std::uint32_t kv_heads = number("num_key_value_heads") != 0 ? number("num_key_value_heads") : heads;
  if (kv_heads == 0) return missing("num_key_value_heads");
  std::uint32_t dim = number("head_dim");
  if (dim == 0 && heads != 0) dim = number("hidden_size") / heads;
  if (dim == 0) return missing("head_dim");
  const std::uint32_t window =
      number("sliding_window") != 0 ? number("sliding_window") : number("attention_chunk_size");
  const auto used = fields.flags.find("use_sliding_window");
  const bool has_window = window != 0 && (used == fields.flags.end() || used->second);
  std::uint32_t local = 0;
  if (has_window && has_types) {
    local = static_cast<std::uint32_t>(fields.local_layers);
  } else if (const std::uint32_t pattern = number("sliding_window_pattern"); has_window && pattern > 1) {
    local = layers - layers / pattern;  // every pattern-th layer has full attention
  } else if (has_window) {
    shape.note = shape.name + " names a window of " + std::to_string(window) +
                 " tokens, but not which layers have it; all are counted as full attention";
  }
  if (local < layers) shape.groups.push_back({layers - local, kv_heads, dim, 0});
  if (local > 0) shape.groups.push_back({local, kv_heads, dim, window});
  ASHLAR_RETURN_IF_ERROR(shape.validate());
  return shape;
}

}  // namespace ashlar::replay
