// Rendezvous: a place where processes find each other: they leave short records under names, read those of
// others, and answer requests.
//
// A record lasts as long as its process keeps it, and no longer than lease() after the process died. Whoever
// may write to the place can leave anything under any name: records and replies are not trusted, and their
// authors prove what matters (transfer::RemoteAgent::seal). The nats leaf implements it; programs may too.
//
//   auto offer = place->publish("decode.00000000000000a1", bytes).value();   // until it is dropped
//   for (const RendezvousRecord& record : place->list("decode", until).value()) …
//   auto serving = place->answer("decode.00000000000000a1", handler).value();
//   auto reply = place->ask("decode.00000000000000a1", request, until);
//
// Thread safety: thread-safe. Handlers run on threads of the implementation, one at a time per answer().
// Complexity:    each call is a few round trips to the place; list() one more per record.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar {

// A record, or a handler, that others reach until this is dropped. Dropping waits for a running handler, must
// not happen inside one, and tells the place where it can be reached. It may outlive the Rendezvous.
class [[nodiscard]] RendezvousOffer {
 public:
  RendezvousOffer() = default;
  explicit RendezvousOffer(std::shared_ptr<void> offer) noexcept : offer_(std::move(offer)) {}

 private:
  std::shared_ptr<void> offer_;
};

struct RendezvousRecord {
  std::string name;
  std::vector<std::byte> bytes;

  friend bool operator==(const RendezvousRecord&, const RendezvousRecord&) = default;
};

// Answers a request. An error travels to the asker, with its code and message.
using RendezvousHandler = std::function<Result<std::vector<std::byte>>(std::span<const std::byte> request)>;

class Rendezvous {
 public:
  static constexpr std::size_t kMaxName = 200;
  // Names are parts of letters, digits, '-' and '_', joined by dots. Errors: kInvalidArgument with the name.
  static Result<void> check_name(std::string_view name);

  virtual ~Rendezvous() = default;
  // How long a record outlives its process at most.
  virtual Clock::Duration lease() const = 0;
  // Leaves a record, which replaces what anybody else has left under this name, and renews it. Errors: those
  // of check_name(); kCapacity: longer than the place takes; kUnavailable: the place cannot be reached.
  virtual Result<RendezvousOffer> publish(std::string_view name, std::span<const std::byte> bytes) = 0;
  // Errors: kNotFound: there is no such record; kUnavailable; kTimeout, by Clock::real().
  virtual Result<std::vector<std::byte>> find(std::string_view name, Clock::TimePoint until) = 0;
  // Records whose names are `prefix`, a dot, and one more part; in the order of their names. Errors: as
  // find(), without kNotFound.
  virtual Result<std::vector<RendezvousRecord>> list(std::string_view prefix, Clock::TimePoint until) = 0;
  // Answers requests to `name`. Errors: as publish().
  virtual Result<RendezvousOffer> answer(std::string_view name, RendezvousHandler handler) = 0;
  // Asks whoever answers to `name`, and waits for the first reply. Errors: the handler's; kNotFound: nobody
  // answers; kCapacity: the request is longer than the place takes; kUnavailable; kTimeout.
  virtual Result<std::vector<std::byte>> ask(std::string_view name, std::span<const std::byte> request,
                                             Clock::TimePoint until) = 0;
};

}  // namespace ashlar
