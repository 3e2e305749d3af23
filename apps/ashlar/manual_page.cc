// Manual pages in troff (man macros), from what the parser knows.
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "apps/ashlar/command_tree.h"

namespace ashlar::apps {
namespace {

// Text that troff takes as it stands.
std::string troff(std::string_view text) {
  std::string out;
  bool starts_line = true;
  for (const char c : text) {
    if (starts_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    starts_line = c == '\n';
  }
  return out;
}

std::string in_capitals(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string sentence(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  if (!text.empty() && text.back() != '.') text += '.';
  return text;
}

std::string option_lines(const OptionEntry& option) {
  std::string out = ".TP\n";
  if (option.flags.empty()) {
    out += "\\fI" + troff(option.name) + "\\fR\n";
  } else {
    std::string names;
    for (const std::string& flag : option.flags)
      names += (names.empty() ? "" : ", ") + ("\\fB" + troff(flag) + "\\fR");
    out += names + (option.value.empty() ? "" : " \\fI" + troff(option.value) + "\\fR") + "\n";
  }
  std::string help = sentence(option.help);
  if (!option.choices.empty()) {
    help += " One of:";
    for (const std::string& choice : option.choices) help += " " + choice;
    help += ".";
  }
  if (!option.standard.empty()) help += " Default: " + option.standard + ".";
  if (option.is_required) help += " Required.";
  return out + troff(help) + "\n";
}

std::string synopsis(const CommandEntry& command, bool is_program) {
  std::string out = ".B ashlar" + (is_program ? std::string() : " " + troff(command.name)) + "\n";
  if (is_program) return out + "\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n";
  out += "[\\fIOPTIONS\\fR]";
  for (const OptionEntry& option : command.options) {
    if (!option.flags.empty()) continue;
    const std::string name = "\\fI" + troff(option.name) + "\\fR" + (option.is_repeatable ? " ..." : "");
    out += " " + (option.is_required ? name : "[" + name + "]");
  }
  return out + "\n";
}

// What --help says behind the options: parts begin with a word and a colon on a line of their own.
std::string ending_sections(std::string_view text) {
  std::string out;
  bool is_open = false;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.empty() && line.front() != ' ' && line.back() == ':') {
      if (is_open) out += ".fi\n";
      out += ".SH " + troff(in_capitals(std::string(line.substr(0, line.size() - 1)))) + "\n.nf\n";
      is_open = true;
      continue;
    }
    if (!is_open && !line.empty()) {
      out += ".SH NOTES\n.nf\n";
      is_open = true;
    }
    if (is_open) out += troff(line.starts_with("  ") ? line.substr(2) : line) + "\n";
  }
  return is_open ? out + ".fi\n" : out;
}

}  // namespace

std::string manual_page(const CommandTree& tree, const std::string& command, const std::string& version) {
  const CommandEntry* const found = command.empty() ? &tree.program : tree.find(command);
  if (found == nullptr) return {};
  const bool is_program = command.empty();
  const std::string name = is_program ? "ashlar" : "ashlar-" + command;
  std::string out = ".\\\" Written by `ashlar man`.\n.TH " + in_capitals(name) + " 1 \"\" \"ashlar " +
                    version + "\" \"Ashlar\"\n.SH NAME\n" + troff(name) + " \\- " +
                    troff(is_program ? "KV cache blocks for LLM inference" : found->help) +
                    "\n.SH SYNOPSIS\n" + synopsis(*found, is_program);
  if (is_program) {
    out +=
        ".SH DESCRIPTION\nOne program, a command for every job. Each command has a page of its own.\n"
        ".SH COMMANDS\n";
    for (const CommandEntry& one : tree.commands)
      out += ".TP\n\\fBashlar\\-" + troff(one.name) + "\\fR(1)\n" + troff(sentence(one.help)) + "\n";
  } else {
    out += ".SH DESCRIPTION\n" + troff(sentence(found->help)) + "\n";
  }
  out += ".SH OPTIONS\n";
  for (const OptionEntry& option : found->options) out += option_lines(option);
  out += ending_sections(found->ending);
  out += ".SH SEE ALSO\n";
  if (!is_program) out += ".BR ashlar (1)";
  for (const CommandEntry& one : tree.commands)
    if (is_program || one.name != command)
      out += (is_program && &one == &tree.commands.front() ? "" : ",\n") +
             (".BR ashlar\\-" + troff(one.name) + " (1)");
  return out + "\n";
}

}  // namespace ashlar::apps
