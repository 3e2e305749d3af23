#include "tiny_engine/model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ashlar/base/random.h"

namespace tiny_engine {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";
static_assert(kAlphabet.size() == TinyModel::kVocabulary);

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >>
                                    16);  // to the nearest, ties to even
}

float from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

// Uniform, with the variance of 1 / columns, times `scale`.
std::vector<float> matrix(ashlar::Random& random, std::size_t rows, std::size_t columns, float scale) {
  std::vector<float> made(rows * columns);
  const float span = scale * std::sqrt(3.0F / static_cast<float>(columns));
  for (float& value : made) {
    const auto unit = static_cast<float>(random.below(1 << 24)) / static_cast<float>(1 << 24);
    value = span * (2.0F * unit - 1.0F);
  }
  return made;
}

std::vector<float> multiply(const std::vector<float>& matrix, const std::vector<float>& vector) {
  std::vector<float> product(matrix.size() / vector.size());
  for (std::size_t row = 0; row < product.size(); ++row) {
    float sum = 0;
    for (std::size_t i = 0; i < vector.size(); ++i) sum += matrix[row * vector.size() + i] * vector[i];
    product[row] = sum;
  }
  return product;
}

void add(std::vector<float>& to, const std::vector<float>& what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

std::vector<float> normalised(const std::vector<float>& values) {
  float squares = 0;
  for (const float value : values) squares += value * value;
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(values.size()) + 1e-6F);
  std::vector<float> made = values;
  for (float& value : made) value *= scale;
  return made;
}

// Turns each pair of elements by an angle that grows with the position.
void rotate(std::span<float> head, std::size_t position) {
  for (std::size_t i = 0; i + 1 < head.size(); i += 2) {
    const float speed = std::pow(100.0F, -static_cast<float>(i) / static_cast<float>(head.size()));
    const float angle = static_cast<float>(position) * speed;
    const float x = head[i];
    const float y = head[i + 1];
    head[i] = x * std::cos(angle) - y * std::sin(angle);
    head[i + 1] = x * std::sin(angle) + y * std::cos(angle);
  }
}

std::vector<std::uint16_t> rounded(std::span<const float> values) {
  std::vector<std::uint16_t> made(values.size());
  std::transform(values.begin(), values.end(), made.begin(), to_bf16);
  return made;
}

// Attention of one head at `position` over every position up to it.
void attend(std::span<const float> query, std::uint32_t layer, std::uint32_t head, std::size_t position,
            const KvRows& rows, std::span<float> out) {
  std::vector<float> weights(position + 1);
  for (std::size_t at = 0; at <= position; ++at) {
    const std::uint16_t* key = rows.key(layer, head, at);
    float sum = 0;
    for (std::size_t i = 0; i < query.size(); ++i) sum += query[i] * from_bf16(key[i]);
    weights[at] = sum / std::sqrt(static_cast<float>(query.size()));
  }
  const float highest = *std::max_element(weights.begin(), weights.end());
  float total = 0;
  for (float& weight : weights) total += weight = std::exp(weight - highest);
  for (std::size_t at = 0; at <= position; ++at) {
    const std::uint16_t* value = rows.value(layer, head, at);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += weights[at] / total * from_bf16(value[i]);
  }
}

// Plain arrays, for the oracle.
class ArrayRows final : public KvRows {
 public:
  ArrayRows(const ModelShape& shape, std::size_t positions)
      : shape_(shape), rows_(positions * shape.layers * shape.heads * shape.head_dim * 2) {}

  void store(std::uint32_t layer, std::uint32_t head, std::size_t position,
             std::span<const std::uint16_t> key, std::span<const std::uint16_t> value) override {
    std::copy(key.begin(), key.end(), &rows_[at(layer, head, position)]);
    std::copy(value.begin(), value.end(), &rows_[at(layer, head, position) + shape_.head_dim]);
  }
  const std::uint16_t* key(std::uint32_t layer, std::uint32_t head, std::size_t position) const override {
    return &rows_[at(layer, head, position)];
  }
  const std::uint16_t* value(std::uint32_t layer, std::uint32_t head, std::size_t position) const override {
    return &rows_[at(layer, head, position) + shape_.head_dim];
  }

