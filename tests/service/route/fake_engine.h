// FakeEngine: what an engine sends and keeps, told by the test while a follower listens; and its messages.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "feed/engine_messages.h"

namespace ashlar::service {

// Tokens of a block, unless a test says otherwise.
inline constexpr std::uint32_t kFakeBlockSize = 4;

// Block `number` of a sequence that only this test knows: name, tokens.
inline std::vector<tokens::Token> tokens_of_block(std::uint32_t number,
                                                  std::uint32_t block_size = kFakeBlockSize) {
  return std::vector<tokens::Token>(block_size, tokens::Token(number + 1));
}

inline feed::EngineMessage stored_message(std::uint64_t sequence, std::uint32_t block, double time = 1,
                                          std::string_view medium = "GPU",
                                          std::uint32_t block_size = kFakeBlockSize) {
  feed::BatchBuilder batch;
  batch.batch().timestamp = time;
  const events::BlockName name(block + 100);
  batch.stored(block == 0 ? std::nullopt : std::optional(events::BlockName(block + 99)), std::span(&name, 1),
               tokens_of_block(block, block_size), block_size, medium);
  return {.topic = "kv", .sequence = sequence, .payload = feed::BatchEncoder::encode(batch.batch())};
}

inline feed::EngineMessage removed_message(std::uint64_t sequence, std::uint32_t block) {
  feed::BatchBuilder batch;
  batch.batch().timestamp = 1;
  batch.removed(events::BlockName(block + 100));
  return {.topic = "kv", .sequence = sequence, .payload = feed::BatchEncoder::encode(batch.batch())};
}

inline feed::EngineMessage cleared_message(std::uint64_t sequence) {
  feed::BatchBuilder batch;
  batch.batch().timestamp = 1;
  batch.cleared();
  return {.topic = "kv", .sequence = sequence, .payload = feed::BatchEncoder::encode(batch.batch())};
}

class FakeEngine {
 public:
  void send(feed::EngineMessage message, bool is_lost = false, bool is_kept = true) {
    MutexLock lock(mu_);
    if (is_kept) kept_.push_back(message);
    if (!is_lost) live_.push_back(std::move(message));
  }
  void set_connected(bool is_connected) {
    MutexLock lock(mu_);
    is_connected_ = is_connected;
  }
  void set_looked_back(bool has_looked_back) {
    MutexLock lock(mu_);
    has_looked_back_ = has_looked_back;
  }
  // Holds replays until it is called with false.
  void hold_replays(bool hold) {
    MutexLock lock(mu_);
    holds_ = hold;
  }
  // Holds what is received until it is called with false, as if the thread that reads were kept from running.
  // Returns when the thread is held. Requires: one reads.
  void hold_reader(bool hold) {
    {
      MutexLock lock(mu_);
      holds_reader_ = hold;
      has_held_reader_ = false;
    }
    while (hold && !has_held_reader()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void restart() {
    MutexLock lock(mu_);
    kept_.clear();
    ++restarts_;
  }
  // Its connection broke and came back, and nothing is kept of what was sent meanwhile.
  void reconnect_blindly() {
    MutexLock lock(mu_);
    kept_.clear();
    ++blind_reconnects_;
  }

  class Source final : public feed::EngineSource {
   public:
    explicit Source(std::shared_ptr<FakeEngine> engine) : engine_(std::move(engine)) {}
    Result<std::optional<feed::EngineMessage>> receive(Clock::Duration) override {
      do {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } while (engine_->is_reader_held());
      MutexLock lock(engine_->mu_);
      if (!engine_->is_connected_) return Error(ErrorCode::kUnavailable, "not connected");
      if (engine_->live_.empty()) return std::optional<feed::EngineMessage>();
      std::optional<feed::EngineMessage> message = std::move(engine_->live_.front());
      engine_->live_.pop_front();
      return message;
    }
    Result<feed::EngineReplay> replay(std::uint64_t from) override {
      for (;;) {
        {
          MutexLock lock(engine_->mu_);
          if (!engine_->holds_) {
            feed::EngineReplay replay;
            for (const feed::EngineMessage& message : engine_->kept_)
              if (message.sequence >= from) replay.messages.push_back(message);
            return replay;
          }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    std::uint64_t damaged() const noexcept override { return 0; }
    std::uint64_t restarts() const noexcept override {
      MutexLock lock(engine_->mu_);
      return engine_->restarts_;
    }
    bool has_looked_back() const noexcept override {
      MutexLock lock(engine_->mu_);
      return engine_->has_looked_back_;
    }
    std::uint64_t blind_reconnects() const noexcept override {
      MutexLock lock(engine_->mu_);
      return engine_->blind_reconnects_;
    }
    std::string describe() const override { return "an engine of the test"; }

   private:
    std::shared_ptr<FakeEngine> engine_;
  };

 private:
  bool is_reader_held() {
    MutexLock lock(mu_);
    has_held_reader_ = holds_reader_;
    return holds_reader_;
  }
  bool has_held_reader() {
    MutexLock lock(mu_);
    return has_held_reader_;
  }

  Mutex mu_;
  std::deque<feed::EngineMessage> live_ ASHLAR_GUARDED_BY(mu_);
  std::vector<feed::EngineMessage> kept_ ASHLAR_GUARDED_BY(mu_);
  bool is_connected_ ASHLAR_GUARDED_BY(mu_) = true;
  bool has_looked_back_ ASHLAR_GUARDED_BY(mu_) = false;
  bool holds_ ASHLAR_GUARDED_BY(mu_) = false;
  bool holds_reader_ ASHLAR_GUARDED_BY(mu_) = false;
  bool has_held_reader_ ASHLAR_GUARDED_BY(mu_) = false;
  std::uint64_t restarts_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t blind_reconnects_ ASHLAR_GUARDED_BY(mu_) = 0;
};

}  // namespace ashlar::service
