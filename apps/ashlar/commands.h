// The subcommands of ashlar. Each adds its options to the program and says what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace ashlar::apps {

// Called when the command was given; returns the exit status.
using Run = std::function<int()>;

void add_relay_command(CLI::App& program, Run& run);
void add_advisor_command(CLI::App& program, Run& run);

}  // namespace ashlar::apps
