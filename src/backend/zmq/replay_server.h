// ReplayServer: keeps recent messages and replays them on request through a ROUTER socket.
//
// Replies are sent as far as their reader has room, and continue at the next send_replies(): a slow reader
// delays no other and costs only its record. Messages that leave the ring meanwhile are skipped; the reader
// sees the gap in the numbers.
//
// Snapshots take memory until their readers have read them. Requests share a snapshot while no message is
// published. Another one is taken if it fits EnginePublisherOptions::snapshot_bytes together with unread
// ones, or none is left; until then its reader waits.
//
// Thread safety: confined; the counters are thread-safe.
// Complexity:    O(1) for a message, and for each message of a reply.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/backend/zmq/engine_publisher.h"
#include "backend/zmq/socket.h"

namespace ashlar::backend::zmq {

class ReplayServer {
 public:
  static constexpr std::size_t kMaxReplies = 256;  // at once

  // `router` is already bound.
  ReplayServer(Socket router, const EnginePublisherOptions& options);

  // Keeps the next message; `number` is one more than the last.
  void keep(std::uint64_t number, const Frame& topic, const Frame& payload);
  // Accepts requests; messages kept before the next send_replies() belong to their answers.
  void take_requests();
  // Sends as much as fits. `next` is the number of the next message.
  void send_replies(std::uint64_t next);
  // Replies that wait for room.
  bool is_busy() const noexcept { return !replies_.empty(); }
  Socket& socket() noexcept { return router_; }
  // Bytes of unread snapshots.
  std::size_t snapshot_bytes() const noexcept { return snapshot_budget_->used(); }

  std::atomic<std::uint64_t> replays{0};
  std::atomic<std::uint64_t> replayed{0};
  std::atomic<std::uint64_t> snapshots{0};
  std::atomic<std::uint64_t> invalid_requests{0};
  std::atomic<std::uint64_t> dropped_replays{0};

 private:
  struct Kept {
    Frame topic;
    Frame payload;
  };
  struct Reply {
    Frame identity;
    std::uint64_t next = 0;            // message to send
    std::optional<std::uint64_t> end;  // number of the next message when the reply began
    bool wants_snapshot = false;       // still to be taken
    std::deque<Frame> snapshot;        // sent instead
    Clock::TimePoint give_up;
  };
  enum class Progress : std::uint8_t { kDone, kLater, kGone };

  void accept(std::vector<Frame>& request, std::size_t count);
  Progress advance(Reply& reply);
  // kLater: no room now; kGone: it cannot be taken.
  Progress prepare_snapshot(Reply& reply, std::uint64_t next);
  Progress send(const Frame& identity, Frame topic, Frame number, Frame payload);
  void forget_oldest();

  Socket router_;
  const std::size_t limit_;
  const std::size_t byte_limit_;
  const Clock::Duration patience_;
  const std::function<std::vector<std::vector<std::byte>>()> make_snapshot_;
  std::deque<Kept> kept_;
  std::uint64_t first_ = 0;  // number of kept_.front()
  std::size_t bytes_ = 0;
  std::list<Reply> replies_;
  const std::shared_ptr<ByteBudget> snapshot_budget_;
  std::vector<Frame> snapshot_;    // the last one taken, while it may be shared
  std::uint64_t snapshot_at_ = 0;  // number of the next message when it was taken
  std::size_t snapshot_size_ = 0;  // size of the last one
  std::vector<Frame> request_;
};

}  // namespace ashlar::backend::zmq
