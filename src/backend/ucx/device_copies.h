// DeviceCopies: brings device memory of this process to host memory and back, for peers that UCX cannot let
// reach it: a request is copied through a buffer of a pool by the executor of a GPU leaf.
//
// A request that finds no buffer free, or the executor full, waits. Peers take turns, and the requests of one
// are in order. A peer gets another buffer while it has fewer than are free: alone it has half of them, and
// whoever comes next finds one, however long the others keep theirs. Of memory that is no longer offered when
// its turn comes nothing is copied.
//
// Thread safety: confined to the thread that progresses the service, except the end of a copy, which comes
// on a thread of the executor.
// Invariant:     a buffer is free, or belongs to one copy, or to the reply that UCX sends from it; then it
//                counts for the peer that asked, also after that is gone.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"
#include "backend/ucx/region_table.h"

namespace ashlar::backend::ucx {

class DeviceCopies {
 public:
  struct Asker;
  struct Buffer {
    std::shared_ptr<storage::Storage> memory = {};
    std::shared_ptr<Asker> asker = {};  // for whom it counts
  };
  struct Copy {
    ucp_ep_h endpoint = nullptr;  // who asked
    RequestHeader request = {};
    bool puts = false;
    std::vector<std::byte> bytes = {};  // of a put
    Verdict verdict = Verdict::kNotOffered;
    Buffer buffer = {};  // of a get that was granted: its bytes
  };
  // A peer.
  struct Asker {
    std::deque<Copy> waiting = {};
    std::size_t buffers = 0;
  };

  // `wake` is called on any thread when a copy has ended. Errors: those of the allocator.
  static Result<std::unique_ptr<DeviceCopies>> create(const UcxOptions& options, std::uint64_t buffer_bytes,
                                                      std::shared_ptr<RegionTable> table,
                                                      std::function<void()> wake);
  // Copies that run end later, and concern nobody.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // False: too many wait, and this one is not taken.
  bool add(Copy copy);
  // What has ended since the last call. The buffer of a get goes back with give_back().
  std::vector<Copy> take_ended();
  void give_back(Buffer buffer);
  // Whether the executor was full: take_ended() tries again, and is to be called every few milliseconds.
  bool waits_for_executor() const noexcept { return full_; }
  // The peer is gone: its copies end without a reply.
  void forget(ucp_ep_h endpoint);

 private:
  // What the end of a copy reaches, also after all this is gone.
  struct Ends {
    Mutex mu;  // before the engine's
    std::vector<std::pair<std::uint64_t, bool>> list ASHLAR_GUARDED_BY(mu);
    std::function<void()> wake ASHLAR_GUARDED_BY(mu);
  };

  DeviceCopies(std::shared_ptr<transfer::Executor> executor, std::shared_ptr<RegionTable> table,
               std::function<void()> wake);
  void start_waiting();
  // Takes the first request of a peer, which gets a buffer. False: the executor is full, and it waits on.
  bool start_next(const std::shared_ptr<Asker>& asker);
  void free_buffer(Buffer& buffer);
  // Errors: kCapacity: the executor is full; others: why it cannot be copied.
  Result<void> start(std::uint64_t id, Copy& copy, const std::shared_ptr<storage::Storage>& memory);

  const std::shared_ptr<transfer::Executor> executor_;
  const std::shared_ptr<RegionTable> table_;
  const std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  std::uint64_t buffer_bytes_ = 0;
  std::vector<std::shared_ptr<storage::Storage>> free_;
  std::unordered_map<ucp_ep_h, std::shared_ptr<Asker>> askers_;
  std::deque<std::shared_ptr<Asker>> turns_;  // those with requests that wait
  std::size_t waiting_ = 0;
  std::uint64_t waiting_bytes_ = 0;  // of puts
  std::unordered_map<std::uint64_t, Copy> running_;
  std::vector<Copy> refused_;
  std::uint64_t next_ = 0;
  bool full_ = false;  // the executor was
  Clock::TimePoint retry_at_ = {};
};

}  // namespace ashlar::backend::ucx
