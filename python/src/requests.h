// The Python object of a request: the request, and the manager that it keeps alive.
//
// Calls that may wait run without the GIL. The request is busy meanwhile: a call from another thread is
// refused instead of racing.
//
// Thread safety: every call needs the GIL.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "errors.h"
#include "fork.h"
#include "gil.h"
#include "managers.h"

namespace ashlar::python {

class SharedRequest {
 public:
  SharedRequest(ManagerPtr manager, block::RequestSequence<block::G1> request)
      : manager_(std::move(manager)), request_(std::move(request)) {}
  SharedRequest(const SharedRequest&) = delete;
  SharedRequest& operator=(const SharedRequest&) = delete;
  ~SharedRequest() {
    if (is_of_parent(manager_)) {
      leave_behind(std::move(request_));
      return;
    }
    if (ends_slowly()) without_gil_in_destructor([this] { request_.release(); });
  }

  const ManagerPtr& manager() const { return manager_; }
  // Raises InvalidArgument while another thread is in run_without_gil().
  block::RequestSequence<block::G1>& get() {
    if (is_of_parent(manager_)) raise_of_parent();
    if (busy_) [[unlikely]]
      raise(Error(ErrorCode::kInvalidArgument,
                  "another thread is using this request; use it from one at a time"));
    return request_;
  }
  void release();
  // For a batch that runs without the GIL.
  void mark_busy(bool busy) { busy_ = busy; }
  // match_prefix() or resume(), which Ctrl-C ends: the request is then onboarding.
  Result<std::size_t, block::SequenceError> match(
      Result<std::size_t, block::SequenceError> (block::RequestSequence<block::G1>::*call)());
  // begin_match(), so that finish_match() can wait for `on_ready` too.
  Result<block::MatchStart, block::SequenceError> begin_match(std::function<void()> on_ready);
  Result<std::size_t, block::SequenceError> finish_match();
  std::vector<block::BlockId> wait_layer(std::uint32_t layer);
  template <class F>
  auto run_without_gil(F&& f) {
    block::RequestSequence<block::G1>& request = get();
    const Busy busy(busy_);
    return without_gil([&] { return std::forward<F>(f)(request); });
  }
  // The same only if `large`.
  template <class F>
  auto run(bool large, F&& f) {
    if (large) return run_without_gil(std::forward<F>(f));
    return std::forward<F>(f)(get());
  }
  // Whether what goes over all its blocks is worth giving up the GIL.
  bool is_long() { return get().size() >= kManyTokens; }
  // The same of its end, which may wait for threads that are calling Python while blocks are on their way.
  bool ends_slowly() {
    return request_.state() == block::RequestState::kOnboarding || request_.size() >= kManyTokens;
  }

 private:
  // Set when the blocks of a begin_match() are there.
  struct Ready {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_set = false;
  };
  void wait_until_ready();

  ManagerPtr manager_;  // destroyed after the request
  block::RequestSequence<block::G1> request_;
  std::shared_ptr<Ready> ready_;  // of the last begin_match()
  bool busy_ = false;
};

// The Python class RequestSequence. A batch shares its requests.
struct RequestObject {
  std::shared_ptr<SharedRequest> shared;
  block::RequestSequence<block::G1>& get() const { return shared->get(); }
};

}  // namespace ashlar::python
