#include <string>

#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"

namespace ashlar::apps {
namespace {

void add_absent(CLI::App& program, Run& run, const std::string& name) {
  CLI::App* command = program.add_subcommand(name, "Not in this build: needs Boost and OpenSSL");
  command->allow_extras();
  end_help(command, {"ashlar " + name + " --help"});
  command->callback([&run, name] {
    run = [name] {
      say("ashlar " + name +
          ": this build has no HTTP; install libboost1.81-dev and libssl-dev, and build again");
      return static_cast<int>(kExitFailed);
    };
  });
}

}  // namespace

void add_serve_command(CLI::App& program, Run& run) {
  add_absent(program, run, "serve");
}
void add_run_command(CLI::App& program, Run& run) {
  add_absent(program, run, "run");
}

}  // namespace ashlar::apps
