// Decoding engine batches: decode_engine_batch() over the recordings of tests/data/vllm, and over generated
// streams.
//
//   engine_decode_bench [FOLDER]     speed in payload bytes, events and blocks, beside a plain decoder that
//                                    reads one msgpack value after another through a switch, and beside a
//                                    copy of the bytes, which is the limit
//
// Generated streams: events of one block of 32 tokens, as decoding emits them; removals of one block, as
// eviction emits them; and prompts of 2,048 tokens from a vocabulary of 152,000, whose tokens mix three
// widths.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../tests/support/kvrec.h"
#include "ashlar/base/random.h"
#include "ashlar/events/engine_codec.h"
#include "events/msgpack_reader.h"
#include "ratio.h"

namespace {

using ashlar::events::decode_engine_batch;
using ashlar::events::EngineBatch;
using ashlar::events::EngineEvent;
using ashlar::events::EngineEventKind;
using ashlar::events::MsgpackReader;
using Payloads = std::vector<std::vector<std::byte>>;

constexpr double kTargetGigabytes = 1.0;

// What a straightforward decoder does: every value through one function that looks at its head, tokens and
// names pushed to growing arrays. It knows nothing of events, which is less than the work asked for.
void plain_decode(std::span<const std::byte> payload, std::vector<std::uint64_t>& numbers) {
  numbers.clear();
  MsgpackReader in(payload);
  while (in.left() != 0) {
    std::uint32_t count = 0;
    switch (in.peek()) {
      case MsgpackReader::Type::kInteger: {
        MsgpackReader::Integer value;
        if (!in.read_integer(value, "")) return;
        numbers.push_back(value.bits);
        break;
      }
      case MsgpackReader::Type::kText: {
        std::string_view text;
        if (!in.read_text(text, "")) return;
        benchmark::DoNotOptimize(text);
        break;
      }
      case MsgpackReader::Type::kArray:
        if (!in.read_array(count, "")) return;
        break;
      case MsgpackReader::Type::kMap:
        if (!in.read_map(count, "")) return;
        break;
      default:
        if (!in.skip()) return;
    }
  }
}

// Batches of `events` events, each with `blocks` blocks of 32 tokens below `vocabulary`; without tokens they
// are removals.
Payloads made(std::size_t batches, std::size_t events, std::size_t blocks, std::uint64_t vocabulary) {
  ashlar::Random random(7);
  Payloads out;
  for (std::size_t b = 0; b < batches; ++b) {
    EngineBatch batch;
    batch.timestamp = 1.7e9;
    batch.rank = 0;
    for (std::size_t e = 0; e < events; ++e) {
      EngineEvent event;
      event.kind = vocabulary == 0 ? EngineEventKind::kRemoved : EngineEventKind::kStored;
      event.medium = "GPU";
      event.group = 0;
      event.names = {static_cast<std::uint32_t>(batch.names.size()), static_cast<std::uint32_t>(blocks)};
      for (std::size_t i = 0; i < blocks; ++i) batch.names.emplace_back(random.next());
      if (vocabulary != 0) {
        event.parent = ashlar::events::BlockName(random.next());
        event.block_size = 32;
        event.tokens = {static_cast<std::uint32_t>(batch.tokens.size()),
                        static_cast<std::uint32_t>(32 * blocks)};
        for (std::size_t i = 0; i < 32 * blocks; ++i)
          batch.tokens.emplace_back(static_cast<std::uint32_t>(random.below(vocabulary)));
        event.has_extra_keys = true;
        event.extra_key_blocks = static_cast<std::uint32_t>(blocks);
        event.spec_kind = "full_attention";
      }
      batch.events.push_back(event);
    }
    encode_engine_batch(batch, out.emplace_back());
  }
  return out;
}

// Runs every decoder over the payloads. Returns the speed of ours in GB/s; 0 when a payload is refused.
double measure(const std::string& name, const Payloads& payloads) {
  std::size_t bytes = 0;
  std::size_t events = 0;
  std::size_t blocks = 0;
  EngineBatch batch;
  for (const auto& payload : payloads) {
    if (!decode_engine_batch(payload, batch)) return 0;
    bytes += payload.size();
    events += batch.events.size();
    blocks += batch.names.size();
  }
  if (bytes == 0) return 0;
  // Small recordings are gone through several times, so that a run is longer than the clock's grain.
  const std::size_t rounds = 1 + 200'000 / bytes;
  const auto ours = [&] {
    for (std::size_t r = 0; r < rounds; ++r)
      for (const auto& payload : payloads) {
        benchmark::DoNotOptimize(decode_engine_batch(payload, batch).has_value());
        benchmark::ClobberMemory();
      }
  };
  std::vector<std::uint64_t> numbers;
  const auto plain = [&] {
    for (std::size_t r = 0; r < rounds; ++r)
      for (const auto& payload : payloads) {
        plain_decode(payload, numbers);
        benchmark::ClobberMemory();
      }
  };
  std::vector<std::byte> room(1 << 22);
  const auto copy = [&] {
    for (std::size_t r = 0; r < rounds; ++r)
      for (const auto& payload : payloads) {
        std::memcpy(room.data(), payload.data(), std::min(payload.size(), room.size()));
        benchmark::ClobberMemory();
      }
  };
  const ashlar::bench::Comparison beside_plain = ashlar::bench::compare(ours, plain);
  const ashlar::bench::Comparison beside_copy = ashlar::bench::compare(ours, copy);
  const double ns = beside_plain.ours.median / static_cast<double>(rounds);
  const double speed = static_cast<double>(bytes) / ns;
  std::printf("%-30s %8zu bytes  %5.2f GB/s  %6.2f M events/s  %7.2f M blocks/s   plain x%.2f   copy x%.3f\n",
              name.c_str(), bytes, speed, static_cast<double>(events) * 1e3 / ns,
              static_cast<double>(blocks) * 1e3 / ns, beside_plain.ratio.median, beside_copy.ratio.median);
  return speed;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ASHLAR_TEST_DATA "/vllm";
  std::printf(
      "payload decoded per second on one core; plain, copy: how many times faster ours is than that\n");
  Payloads all;
  for (const char* name : ashlar::testing::kVllmRecordings) {
    const Payloads payloads = ashlar::testing::kvrec_payloads(folder + "/" + name + ".kvrec");
    if (measure(name, payloads) == 0) {
      std::fprintf(stderr, "%s/%s.kvrec cannot be read\n", folder.c_str(), name);
      return 1;
    }
    all.insert(all.end(), payloads.begin(), payloads.end());
  }
  const double speed = measure("all recordings", all);
  measure("made: stored, 1 block", made(64, 8, 1, 152'000));
  measure("made: removed, 1 block", made(64, 64, 1, 0));
  measure("made: stored, 64 blocks", made(64, 1, 64, 152'000));
  measure("made: stored, 64 blocks, 2 bytes", made(64, 1, 64, 60'000));
  measure("made: stored, 64 blocks, small", made(64, 1, 64, 1'024));
  std::printf("all recordings: %.2f GB/s   target %.2f: %s\n", speed, kTargetGigabytes,
              speed >= kTargetGigabytes ? "ok" : "MISS");
  return 0;
}
