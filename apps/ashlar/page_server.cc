#include "apps/ashlar/page_server.h"

#include <utility>

#include "apps/ashlar/stop_signal.h"
#include "ashlar/backend/http/http_proxy.h"

namespace ashlar::apps {
namespace {

class HttpPageServer final : public PageServer {
 public:
  explicit HttpPageServer(std::unique_ptr<backend::http::HttpProxy> proxy) : proxy_(std::move(proxy)) {}
  ~HttpPageServer() override { proxy_->drain(Clock::real().now()); }

  void wait() override {
    while (!StopSignal::received()) StopSignal::wait();
  }

 private:
  std::unique_ptr<backend::http::HttpProxy> proxy_;
};

}  // namespace

Result<std::unique_ptr<PageServer>> PageServer::start(service::Gateway& gateway, std::uint16_t port,
                                                      std::FILE* out) {
  backend::http::HttpProxyOptions options;
  options.port = port;
  options.threads = 1;
  ASHLAR_TRY(auto proxy, backend::http::HttpProxy::create(options, gateway));
  std::fprintf(out, "listening on http://127.0.0.1:%u\n", proxy->port());
  std::fflush(out);
  return std::unique_ptr<PageServer>(std::make_unique<HttpPageServer>(std::move(proxy)));
}

}  // namespace ashlar::apps
