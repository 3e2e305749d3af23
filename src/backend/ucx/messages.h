// Responder: answers requests of peers (region_table.h) on the worker that serves them.
//
// UCX's own one-sided operations, which it emulates with messages too, are off: UCX 1.13 ends the process of
// an owner that finds its reader gone, they ask nobody, and an owner that sees every request can refuse what
// it did not offer: a request names a region, a token that only its key has, and a range inside it.
//
// UCX reports peers that are gone, not those that hang. A peer that takes none of its replies for a while is
// disconnected, because they keep memory and buffers.
//
// Thread safety: confined to the thread that progresses its worker.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/storage.h"
#include "backend/ucx/context.h"
#include "backend/ucx/device_copies.h"
#include "backend/ucx/region_table.h"

namespace ashlar::backend::ucx {

// What a reply has behind its header.
struct ReplyBytes {
  std::shared_ptr<storage::Storage> memory = {};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  DeviceCopies::Buffer buffer = {};  // in place of memory; goes back
};

class Responder {
 public:
  // Accepts connections at `host`, an IPv4 address, and takes the requests of a worker. `devices` is null
  // where no device memory is offered. `reply_limit`: as in the options. Errors: kIo: no port can be listened
  // on.
  static Result<std::unique_ptr<Responder>> create(std::unique_ptr<UcxWorker> worker,
                                                   std::shared_ptr<RegionTable> table,
                                                   std::unique_ptr<DeviceCopies> devices,
                                                   Clock::Duration reply_limit, const std::string& host);
  ~Responder();
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  UcxWorker& worker() noexcept { return *worker_; }
  std::uint16_t port() const noexcept { return port_; }
  // Whether anything happened.
  bool progress();
  // Disconnects peers that take no replies. Whether there was one.
  bool close_stalled(Clock::TimePoint now);
  // Whether both are to be called every few milliseconds, event or not.
  bool needs_ticks() const noexcept {
    return replies_ != 0 || (devices_ != nullptr && devices_->waits_for_executor());
  }

 private:
  // A peer that connected by TCP.
  struct Peer {
    std::size_t replies = 0;      // on their way
    Clock::TimePoint moved = {};  // when it took one, or when the first of them was sent
  };
  // A reply on its way: UCX reads header and bytes until it says otherwise.
  struct Sending {
    Responder* responder = nullptr;
    ReplyHeader header;
    std::shared_ptr<storage::Storage> memory;
    DeviceCopies::Buffer buffer;
    std::shared_ptr<Peer> peer;  // null over shared memory, where nobody can be disconnected
  };

  Result<void> listen(const std::string& host);
  static ucs_status_t asked(void* user, const void* header, std::size_t header_length, void* data,
                            std::size_t length, const ucp_am_recv_param_t* parameters);
  static ucs_status_t wants_bytes(void* user, const void* header, std::size_t header_length, void* data,
                                  std::size_t length, const ucp_am_recv_param_t* parameters);
  static ucs_status_t brings_bytes(void* user, const void* header, std::size_t header_length, void* data,
                                   std::size_t length, const ucp_am_recv_param_t* parameters);
  static void sent(void* request, ucs_status_t status, void* user);
  static void connected(ucp_conn_request_h request, void* user);
  static void lost(void* user, ucp_ep_h endpoint, ucs_status_t status);
  void reply(ucp_ep_h endpoint, unsigned id, const ReplyHeader& header, ReplyBytes bytes = {});
  // Replies to those whose device memory was copied.
  bool progress_devices();
  // UCX needs the memory of a reply no more.
  void release(Sending& sending);
  // Ends what is in flight to a peer. Not in UCX's callbacks.
  void disconnect(ucp_ep_h endpoint);

  Responder(std::unique_ptr<UcxWorker> worker, std::shared_ptr<RegionTable> table,
            std::unique_ptr<DeviceCopies> devices, Clock::Duration reply_limit) noexcept
      : reply_limit_(reply_limit),
        table_(std::move(table)),
        devices_(std::move(devices)),
        worker_(std::move(worker)) {}

  const Clock::Duration reply_limit_;
  std::shared_ptr<RegionTable> table_;
  std::unique_ptr<DeviceCopies> devices_;
  std::unique_ptr<UcxWorker> worker_;
  ucp_listener_h listener_ = nullptr;
  std::uint16_t port_ = 0;
  std::vector<ucp_conn_request_h> arrivals_;
  std::vector<ucp_ep_h> lost_;  // closed outside UCX's callbacks
  std::unordered_map<Sending*, std::unique_ptr<Sending>> sending_;
  std::vector<DeviceCopies::Buffer> returned_;  // given back outside UCX's callbacks
  std::unordered_map<ucp_ep_h, std::shared_ptr<Peer>> peers_;
  std::size_t replies_ = 0;  // on their way to a Peer
  Clock::TimePoint checked_ = {};
};

// Lets `handler` take the messages `id` of a worker.
void take_messages(UcxWorker& worker, unsigned id, ucp_am_recv_callback_t handler, void* user);

}  // namespace ashlar::backend::ucx
