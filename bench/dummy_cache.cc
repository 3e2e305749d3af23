#include "dummy_cache.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "ashlar/events/engine_codec.h"
#include "processes.h"

namespace ashlar::bench {

namespace {

using backend::zmq::EnginePublisher;

class PublishedCache final : public DummyCache {
 public:
  explicit PublishedCache(std::unique_ptr<EnginePublisher> publisher) : publisher_(std::move(publisher)) {}

  std::size_t run(std::span<const std::uint32_t> tokens, std::size_t answer) override {
    const std::size_t blocks = (tokens.size() - 1) / kBlockSize;
    const std::size_t of_prompt = (tokens.size() - answer - 1) / kBlockSize;
    names_.clear();
    std::uint64_t name = 0x9E37'79B9'7F4A'7C15u;
    std::size_t held = 0;  // from the start
    for (std::size_t i = 0; i < blocks; ++i) {
      for (const std::uint32_t token : tokens.subspan(i * kBlockSize, kBlockSize)) {
        name = (name ^ token) * 0xBF58'476D'1CE4'E5B9u;
        name ^= name >> 29;
      }
      names_.push_back(name);
      if (held == i && held_.contains(name)) ++held;
    }
    use(held);
    if (held < blocks) publish(tokens, held);
    use(blocks);
    return std::min(held, of_prompt) * kBlockSize;
  }

 private:
  void publish(std::span<const std::uint32_t> tokens, std::size_t held) {
    batch_.clear();
    batch_.timestamp =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto count = static_cast<std::uint32_t>(names_.size() - held);
    remove_oldest(count);
    events::EngineEvent stored;
    stored.kind = events::EngineEventKind::kStored;
    stored.names = {static_cast<std::uint32_t>(batch_.names.size()), count};
    stored.tokens = {0, count * kBlockSize};
    stored.block_size = kBlockSize;
    stored.medium = "GPU";
    if (held > 0) stored.parent = events::BlockName(names_[held - 1]);
    for (const std::uint64_t name : std::span(names_).subspan(held)) batch_.names.emplace_back(name);
    for (const std::uint32_t token : tokens.subspan(held * kBlockSize, count * kBlockSize))
      batch_.tokens.emplace_back(token);
    batch_.events.push_back(stored);
    encode_engine_batch(batch_, bytes_);
    if (!publisher_->publish("kv-events", bytes_)) fail("the publisher's queue is full");
  }

  void remove_oldest(std::size_t room) {
    events::EngineEvent removed;
    removed.kind = events::EngineEventKind::kRemoved;
    removed.medium = "GPU";
    while (held_.size() + room > kMostBlocks && !uses_.empty()) {
      held_.erase(uses_.front());
      batch_.names.emplace_back(uses_.front());
      uses_.pop_front();
    }
    if (batch_.names.empty()) return;
    removed.names = {0, static_cast<std::uint32_t>(batch_.names.size())};
    batch_.events.push_back(removed);
  }

  // Of the first blocks of names_, the last one first: a block is never removed before those that follow it.
  void use(std::size_t blocks) {
    while (blocks-- > 0) {
      const auto [block, is_new] = held_.try_emplace(names_[blocks]);
      if (!is_new) uses_.erase(block->second);
      block->second = uses_.insert(uses_.end(), names_[blocks]);
    }
  }

  const std::unique_ptr<EnginePublisher> publisher_;
  std::list<std::uint64_t> uses_;  // the oldest first
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> held_;
  std::vector<std::uint64_t> names_;  // of the request
  events::EngineBatch batch_;
  std::vector<std::byte> bytes_;
};

}  // namespace

bool DummyCache::is_there() noexcept {
  return true;
}

std::unique_ptr<DummyCache> DummyCache::create(std::uint16_t events, std::uint16_t replay) {
  const auto endpoint = [](std::uint16_t port) { return "tcp://127.0.0.1:" + std::to_string(port); };
  auto made = EnginePublisher::create({.endpoint = endpoint(events),
                                       .attach = backend::zmq::Attach::kBind,
                                       .replay_endpoint = endpoint(replay),
                                       .buffer_bytes = std::size_t{64} << 20});
  if (!made) fail("a publisher: " + made.error().to_string());
  return std::make_unique<PublishedCache>(*std::move(made));
}

}  // namespace ashlar::bench
