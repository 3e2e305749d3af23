// Event files, dumps of an index, and recordings of engines. Their readers verify every batch or message as
// they go, so these are always verified as far as the format allows.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "ashlar/events/engine_codec.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/feed_source.h"
#include "base/byte_io.h"
#include "inspect/inspected_file.h"

namespace ashlar::inspect {
namespace {

// What an event file says about each stream.
class StreamCensus final : public feed::BatchConsumer {
 public:
  void on_batch(const events::EventBatch& batch) override {
    ++batches_;
    for (const events::LocationName& location : batch.locations) locations_.insert(location.name);
    Stream& stream = streams_[batch.stream];
    if (stream.batches++ == 0) stream.next = batch.first;
    stream.keys = batch.keys;
    if (batch.kind == events::BatchKind::kSnapshot) {
      snapshot_parts_ += 1;
      ++stream.snapshots;
      stream.next = batch.first;
    } else {
      if (batch.first > stream.next) ++stream.gaps;
      stream.next = std::max(stream.next, batch.end());
    }
    stream.events += batch.events.size();
    for (const events::KvEvent& event : batch.events)
      ++kinds_[std::min<std::size_t>(static_cast<std::size_t>(event.kind), kinds_.size() - 1)];
  }
  std::uint64_t batches() const noexcept { return batches_; }
  void describe(Inspection& seen) const {
    seen.add("batches", batches_);
    seen.add("snapshot_parts", snapshot_parts_);
    for (const auto kind :
         {events::KvEventKind::kStored, events::KvEventKind::kRemoved, events::KvEventKind::kAccess,
          events::KvEventKind::kCleared, events::KvEventKind::kResync})
      seen.add(std::string(to_string(kind)), kinds_[static_cast<std::size_t>(kind)]);
    std::uint64_t gaps = 0;
    InspectedList list{.name = "streams"};
    for (const auto& [id, stream] : streams_) {
      gaps += stream.gaps;
      list.add({{"worker", id.worker.id.value()},
                {"rank", std::uint64_t{id.worker.rank}},
                {"incarnation", id.incarnation},
                {"block_size", std::uint64_t{stream.keys.block_size}},
                {"hash_scheme", hex_of(stream.keys.scheme)},
                {"batches", stream.batches},
                {"events", stream.events},
                {"next_event", stream.next},
                {"gaps", stream.gaps}});
    }
    seen.add("gaps", gaps);
    seen.lists.push_back(std::move(list));
    InspectedList places{.name = "locations"};
    for (const std::string& name : locations_) places.add({{"name", name}});
    if (!locations_.empty()) seen.lists.push_back(std::move(places));
  }

