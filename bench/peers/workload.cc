#include "peers/workload.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "ashlar/tokens/token_sequence.h"

namespace ashlar::peers {
namespace {

constexpr std::string_view kMagic = "ASHW";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderWords = 5;  // after the magic

std::uint32_t load_le(const unsigned char* p) {
  return std::uint32_t{p[0]} | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 |
         std::uint32_t{p[3]} << 24;
}

Error refuse(const std::string& path, const std::string& why) {
  return make_error(ErrorCode::kInvalidArgument, "%s %s", path.c_str(), why.c_str());
}

}  // namespace

Result<Workload> Workload::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return make_error(ErrorCode::kIo, "cannot read %s", path.c_str());
  const std::vector<char> raw(std::istreambuf_iterator<char>(file), {});
  const auto* bytes = reinterpret_cast<const unsigned char*>(raw.data());
  if (raw.size() < kMagic.size() + 4 * kHeaderWords ||
      !std::equal(kMagic.begin(), kMagic.end(), raw.begin())) {
    return refuse(path, "is not a workload file");
  }
  std::vector<std::uint32_t> words;
  words.reserve(raw.size() / 4);
  for (std::size_t at = kMagic.size(); at + 4 <= raw.size(); at += 4) words.push_back(load_le(bytes + at));

  if (words[0] != kVersion)
    return refuse(path, "has version " + std::to_string(words[0]) + ", this program reads 1");
  Workload workload;
  workload.block_size = words[1];
  workload.chain_length = words[2];
  const std::size_t chains = words[3];
  workload.pool = words[4];
  const auto tokens = std::span<const std::uint32_t>(words).subspan(kHeaderWords);
  if (raw.size() % 4 != 0 || tokens.size() != chains * workload.chain_length * workload.block_size) {
    return refuse(path, "does not hold as many tokens as its header says");
  }
  if (workload.block_size == 0 || workload.chain_length == 0 || workload.pool == 0 ||
      workload.pool % workload.chain_length != 0 || chains * workload.chain_length < 2 * workload.pool) {
    return refuse(path,
                  "must have a pool that is a multiple of the chain length and at most half of all blocks");
  }

  const std::size_t chain_tokens = workload.chain_length * workload.block_size;
  for (std::size_t chain = 0; chain < chains; ++chain) {
    ASHLAR_TRY(auto sequence, tokens::TokenSequence::create(
                                  tokens.subspan(chain * chain_tokens, chain_tokens), workload.block_size));
    workload.hashes.push_back(sequence.sequence_hashes());
    workload.chains.push_back(std::move(sequence).into_parts().blocks);
  }
  return workload;
}

ChainRange Workload::resident() const noexcept {
  return {0, std::max<std::size_t>(chains_in_pool() * 25 / 32, 1)};
}

ChainRange Workload::absent() const noexcept {
  return {chains.size() - std::max<std::size_t>(chains.size() / 8, 1), chains.size()};
}

std::string Fingerprint::to_string() const {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), "%" PRIu64 ":%016" PRIx64, count_, sum_);
  return text.data();
}

}  // namespace ashlar::peers
