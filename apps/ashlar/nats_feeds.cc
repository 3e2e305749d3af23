// NATS feeds. Passwords and tokens come from the environment, never from the command line, where others could
// read them.
#include <cstdlib>

#include "apps/ashlar/feed_kinds.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/backend/nats/nats_sink.h"
#include "ashlar/backend/nats/nats_source.h"

namespace ashlar::apps {
namespace {

using backend::nats::NatsMode;

constexpr std::uint32_t kDefaultPort = 4222;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets it
  return value == nullptr ? "" : value;
}

Result<backend::nats::NatsConnectionOptions> connection_of(const FeedAddress& address) {
  for (const char* secret : {"password", "pass", "token"})
    if (!address.text(secret).empty())
      return make_error(
          ErrorCode::kInvalidArgument,
          "'%s' is not an option of an address, which others may read; set ASHLAR_NATS_PASSWORD or "
          "ASHLAR_NATS_TOKEN in the environment",
          secret);
  ASHLAR_RETURN_IF_ERROR(address.names_nobody());
  backend::nats::NatsConnectionOptions options;
  options.tls.ca_file = address.text("ca");
  options.tls.certificate_file = address.text("cert");
  options.tls.key_file = address.text("key");
  options.tls.server_name = address.text("server_name");
  // Any TLS option requires TLS: then no login is sent in clear text.
  options.tls.enabled = address.kind() == "natss" || options.tls.names_anything();
  options.urls = {(options.tls.enabled ? "tls://" : "nats://") + address.place()};
  options.user = address.text("user");
  if (!options.user.empty()) options.password = from_environment("ASHLAR_NATS_PASSWORD");
  options.token = from_environment("ASHLAR_NATS_TOKEN");
  options.credentials_file = address.text("creds");
  options.nkey = address.text("nkey");
  options.nkey_seed_file = address.text("seed");
  if (address.text("wait") == "forever") {
    options.connect_wait = options.kForever;
  } else {
    ASHLAR_TRY(const double wait, address.seconds("wait", 0));
    options.connect_wait = std::chrono::milliseconds(static_cast<std::int64_t>(wait * 1000));
  }
  options.stop_waiting = StopSignal::received;
  return options;
}

Result<OpenedSource> open_source(const FeedAddress& address) {
  backend::nats::NatsSourceOptions options;
  ASHLAR_TRY(options.connection, connection_of(address));
  options.prefix = address.text("prefix", options.prefix);
  options.durable = address.text("durable");
  options.stream.name = address.text("stream", options.stream.name);
  ASHLAR_TRY(const bool kept, address.flag("jetstream"));
  if (kept || !options.durable.empty()) options.mode = NatsMode::kJetStream;
  ASHLAR_TRY(auto source, backend::nats::NatsSource::create(std::move(options)));
  return OpenedSource{.stream = std::move(source)};
}

Result<std::shared_ptr<events::BatchSink>> open_sink(const FeedAddress& address,
                                                     const events::StreamId& stream,
                                                     events::SnapshotSource& state) {
  backend::nats::NatsSinkOptions options;
  ASHLAR_TRY(options.connection, connection_of(address));
  options.prefix = address.text("prefix", options.prefix);
  options.stream.name = address.text("stream", options.stream.name);
  ASHLAR_TRY(const bool kept, address.flag("jetstream"));
  if (kept) options.mode = NatsMode::kJetStream;
  options.snapshots.push_back({stream.worker, &state});
  ASHLAR_TRY(const double bucket, address.seconds("bucket", 0));
  options.bucket_every = std::chrono::milliseconds(static_cast<std::int64_t>(bucket * 1000));
  ASHLAR_TRY(auto sink, backend::nats::NatsSink::create(std::move(options)));
  return std::shared_ptr<events::BatchSink>(std::move(sink));
}

// Checks of a written address that need no server.
Result<void> check_address(const FeedAddress& address) {
  ASHLAR_RETURN_IF_ERROR(connection_of(address));
  ASHLAR_RETURN_IF_ERROR(address.flag("jetstream"));
  ASHLAR_RETURN_IF_ERROR(address.seconds("bucket", 0));
  return {};
}

}  // namespace

void add_nats_feeds(FeedKinds& kinds) {
  const FeedKinds::Traits traits{
      .prefix = backend::nats::NatsSinkOptions().prefix, .port = kDefaultPort, .check = check_address};
  kinds.add("natss",
            "natss://HOST:PORT    the same over TLS; ?server_name= if the certificate has another name",
            open_source, open_sink, traits);
  kinds.add("nats",
            "nats://HOST:PORT     NATS; ?jetstream=1 kept by the server, ?durable=NAME continues where it "
            "stopped,\n"
            "                       ?bucket=SECONDS between snapshots in a bucket, ?prefix= ?stream= ?user= "
            "?creds=FILE ?ca=FILE ?cert=FILE ?key=FILE\n"
            "                       ?nkey=PUBLIC&seed=FILE, ?wait=SECONDS or ?wait=forever for a server\n"
            "                       (ASHLAR_NATS_PASSWORD, ASHLAR_NATS_TOKEN in the environment)",
            open_source, open_sink, traits);
}

}  // namespace ashlar::apps
