// ashlar inspect: what a file, a folder or a running service of Ashlar holds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/feed_address.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/base/log.h"
#include "ashlar/client/service_client.h"
#include "ashlar/service/serve_options.h"
#include "inspect/inspection.h"

namespace ashlar::apps {
namespace {

struct InspectSettings {
  std::vector<std::string> targets;
  inspect::InspectOptions options;
  std::string token_file;
  double timeout = 5;
  bool json = false;
};

bool is_url(const std::string& target) {
  return target.starts_with("http://") || target.starts_with("https://");
}

Result<std::string> read_token(const std::string& path) {
  ASHLAR_TRY(std::string text, service::read_whole_file(path, 4098));
  text.erase(text.find_last_not_of("\r\n") + 1);
  if (text.empty() || text.size() > 4096 || text.find_first_of("\r\n") != std::string::npos)
    return make_error(ErrorCode::kInvalidArgument, "the token file %s cannot be read, or holds no token",
                      path.c_str());
  return text;
}

// "localhost:8080".
bool is_host_and_port(const std::string& target) {
  const std::size_t colon = target.rfind(':');
  return colon != std::string::npos && colon > 0 && colon + 1 < target.size() &&
         target.find('/') == std::string::npos &&
         std::ranges::all_of(target.substr(colon + 1), [](char c) { return c >= '0' && c <= '9'; });
}

// Says how a token is given here.
Error name_token_file(Error error) {
  if (error.message().find("the token") == std::string::npos) return error;
  return Error(error.code(), error.message() + "; name its file with --token-file");
}

// The timeout is for all of it.
Result<inspect::Inspection> inspect_url(const std::string& url, const InspectSettings& settings) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(static_cast<std::int64_t>(settings.timeout * 1000));
  client::ServiceClientOptions options{.url = url};
  if (!settings.token_file.empty()) {
    ASHLAR_TRY(options.token, read_token(settings.token_file));
  }
  std::string shown;
  const auto ask = [&](std::string_view target) -> Result<std::string> {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    options.timeout = std::max(left, std::chrono::milliseconds(1));
    ASHLAR_TRY(const auto service, client::ServiceClient::create(options).transform_error(name_token_file));
    shown = service.shown();
    return service.get(target).transform_error(name_token_file);
  };
  ASHLAR_TRY(const std::string fleet, ask("/fleet"));
  ASHLAR_TRY(const std::string metrics, ask("/metrics"));
  return inspect::inspect_service(shown, fleet, metrics);
}

int inspect_all(const InspectSettings& settings) {
  StopSignal::end_at_once();
  int status = kExitDone;
  for (const std::string& target : settings.targets) {
    const Result<inspect::Inspection> seen =
        is_url(target) ? inspect_url(target, settings) : inspect::inspect_path(target, settings.options);
    if (!seen) {
      std::string message = seen.error().message();
      hide_secrets(message, target);
      if (is_host_and_port(target)) message += "; a service is named with http:// before it";
      say("ashlar inspect: " + message);
      // Damage that leaves nothing to describe is damage all the same.
      if (status != kExitFailed)
        status = seen.error().code() == ErrorCode::kCorruption ? kExitIncomplete : kExitFailed;
      continue;
    }
    const std::string text = settings.json ? seen->to_json() : seen->to_text();
    std::fputs(text.c_str(), stdout);
    if (!flush_output()) return status;
    if (seen->damaged == 0) continue;
    if (status == kExitDone) status = kExitIncomplete;
    say("ashlar inspect: " + seen->path + ": " + std::to_string(seen->damaged) + " damaged");
  }
  return status;
}

}  // namespace

void add_inspect_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<InspectSettings>();
  CLI::App* command = program.add_subcommand(
      "inspect", "Describe a file, a folder or a running service; it is never changed (docs/inspect.md)");
  command
      ->add_option("target", settings->targets,
                   "G3 file, volume (file or folder), event file, recording, journal, block set, layout "
                   "descriptor, or http://HOST:PORT of a service")
      ->required()
      ->type_name("FILE|FOLDER|URL");
  command->add_flag("--verify", settings->options.verify,
                    "compare the content with its checksums, not headers alone");
  command->add_flag("--json", settings->json, "one JSON object per target, each on a line");
  command
      ->add_option("--key", settings->options.journal_key,
                   "file of a journal's key, for --verify (default: `key` beside it)")
      ->type_name("FILE");
  command->add_option("--token-file", settings->token_file, "file with the token of the service")
      ->type_name("FILE");
  command
      ->add_option("--timeout", settings->timeout, "seconds that a service may take, for all of its answers")
      ->check(real_number(0.1, 3600))
      ->capture_default_str();
  end_help(command, {"ashlar inspect /nvme0/kv", "ashlar inspect --verify /nvme0/kv /data/volume",
                     "ashlar inspect --json journal/ | jq .decisions",
                     "ashlar inspect http://127.0.0.1:8080 --token-file token"});
  command->callback([settings, &run] { run = [settings] { return inspect_all(*settings); }; });
}

}  // namespace ashlar::apps
