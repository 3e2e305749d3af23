#include "ashlar/transfer/executor.h"

#include <string>

namespace ashlar::transfer {

Result<void> check_handles(const Executor& executor, const TransferPlan& plan) {
  if (plan.empty())
    return make_error(ErrorCode::kInvalidArgument,
                      "an empty plan was submitted; plan() makes them from block sets");
  if (executor.handles(plan.from(), plan.to())) return plan.to().check_writable();
  return make_error(ErrorCode::kUnsupported, "the %s executor does not copy from %s to %s storage",
                    std::string(executor.name()).c_str(), std::string(to_string(plan.from().kind())).c_str(),
                    std::string(to_string(plan.to().kind())).c_str());
}

}  // namespace ashlar::transfer