 private:
  std::size_t at(std::uint32_t layer, std::uint32_t head, std::size_t position) const {
    return ((position * shape_.layers + layer) * shape_.heads + head) * shape_.head_dim * 2;
  }

  ModelShape shape_;
  std::vector<std::uint16_t> rows_;
};

}  // namespace

TinyModel::TinyModel(const ModelShape& shape) : shape_(shape), layers_(shape.layers) {
  ashlar::Random random(shape.seed);
  const std::size_t width = shape.width();
  embedding_ = matrix(random, shape.vocabulary, width, 1.0F);
  for (Layer& layer : layers_) {
    layer.query = matrix(random, width, width, 2.0F);
    layer.key = matrix(random, width, width, 2.0F);
    layer.value = matrix(random, width, width, 2.0F);
    layer.output = matrix(random, width, width, 2.0F);
    layer.up = matrix(random, shape.hidden, width, 1.5F);
    layer.down = matrix(random, width, shape.hidden, 1.5F);
  }
}

std::vector<float> TinyModel::forward(Token token, std::size_t position, KvRows& rows) const {
  const std::size_t width = shape_.width();
  const std::size_t dim = shape_.head_dim;
  const auto row = static_cast<std::ptrdiff_t>(token.value() * width);
  std::vector<float> state(embedding_.begin() + row,
                           embedding_.begin() + row + static_cast<std::ptrdiff_t>(width));
  for (std::uint32_t l = 0; l < shape_.layers; ++l) {
    const Layer& layer = layers_[l];
    const std::vector<float> input = normalised(state);
    std::vector<float> query = multiply(layer.query, input);
    std::vector<float> key = multiply(layer.key, input);
    const std::vector<float> value = multiply(layer.value, input);
    std::vector<float> attended(width);
    for (std::uint32_t head = 0; head < shape_.heads; ++head) {
      const std::span<float> mine(&query[head * dim], dim);
      rotate(mine, position);
      rotate(std::span(&key[head * dim], dim), position);
      rows.store(l, head, position, rounded(std::span(&key[head * dim], dim)),
                 rounded(std::span(&value[head * dim], dim)));
      attend(mine, l, head, position, rows, std::span(&attended[head * dim], dim));
    }
    add(state, multiply(layer.output, attended));
    std::vector<float> hidden = multiply(layer.up, normalised(state));
    for (float& unit : hidden) unit = unit > 0 ? unit : 0;
    add(state, multiply(layer.down, hidden));
  }
  std::vector<float> logits = multiply(embedding_, normalised(state));
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::fill_n(logits.begin(), shape_.say_begin, kNever);
  std::fill(logits.begin() + static_cast<std::ptrdiff_t>(shape_.say_end), logits.end(), kNever);
  return logits;
}

TinyModel::Speech TinyModel::say(std::span<const Token> prompt, std::size_t count, std::size_t choice) const {
  ArrayRows rows(shape_, prompt.size() + count);
  Speech speech;
  std::vector<float> logits;
  for (std::size_t i = 0; i < prompt.size(); ++i) logits = forward(prompt[i], i, rows);
  for (std::size_t i = 0; i < count; ++i) {
    speech.logits = mix_logits(speech.logits, logits);
    speech.tokens.push_back(choose(logits, i == 0 ? choice : 0));
    if (i + 1 < count) logits = forward(speech.tokens.back(), prompt.size() + i, rows);
  }
  return speech;
}

Token choose(std::span<const float> logits, std::size_t choice) {
  std::vector<std::uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  return Token(order[choice]);
}

std::uint64_t mix_logits(std::uint64_t hash, std::span<const float> logits) {
  for (const float logit : logits) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(logit)) * 0x9E37'79B9'7F4A'7C15;
    hash ^= hash >> 29;
  }
  return hash;
}

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  for (const char letter : text) {
    const std::size_t at = kAlphabet.find(letter);
    tokens.push_back(
        Token(static_cast<std::uint32_t>(at == std::string_view::npos ? kAlphabet.size() - 1 : at)));
  }
  return tokens;
}

std::string text_of(std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) text += kAlphabet[token.value()];
  return text;
}

}  // namespace tiny_engine
