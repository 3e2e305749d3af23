// Service: the router in front of engines, without its sockets: a Gateway made of a Router, the events of its
// workers, the tokens of requests, receipts, a journal and an API.
//
//   auto service = Service::create(options, make_zmq_source).value();
//   auto proxy = HttpProxy::create({.port = 8080}, *service).value();
//
// Requests of OpenAI's API are routed by what the engines hold; everything else passes to the least loaded
// worker. docs/serve.md walks through it, docs/http.md lists its own endpoints.
//
// Thread safety: thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/service/passage.h"
#include "ashlar/service/router.h"
#include "ashlar/service/serve_options.h"

namespace ashlar::service {

// Where a rank of an engine publishes its events.
struct EngineEndpoint {
  std::string events;
  std::string replay;  // empty: none
  std::string topic;
};

using EngineSourceFactory =
    std::function<Result<std::unique_ptr<feed::EngineSource>>(const EngineEndpoint& endpoint)>;

// The memory of request bodies, which belongs to the sockets.
struct BodyMemory {
  std::uint64_t bytes = 0;
  std::uint64_t refused = 0;      // bodies that found no room
  std::uint64_t reply_bytes = 0;  // of large answers of the service's own
  std::uint64_t refused_replies = 0;
};

struct ServiceParts;

class Service final : public Gateway {
 public:
  // Errors: kInvalidArgument: an option, or events without `make_source`; those of the journal and the trace.
  static Result<std::unique_ptr<Service>> create(const ServeOptions& options,
                                                 EngineSourceFactory make_source);
  // Whether create() would refuse these options now: nothing is made, and no worker or peer is asked.
  // Looks at the files and folders that it would read or write. Errors: as create().
  static Result<void> check(const ServeOptions& options, const EngineSourceFactory& make_source);
  // Requires: no passage is open.
  ~Service() override;

  std::unique_ptr<Passage> open() override;
  // Without the token no body is read.
  std::optional<Reply> refuse_head(const ClientRequest& head) override;
  Due due() override;
  void told(std::uint64_t number, Result<Answer> answer) override;
  void drain() override;

  // Replaces the workers: those that are unchanged keep their blocks and streams, those that are gone finish
  // what they have. Errors: kInvalidArgument: two of one name; kUnsupported: events that this build cannot
  // hear. Nothing is changed then.
  Result<void> set_workers(std::span<const WorkerOptions> workers);

  // Who reads it for the metrics: called until it is set again, or the service ends. Empty: nobody.
  void set_body_memory(std::function<BodyMemory()> read);
  MetricRegistry& metrics() noexcept;
  Router& router() noexcept;
  // Tells the decisions of this run apart from those of others.
  std::uint64_t run() const noexcept;

 private:
  explicit Service(std::unique_ptr<ServiceParts> parts);
  std::optional<Errand> ask_for_snapshot();
  std::unique_ptr<ServiceParts> parts_;
};

}  // namespace ashlar::service
