// ashlar: one program, a subcommand for every job.
#include <string>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/feed_kinds.h"
#include "apps/ashlar/stop_signal.h"

int main(int argc, char** argv) {
  CLI::App program("ashlar: KV cache blocks for LLM inference");
  program.require_subcommand(1);
  program.footer(ashlar::apps::FeedKinds::built().help() + ashlar::apps::kExitHelp);
  ashlar::apps::Run run;
  ashlar::apps::add_serve_command(program, run);
  ashlar::apps::add_explain_command(program, run);
  ashlar::apps::add_inspect_command(program, run);
  ashlar::apps::add_relay_command(program, run);
  ashlar::apps::add_advisor_command(program, run);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help
    ashlar::apps::say(
        ashlar::apps::parse_problem(program, error, std::vector<std::string>(argv + 1, argv + argc)));
    return error.get_exit_code();
  }
  ashlar::apps::StopSignal::install();
  return run();
}
