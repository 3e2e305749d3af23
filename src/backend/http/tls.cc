#include "backend/http/tls.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>

namespace ashlar::backend::http {

namespace {

// The BIO of OpenSSL for sockets raises SIGPIPE; this one does not.
int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int bio_write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const auto sent = ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int bio_read(BIO* bio, char* out, int size) {
  BIO_clear_retry_flags(bio);
  const auto got = ::recv(socket_of(bio), out, static_cast<std::size_t>(size), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return 0;
}

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ashlar socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

std::string openssl_text(unsigned long code) {
  char text[256] = "no reason given";
  if (code != 0) ERR_error_string_n(code, text, sizeof text);
  return text;
}

Error file_error(const char* what, const std::string& name) {
  return make_error(ErrorCode::kInvalidArgument, "the %s of TLS cannot be used: %s: %s", what, name.c_str(),
                    openssl_text(ERR_get_error()).c_str());
}

// Offered protocols other than HTTP/1.1 are not chosen.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                    unsigned offered_size, void*) {
  static constexpr unsigned char kHttp[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp, sizeof kHttp - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

void set_common_rules(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Buffers of an idle connection are freed.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::for_server(const TlsFiles& files) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> made(new TlsContext(SSL_CTX_new(TLS_server_method())));
  if (made->get() == nullptr) return out_of_memory_error();
  set_common_rules(made->get());
  if (SSL_CTX_use_certificate_chain_file(made->get(), files.certificate.c_str()) != 1)
    return file_error("certificate", files.certificate);
  if (SSL_CTX_use_PrivateKey_file(made->get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(made->get()) != 1)
    return file_error("key", files.key);
  SSL_CTX_set_alpn_select_cb(made->get(), choose_protocol, nullptr);
  return std::shared_ptr<const TlsContext>(std::move(made));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::for_client(const std::string& authorities) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> made(new TlsContext(SSL_CTX_new(TLS_client_method())));
  if (made->get() == nullptr) return out_of_memory_error();
  set_common_rules(made->get());
  SSL_CTX_set_verify(made->get(), SSL_VERIFY_PEER, nullptr);
  if (authorities.empty()) {
    SSL_CTX_set_default_verify_paths(made->get());
  } else if (SSL_CTX_load_verify_locations(made->get(), authorities.c_str(), nullptr) != 1) {
    return file_error("file of authorities", authorities);
  }
  return std::shared_ptr<const TlsContext>(std::move(made));
}

Result<std::shared_ptr<WorkerTls>> WorkerTls::create(const std::string& authorities) {
  std::shared_ptr<WorkerTls> made(new WorkerTls());
  if (!authorities.empty()) {
    ASHLAR_TRY(made->context_, TlsContext::for_client(authorities));
  }
  return made;
}

const TlsContext* WorkerTls::get() {
  std::call_once(once_, [this] {
    if (context_ != nullptr) return;
    if (auto made = TlsContext::for_client("")) context_ = *std::move(made);
  });
  return context_.get();
}

std::unique_ptr<TlsSession> TlsSession::open(const TlsContext& context, int fd) {
  std::unique_ptr<TlsSession> made(new TlsSession(SSL_new(context.get())));
  if (made->session_ == nullptr) return nullptr;
  BIO* bio = BIO_new(socket_method());
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(made->session_.get(), bio, bio);
  return made;
}

std::unique_ptr<TlsSession> TlsSession::accept(const TlsContext& context, int fd) {
  std::unique_ptr<TlsSession> made = open(context, fd);
  if (made != nullptr) SSL_set_accept_state(made->session_.get());
  return made;
}

std::unique_ptr<TlsSession> TlsSession::connect(const TlsContext& context, int fd, const std::string& host) {
  std::unique_ptr<TlsSession> made = open(context, fd);
  if (made == nullptr) return nullptr;
  SSL* session = made->session_.get();
  SSL_set_connect_state(session);
  unsigned char address[16];
  const bool is_address =
      inet_pton(AF_INET, host.c_str(), address) == 1 || inet_pton(AF_INET6, host.c_str(), address) == 1;
  const bool is_set = is_address
                          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host.c_str()) == 1
                          : SSL_set1_host(session, host.c_str()) == 1 &&
                                SSL_ctrl(session, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                                         const_cast<char*>(host.c_str())) == 1;
  if (!is_set) return nullptr;
  return made;
}

IoResult TlsSession::result(int returned) noexcept {
  if (returned > 0) return {IoStatus::kDone, static_cast<std::size_t>(returned)};
  const int reason = SSL_get_error(session_.get(), returned);
  wants_write_ = reason == SSL_ERROR_WANT_WRITE;
  if (wants_write_ || reason == SSL_ERROR_WANT_READ) return {IoStatus::kBlocked, 0};
  if (reason == SSL_ERROR_ZERO_RETURN) return {IoStatus::kEnd, 0};
  error_ = ERR_peek_error();
  return {IoStatus::kFailed, 0};
}

IoResult TlsSession::handshake() noexcept {
  ERR_clear_error();
  return result(SSL_do_handshake(session_.get()));
}

IoResult TlsSession::read(char* out, std::size_t size) noexcept {
  ERR_clear_error();
  return result(SSL_read(session_.get(), out, static_cast<int>(std::min<std::size_t>(size, INT_MAX))));
}

IoResult TlsSession::write(const char* bytes, std::size_t size) noexcept {
  if (size == 0) return {IoStatus::kDone, 0};
  ERR_clear_error();
  return result(SSL_write(session_.get(), bytes, static_cast<int>(std::min<std::size_t>(size, INT_MAX))));
}

void TlsSession::end() noexcept {
  ERR_clear_error();
  SSL_shutdown(session_.get());
}

std::string TlsSession::error() const {
  if (const long verdict = SSL_get_verify_result(session_.get()); verdict != X509_V_OK)
    return std::string("its certificate is not accepted: ") + X509_verify_cert_error_string(verdict);
  return openssl_text(error_);
}

}  // namespace ashlar::backend::http
