// ashlar completion, ashlar man: what a shell and man(1) know of the program, written by the program itself.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/command_tree.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/near_name.h"

namespace ashlar::apps {
namespace {

struct ManSettings {
  std::string command;
  std::string folder;
};

int print_text(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return kExitDone;
}

int man(const CommandTree& tree, const ManSettings& settings) {
  if (!settings.folder.empty()) {
    for (std::size_t i = 0; i <= tree.commands.size(); ++i) {
      const std::string name = i == 0 ? std::string() : tree.commands[i - 1].name;
      const std::filesystem::path path =
          std::filesystem::path(settings.folder) / (name.empty() ? "ashlar.1" : "ashlar-" + name + ".1");
      std::ofstream file(path);
      file << manual_page(tree, name, ASHLAR_VERSION);
      file.close();
      if (file) continue;
      say("ashlar man: cannot write " + path.string());
      return kExitFailed;
    }
    return kExitDone;
  }
  return print_text(manual_page(tree, settings.command, ASHLAR_VERSION));
}

Error no_such_command(const CommandTree& tree, const std::string& name) {
  std::vector<std::string> names;
  for (const CommandEntry& command : tree.commands) names.push_back(command.name);
  const std::string near = near_name(name, names);
  return Error(ErrorCode::kInvalidArgument,
               "there is no such command; " +
                   (near.empty() ? "ashlar --help lists them" : "did you mean " + near + "?"));
}

}  // namespace

void add_shell_commands(CLI::App& program, Run& run) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion =
      program.add_subcommand("completion", "Print the completion script of a shell, for it to read");
  completion->add_option("shell", *shell, "whose script")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  end_help(completion, {"source <(ashlar completion bash)", "ashlar completion zsh > ~/.zfunc/_ashlar",
                        "ashlar completion fish > ~/.config/fish/completions/ashlar.fish"});
  completion->callback([shell, &program, &run] {
    run = [shell, &program] {
      const CommandTree tree = CommandTree::of(program);
      return print_text(*shell == "bash"  ? bash_completion(tree)
                        : *shell == "zsh" ? zsh_completion(tree)
                                          : fish_completion(tree));
    };
  });
  auto settings = std::make_shared<ManSettings>();
  CLI::App* pages = program.add_subcommand("man", "Print a manual page, or write all of them");
  pages->add_option("command", settings->command, "command to describe (default: the program)");
  pages->add_option("--write", settings->folder, "write the pages of all commands into this folder")
      ->type_name("FOLDER");
  end_help(pages, {"ashlar man inspect | man -l -", "ashlar man --write /usr/local/share/man/man1"});
  pages->callback([settings, &program, &run] {
    const CommandTree tree = CommandTree::of(program);
    if (!settings->command.empty() && tree.find(settings->command) == nullptr)
      refuse_arguments(no_such_command(tree, settings->command));
    run = [settings, &program] { return man(CommandTree::of(program), *settings); };
  });
}

}  // namespace ashlar::apps
