#include "backend/nats/batch_pieces.h"

#include <algorithm>

#include "ashlar/base/check.h"
#include "ashlar/events/event_codec.h"
#include "base/wide.h"

namespace ashlar::backend::nats {
namespace {

// Bytes that the number of parts may add to a part after it was sized.
constexpr std::size_t kPartSlack = 64;
static_assert(kPartSlack >= sizeof(events::EventBatch::part) + sizeof(events::EventBatch::parts));

class Cutter {
 public:
  Cutter(const events::EventBatch& batch, std::size_t limit, std::vector<std::byte>& buffer)
      : batch_(batch), limit_(limit), buffer_(buffer) {
    // Most pieces fit on the first try.
    stride_ = std::max<std::size_t>(
        1, static_cast<std::size_t>(static_cast<double>(batch.events.size()) * static_cast<double>(limit) *
                                    0.9 / static_cast<double>(std::max<std::size_t>(1, buffer.size()))));
  }

  // Encodes as many events from `begin` on as fit. Returns their number; 0 if not even one fits.
  std::size_t encode_from(std::size_t begin) {
    for (std::size_t count = std::min(stride_, batch_.events.size() - begin); count > 0; count /= 2) {
      encode(begin, count, 0, batch_.parts);
      if (buffer_.size() <= limit_) return count;
    }
    return 0;
  }
  void encode(std::size_t begin, std::size_t count, std::uint32_t part, std::uint32_t parts) {
    piece_ = batch_;
    piece_.events = batch_.events.subspan(begin, count);
    if (batch_.kind == events::BatchKind::kEvents) {
      piece_.first = batch_.first + begin;
    } else {
      piece_.part = part;
      piece_.parts = parts;
    }
    locations_.clear();
    std::ranges::copy_if(
        batch_.locations, std::back_inserter(locations_), [&](const events::LocationName& location) {
          return std::ranges::any_of(
              piece_.events, [&](const events::KvEvent& event) { return event.location == location.number; });
        });
    piece_.locations = locations_;
    events::encode_batch(piece_, buffer_);
  }
  const events::EventBatch& piece() const noexcept { return piece_; }

 private:
  const events::EventBatch& batch_;
  const std::size_t limit_;
  std::vector<std::byte>& buffer_;
  std::size_t stride_ = 1;
  events::EventBatch piece_;
  std::vector<events::LocationName> locations_;
};

Error too_large(const char* what, std::size_t limit) {
  return make_error(ErrorCode::kCapacity,
                    "%s is larger than a message of the server may be (%zu bytes); raise its max_payload",
                    what, limit);
}

Result<void> cut_events(const events::EventBatch& batch, std::size_t limit, std::vector<std::byte>& buffer,
                        const TakePiece& take) {
  Cutter cutter(batch, limit, buffer);
  for (std::size_t begin = 0; begin < batch.events.size();) {
    const std::size_t count = cutter.encode_from(begin);
    if (count == 0) return too_large("an event", limit);
    ASHLAR_DCHECK(cutter.piece().end() == batch.first + begin + count,
                  "a piece ends at event %llu and the next one begins at %llu", wide(cutter.piece().end()),
                  wide(batch.first + begin + count));
    ASHLAR_RETURN_IF_ERROR(take(cutter.piece(), buffer));
    begin += count;
  }
  return {};
}

Result<void> cut_snapshot(const events::EventBatch& batch, std::size_t limit, std::vector<std::byte>& buffer,
                          const TakePiece& take) {
  if (limit <= kPartSlack) return too_large("a part of a snapshot", limit);
  Cutter cutter(batch, limit - kPartSlack, buffer);
  std::vector<std::size_t> counts;
  for (std::size_t begin = 0; begin < batch.events.size(); begin += counts.back()) {
    counts.push_back(cutter.encode_from(begin));
    if (counts.back() == 0) return too_large("an event", limit);
  }
  if (counts.size() > events::kMaxSnapshotParts) return too_large("one of 65536 parts of a snapshot", limit);
  std::size_t begin = 0;
  for (std::size_t part = 0; part < counts.size(); ++part) {
    cutter.encode(begin, counts[part], static_cast<std::uint32_t>(part),
                  static_cast<std::uint32_t>(counts.size()));
    ASHLAR_DCHECK(buffer.size() <= limit, "a part of %zu bytes exceeds a message of %zu", buffer.size(),
                  limit);
    ASHLAR_RETURN_IF_ERROR(take(cutter.piece(), buffer));
    begin += counts[part];
  }
  return {};
}

// Splits one part of a snapshot into equal pieces.
class PartCutter {
 public:
  PartCutter(const events::EventBatch& batch, std::size_t limit, std::vector<std::byte>& buffer)
      : batch_(batch), limit_(limit), buffer_(buffer), cutter_(batch, limit, buffer) {}

