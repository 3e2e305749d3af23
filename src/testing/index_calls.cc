#include "ashlar/testing/index_calls.h"

namespace ashlar::testing {
namespace {

std::string text(const events::Worker& worker) {
  return std::to_string(worker.id.value()) + "/" + std::to_string(worker.rank);
}

// Long lists are cut in the middle.
template <class Range, class Print>
std::string list(const Range& range, const Print& print) {
  constexpr std::size_t kShown = 12;
  std::string out = "[";
  for (std::size_t i = 0; i < range.size(); ++i) {
    if (i == kShown && range.size() > 2 * kShown) {
      i = range.size() - kShown;
      out += " …";
    }
    out += (i == 0 ? "" : " ") + print(range[i]);
  }
  return out + "] (" + std::to_string(range.size()) + ")";
}

std::string text(const StoreCall& call) {
  std::string out = "store " + text(call.worker) + " " + std::string(events::to_string(call.tier));
  if (call.parent) out += " after " + std::to_string(call.parent->value());
  if (call.start_position) out += " at " + std::to_string(*call.start_position);
  return out + " " + list(call.blocks, [](const events::StoredBlock& block) {
           return std::to_string(block.local.value()) + "=" + std::to_string(block.name.value());
         });
}

std::string text(const RemoveCall& call) {
  return "remove " + text(call.worker) + " " + std::string(events::to_string(call.tier)) + " " +
         list(call.names, [](events::BlockName name) { return std::to_string(name.value()); });
}

std::string text(const ClearCall& call) {
  return "clear " + text(call.worker);
}

std::string text(const RemoveWorkerCall& call) {
  return "remove_worker " + std::to_string(call.worker.value());
}

}  // namespace

std::string to_string(const IndexCall& call) {
  return std::visit([](const auto& one) { return text(one); }, call);
}

std::string to_string(const CallAnswer& answer) {
  if (answer.verdict) return std::string(events::to_string(*answer.verdict));
  return std::to_string(answer.removed) + " removed";
}

}  // namespace ashlar::testing
