// ProxySession: a client's connection to a proxy: its requests, one after another, each taken through a
// Passage.
//
// Thread safety: confined to the loop's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/backend/http/http_proxy.h"
#include "ashlar/service/passage.h"
#include "backend/http/client_connection.h"
#include "backend/http/held_bytes.h"
#include "backend/http/reply_budget.h"
#include "backend/http/server_loops.h"
#include "backend/http/worker_call.h"
#include "backend/http/worker_pool.h"

namespace ashlar::backend::http {

// What the sessions of one loop share.
struct ProxyLoop {
  ProxyLoop(IoLoop& io_loop, ReplyBudget& reply_budget, HeldBytes& held_answers,
            const HttpProxyOptions& options, std::shared_ptr<WorkerTls> tls)
      : loop(io_loop),
        replies(reply_budget),
        answers(held_answers),
        answer_limit(options.limits.all_reply_bytes),
        pool(io_loop, options.idle_connections, std::move(tls), worker_connections) {}

  IoLoop& loop;
  ReplyBudget& replies;
  HeldBytes& answers;  // of workers to questions, until the passage has read them
  const std::size_t answer_limit;
  // relaxed, all: independent counts.
  std::atomic<std::uint64_t> bad_requests{0};
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> worker_connections{0};
  std::atomic<std::uint64_t> client_aborts{0};
  WorkerPool pool;
  std::vector<std::string_view> parts;  // of a body, while one session passes on what it has read
};

class ProxySession {
 public:
  ProxySession(ProxyLoop& shared, ServerLoops& loops, service::Gateway& gateway, int fd,
               const RequestRules& rules, const TlsContext* tls)
      : shared_(shared),
        loops_(loops),
        gateway_(gateway),
        waiter_(shared.loop),
        client_(shared.loop, waiter_, fd, rules, tls) {}

  // Until the connection is to be closed.
  Task<void> run();

 private:
  class OpenPassage;

  Task<void> pass();
  Task<void> reply(OpenPassage& passage, service::Reply reply);
  // The next step; none: the passage has ended.
  Task<std::optional<service::Step>> ask(OpenPassage& passage, const service::Ask& ask);
  Task<std::optional<service::Step>> wait(OpenPassage& passage, Clock::TimePoint until);
  Task<std::optional<service::Step>> forward(OpenPassage& passage, const service::Forward& forward);
  Task<void> relay(OpenPassage& passage, WorkerCall& call, const HeaderPairs& added,
                   Clock::Duration idle_timeout);
  std::string request_head(const service::Forward& forward) const;
  std::string answer_head(AnswerReader& answer, const HeaderPairs& added, bool& removes_chunks);
  // The passage ends because the client has left, or the loop stops.
  void end_interrupted(OpenPassage& passage);

  ProxyLoop& shared_;
  ServerLoops& loops_;
  service::Gateway& gateway_;
  EventWaiter waiter_;
  ClientConnection client_;
  bool keeps_alive_ = false;  // after the current answer
  std::string target_;        // of the current request, where its own has a query and no path
};

}  // namespace ashlar::backend::http
