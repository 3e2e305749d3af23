// A state machine over message numbers: begin(), the next number, a gap, or an old number, which judge()
// classifies as a duplicate, a late message or a restart by comparing fingerprints of recent messages.
#include "ashlar/feed/engine_session.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/events/engine_codec.h"
#include "tokens/xxh3_kernel.h"

namespace ashlar::feed {

using events::KvEvent;

namespace {

// XXH3-64 of the payload, without a seed.
std::uint64_t fingerprint_of(const EngineMessage& message) {
  static const auto secret = [] {
    std::array<std::byte, tokens::kXxh3SecretSize> bytes;
    tokens::xxh3_derive_secret(0, bytes.data());
    return bytes;
  }();
  return tokens::xxh3_kernel().hash(message.payload.data(), message.payload.size(), secret.data(), 0);
}

// The first lines of a message, which another thread wrote; the processor sees by itself that more follow.
// always_inline: g++ drops calls of functions that only prefetch.
[[gnu::always_inline]] inline void prefetch(const EngineMessage& message) {
  constexpr std::size_t kMost = 2048;
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < std::min(kMost, message.payload.size()); at += kLine)
    __builtin_prefetch(message.payload.data() + at);
}

}  // namespace

Result<void> EngineSessionOptions::validate() const {
  if (remembered == 0 || remembered > (1u << 24))
    return make_error(ErrorCode::kInvalidArgument, "remembered is %u messages; choose 1 to 16777216",
                      remembered);
  return ingest.validate();
}

EngineSession::EngineSession(std::unique_ptr<EngineSource> source, const EngineSessionOptions& options,
                             EngineIngest ingest)
    : source_(std::move(source)),
      ingest_(std::move(ingest)),
      memory_(options.remembered),
      max_batch_bytes_(options.max_batch_bytes) {}

Result<EngineSession> EngineSession::create(std::unique_ptr<EngineSource> source,
                                            const EngineSessionOptions& options) {
  ASHLAR_CHECK(source != nullptr, "a session needs a source");
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(auto ingest, EngineIngest::create(options.ingest));
  return EngineSession(std::move(source), options, std::move(ingest));
}

Result<std::size_t> EngineSession::step(Clock::Duration timeout, ChangeOutput out) {
  auto received = source_->receive(timeout);
  if (const std::uint64_t seen = source_->restarts(); seen != source_restarts_) {
    source_restarts_ = seen;
    ++counters_.restarts;
    forget(out);
  }
  if (!received) return received.error();
  if (!*received) return std::size_t{0};
  const EngineMessage& message = **received;
  prefetch(message);
  const std::uint64_t before = counters_.applied;
  ++counters_.received;
  if (message.sequence ==
      std::numeric_limits<std::uint64_t>::max()) {  // no number; it marks the end of a replay
    ++counters_.undecodable;
    return std::size_t{0};
  }
  if (!next_) {
    begin(message, out);
  } else if (message.sequence == *next_) {
    apply_live(message, out);
  } else if (message.sequence > *next_) {
    ++counters_.gaps;
    fill_gap(message, out);
  } else {
    switch (judge(message)) {
      case Stale::kDuplicate:
        ++counters_.duplicates;
        break;
      case Stale::kLate:
        ++counters_.late;
        break;
      case Stale::kRestart:
        restart(message, out);
        break;
    }
  }
  return static_cast<std::size_t>(counters_.applied - before);
}

void EngineSession::begin(const EngineMessage& message, ChangeOutput out) {
  next_ = 0;
  if (message.sequence == 0) return apply_live(message, out);
  EngineReplay kept = replay(0);
  if (kept.messages.empty() || kept.messages.front().sequence != 0) ++counters_.incomplete_starts;
  follow(std::move(kept), message.sequence, out);
  finish(message, out);
}

void EngineSession::fill_gap(const EngineMessage& message, ChangeOutput out) {
  const std::uint64_t last = *next_ - 1;
  EngineReplay kept = replay(last);
  const Memory* known = recall(last);
  for (const EngineMessage& old : kept.messages)
    if (old.sequence == last && known != nullptr && known->fingerprint != fingerprint_of(old))
      return restart(message, out);
  follow(std::move(kept), message.sequence, out);
  finish(message, out);
}

void EngineSession::restart(const EngineMessage& message, ChangeOutput out) {
  ++counters_.restarts;
  forget(out);
  begin(message, out);
}

void EngineSession::forget(ChangeOutput out) {
  ingest_.reset(out);
  next_.reset();
  last_timestamp_ = 0;
  memory_.assign(memory_.size(), {});
}

Result<EngineCheckpoint> EngineSession::save() const {
  const Memory* last = next_ && *next_ > 0 ? recall(*next_ - 1) : nullptr;
  if (last == nullptr) return Error(ErrorCode::kNotReady, "no message came since the engine started");
  ASHLAR_TRY(std::vector<std::byte> state, ingest_.save());
  return EngineCheckpoint{.message = last->sequence, .digest = last->fingerprint, .state = std::move(state)};
}

