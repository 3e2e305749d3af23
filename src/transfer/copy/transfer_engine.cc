#include "ashlar/transfer/transfer_engine.h"

#include <algorithm>
#include <utility>

#include "transfer/copy/hop_runner.h"

namespace ashlar::transfer {

Result<void> TransferEngineOptions::validate() const {
  if (executors.empty() || std::ranges::find(executors, nullptr) != executors.end())
    return make_error(ErrorCode::kInvalidArgument,
                      "an engine needs executors; it has %zu, and none may be null", executors.size());
  if (staging != nullptr && staging_bytes < 8192)
    return make_error(ErrorCode::kInvalidArgument, "staging_bytes is %llu; it is at least 8192",
                      static_cast<unsigned long long>(staging_bytes));
  return limits.validate();
}

Result<std::unique_ptr<TransferEngine>> TransferEngine::create(TransferEngineOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  ASHLAR_TRY(std::unique_ptr<HopRunner> hops, HopRunner::create(options));
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(options), std::move(hops)));
}

TransferEngine::TransferEngine(TransferEngineOptions options, std::unique_ptr<HopRunner> hops) noexcept
    : options_(std::move(options)), hops_(std::move(hops)) {}
TransferEngine::~TransferEngine() = default;

Executor* TransferEngine::direct(const BlockSet& from, const BlockSet& to) const noexcept {
  for (const std::shared_ptr<Executor>& executor : options_.executors)
    if (executor->handles(from, to)) return executor.get();
  return nullptr;
}

bool TransferEngine::handles(const BlockSet& from, const BlockSet& to) const noexcept {
  return direct(from, to) != nullptr || hops_->route(from, to, {}).has_value();
}

Result<Transfer> TransferEngine::submit(TransferRequest request) {
  if (request.plan.empty())
    return make_error(ErrorCode::kInvalidArgument,
                      "an empty plan was submitted; plan() makes them from block sets");
  if (Executor* executor = direct(request.plan.from(), request.plan.to()))
    return executor->submit(std::move(request));
  return hops_->submit(std::move(request));
}

ExecutorCounters TransferEngine::counters() const {
  return hops_->counters();
}

std::string TransferEngine::path(const BlockSet& from, const BlockSet& to) const {
  if (const Executor* executor = direct(from, to)) return std::string(executor->name());
  const Result<Staging> staging = hops_->route(from, to, {});
  if (!staging) return "none";
  return std::string(staging->in->name()) + ", then " + std::string(staging->out->name());
}

}  // namespace ashlar::transfer
