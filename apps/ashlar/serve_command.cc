// ashlar serve: a router in front of engines.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/descriptor_limit.h"
#include "apps/ashlar/engine_sources.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/backend/http/http_proxy.h"
#include "ashlar/base/log.h"
#include "ashlar/service/service.h"

extern char** environ;

namespace ashlar::apps {
namespace {

using service::ServeConfig;
using service::ServeOptions;

struct ServeSettings {
  std::string config;
  bool check = false;
  bool json = false;
  std::map<std::string, std::vector<std::string>> flags;  // by setting
};

// Variables that begin so.
std::map<std::string, std::string> environment(std::string_view prefix = "ASHLAR_") {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t sign = text.find('=');
    if (text.starts_with(prefix) && sign != std::string_view::npos)
      variables.emplace(text.substr(0, sign), text.substr(sign + 1));
  }
  return variables;
}

Result<std::vector<service::WorkerOptions>> workers_of(const ServeOptions& options) {
  std::vector<service::WorkerOptions> workers = options.workers;
  if (!options.worker_file.empty()) {
    ASHLAR_TRY(const std::string text, service::read_whole_file(options.worker_file));
    ASHLAR_TRY(auto more, service::parse_worker_file(options.worker_file, text));
    workers.insert(workers.end(), more.begin(), more.end());
  }
  ASHLAR_RETURN_IF_ERROR(service::read_worker_keys(options, environment({}), workers));
  return workers;
}

int serve_failed(const Error& error) {
  say("ashlar serve: " + error.message());
  return kExitFailed;
}

void reload(service::Service& running, const ServeOptions& options) {
  const auto workers = workers_of(options);
  const Result<void> set = workers ? running.set_workers(*workers) : Result<void>(workers.error());
  say(set ? "ashlar serve: " + std::to_string(workers->size()) + " workers now"
          : "ashlar serve: the workers stay as they are: " + set.error().message());
}

backend::http::HttpProxyOptions proxy_options(const ServeOptions& options) {
  backend::http::HttpProxyOptions proxy;
  proxy.address = options.address;
  proxy.port = options.port;
  proxy.threads = options.threads;
  proxy.limits.head_bytes = options.max_head_bytes;
  proxy.limits.body_bytes = options.max_body_bytes;
  proxy.limits.all_body_bytes = options.max_all_body_bytes;
  proxy.limits.all_reply_bytes = options.max_all_reply_bytes;
  proxy.limits.connections = options.max_connections;
  proxy.tls = {.certificate = options.tls_certificate, .key = options.tls_key};
  proxy.worker_authorities = options.worker_authorities;
  return proxy;
}

// Choices as help, manual pages and completion know them.
std::string type_of(const service::Setting& setting) {
  constexpr std::string_view kChoice = "one of ";
  if (!setting.unit.starts_with(kChoice)) return std::string(setting.unit);
  std::vector<std::string> choices;
  for (std::string_view rest = setting.unit.substr(kChoice.size()); !rest.empty();) {
    choices.emplace_back(rest.substr(0, rest.find(", ")));
    rest.remove_prefix(std::min(rest.size(), choices.back().size() + 2));
  }
  return "name:" + in_braces(choices);
}

int serve(const ServeSettings& settings) {
  std::string text;
  if (!settings.config.empty()) {
    auto read = service::read_whole_file(settings.config);
    if (!read) return serve_failed(read.error());
    text = *std::move(read);
  }
  std::vector<std::pair<std::string, std::string>> flags;
  for (const auto& [name, values] : settings.flags)
    for (const std::string& value : values) flags.emplace_back(name, value);
  const auto config = ServeConfig::load(settings.config, text, environment(), flags);
  if (!config) return serve_failed(config.error());
  ServeOptions options = config->options();
  auto workers = workers_of(options);
  if (!workers) return serve_failed(workers.error());
  if (settings.check) {
    const auto of_file = std::span(*workers).subspan(options.workers.size());
    options.workers = *workers;
    Result<void> fits = service::Service::check(options, engine_sources());
    if (fits) fits = backend::http::HttpProxy::check(proxy_options(options));
    if (!fits) return serve_failed(fits.error());
    std::fputs((settings.json ? config->describe_json(of_file) : config->describe(of_file)).c_str(), stdout);
    return kExitDone;
  }
  for (const LogLevel level : {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn,
                               LogLevel::kError, LogLevel::kOff})
    if (to_string(level) == options.log_level) set_log_level(level);
  raise_descriptor_limit(options.max_connections);
  const ServeOptions configured = options;
  options.workers = *std::move(workers);
  auto running = service::Service::create(options, engine_sources());
  if (!running) return serve_failed(running.error());
  auto proxy = backend::http::HttpProxy::create(proxy_options(options), **running);
  if (!proxy) return serve_failed(proxy.error());
  (*running)->set_body_memory([&proxy] {
    const backend::http::HttpProxyCounters counters = (*proxy)->counters();
    return service::BodyMemory{.bytes = counters.body_bytes,
                               .refused = counters.refused_bodies,
                               .reply_bytes = counters.reply_bytes,
                               .refused_replies = counters.refused_replies};
  });
  std::printf("listening on %s://%s:%u, %zu workers\n", options.tls_certificate.empty() ? "http" : "https",
              options.address.c_str(), (*proxy)->port(), options.workers.size());
  std::fflush(stdout);
  if (options.workers.empty())
    say("ashlar serve: no workers: requests are answered 503 until --worker-file names some and SIGHUP "
        "comes");
  StopSignal::install_reload();
  while (!StopSignal::received()) {
    StopSignal::wait();
    if (StopSignal::take_reload()) reload(**running, configured);
  }
  say("ashlar serve: stopping; open requests have " +
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options.drain_timeout).count()) + " s");
  (*proxy)->drain(Clock::real().now() + options.drain_timeout);
  (*running)->set_body_memory({});
  return kExitDone;
}

}  // namespace

void add_serve_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<ServeSettings>();
  CLI::App* command = program.add_subcommand(
      "serve", "Route requests of OpenAI's API to engines by what they hold (docs/serve.md)");
  command->add_option("--config", settings->config, "TOML file with settings")->type_name("FILE");
  CLI::Option* check = command->add_flag("--check", settings->check,
                                         "Check the settings, print them and where each came from");
  command->add_flag("--json", settings->json, "With --check: the settings as a JSON object")->needs(check);
  for (const service::Setting& setting : service::serve_settings()) {
    std::string flag = "--" + std::string(setting.name);
    std::ranges::replace(flag, '_', '-');
    std::string help(setting.help);
    if (!setting.standard.empty()) help += " (default " + std::string(setting.standard) + ")";
    command->add_option(flag, settings->flags[std::string(setting.name)], help)
        ->type_name(type_of(setting))
        ->allow_extra_args(false)
        ->delimiter('\0');
  }
  end_help(command, {"ashlar serve --worker http://127.0.0.1:8000,events=tcp://127.0.0.1:5557",
                     "ashlar serve --config serve.toml --check --json",
                     "ashlar serve --config serve.toml --journal journal"});
  command->callback([settings, &run] {
    // What a file or the environment says is read later, and fails otherwise.
    for (const auto& [name, values] : settings->flags)
      for (const std::string& value : values)
        if (const auto fits = service::ServeConfig::check_flag(name, value); !fits)
          refuse_arguments(fits.error());
    run = [settings] { return serve(*settings); };
  });
}

}  // namespace ashlar::apps
