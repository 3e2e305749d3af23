// ClientConnection: a client's socket: reads its requests, notices that it leaves, and sends it bytes.
//
// While a request is served the connection is watched: what the client sends meanwhile is kept for later, up
// to a limit, and its end is reported as kClientGone.
//
// Thread safety: confined to the loop's thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "ashlar/backend/http/http_server.h"
#include "backend/http/io_loop.h"
#include "backend/http/io_stream.h"
#include "backend/http/request_reader.h"
#include "backend/http/task.h"

namespace ashlar::backend::http {

class ClientConnection final : public ReadySink {
 public:
  // Takes over the socket. `tls`: null for none.
  ClientConnection(IoLoop& loop, EventWaiter& waiter, int fd, const RequestRules& rules,
                   const TlsContext* tls);
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  // False: no TLS came about.
  Task<bool> handshake();

  enum class Next : std::uint8_t {
    kRequest,
    kRefused,  // to be answered with refuse()
    kOver,     // the client left, or was idle for too long, or the loop drains
  };
  // Reads the next request into request().
  Task<Next> read_request();
  const WholeRequest& request() const noexcept { return reader_.request(); }
  std::unique_ptr<WholeRequest> release_request() noexcept { return reader_.release(); }

  // From here on the client is watched; until read_request().
  void watch();
  bool is_gone() const noexcept { return gone_; }
  bool is_open() const noexcept { return stream_.is_open(); }

  // Sends the parts; what does not go now is kept for flush(). False: the client is gone.
  bool send(std::initializer_list<std::string_view> parts);
  bool has_unsent() const noexcept { return unsent_begin_ < unsent_.size(); }
  // Waits until everything is sent, and `more` behind it. False: the client is gone or does not read, or the
  // loop stops.
  Task<bool> flush(std::string_view more = {});

  // Whether the request was refused by its head alone, with a whole answer.
  bool has_refusal_reply() const noexcept { return reader_.refusal_reply() != nullptr; }
  // Answers a refused request, and closes.
  Task<void> refuse();
  // Ends the connection so that the client gets what was sent: what it still sends is read for a while.
  Task<void> close_gently();
  void close() noexcept { stream_.close(); }
  void reset() noexcept { stream_.reset(); }

  void fire(IoEvents events) override;

 private:
  void feed(std::string_view bytes);
  void read_ahead();

  IoLoop& loop_;
  EventWaiter& waiter_;
  const HttpLimits& limits_;
  IoStream stream_;
  RequestReader reader_;
  std::string ahead_;   // bytes behind the request
  std::string unsent_;  // bytes that the socket did not take yet
  std::size_t unsent_begin_ = 0;
  unsigned refusal_ = 0;
  bool watching_ = false;
  bool gone_ = false;
};

}  // namespace ashlar::backend::http
