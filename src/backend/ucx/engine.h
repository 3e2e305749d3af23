// Engine: the thread that progresses the workers of a transport, and the way in for transfers.
//
// The thread looks at the worker that serves peers and at links that have something to do. For a while after
// the last event it keeps looking, then it arms the workers and sleeps until an event, a call, or the next
// check of deadlines.
//
// Thread safety: thread-safe, except members marked as confined to the thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/base/mutex.h"
#include "backend/ucx/context.h"
#include "backend/ucx/framing.h"
#include "backend/ucx/link.h"
#include "backend/ucx/messages.h"
#include "transfer/copy/admission.h"

namespace ashlar::backend::ucx {

class Engine {
 public:
  static Result<std::shared_ptr<Engine>> create(const UcxOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::shared_ptr<UcxContext>& context() const noexcept { return context_; }
  const std::shared_ptr<RegionTable>& table() const noexcept { return table_; }
  bool copies_devices() const noexcept { return options_.device_executor != nullptr; }
  // What a peer's connect() needs.
  const std::vector<std::byte>& address() const noexcept { return address_; }
  // See UcxTransport::listen_at().
  Result<void> listen_at(const std::string& host) const;
  Result<std::shared_ptr<Link>> connect(const transfer::AgentIdentity& peer, const WorkerAddress& address,
                                        std::function<void(const Error&)> on_failure,
                                        Clock::TimePoint deadline);
  // Requires: the plan's remote side lies behind `link`.
  Result<transfer::Transfer> submit(transfer::TransferRequest request, const std::shared_ptr<Link>& link);
  // Makes the thread look at a link.
  void attend(std::shared_ptr<Link> link);
  transfer::ExecutorCounters counters() const { return admission_.counters(); }
  // Cancels queued transfers, gives running ones close_limit, closes all links and ends the thread.
  void stop();

 private:
  Engine(const UcxOptions& options, std::shared_ptr<UcxContext> context, int epoll, int wake);
  Result<void> open();
  // What peers need to reach the service at these hosts.
  Result<std::vector<std::byte>> encode_address(std::string hosts);

  // Confined to the thread.
  void run();
  void take_calls();
  bool look_at_links();
  // False when one of them has something to do already.
  bool put_links_to_sleep();
  void wait(int milliseconds);
  void warm(const std::shared_ptr<Link>& link);
  // Whether the thread may end.
  bool wind_up();

  const UcxOptions options_;
  const bool confined_;  // no devices were named, and loopback was chosen
  transfer::Admission admission_;
  const std::shared_ptr<UcxContext> context_;
  const std::shared_ptr<RegionTable> table_ = std::make_shared<RegionTable>();
  std::unique_ptr<Responder> service_;  // confined to the thread while it runs
  std::vector<std::byte> packed_;       // address of its worker; empty without shared memory
  std::vector<std::byte> address_;      // set before the first call
  const bool shares_memory_;
  const std::uint64_t machine_;
  const int epoll_;
  const int wake_;

  mutable Mutex mu_;
  std::vector<std::shared_ptr<Link>> calls_ ASHLAR_GUARDED_BY(mu_);
  bool asleep_ ASHLAR_GUARDED_BY(mu_) = false;
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  std::uint64_t next_link_ ASHLAR_GUARDED_BY(mu_) = 2;  // 0 and 1 are wake_ and the service

  std::unordered_map<std::uint64_t, std::shared_ptr<Link>> links_;
  std::vector<std::shared_ptr<Link>> hot_;        // to look at without an event
  std::unordered_set<std::uint64_t> unfinished_;  // links with transfers, or closing
  bool stop_seen_ = false;
  bool links_failed_ = false;
  Clock::TimePoint stop_by_ = {};

  std::thread thread_;
};

}  // namespace ashlar::backend::ucx
