// What is kept in a bucket, or answered to a request, with damage: a reader takes a whole snapshot or
// nothing, and lives.
#include <gtest/gtest.h>

#include "ashlar/base/random.h"
#include "ashlar/events/event_codec.h"
#include "ashlar/testing/time_box.h"
#include "backend/nats/batch_pieces.h"
#include "backend/nats/nats_fixture.h"
#include "backend/nats/snapshot_head.h"
#include "backend/nats/snapshot_parts.h"

namespace ashlar::backend::nats {
namespace {

using Bytes = std::vector<std::byte>;
using testing::TimeBox;

void damage(Bytes& bytes, Random& random) {
  for (std::uint64_t n = 1 + random.below(3); n > 0; --n) {
    const std::size_t at = bytes.empty() ? 0 : random.below(bytes.size());
    const auto spot = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random.below(4)) {
      case 0:
        if (!bytes.empty()) *spot ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 1:
        bytes.insert(spot, 1 + random.below(4), static_cast<std::byte>(random.below(256)));
        break;
      case 2:
        bytes.resize(at);
        break;
      default:
        if (!bytes.empty()) *spot = static_cast<std::byte>(random.below(2) == 0 ? 0xFF : 0);
    }
  }
  bytes.shrink_to_fit();
}

TEST(NatsFuzz, AHeadIsReadAsItWasWrittenOrNotAtAll) {
  Random random(21);
  std::size_t taken = 0;
  std::size_t refused = 0;
  for (const TimeBox box(0.5); !box.over();) {
    for (int i = 0; i < 500; ++i) {
      const SnapshotHead head{
          .place = static_cast<std::uint8_t>(random.below(2)),
          .parts = 1 + static_cast<std::uint32_t>(random.below(events::kMaxSnapshotParts)),
          .incarnation = random.next(),
          .first = random.next(),
          .published_ns = static_cast<std::int64_t>(random.next())};
      Bytes bytes = head.bytes();
      ASSERT_EQ(SnapshotHead::read(bytes).value().bytes(), bytes);
      damage(bytes, random);
      const std::optional<SnapshotHead> read = SnapshotHead::read(bytes);
      ++(read ? taken : refused);
      if (!read) continue;
      ASSERT_EQ(read->bytes(), bytes);
      ASSERT_TRUE(read->place <= 1 && read->parts >= 1 && read->parts <= events::kMaxSnapshotParts);
    }
  }
  EXPECT_GT(taken, 0u);
  EXPECT_GT(refused, 0u);
}

TEST(NatsFuzz, PartsThatDoNotBelongTogetherMakeNoSnapshot) {
  Random random(22);
  const events::OwnedBatch whole = snapshot_of(50, 40);
  const events::OwnedBatch other = snapshot_of(51, 40);
  std::vector<Bytes> parts;
  std::vector<Bytes> others;
  for (const auto& [batch, into] : {std::pair{&whole, &parts}, std::pair{&other, &others}}) {
    Bytes buffer;
    ASSERT_TRUE(
        for_each_piece(batch->view(), 600, buffer,
                       [&](const events::EventBatch&, std::span<const std::byte> bytes) -> Result<void> {
                         into->emplace_back(bytes.begin(), bytes.end());
                         return {};
                       }));
  }
  ASSERT_GT(parts.size(), 2u);
  std::size_t whole_ones = 0;
  std::size_t broken = 0;
  for (const TimeBox box(1); !box.over();) {
    std::vector<Bytes> sent = parts;
    for (std::uint64_t n = random.below(3); n > 0; --n) damage(sent[random.below(sent.size())], random);
    if (random.below(2) == 0) sent[random.below(sent.size())] = others[random.below(others.size())];
    for (std::size_t i = sent.size(); i > 1; --i) std::swap(sent[i - 1], sent[random.below(i)]);
    sent.push_back(sent[random.below(sent.size())]);
    SnapshotParts together;
    const SnapshotHead head{.parts = static_cast<std::uint32_t>(parts.size()),
                            .incarnation = kStream.incarnation,
                            .first = 50,
                            .published_ns = 42};
    for (const Bytes& bytes : sent) {
      events::OwnedBatch batch;
      if (!events::decode_batch(bytes, batch)) continue;
      const events::EventBatch said = batch.head;
      const bool belongs = head.has_part(said, said.part);
      const bool added = together.add(std::move(batch));
      if (belongs) {
        ASSERT_TRUE(said.parts == parts.size() && said.first == 50u);
      }
      if (added) {
        ASSERT_LT(said.part, said.parts);
      }
    }
    ++(together.is_complete() ? whole_ones : broken);
    if (!together.is_complete()) continue;
    const auto complete = together.take();
    for (std::size_t i = 0; i < complete.size(); ++i) {
      ASSERT_EQ(complete[i].head.part, i);
      ASSERT_EQ(complete[i].head.first, complete.front().head.first);
      ASSERT_EQ(complete[i].head.stream, complete.front().head.stream);
    }
  }
  EXPECT_GT(whole_ones, 0u);
  EXPECT_GT(broken, 0u);
}

}  // namespace
}  // namespace ashlar::backend::nats
