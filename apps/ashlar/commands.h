// The subcommands of ashlar. Each adds its options to the program and the function to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace ashlar::apps {

// Exit statuses. Rejected arguments have statuses of 100 and above.
enum ExitStatus : int {
  kExitDone = 0,        // everything was processed
  kExitFailed = 1,      // failed; standard error says why
  kExitIncomplete = 3,  // finished, but some input was damaged, refused or lost; standard error says which
};
// The same for --help.
inline constexpr const char* kExitHelp =
    "exit status:\n"
    "  0  everything that came was taken\n"
    "  1  it did not work; standard error says why\n"
    "  3  it ended, but something was damaged, refused or lost; standard error says what\n"
    "  100 and above: arguments that are not understood\n";

// What --help says behind the options of a command: `more`, the exit statuses, and examples to type.
void end_help(CLI::App* command, const std::vector<std::string>& examples, const std::string& more = {});

// Called when the command was given; returns the exit status.
using Run = std::function<int()>;

void add_run_command(CLI::App& program, Run& run);
void add_relay_command(CLI::App& program, Run& run);
void add_advisor_command(CLI::App& program, Run& run);
void add_serve_command(CLI::App& program, Run& run);
void add_explain_command(CLI::App& program, Run& run);
void add_inspect_command(CLI::App& program, Run& run);
void add_bench_command(CLI::App& program, Run& run);
// completion and man; `program` must stay.
void add_shell_commands(CLI::App& program, Run& run);
void add_replay_command(CLI::App& program, Run& run);
void add_plan_command(CLI::App& program, Run& run);

}  // namespace ashlar::apps