 private:
  struct Stream {
    events::StreamKeys keys;
    std::uint64_t batches = 0;
    std::uint64_t snapshots = 0;
    std::uint64_t events = 0;
    std::uint64_t next = 0;
    std::uint64_t gaps = 0;
  };
  std::map<events::StreamId, Stream> streams_;
  std::set<std::string> locations_;
  static constexpr std::size_t kEventKinds = 5;
  static_assert(static_cast<std::size_t>(events::KvEventKind::kCleared) + 1 == kEventKinds,
                "each is counted");
  std::array<std::uint64_t, kEventKinds> kinds_{};
  std::uint64_t batches_ = 0;
  std::uint64_t snapshot_parts_ = 0;
};

}  // namespace

Result<void> inspect_events(const InspectedFile& file, Inspection& seen) {
  std::array<std::byte, 16> head{};
  ASHLAR_RETURN_IF_ERROR(file.read(0, head));
  ByteReader in(std::span<const std::byte>(head).subspan(12));
  const auto promised = in.get<std::uint32_t>();
  ASHLAR_TRY(const auto source, feed::FileSource::create({.path = file.path()}));
  StreamCensus census;
  for (;;) {
    const Result<std::size_t> came = source->poll(census, {});
    if (!came && came.error().code() == ErrorCode::kNotFound) break;
    if (!came) return came.error();
  }
  seen.kind = promised == 0 ? "event file" : "dump of an index";
  seen.add("version", std::uint64_t{1});
  seen.add("file_bytes", file.size());
  census.describe(seen);
  if (source->damaged() != 0) {
    seen.add("damaged_bytes", source->damaged_bytes());
    seen.damage(std::to_string(source->damaged()) + " places that are no whole batches, " +
                    std::to_string(source->damaged_bytes()) + " bytes",
                source->damaged());
  }
  if (promised != 0 && census.batches() != promised)
    seen.damage("the dump should have " + std::to_string(promised) + " batches and has " +
                std::to_string(census.batches()));
  if (source->unfinished_bytes() != 0)
    seen.notes.push_back("it ends with " + std::to_string(source->unfinished_bytes()) +
                         " bytes of a batch that was not finished; its writer was stopped, or still writes");
  seen.is_verified = true;
  return {};
}

bool looks_like_recording(std::span<const std::byte> first, std::uint64_t size) {
  ByteReader in(first);
  const auto frames = in.get<std::uint32_t>();
  const auto topic = in.get<std::uint32_t>();
  return in.ok() && (frames == 3 || frames == 4) && topic < 65'536 && topic < size;
}

Result<void> inspect_recording(const InspectedFile& file, Inspection& seen) {
  seen.kind = "recording of an engine";
  seen.has_checksums = false;
  ASHLAR_TRY(const auto source, feed::RecordingSource::create({.path = file.path()}));
  std::map<std::string, std::uint64_t> topics;
  std::map<std::uint32_t, std::uint64_t> ranks;
  std::uint64_t messages = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t jumps = 0;
  std::array<std::uint64_t, 4> kinds{};
  static_assert(static_cast<std::size_t>(events::EngineEventKind::kUnknown) + 1 == 4, "each is counted");
  std::uint64_t blocks = 0;
  std::uint64_t undecodable = 0;
  events::EngineBatch batch;
  for (;;) {
    const Result<std::optional<feed::EngineMessage>> came = source->receive({});
    if (!came && came.error().code() == ErrorCode::kNotFound) break;
    if (!came) return came.error();
    if (!*came) continue;
    const feed::EngineMessage& message = **came;
    if (messages++ == 0) {
      first = message.sequence;
    } else if (message.sequence != last + 1) {
      ++jumps;
    }
    last = message.sequence;
    if (topics.size() < InspectedList::kMostItems || topics.contains(message.topic)) ++topics[message.topic];
    if (!events::decode_engine_batch(message.payload, batch)) {
      ++undecodable;
      continue;
    }
    ++ranks[batch.rank.value_or(0)];
    blocks += batch.names.size();
    for (const events::EngineEvent& event : batch.events)
      ++kinds[std::min<std::size_t>(static_cast<std::size_t>(event.kind), kinds.size() - 1)];
  }
  if (messages == 0)
    return make_error(
        ErrorCode::kInvalidArgument,
        "%s holds no message of an engine; a recording begins with the number of frames (3 or 4)",
        file.path().c_str());
  seen.add("file_bytes", file.size());
  seen.add("messages", messages);
  seen.add("first_number", first);
  seen.add("last_number", last);
  seen.add("jumps", jumps);
  seen.add("ranks", std::uint64_t{ranks.size()});
  seen.add("stored", kinds[0]);
  seen.add("removed", kinds[1]);
  seen.add("cleared", kinds[2]);
  seen.add("unknown_events", kinds[3]);
  seen.add("block_names", blocks);
  InspectedList list{.name = "topics"};
  for (const auto& [topic, count] : topics) list.add({{"topic", topic}, {"messages", count}});
  seen.lists.push_back(std::move(list));
  if (source->damaged() != 0)
    seen.damage(std::to_string(source->damaged()) + " places that are no messages", source->damaged());
  if (undecodable != 0)
    seen.damage(std::to_string(undecodable) + " messages that cannot be decoded", undecodable);
  if (source->unfinished_bytes() != 0)
    seen.notes.push_back("it ends with " + std::to_string(source->unfinished_bytes()) +
                         " bytes of a message that was not finished");
  seen.notes.emplace_back(
      "recordings have no checksums: a changed payload shows only if it cannot be decoded");
  return {};
}

}  // namespace ashlar::inspect
