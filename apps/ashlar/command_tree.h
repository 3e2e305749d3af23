// CommandTree: the commands and options of the program, as the parser knows them, for completion scripts and
// manual pages: neither can name a flag that does not exist, or miss one.
//
// Thread safety: plain values.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ashlar::apps {

struct OptionEntry {
  std::vector<std::string> flags;    // "--json"; empty: an argument without a flag
  std::string name;                  // of an argument
  std::string value;                 // what it takes: "FILE"; empty: nothing
  std::vector<std::string> choices;  // the words that it takes, where there are few
  std::string help;
  std::string standard;  // its default; empty: none
  bool is_required = false;
  bool is_repeatable = false;
};

struct CommandEntry {
  std::string name;
  std::string help;
  std::string ending;  // what --help says behind the options
  std::vector<OptionEntry> options;
};

struct CommandTree {
  CommandEntry program;
  std::vector<CommandEntry> commands;

  static CommandTree of(const CLI::App& program);
  const CommandEntry* find(const std::string& name) const;
};

// Sources of completions, each for its shell.
std::string bash_completion(const CommandTree& tree);
std::string zsh_completion(const CommandTree& tree);
std::string fish_completion(const CommandTree& tree);

// A manual page in troff; `command` empty: that of the program.
std::string manual_page(const CommandTree& tree, const std::string& command, const std::string& version);

}  // namespace ashlar::apps
