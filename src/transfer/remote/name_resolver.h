// NameResolver: finds the addresses of hosts without making the caller wait for longer than it may.
//
// A host that is a number needs no thread and no name server. A name is looked up on a thread of its own,
// because the system's look-up knows no deadline; whoever asks for the same name meanwhile shares it. A
// look-up that takes longer than its callers wait goes on, and its thread outlives the resolver.
//
// Thread safety: thread-safe.
// Complexity:    at most kMostLookups at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "transfer/remote/socket_address.h"

namespace ashlar::transfer {

class NameResolver {
 public:
  static constexpr std::size_t kMostLookups = 16;

  using Addresses = std::vector<SocketAddress>;
  using Lookup = std::function<Result<Addresses>(std::string_view text)>;
  // `lookup`: finds the addresses of HOST:PORT, however long that takes.
  explicit NameResolver(Lookup lookup = &SocketAddress::resolve);

  // All addresses of HOST:PORT. Errors: those of SocketAddress::resolve(); kUnavailable: not known in time,
  // or kMostLookups are under way; kCancelled.
  Result<Addresses> resolve(std::string_view text, Clock::TimePoint deadline,
                            const std::stop_token& stop = {});

 private:
  // Shared with the threads that look names up.
  struct Lookups {
    struct Name {
      std::optional<Result<Addresses>> found;
    };
    Lookup lookup;
    Mutex mu;  // a leaf
    CondVar changed;
    std::map<std::string, std::shared_ptr<Name>> names ASHLAR_GUARDED_BY(mu);  // being looked up
  };
  static void look_up(Lookups& lookups, const std::string& text);

  const std::shared_ptr<Lookups> lookups_;
};

}  // namespace ashlar::transfer
