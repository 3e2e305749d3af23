// ashlar: one program, a subcommand for every job.
#include <fcntl.h>

#include <iostream>
#include <string>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/feed_kinds.h"
#include "apps/ashlar/stop_signal.h"

namespace {

// A standard stream that is closed would be the next file that is opened, and be written into.
void reserve_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream)
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
}

// Also where standard output is closed, or a pipe that nobody reads.
int unwritten() {
  ashlar::apps::say("ashlar: cannot write to standard output");
  return ashlar::apps::kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_streams();
  CLI::App program("ashlar: KV cache blocks for LLM inference");
  program.require_subcommand(1);
  program.set_version_flag("--version", "ashlar " ASHLAR_VERSION, "Print the version and exit");
  ashlar::apps::end_help(&program,
                         {"ashlar serve --worker http://127.0.0.1:8000,events=tcp://127.0.0.1:5557",
                          "ashlar inspect --verify /nvme0/kv", "ashlar inspect --help"},
                         ashlar::apps::FeedKinds::built().help());
  ashlar::apps::Run run;
  ashlar::apps::add_run_command(program, run);
  ashlar::apps::add_serve_command(program, run);
  ashlar::apps::add_explain_command(program, run);
  ashlar::apps::add_inspect_command(program, run);
  ashlar::apps::add_replay_command(program, run);
  ashlar::apps::add_plan_command(program, run);
  ashlar::apps::add_relay_command(program, run);
  ashlar::apps::add_advisor_command(program, run);
  ashlar::apps::add_bench_command(program, run);
  ashlar::apps::add_shell_commands(program, run);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help
      program.exit(error);
      std::cout.flush();
      return std::cout ? ashlar::apps::kExitDone : unwritten();
    }
    ashlar::apps::say(
        ashlar::apps::parse_problem(program, error, std::vector<std::string>(argv + 1, argv + argc)));
    return error.get_exit_code();
  }
  ashlar::apps::StopSignal::install();
  const int status = run();
  // A command that failed has said why.
  return ashlar::apps::flush_output() || status == ashlar::apps::kExitFailed ? status : unwritten();
}
