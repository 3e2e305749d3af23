#include "apps/ashlar/page_server.h"

#include <cstdio>

#include "apps/ashlar/stop_signal.h"
#include "ashlar/backend/http/http_proxy.h"

namespace ashlar::apps {

Result<void> serve_page(service::Gateway& gateway, std::uint16_t port) {
  backend::http::HttpProxyOptions options;
  options.port = port;
  options.threads = 1;
  ASHLAR_TRY(const auto proxy, backend::http::HttpProxy::create(options, gateway));
  std::printf("listening on http://127.0.0.1:%u\n", proxy->port());
  std::fflush(stdout);
  while (!StopSignal::received()) StopSignal::wait();
  proxy->drain(Clock::real().now());
  return {};
}

}  // namespace ashlar::apps
