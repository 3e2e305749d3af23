// A sink that keeps what it gets, and fails or waits when told to.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/events/event_codec.h"

namespace ashlar::events {

class BatchRecorder final : public BatchSink {
 public:
  Result<void> publish(const EventBatch& batch) override {
    const MutexLock lock(mu_);
    while (stopped_) resumed_.wait(mu_);
    if (failures_ != 0) {
      if (failures_ > 0) --failures_;
      return make_error(ErrorCode::kUnavailable, "told to fail");
    }
    batches_.push_back(OwnedBatch::of(batch));
    return {};
  }
  std::string describe() const override { return "recorder"; }

  // The next n calls fail; with -1 all until told otherwise.
  void fail(int n) {
    const MutexLock lock(mu_);
    failures_ = n;
  }
  void stop() {
    const MutexLock lock(mu_);
    stopped_ = true;
  }
  void resume() {
    const MutexLock lock(mu_);
    stopped_ = false;
    resumed_.notify_all();
  }
  std::size_t batches() const {
    const MutexLock lock(mu_);
    return batches_.size();
  }
  std::vector<OwnedBatch> all() const {
    const MutexLock lock(mu_);
    return batches_;
  }
  // Of all batches, one after the other.
  std::vector<KvEvent> events() const {
    const MutexLock lock(mu_);
    std::vector<KvEvent> out;
    for (const OwnedBatch& batch : batches_) out.insert(out.end(), batch.events.begin(), batch.events.end());
    return out;
  }

 private:
  mutable Mutex mu_;
  CondVar resumed_;
  std::vector<OwnedBatch> batches_ ASHLAR_GUARDED_BY(mu_);
  int failures_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool stopped_ ASHLAR_GUARDED_BY(mu_) = false;
};

}  // namespace ashlar::events
