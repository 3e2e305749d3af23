// ashlar: one program, a subcommand for every job.
#include <cstdio>

#include "apps/ashlar/commands.h"
#include "apps/ashlar/feed_kinds.h"
#include "apps/ashlar/stop_signal.h"

int main(int argc, char** argv) {
  CLI::App program("ashlar: KV cache blocks for LLM inference");
  program.require_subcommand(1);
  program.footer(ashlar::apps::FeedKinds::built().help() + ashlar::apps::kExitHelp);
  ashlar::apps::Run run;
  ashlar::apps::add_relay_command(program, run);
  ashlar::apps::add_advisor_command(program, run);
  CLI11_PARSE(program, argc, argv);
  ashlar::apps::StopSignal::install();
  return run();
}
