// Events are delivered in order; those after a gap wait by their first number. mend() asks the feed to close
// each gap, as long as that makes progress; otherwise it drops the state of the worker and continues after
// the gap.
#include "ashlar/feed/stream_receiver.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"

namespace ashlar::feed {

using events::BatchKind;
using events::EventBatch;
using events::OwnedBatch;

namespace {

// The events of a batch from number `next` on.
EventBatch behind(EventBatch batch, std::uint64_t next) {
  if (batch.first < next) {
    batch.events = batch.events.subspan(static_cast<std::size_t>(next - batch.first));
    batch.first = next;
  }
  return batch;
}

constexpr std::size_t kNodeBytes = 128;  // map node of a waiting batch

}  // namespace

Result<std::size_t> StreamReceiver::poll(Clock::Duration timeout) {
  const Result<std::size_t> came = source_.poll(*this, timeout);
  ++polls_;
  mend();
  return came;
}

bool StreamReceiver::accepts(const EventBatch& batch) {
  if (!options_.keys) return true;
  const events::StreamKeys& want = *options_.keys;
  const events::StreamKeys& got = batch.keys;
  const char* what = nullptr;
  if (want.scheme != 0 && got.scheme != want.scheme) what = "hash scheme";
  if (want.name_space != tokens::NamespaceFingerprint() && got.name_space != want.name_space)
    what = "namespace";
  if (want.block_size != 0 && got.block_size != want.block_size) what = "block size";
  if (what == nullptr) return true;
  refuse("worker " + std::to_string(batch.stream.worker.id.value()) + " rank " +
         std::to_string(batch.stream.worker.rank) + " names its blocks by another " + what +
         "; configure both sides alike");
  return false;
}

void StreamReceiver::refuse(std::string why) {
  ++counters_.refused;
  last_refusal_ = std::move(why);
}

void StreamReceiver::on_batch(const EventBatch& batch) {
  ++counters_.batches;
  if (options_.is_own && options_.is_own(batch.stream)) {
    ++counters_.own;
    return;
  }
  if (!accepts(batch)) return;
  if (batch.kind == BatchKind::kEvents && batch.first > UINT64_MAX - batch.events.size())
    return refuse("a batch whose event numbers exceed 64 bits");
  if (!streams_.contains(batch.stream.worker) && streams_.size() >= options_.max_workers)
    return refuse("more workers than max_workers, " + std::to_string(options_.max_workers));
  const auto [at, fresh] = streams_.try_emplace(batch.stream.worker);
  Stream& stream = at->second;
  if (fresh) {
    stream.id = batch.stream;
  } else if (batch.stream.incarnation < stream.id.incarnation) {
    ++counters_.stale;
    hear_earlier(stream, batch);
    return;
  } else if (batch.stream.incarnation > stream.id.incarnation) {
    ++counters_.restarts;
    const EarlierLife earlier{.incarnation = stream.id.incarnation, .end = stream.next};
    stream = {};
    stream.id = batch.stream;
    stream.earlier = earlier;
    listener_.on_reset(stream.id);
  }
  stream.earlier.is_speaking = false;
  if (batch.kind == BatchKind::kSnapshot) {
    take_snapshot(stream, batch);
  } else {
    take_events(stream, batch);
  }
}

// The last batches of one incarnation may arrive after the first of the next. When both send something new a
// second time, both are alive.
void StreamReceiver::hear_earlier(Stream& stream, const EventBatch& batch) {
  EarlierLife& earlier = stream.earlier;
  if (batch.stream.incarnation != earlier.incarnation) earlier = {.incarnation = batch.stream.incarnation};
  if (batch.end() <= earlier.end) return;
  earlier.end = batch.end();
  if (std::exchange(earlier.is_speaking, true) || ++earlier.turns != 2) return;
  ++counters_.shadowed;
  last_shadowed_ = "worker " + std::to_string(stream.id.worker.id.value()) + " rank " +
                   std::to_string(stream.id.worker.rank) + " has two publishers, incarnations " +
                   std::to_string(earlier.incarnation) + " and " + std::to_string(stream.id.incarnation) +
                   "; the first is ignored: stop it, or give it another worker number";
  log(LogLevel::kWarn, "feed", last_shadowed_);
}

void StreamReceiver::take_events(Stream& stream, const EventBatch& batch) {
  if (batch.events.empty() || batch.end() <= stream.next) {
    counters_.duplicates += batch.events.size();
    return;
  }
  if (batch.first > stream.next) {
    const auto known = stream.waiting.find(batch.first);
    if (known != stream.waiting.end() && known->second.batch.events.size() >= batch.events.size()) {
      counters_.duplicates += batch.events.size();
      return;
    }
    if (std::optional<ByteShare> share = make_room(stream, batch)) {
      WaitingBatch& waiting = stream.waiting[batch.first];
      stream.waiting_events += batch.events.size() - waiting.batch.events.size();
      waiting = {.share = *std::move(share), .batch = OwnedBatch::of(batch)};
      return;
    }
    if (batch.end() <= stream.next) {
      counters_.duplicates += batch.events.size();
      return;
    }
  }
  counters_.duplicates += stream.next - batch.first;
  hand_on(stream, behind(batch, stream.next));
  take_waiting(stream);
}

std::optional<ByteShare> StreamReceiver::make_room(Stream& stream, const EventBatch& batch) {
  while (batch.first > stream.next) {
    if (stream.waiting_events + batch.events.size() <= options_.max_waiting) {
      ByteShare share = ByteShare::try_take(budget_, kNodeBytes + events::memory_of(batch));
      if (share.has_bytes()) return share;
    }
    const bool was_last = stream.waiting.empty();
    give_up(stream);
    if (was_last) stream.next = batch.first;
  }
  return std::nullopt;
}

void StreamReceiver::hand_on(Stream& stream, const EventBatch& batch) {
  ASHLAR_DCHECK(batch.first == stream.next, "a listener hears each event once, in order: %llu after %llu",
                static_cast<unsigned long long>(batch.first), static_cast<unsigned long long>(stream.next));
  stream.next = batch.end();
  stream.started = true;
  counters_.events += batch.events.size();
  listener_.on_events(batch);
}

void StreamReceiver::take_waiting(Stream& stream) {
  while (!stream.waiting.empty() && stream.waiting.begin()->first <= stream.next) {
    const auto node = stream.waiting.extract(stream.waiting.begin());
    const OwnedBatch& batch = node.mapped().batch;
    ASHLAR_DCHECK(stream.waiting_events >= batch.events.size(), "more events leave a gap's queue than came");
    stream.waiting_events -= batch.events.size();
    if (batch.view().end() <= stream.next) {
      counters_.duplicates += batch.events.size();
      continue;
    }
    hand_on(stream, behind(batch.view(), stream.next));
  }
}

// While the state is complete, a snapshot older than the delivered events adds nothing.
void StreamReceiver::take_snapshot(Stream& stream, const EventBatch& batch) {
  if (stream.complete && stream.started && batch.first < stream.next) {
    counters_.duplicates += batch.events.size();
    return;
  }
  if (batch.parts > events::kMaxSnapshotParts || batch.part >= batch.parts)
    return refuse("part " + std::to_string(batch.part) + " of a snapshot of " + std::to_string(batch.parts));
  if (batch.parts > 1 && !add_part(stream, batch)) return;
  ++counters_.snapshots;
  listener_.on_reset(stream.id);
  std::map<std::uint32_t, WaitingBatch> parts;
  if (batch.parts > 1 || batch.first >= stream.parts_first) {
    parts = std::exchange(stream.parts, {});
    stream.parts_wanted = 0;
  }
  const auto take = [this](const EventBatch& part) {
    counters_.events += part.events.size();
    listener_.on_events(part);  // an empty one too: nothing is left
  };
  if (batch.parts == 1) take(batch);
  if (batch.parts > 1)
    for (const auto& [number, part] : parts) take(part.batch.view());
  stream.next = batch.first;
  stream.complete = true;
  stream.started = true;
  take_waiting(stream);
}

bool StreamReceiver::add_part(Stream& stream, const EventBatch& batch) {
  // Of two concurrent snapshots the later one wins, unless no part of it arrived for long.
  constexpr std::uint32_t kPatience = 1024;
  if (!stream.parts.empty() && batch.first < stream.parts_first && ++stream.parts_idle < kPatience)
    return false;
  // The rest of a snapshot that did not fit is ignored; its first part starts it again.
  if (stream.parts_refused == batch.first && batch.part != 0) return false;
  stream.parts_refused.reset();
  if (stream.parts_wanted != batch.parts || stream.parts_first != batch.first) {
    stream.parts.clear();
    stream.parts_wanted = batch.parts;
    stream.parts_first = batch.first;
  }
  stream.parts_idle = 0;
  ByteShare share = ByteShare::try_take(budget_, kNodeBytes + events::memory_of(batch));
  if (!share.has_bytes()) {
    refuse_snapshot(stream, batch);
    return false;
  }
  stream.parts.insert_or_assign(batch.part,
                                WaitingBatch{.share = std::move(share), .batch = OwnedBatch::of(batch)});
  return stream.parts.size() == stream.parts_wanted;
}

void StreamReceiver::refuse_snapshot(Stream& stream, const EventBatch& batch) {
  ++counters_.overflowed;
  stream.parts.clear();
  stream.parts_wanted = 0;
  stream.parts_refused = batch.first;
  // A snapshot of the current moment would add nothing.
  if (!stream.started || batch.first > stream.next) stream.complete = false;
  last_refusal_ = "a snapshot of worker " + std::to_string(stream.id.worker.id.value()) + " rank " +
                  std::to_string(stream.id.worker.rank) + " finds no room within the " +
                  std::to_string(options_.max_waiting_bytes) + " bytes of max_waiting_bytes; raise it";
}

// Drops the known state; the events after the gap start an incomplete one.
void StreamReceiver::give_up(Stream& stream) {
  ++counters_.resyncs;
  listener_.on_reset(stream.id);
  stream.complete = false;
  stream.started = true;
  if (!stream.waiting.empty()) stream.next = stream.waiting.begin()->first;
  take_waiting(stream);
}

void StreamReceiver::mend() {
  std::vector<events::Worker> broken;  // recovering may add unknown workers
  std::vector<events::Worker> incomplete;
  for (const auto& [worker, stream] : streams_)
    if (!stream.waiting.empty()) broken.push_back(worker);
  // A responder that did not answer before may now complete an incomplete state.
  if (options_.ask_again != 0 && polls_ % options_.ask_again == 0)
    for (const auto& [worker, stream] : streams_)
      if (!stream.complete && stream.waiting.empty()) incomplete.push_back(worker);
  for (const events::Worker& worker : incomplete) {
    const events::StreamId id = streams_.at(worker).id;
    static_cast<void>(source_.recover(id, streams_.at(worker).next, *this));
  }
  for (const events::Worker& worker : broken) {
    Stream& stream = streams_.at(worker);
    if (stream.waiting.empty()) continue;
    if (!std::exchange(stream.broken, true)) ++counters_.gaps;
    const std::uint64_t snapshots = counters_.snapshots;
    Result<bool> recovered = false;
    // The feed's own history may have a gap. Ask again from there, as long as that makes progress.
    for (std::uint64_t from = stream.next; !stream.waiting.empty(); from = stream.next) {
      recovered = source_.recover(stream.id, from, *this);
      if (!recovered || !*recovered || stream.next == from) break;
    }
    if (!recovered && recovered.error().code() == ErrorCode::kUnavailable) continue;  // at the next poll
    stream.broken = false;
    if (!stream.waiting.empty()) {
      give_up(stream);
    } else if (counters_.snapshots == snapshots) {
      ++counters_.replayed;
    }
  }
}

void StreamReceiver::check_invariants() const {
  ASHLAR_CHECK(streams_.size() <= options_.max_workers, "%zu workers are followed, %zu may be",
               streams_.size(), options_.max_workers);
  std::size_t bytes = 0;
  for (const auto& [worker, stream] : streams_) {
    ASHLAR_CHECK(stream.id.worker == worker, "a stream is found under its own worker");
    std::size_t waiting_events = 0;
    for (const auto& [first, waiting] : stream.waiting) {
      ASHLAR_CHECK(first > stream.next && first == waiting.batch.head.first,
                   "a batch waits for a gap before it; event %llu is next, %llu waits",
                   static_cast<unsigned long long>(stream.next), static_cast<unsigned long long>(first));
      waiting_events += waiting.batch.events.size();
      bytes += waiting.share.bytes();
    }
    ASHLAR_CHECK(waiting_events == stream.waiting_events && waiting_events <= options_.max_waiting,
                 "%zu events wait, %zu are counted, %zu may", waiting_events, stream.waiting_events,
                 options_.max_waiting);
    ASHLAR_CHECK(stream.parts.empty() == (stream.parts_wanted == 0),
                 "a snapshot arrives from its first part on");
    ASHLAR_CHECK(stream.parts.empty() || stream.parts.size() < stream.parts_wanted,
                 "a snapshot with all of its %u parts is applied at once", stream.parts_wanted);
    for (const auto& [number, part] : stream.parts) {
      ASHLAR_CHECK(number < stream.parts_wanted && part.batch.head.first == stream.parts_first,
                   "part %u belongs to another snapshot", number);
      bytes += part.share.bytes();
    }
  }
  ASHLAR_CHECK(bytes == budget_.used() && bytes <= budget_.limit(), "%zu bytes wait, %zu are taken of %zu",
               bytes, budget_.used(), budget_.limit());
}

std::optional<events::StreamPosition> StreamReceiver::position(const events::Worker& worker) const {
  const auto at = streams_.find(worker);
  if (at == streams_.end()) return std::nullopt;
  return events::StreamPosition{.incarnation = at->second.id.incarnation, .next = at->second.next};
}

bool StreamReceiver::is_complete(const events::Worker& worker) const {
  const auto at = streams_.find(worker);
  return at != streams_.end() && at->second.complete && at->second.waiting.empty();
}

}  // namespace ashlar::feed
