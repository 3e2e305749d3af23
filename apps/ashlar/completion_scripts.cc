// Completion scripts for shells. Names come from the parser and hold letters, digits and dashes only; texts
// for people are quoted for each shell.
#include <string>

#include "apps/ashlar/command_tree.h"

namespace ashlar::apps {
namespace {

std::string replaced(std::string text, char what, const std::string& with) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, 1, with);
  return text;
}

// In single quotes, on one line.
std::string quoted(const std::string& text) {
  return "'" + replaced(replaced(text, '\n', " "), '\'', "'\\''") + "'";
}

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(replaced(text, '\n', " "), '\\', "\\\\"), '\'', "\\'") + "'";
}

std::string flags_of(const CommandEntry& command) {
  std::string out;
  for (const OptionEntry& option : command.options)
    for (const std::string& flag : option.flags) out += (out.empty() ? "" : " ") + flag;
  return out;
}

std::string words_of(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string names_of(const CommandTree& tree) {
  std::string out;
  for (const CommandEntry& command : tree.commands) out += (out.empty() ? "" : " ") + command.name;
  return out;
}

// The choices of arguments without a flag.
std::string choices_of(const CommandEntry& command) {
  for (const OptionEntry& option : command.options)
    if (option.flags.empty() && !option.choices.empty()) return words_of(option.choices);
  return {};
}

}  // namespace

std::string bash_completion(const CommandTree& tree) {
  std::string out =
      "# Completion of ashlar for bash. Written by `ashlar completion bash`.\n"
      "_ashlar() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= word flags= "
      "words=\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case $word in -*) ;; *) command=$word; break ;; esac\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command in\n";
  for (const CommandEntry& command : tree.commands) {
    out += "  " + command.name + ")\n    flags=" + quoted(flags_of(command)) + "\n";
    if (const std::string choices = choices_of(command); !choices.empty())
      out += "    words=" + quoted(choices) + "\n";
    out += "    case $before in\n";
    for (const OptionEntry& option : command.options) {
      if (option.flags.empty() || option.value.empty()) continue;
      std::string pattern;
      for (const std::string& flag : option.flags) pattern += (pattern.empty() ? "" : "|") + flag;
      out += "    " + pattern + ")\n      COMPREPLY=($(compgen " +
             (option.choices.empty() ? std::string("-f") : "-W " + quoted(words_of(option.choices))) +
             " -- \"$current\"))\n      return ;;\n";
    }
    out += "    esac ;;\n";
  }
  out += "  *)\n    flags=" + quoted(flags_of(tree.program)) + "\n    words=" + quoted(names_of(tree)) +
         " ;;\n"
         "  esac\n"
         "  if [[ $current == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n"
         "  elif [[ -n $words ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _ashlar ashlar\n";
  return out;
}

std::string zsh_completion(const CommandTree& tree) {
  // A description in brackets; colons and brackets have a meaning there.
  const auto in_brackets = [](const std::string& text) {
    return replaced(replaced(replaced(replaced(text, '\\', "\\\\"), '[', "\\["), ']', "\\]"), ':', "\\:");
  };
  const auto argument_of = [&](const OptionEntry& option) {
    if (option.value.empty()) return std::string();
    const std::string action = option.choices.empty() ? "_files" : "(" + words_of(option.choices) + ")";
    return ":" + in_brackets(option.value) + ":" + action;
  };
  std::string out =
      "#compdef ashlar\n"
      "# Completion of ashlar for zsh. Written by `ashlar completion zsh`.\n"
      "_ashlar() {\n"
      "  local context state state_descr line\n"
      "  typeset -A opt_args\n"
      "  _arguments -C '(- *)--help[Print the help]' '(- *)--version[Print the version]' "
      "'1:command:->command' '*::argument:->argument'\n"
      "  case $state in\n"
      "  command)\n"
      "    local -a commands=(\n";
  for (const CommandEntry& command : tree.commands)
    out += "      " + quoted(command.name + ":" + replaced(command.help, ':', "\\:")) + "\n";
  out +=
      "    )\n"
      "    _describe command commands ;;\n"
      "  argument)\n"
      "    case $words[1] in\n";
  for (const CommandEntry& command : tree.commands) {
    out += "    " + command.name + ")\n      _arguments";
    for (const OptionEntry& option : command.options) {
      for (const std::string& flag : option.flags)
        out += " \\\n        " + quoted((option.is_repeatable ? "*" : "") + flag + "[" +
                                        in_brackets(option.help) + "]" + argument_of(option));
      if (option.flags.empty()) out += " \\\n        " + quoted("*" + argument_of(option));
    }
    out += " ;;\n";
  }
  return out +
         "    esac ;;\n"
         "  esac\n"
         "}\n"
         "_ashlar \"$@\"\n";
}

std::string fish_completion(const CommandTree& tree) {
  std::string out =
      "# Completion of ashlar for fish. Written by `ashlar completion fish`.\n"
      "complete -c ashlar -n __fish_use_subcommand -l help -d 'Print the help'\n"
      "complete -c ashlar -n __fish_use_subcommand -l version -d 'Print the version'\n";
  for (const CommandEntry& command : tree.commands)
    out += "complete -c ashlar -n __fish_use_subcommand -f -a " + command.name + " -d " +
           fish_quoted(command.help) + "\n";
  for (const CommandEntry& command : tree.commands) {
    const std::string start = "complete -c ashlar -n '__fish_seen_subcommand_from " + command.name + "'";
    for (const OptionEntry& option : command.options) {
      if (option.flags.empty() && !option.choices.empty())
        out += start + " -f -a " + fish_quoted(words_of(option.choices)) + "\n";
      if (option.flags.empty()) continue;
      out += start;
      for (const std::string& flag : option.flags)
        out += flag.starts_with("--") ? " -l " + flag.substr(2) : " -s " + flag.substr(1);
      if (!option.value.empty()) out += " -r";
      if (!option.choices.empty()) out += " -f -a " + fish_quoted(words_of(option.choices));
      out += " -d " + fish_quoted(option.help) + "\n";
    }
  }
  return out;
}

}  // namespace ashlar::apps
