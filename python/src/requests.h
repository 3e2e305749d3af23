// The Python object of a request: the request, and the manager that it keeps alive.
//
// Calls that may wait run without the GIL. The request is busy meanwhile: a call from another thread is
// refused instead of racing.
//
// Thread safety: every call needs the GIL.
#pragma once

#include <memory>
#include <utility>

#include "ashlar/block/request_sequence.h"
#include "errors.h"
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
    // Ending an onboarding may wait for threads that are calling Python.
    if (request_.state() == block::RequestState::kOnboarding) {
      without_gil_in_destructor([this] { request_.release(); });
    }
  }

  const ManagerPtr& manager() const { return manager_; }
  // Raises InvalidArgument while another thread is in run_without_gil().
  block::RequestSequence<block::G1>& get() {
    if (busy_) [[unlikely]]
      raise(Error(ErrorCode::kInvalidArgument,
                  "another thread is using this request; use it from one at a time"));
    return request_;
  }
  void release();
  // For a batch that runs without the GIL.
  void mark_busy(bool busy) { busy_ = busy; }
  template <class F>
  auto run_without_gil(F&& f) {
    block::RequestSequence<block::G1>& request = get();
    const Busy busy(busy_);
    return without_gil([&] { return std::forward<F>(f)(request); });
  }

 private:
  struct Busy {
    explicit Busy(bool& mark) : flag(mark) { flag = true; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { flag = false; }
    bool& flag;
  };
  ManagerPtr manager_;  // destroyed after the request
  block::RequestSequence<block::G1> request_;
  bool busy_ = false;
};

// The Python class RequestSequence. A batch shares its requests.
struct RequestObject {
  std::shared_ptr<SharedRequest> shared;
  block::RequestSequence<block::G1>& get() const { return shared->get(); }
};

}  // namespace ashlar::python
