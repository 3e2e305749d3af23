#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"

namespace ashlar::apps {

void add_serve_command(CLI::App& program, Run& run) {
  CLI::App* command = program.add_subcommand("serve", "Not in this build: needs Boost and OpenSSL");
  command->allow_extras();
  end_help(command, {"ashlar serve --worker http://127.0.0.1:8000"});
  command->callback([&run] {
    run = [] {
      say("ashlar serve: this build has no HTTP; install libboost1.81-dev and libssl-dev, and build again");
      return static_cast<int>(kExitFailed);
    };
  });
}

}  // namespace ashlar::apps
