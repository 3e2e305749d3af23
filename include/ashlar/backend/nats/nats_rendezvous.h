// NatsRendezvous: a Rendezvous at NATS: records are keys of a JetStream bucket whose entries expire, requests
// are core requests.
//
// A record is `<name>` in the bucket; the bucket's age limit is the lease. A thread writes each record again
// three times per lease, so that records of living processes stay, and those of dead ones expire. After the
// bucket was lost (a server without files that restarted) it makes bucket and records anew. A record under
// which somebody else has written meanwhile is left to them.
//
// Requests go to `<prefix>.<name>`; each answer() has a thread.
//
// Thread safety: thread-safe. Offers may outlive it, and keep the connection.
// Complexity:    publish() and find() are one request each, list() one and one more per record.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/backend/nats/nats_options.h"
#include "ashlar/base/rendezvous.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::nats {

struct NatsRendezvousOptions {
  NatsConnectionOptions connection = NatsConnectionOptions();
  // Created if missing, with `lease`; an existing one has the lease it was created with.
  std::string bucket = "ashlar_rendezvous";
  std::chrono::milliseconds lease{15'000};  // at least 100 ms, which is what the server keeps to
  bool in_memory = true;                    // else in files; records are renewed anyway
  std::uint32_t replicas = 1;
  std::string prefix = "ashlar.rendezvous";  // of requests
  std::chrono::milliseconds timeout{2000};   // of each request to JetStream

  // Errors: kInvalidArgument with the option.
  Result<void> validate() const;
};

struct NatsRendezvousCounters {
  std::uint64_t renewed = 0;      // records written again
  std::uint64_t not_renewed = 0;  // of these attempts, those that failed; they are tried again
  std::uint64_t lost = 0;         // records left to somebody else who wrote under their name
  std::uint64_t answered = 0;     // requests
};

class NatsRendezvous final : public Rendezvous {
 public:
  // Connects and opens the bucket. Errors: those of validate(); kInvalidArgument: also a bucket whose entries
  // never expire; kUnavailable; kUnsupported: the server has no JetStream.
  static Result<std::shared_ptr<NatsRendezvous>> create(NatsRendezvousOptions options = {});
  ~NatsRendezvous() override;
  NatsRendezvous(const NatsRendezvous&) = delete;
  NatsRendezvous& operator=(const NatsRendezvous&) = delete;

  Clock::Duration lease() const override;
  Result<RendezvousOffer> publish(std::string_view name, std::span<const std::byte> bytes) override;
  Result<std::vector<std::byte>> find(std::string_view name, Clock::TimePoint until) override;
  Result<std::vector<RendezvousRecord>> list(std::string_view prefix, Clock::TimePoint until) override;
  Result<RendezvousOffer> answer(std::string_view name, RendezvousHandler handler) override;
  Result<std::vector<std::byte>> ask(std::string_view name, std::span<const std::byte> request,
                                     Clock::TimePoint until) override;

  NatsRendezvousCounters counters() const;

 private:
  class Parts;
  class Serving;
  explicit NatsRendezvous(std::shared_ptr<Parts> parts);
  std::shared_ptr<Parts> parts_;
};

}  // namespace ashlar::backend::nats
