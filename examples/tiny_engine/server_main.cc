// tiny_server: the tiny engine as a server, for routers that serve vLLM. Prints where it listens in one line;
// SIGTERM or SIGINT lets the answers in flight end, and ends it.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "tiny_engine/http_face.h"
#include "tiny_engine/options.h"

using namespace tiny_engine;
using namespace ashlar;

namespace {

constexpr std::string_view kUsage =
    "usage: tiny_server [options]\n"
    "  --host ADDRESS       of all sockets (default 127.0.0.1)\n"
    "  --port N             HTTP; 0: any (default 8000)\n"
    "  --events N           KV events, of rank r at N + r; 0: any (default 5557)\n"
    "  --replay N           their replay, of rank r at N + r; 0: any (default 5657)\n"
    "  --buffer-steps N     messages kept for replay (default 10000)\n"
    "  --dp N               engines, as data-parallel ranks (default 1)\n"
    "  --model NAME         (default tiny)\n"
    "  --seed N             of the model (default 1)\n"
    "  --layers N --hidden N  of the model (default 2, 32): a larger one computes longer\n"
    "  --max-model-len N    tokens of a prompt and its reply (default: what G1 holds, at most 2048)\n"
    "  --block-size N       tokens (default 8)\n"
    "  --g1 N --g2 N        blocks of G1 and G2 (default 512, 0; 0: no G2)\n"
    "  --g3 N               blocks of a file in --folder (default 0: none; needs G2)\n"
    "  --folder PATH        holds the file of G3 and a volume, which is G4 (needs G2)\n"
    "  --volume PATH        the folder of G4 instead: engines may share one\n"
    "  --no-prefix-caching  every prompt is computed whole\n"
    "  --max-running N      requests in a batch (default 64)\n"
    "  --step-tokens N      computed in a step (default 256)\n"
    "  --no-cached-tokens   usage does not name them\n"
    "  --enable-scale-out   the render endpoints answer, such as /v1/chat/completions/render\n"
    "Faults, for tests of routers:\n"
    "  --late-events MS     events are published so much later; tokens do not wait for them\n"
    "  --drop-event-every N every N-th message is not sent; replay has it\n"
    "  --die-after N        abort() in the middle of the N-th stream\n"
    "  --stall-after N      the N-th stream says no more from its middle on\n"
    "  --lie-usage          cached tokens are wrong by a block\n"
    "  --no-tokenize        there is no /tokenize\n"
    "  --help\n";

struct Arguments {
  bool help = false;
  FaceOptions face;
};

Result<Arguments> parse(int count, char** words) {
  Arguments arguments;
  FaceOptions& face = arguments.face;
  face.port = 8000;
  face.events_port = 5557;
  face.replay_port = 5657;
  face.card.max_model_len = 0;
  face.engine.kv.g1.block_count = 512;
  face.engine.max_running = 64;
  face.engine.step_tokens = 256;
  std::uint32_t g2 = 0;
  std::uint32_t g3 = 0;
  std::uint32_t late = 0;
  std::string folder;
  std::string volume;
  bool computes_all = false;
  bool hides_cached_tokens = false;
  OptionTable table;
  table.flags = {{"--no-cached-tokens", &hides_cached_tokens},
                 {"--no-prefix-caching", &computes_all},
                 {"--enable-scale-out", &face.renders},
                 {"--lie-usage", &face.faults.lie_usage},
                 {"--no-tokenize", &face.faults.no_tokenize}};
  table.values = {{"--host", text_option(face.host)},
                  {"--port", number_option(face.port)},
                  {"--events", number_option(face.events_port)},
                  {"--replay", number_option(face.replay_port)},
                  {"--buffer-steps", number_option(face.buffer_steps)},
                  {"--dp", number_option(face.data_parallel)},
                  {"--model", text_option(face.card.name)},
                  {"--seed", number_option(face.seed)},
                  {"--layers", number_option(face.layers, 64u)},
                  {"--hidden", number_option(face.hidden, 65'536u)},
                  {"--max-model-len", number_option(face.card.max_model_len)},
                  {"--block-size", number_option(face.engine.block_size)},
                  {"--g1", number_option(face.engine.kv.g1.block_count)},
                  {"--g2", number_option(g2)},
                  {"--g3", number_option(g3)},
                  {"--folder", text_option(folder)},
                  {"--volume", text_option(volume)},
                  {"--max-running", number_option(face.engine.max_running)},
                  {"--step-tokens", number_option(face.engine.step_tokens)},
                  {"--late-events", number_option(late)},
                  {"--drop-event-every", number_option(face.faults.drop_event_every)},
                  {"--die-after", number_option(face.faults.die_after)},
                  {"--stall-after", number_option(face.faults.stall_after)}};
  ASHLAR_TRY(arguments.help, read_options(count, words, table));
  face.shows_cached_tokens = !hides_cached_tokens;
  face.engine.prefix_caching = !computes_all;
  if ((g3 > 0 || !folder.empty() || !volume.empty()) && g2 == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "--g3, --folder and --volume need --g2: what lies below stands on it");
  if (g3 > 0 && folder.empty())
    return Error(ErrorCode::kInvalidArgument, "--g3 needs --folder, for its file");
  if (g2 > 0) face.engine.kv.g2 = tiers::TierShape{.block_count = g2};
  if (g3 > 0) face.engine.kv.g3 = tiers::DiskShape{.block_count = g3, .paths = {folder + "/g3"}};
  if (volume.empty() && !folder.empty()) volume = folder + "/volume";
  if (!volume.empty())
    face.engine.kv.g4 = tiers::VolumeShape{
        .block_count = 100'000, .volumes = {{.name = "volume", .kind = "directory", .location = volume}}};
  face.late_events = std::chrono::milliseconds(late);
  if (face.card.max_model_len == 0)
    face.card.max_model_len =
        std::min<std::size_t>(2048, std::size_t{face.engine.kv.g1.block_count} * face.engine.block_size);
  return arguments;
}

// "tcp://127.0.0.1:5557" and so on: the ports.
std::string ports_of(const std::vector<std::string>& endpoints) {
  std::string ports;
  for (const std::string& endpoint : endpoints)
    ports += (ports.empty() ? "" : ",") + endpoint.substr(endpoint.rfind(':') + 1);
  return ports;
}

int refused(const Error& error) {
  std::fprintf(stderr, "tiny_server: %s\n", error.to_string().c_str());
  return 2;
}

}  // namespace

int main(int count, char** words) {
  const Result<Arguments> arguments = parse(count, words);
  if (!arguments) {
    std::fputs(kUsage.data(), stderr);
    return refused(arguments.error());
  }
  if (arguments->help) {
    std::fputs(kUsage.data(), stdout);
    return 0;
  }
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
  if (arguments->face.faults.die_after > 0) setrlimit(RLIMIT_CORE, &no_core);
  // Before there are threads, which take this over.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  for (const auto& volume : arguments->face.engine.kv.g4.value_or(tiers::VolumeShape{}).volumes) {
    std::error_code failed;  // said by what uses it
    std::filesystem::create_directories(volume.location, failed);
  }
  auto face = HttpFace::create(arguments->face);
  if (!face) return refused(face.error());
  std::printf("listening http=%u events=%s replay=%s\n", unsigned{(*face)->port()},
              ports_of((*face)->event_endpoints()).c_str(), ports_of((*face)->replay_endpoints()).c_str());
  std::fflush(stdout);
  int number = 0;
  sigwait(&signals, &number);
  (*face)->drain(Clock::real().now() + std::chrono::seconds(60));
  return 0;
}
