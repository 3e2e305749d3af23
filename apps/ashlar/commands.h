// The subcommands of ashlar. Each adds its options to the program and says what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace ashlar::apps {

// How the program ends. Arguments that are not understood have statuses of 100 and above.
enum ExitStatus : int {
  kExitDone = 0,    // everything that came was taken
  kExitFailed = 1,  // it did not work; standard error says why
  kExitIncomplete =
      3,  // it ended, but something that came was damaged, refused or lost; standard error says what
};
// The same for --help.
inline constexpr const char* kExitHelp =
    "exit status:\n"
    "  0  everything that came was taken\n"
    "  1  it did not work; standard error says why\n"
    "  3  it ended, but something was damaged, refused or lost; standard error says what\n"
    "  100 and above: arguments that are not understood\n";

// Called when the command was given; returns the exit status.
using Run = std::function<int()>;

void add_relay_command(CLI::App& program, Run& run);
void add_advisor_command(CLI::App& program, Run& run);

}  // namespace ashlar::apps