  // The smallest number of pieces, at least `least`, that all fit.
  Result<std::uint32_t> pieces_from(std::uint32_t least) {
    const std::size_t guess = (buffer_.size() + limit_ - 1) / std::max<std::size_t>(1, limit_);
    const std::size_t most = std::max<std::size_t>(least, batch_.events.size());
    for (std::size_t pieces = std::max<std::size_t>(least, guess); pieces <= most; pieces += 1 + pieces / 8) {
      if (pieces * batch_.parts > events::kMaxSnapshotParts)
        return too_large("one of 65536 parts of a snapshot", limit_);
      bool fit = true;
      for (std::size_t i = 0; i < pieces && fit; ++i) fit = encode(i, pieces) <= limit_;
      if (fit) return static_cast<std::uint32_t>(pieces);
    }
    return too_large("an event", limit_);
  }
  std::size_t encode(std::size_t i, std::size_t pieces) {
    const std::size_t begin = batch_.events.size() * i / pieces;
    const std::size_t end = batch_.events.size() * (i + 1) / pieces;
    cutter_.encode(begin, end - begin, static_cast<std::uint32_t>(batch_.part * pieces + i),
                   static_cast<std::uint32_t>(batch_.parts * pieces));
    return buffer_.size();
  }
  const events::EventBatch& piece() const noexcept { return cutter_.piece(); }

 private:
  const events::EventBatch& batch_;
  const std::size_t limit_;
  std::vector<std::byte>& buffer_;
  Cutter cutter_;
};

Result<void> cut_part(const events::EventBatch& batch, std::size_t limit, std::vector<std::byte>& buffer,
                      const TakePiece& take, SnapshotCut& cut) {
  const bool begins = batch.part == 0 || batch.first != cut.first || batch.parts != cut.parts ||
                      batch.published_ns != cut.published_ns;
  // Many small parts need no more pieces than the limit allows.
  if (begins) cut.pieces = std::clamp<std::uint32_t>(events::kMaxSnapshotParts / batch.parts, 1, cut.least);
  cut.first = batch.first;
  cut.parts = batch.parts;
  cut.published_ns = batch.published_ns;
  if (cut.pieces == 1 && buffer.size() <= limit) return take(batch, buffer);
  PartCutter cutter(batch, limit, buffer);
  ASHLAR_TRY(const std::uint32_t pieces, cutter.pieces_from(cut.pieces));
  if (pieces != cut.pieces) {
    cut.pieces = pieces;
    cut.least = pieces;
    if (!begins)
      return Error(ErrorCode::kCapacity,
                   "a part of a snapshot is larger than those before it and than a message may be; publish "
                   "the snapshot again, and its parts are cut finer");
  }
  ASHLAR_CHECK(std::size_t{cut.pieces} * batch.parts <= events::kMaxSnapshotParts,
               "%u parts of %u pieces each are more than a listener takes", batch.parts, cut.pieces);
  for (std::uint32_t i = 0; i < cut.pieces; ++i) {
    cutter.encode(i, cut.pieces);
    ASHLAR_DCHECK(buffer.size() <= limit, "a piece of %zu bytes exceeds a message of %zu", buffer.size(),
                  limit);
    if (Result<void> taken = take(cutter.piece(), buffer); !taken) return taken;
  }
  return {};
}

}  // namespace

Result<void> for_each_piece(const events::EventBatch& batch, std::size_t limit,
                            std::vector<std::byte>& buffer, const TakePiece& take, SnapshotCut* cut) {
  events::encode_batch(batch, buffer);
  if (batch.kind == events::BatchKind::kSnapshot && batch.parts > 1) {
    SnapshotCut alone;
    return cut_part(batch, limit, buffer, take, cut == nullptr ? alone : *cut);
  }
  if (buffer.size() <= limit) return take(batch, buffer);
  if (batch.events.empty()) return too_large("a batch without events", limit);
  return batch.kind == events::BatchKind::kEvents ? cut_events(batch, limit, buffer, take)
                                                  : cut_snapshot(batch, limit, buffer, take);
}

}  // namespace ashlar::backend::nats
