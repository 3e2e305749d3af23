// tiny_server: the tiny engine as a server, for routers that serve vLLM. Prints where it listens in one line;
// SIGTERM or SIGINT lets the answers in flight end, and ends it.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <charconv>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "tiny_engine/http_face.h"

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
    "  --max-model-len N    tokens of a prompt and its reply (default: what G1 holds, at most 2048)\n"
    "  --block-size N       tokens (default 8)\n"
    "  --g1 N --g2 N        blocks of G1 and G2 (default 512, 0; 0: no G2)\n"
    "  --max-running N      requests in a batch (default 64)\n"
    "  --step-tokens N      computed in a step (default 256)\n"
    "  --no-cached-tokens   usage does not name them\n"
    "Faults, for tests of routers:\n"
    "  --late-events MS     events are published so much later; tokens do not wait for them\n"
    "  --drop-event-every N every N-th message is not sent; replay has it\n"
    "  --die-after N        abort() in the middle of the N-th stream\n"
    "  --stall-after N      the N-th stream says no more from its middle on\n"
    "  --lie-usage          cached tokens are wrong by a block\n"
    "  --help\n";

struct Arguments {
  bool help = false;
  FaceOptions face;
};

template <class Number>
Result<void> read_number(std::string_view option, std::string_view text, Number& out) {
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (wrong == std::errc() && end == text.data() + text.size()) return {};
  return Error(ErrorCode::kInvalidArgument, std::string(option) + " needs a number up to " +
                                                std::to_string(std::numeric_limits<Number>::max()) +
                                                ", not '" + std::string(text) + "'");
}

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
  std::uint32_t late = 0;
  const auto number = [](auto& out) {
    return [&out](std::string_view option, std::string_view text) { return read_number(option, text, out); };
  };
  const auto text = [](std::string& out) {
    return [&out](std::string_view, std::string_view word) -> Result<void> {
      out = word;
      return {};
    };
  };
  const std::map<std::string_view, std::function<Result<void>(std::string_view, std::string_view)>> values = {
      {"--host", text(face.host)},
      {"--port", number(face.port)},
      {"--events", number(face.events_port)},
      {"--replay", number(face.replay_port)},
      {"--buffer-steps", number(face.buffer_steps)},
      {"--dp", number(face.data_parallel)},
      {"--model", text(face.card.name)},
      {"--seed", number(face.seed)},
      {"--max-model-len", number(face.card.max_model_len)},
      {"--block-size", number(face.engine.block_size)},
      {"--g1", number(face.engine.kv.g1.block_count)},
      {"--g2", number(g2)},
      {"--max-running", number(face.engine.max_running)},
      {"--step-tokens", number(face.engine.step_tokens)},
      {"--late-events", number(late)},
      {"--drop-event-every", number(face.faults.drop_event_every)},
      {"--die-after", number(face.faults.die_after)},
      {"--stall-after", number(face.faults.stall_after)}};
  for (int i = 1; i < count; ++i) {
    const std::string_view option = words[i];
    if (option == "--help") {
      arguments.help = true;
      return arguments;
    }
    if (option == "--no-cached-tokens") {
      face.shows_cached_tokens = false;
    } else if (option == "--lie-usage") {
      face.faults.lie_usage = true;
    } else if (const auto value = values.find(option); value == values.end()) {
      return Error(ErrorCode::kInvalidArgument, "there is no option " + std::string(option));
    } else if (++i == count) {
      return Error(ErrorCode::kInvalidArgument, std::string(option) + " needs a value");
    } else {
      ASHLAR_RETURN_IF_ERROR(value->second(option, words[i]));
    }
  }
  if (g2 > 0) face.engine.kv.g2 = tiers::TierShape{.block_count = g2};
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
