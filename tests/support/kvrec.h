// Recordings of engine messages (tests/data): per message a little-endian u32 count of frames, then per frame
// a u32 length and its bytes. Live recordings have the frames topic, sequence, payload; replies to a replay
// begin with an empty frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ashlar::testing {

using KvrecMessage = std::vector<std::vector<std::byte>>;

// The messages of a recording; nothing when the bytes are none.
inline std::optional<std::vector<KvrecMessage>> parse_kvrec(std::span<const std::byte> bytes) {
  const auto take = [&bytes](std::uint32_t& value) {
    if (bytes.size() < 4) return false;
    value = 0;
    for (std::size_t i = 4; i-- > 0;) value = (value << 8) | std::to_integer<std::uint32_t>(bytes[i]);
    bytes = bytes.subspan(4);
    return true;
  };
  std::vector<KvrecMessage> messages;
  while (!bytes.empty()) {
    std::uint32_t frames = 0;
    if (!take(frames) || frames > bytes.size() / 4) return std::nullopt;
    KvrecMessage& message = messages.emplace_back();
    for (std::uint32_t i = 0; i < frames; ++i) {
      std::uint32_t length = 0;
      if (!take(length) || length > bytes.size()) return std::nullopt;
      message.emplace_back(bytes.begin(), bytes.begin() + length);
      bytes = bytes.subspan(length);
    }
  }
  return messages;
}

inline std::vector<std::byte> read_test_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The payloads of a recording, in order, without the end marker of a replay. Empty when there is no such
// recording.
inline std::vector<std::vector<std::byte>> kvrec_payloads(const std::string& path) {
  std::vector<std::vector<std::byte>> payloads;
  const auto messages = parse_kvrec(read_test_file(path));
  if (!messages) return payloads;
  for (const KvrecMessage& message : *messages)
    if (!message.empty() && !message.back().empty()) payloads.push_back(message.back());
  return payloads;
}

inline constexpr const char* kVllmRecordings[] = {"algo-sha256-noseed",
                                                  "algo-sha256-seed0",
                                                  "algo-sha256_cbor-seed0-bytes",
                                                  "algo-sha256_cbor-seed0",
                                                  "algo-xxhash-seed0",
                                                  "algo-xxhash_cbor-seed0",
                                                  "default",
                                                  "default.replay",
                                                  "dup",
                                                  "evict",
                                                  "fullreport",
                                                  "offload-placeholder",
                                                  "offload-selfdescribing",
                                                  "reset",
                                                  "reset.replay",
                                                  "salt",
                                                  "serialdup"};

}  // namespace ashlar::testing
