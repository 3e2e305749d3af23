// TlsContext: certificates and rules of one side of TLS. TlsSession: TLS on one non-blocking socket.
//
// OpenSSL is used directly: Asio's stream of TLS loses bytes when its socket would block.
//
// Thread safety: TlsContext is immutable; TlsSession is confined to the thread of its socket.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "ashlar/backend/http/http_server.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::http {

// What a read or a write without waiting came to.
enum class IoStatus : std::uint8_t {
  kDone,
  kBlocked,  // nothing now
  kEnd,      // the other side has ended its bytes in an orderly way
  kFailed,
};
struct IoResult {
  IoStatus status = IoStatus::kFailed;
  std::size_t bytes = 0;
};

class TlsContext {
 public:
  // Errors: kInvalidArgument: a file that cannot be read or does not fit the other.
  static Result<std::shared_ptr<const TlsContext>> for_server(const TlsFiles& files);
  // Trusts the authorities of a PEM file, or the system's if it is empty.
  static Result<std::shared_ptr<const TlsContext>> for_client(const std::string& authorities);

  SSL_CTX* get() const noexcept { return context_.get(); }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
  };
  explicit TlsContext(SSL_CTX* context) : context_(context) {}
  std::unique_ptr<SSL_CTX, Free> context_;
};

// The context of connections to workers. The system's authorities are read when the first one needs them:
// that takes tens of milliseconds, which most programs need not spend.
class WorkerTls {
 public:
  // Errors: as TlsContext::for_client().
  static Result<std::shared_ptr<WorkerTls>> create(const std::string& authorities);
  // Null: there is none.
  const TlsContext* get();

 private:
  WorkerTls() = default;
  std::once_flag once_;
  std::shared_ptr<const TlsContext> context_;
};

class TlsSession {
 public:
  // The socket stays with the caller, and open as long as this object.
  static std::unique_ptr<TlsSession> accept(const TlsContext& context, int fd);
  // Checks that the certificate is for `host`, a name or an address.
  static std::unique_ptr<TlsSession> connect(const TlsContext& context, int fd, const std::string& host);

  IoResult handshake() noexcept;
  IoResult read(char* out, std::size_t size) noexcept;
  IoResult write(const char* bytes, std::size_t size) noexcept;
  // Whether decrypted bytes wait to be read.
  bool holds_bytes() const noexcept { return SSL_has_pending(session_.get()) != 0; }
  // Tells the other side that no more bytes come.
  void end() noexcept;
  // Whether the last operation that was blocked waits for writing rather than reading.
  bool wants_write() const noexcept { return wants_write_; }
  // Why the handshake failed.
  std::string error() const;

 private:
  struct Free {
    void operator()(SSL* session) const noexcept { SSL_free(session); }
  };
  explicit TlsSession(SSL* session) : session_(session) {}
  static std::unique_ptr<TlsSession> open(const TlsContext& context, int fd);
  IoResult result(int returned) noexcept;

  std::unique_ptr<SSL, Free> session_;
  unsigned long error_ = 0;
  bool wants_write_ = false;
};

}  // namespace ashlar::backend::http