Result<void> EngineSession::resume(const EngineCheckpoint& checkpoint, ChangeOutput out) {
  ASHLAR_CHECK(next_.has_value(), "a checkpoint is resumed from after a message");
  const std::uint64_t until = *next_;
  EngineReplay kept = replay(checkpoint.message);
  const auto number = static_cast<unsigned long long>(checkpoint.message);
  if (kept.messages.empty() || kept.messages.front().sequence != checkpoint.message)
    return make_error(ErrorCode::kNotFound, "it was taken at message %llu, which is not kept", number);
  const EngineMessage& last = kept.messages.front();
  if (fingerprint_of(last) != checkpoint.digest)
    return make_error(ErrorCode::kInvalidArgument,
                      "message %llu, at which it was taken, is another one now: the engine was restarted",
                      number);
  ASHLAR_RETURN_IF_ERROR(ingest_.load(checkpoint.state, out));
  ++counters_.resumes;
  memory_.assign(memory_.size(), {});
  remember(last);
  last_timestamp_ = decode(last) ? batch_.timestamp : 0;
  next_ = checkpoint.message + 1;
  follow(std::move(kept), until, out);
  return {};
}

EngineSession::Stale EngineSession::judge(const EngineMessage& message) {
  const Memory* known = recall(message.sequence);
  if (known != nullptr && known->fingerprint == fingerprint_of(message)) return Stale::kDuplicate;
  if (!decode(message)) {
    // A damaged duplicate, or the first sign of a restart: the message that the engine keeps under this
    // number decides.
    if (known != nullptr)
      for (const EngineMessage& kept : replay(message.sequence).messages)
        if (kept.sequence == message.sequence && known->fingerprint == fingerprint_of(kept))
          return Stale::kDuplicate;
    return Stale::kRestart;
  }
  if (known != nullptr || *next_ - message.sequence > memory_.size()) return Stale::kRestart;
  return batch_.timestamp > last_timestamp_ ? Stale::kRestart : Stale::kLate;
}

void EngineSession::follow(std::span<const EngineMessage> messages, ChangeOutput out) {
  for (const EngineMessage& message : messages) {
    if (message.sequence < *next_) continue;
    if (message.sequence > *next_) lose_until(message.sequence, out);
    if (apply(message, out)) {
      ++counters_.replayed;
    } else {
      lose_until(message.sequence + 1, out);
    }
  }
}

void EngineSession::follow(EngineReplay kept, std::uint64_t until, ChangeOutput out) {
  for (;;) {
    follow(kept.messages, out);
    if (!kept.is_cut || *next_ >= until) return;
    const std::uint64_t from = *next_;
    kept = {};  // freed before the next is taken
    kept = replay(from);
    if (kept.messages.empty() || kept.messages.back().sequence < from) return;
  }
}

void EngineSession::finish(const EngineMessage& message, ChangeOutput out) {
  if (message.sequence < *next_) return;  // the replay had it
  if (message.sequence > *next_) lose_until(message.sequence, out);
  if (!apply(message, out)) lose_until(message.sequence + 1, out);
}

void EngineSession::apply_live(const EngineMessage& message, ChangeOutput out) {
  if (apply(message, out)) return;
  for (const EngineMessage& again : replay(message.sequence).messages)
    if (again.sequence == message.sequence && apply(again, out)) {
      ++counters_.replayed;
      return;
    }
  lose_until(message.sequence + 1, out);
}

bool EngineSession::apply(const EngineMessage& message, ChangeOutput out) {
  if (!decode(message)) {
    ++counters_.undecodable;
    return false;
  }
  ASHLAR_CHECK(message.sequence == *next_, "messages are applied in order: %llu after %llu",
               static_cast<unsigned long long>(message.sequence), static_cast<unsigned long long>(*next_));
  remember(message);
  next_ = message.sequence + 1;
  last_timestamp_ = std::max(last_timestamp_, batch_.timestamp);
  ++counters_.applied;
  ingest_.apply(batch_, out);
  return true;
}

void EngineSession::lose_until(std::uint64_t sequence, ChangeOutput out) {
  ASHLAR_CHECK(sequence > *next_, "a loss of no message: %llu is next, %llu came",
               static_cast<unsigned long long>(*next_), static_cast<unsigned long long>(sequence));
  counters_.lost += sequence - *next_;
  ++counters_.resyncs;
  ingest_.resync(out);
  next_ = sequence;
}

bool EngineSession::decode(const EngineMessage& message) {
  const Result<void> decoded = events::decode_engine_batch(message.payload, batch_, max_batch_bytes_);
  if (!decoded && decoded.error().code() == ErrorCode::kCapacity) ++counters_.oversized;
  return decoded.has_value();
}

EngineReplay EngineSession::replay(std::uint64_t from) {
  ++counters_.replays;
  auto kept = source_->replay(from);
  if (kept) return *std::move(kept);
  ++counters_.failed_replays;
  return {};
}

void EngineSession::remember(const EngineMessage& message) {
  memory_[message.sequence % memory_.size()] = {
      .sequence = message.sequence, .fingerprint = fingerprint_of(message), .known = true};
}

const EngineSession::Memory* EngineSession::recall(std::uint64_t sequence) const {
  const Memory& memory = memory_[sequence % memory_.size()];
  return memory.known && memory.sequence == sequence ? &memory : nullptr;
}

}  // namespace ashlar::feed
