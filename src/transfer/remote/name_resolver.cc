#include "transfer/remote/name_resolver.h"

#include <optional>
#include <thread>
#include <utility>

#include "ashlar/base/log.h"
#include "base/start_thread.h"

namespace ashlar::transfer {

NameResolver::NameResolver(Lookup lookup) : lookups_(std::make_shared<Lookups>()) {
  lookups_->lookup = std::move(lookup);
}

void NameResolver::look_up(Lookups& lookups, const std::string& text) {
  Result<Addresses> found = lookups.lookup(text);
  const MutexLock lock(lookups.mu);
  const auto at = lookups.names.find(text);
  at->second->found.emplace(std::move(found));
  lookups.names.erase(at);
  lookups.changed.notify_all();
}

Result<NameResolver::Addresses> NameResolver::resolve(std::string_view text, Clock::TimePoint deadline,
                                                      const std::stop_token& stop) {
  ASHLAR_TRY(const std::optional<SocketAddress> number, SocketAddress::from_number(text));
  if (number) return Addresses{*number};
  const std::string name(text);
  Lookups& lookups = *lookups_;
  const std::stop_callback on_stop(stop, [&lookups] {
    const MutexLock lock(lookups.mu);
    lookups.changed.notify_all();
  });
  const MutexLock lock(lookups.mu);
  const auto [at, is_new] = lookups.names.try_emplace(name);
  if (is_new) {
    std::thread thread;
    Result<void> started = make_error(ErrorCode::kUnavailable,
                                      "'%s' is not looked up: %zu names are, and the name server does not "
                                      "answer; name the host by its number",
                                      printable(text.substr(0, 300)).c_str(), kMostLookups);
    if (lookups.names.size() <= kMostLookups)
      started = start_thread(&thread, [shared = lookups_, name] { look_up(*shared, name); });
    if (!started) {
      lookups.names.erase(at);
      return Unexpected(std::move(started).error());
    }
    at->second = std::make_shared<Lookups::Name>();
    thread.detach();
  }
  const std::shared_ptr<Lookups::Name> looked = at->second;
  while (!looked->found) {
    if (stop.stop_requested())
      return make_error(ErrorCode::kCancelled, "looking up '%s' was cancelled", printable(text).c_str());
    if (Clock::real().now() >= deadline)
      return make_error(ErrorCode::kUnavailable, "the host of '%s' was not looked up in time",
                        printable(text.substr(0, 300)).c_str());
    Clock::real().wait_until(lookups.changed, lookups.mu, deadline);
  }
  return *looked->found;
}

}  // namespace ashlar::transfer
