// WatchedExecutor: an executor of host memory and files that asks the test before each transfer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"

namespace ashlar::transfer {

class WatchedExecutor final : public Executor {
 public:
  // May wait; what it returns refuses the transfer.
  using Watch = std::function<std::optional<Error>(const TransferPlan&)>;
  explicit WatchedExecutor(Watch watch) : watch_(std::move(watch)) {
    engine_ = TransferEngine::create(
                  {.executors = {MemcpyExecutor::create().value(), FileExecutor::create().value()}})
                  .value();
  }
  std::string_view name() const noexcept override { return "watched"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override {
    return engine_->handles(from, to);
  }
  Result<Transfer> submit(TransferRequest request) override {
    if (std::optional<Error> refused = watch_(request.plan)) return *std::move(refused);
    return engine_->submit(std::move(request));
  }
  ExecutorCounters counters() const override { return engine_->counters(); }

 private:
  const Watch watch_;
  std::unique_ptr<TransferEngine> engine_;
};

}  // namespace ashlar::transfer
