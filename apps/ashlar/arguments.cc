#include "apps/ashlar/arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "apps/ashlar/commands.h"
#include "apps/ashlar/feed_address.h"
#include "apps/ashlar/near_name.h"

namespace ashlar::apps {
namespace {

template <class Number>
bool is_in_range(const std::string& text, Number least, Number most) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stopped, failed] = std::from_chars(text.data(), end, number);
  return failed == std::errc() && stopped == end && number >= least && number <= most;
}

std::string in_words(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", number);
  return text;
}

bool is_option(const std::string& argument) {
  return argument.size() > 1 && argument.front() == '-';
}

// An option without its value.
std::string name_of(const std::string& option) {
  if (!option.starts_with("--")) return option.size() > 2 ? option.substr(0, 2) + "..." : option;
  const std::size_t equals = option.find('=');
  return equals == std::string::npos ? option : option.substr(0, equals) + "=...";
}

std::string unexpected(const std::vector<std::string>& arguments) {
  // An argument beside an unknown option may be its value.
  const bool any_option = std::ranges::any_of(arguments, is_option);
  std::string out =
      arguments.size() > 1 ? "these arguments were not expected:" : "an argument was not expected:";
  for (const std::string& argument : arguments)
    out += " " + (is_option(argument) ? name_of(argument) : any_option ? "..." : shown_argument(argument));
  return out;
}

// The command or flag that the first unexpected argument may have been meant for. Names only our own words.
std::string suggestion(const CLI::App& program) {
  const std::vector<std::string> extras = program.remaining(true);
  const std::vector<CLI::App*> parsed = program.get_subcommands();
  const CLI::App& command = parsed.empty() ? program : *parsed.front();
  for (const std::string& extra : extras) {
    std::vector<std::string> known;
    const std::string word = extra.substr(0, extra.find('='));
    if (extra.starts_with("--")) {
      for (const CLI::Option* option : command.get_options())
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    } else if (parsed.empty()) {
      for (const CLI::App* one : program.get_subcommands({})) known.push_back(one->get_name());
    }
    // One that the command has was given before it.
    if (std::ranges::find(known, word) != known.end()) return word + " behind the command";
    if (const std::string near = near_name(word, known); !near.empty()) return near;
  }
  return {};
}

}  // namespace

void end_help(CLI::App* command, const std::vector<std::string>& examples, const std::string& more) {
  std::string text = more + kExitHelp + "examples:\n";
  for (const std::string& example : examples) text += "  " + example + "\n";
  command->footer(text);
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  return {[=](std::string& text) {
            return is_in_range(text, least, most) ? std::string() : "takes a whole number from " + range;
          },
          most == std::numeric_limits<std::uint64_t>::max() ? "" : "from " + range};
}

CLI::Validator real_number(double least, double most) {
  const std::string range = in_words(least) + " to " + in_words(most);
  return {[=](std::string& text) {
            return is_in_range(text, least, most) ? std::string() : "takes a number from " + range;
          },
          "from " + range};
}

std::string in_braces(const std::vector<std::string>& choices) {
  std::string out = "{";
  for (const std::string& choice : choices) out += (out.size() == 1 ? "" : ",") + choice;
  return out + "}";
}

void refuse_arguments(const Error& error) {
  throw CLI::ValidationError(error.message());
}

std::string parse_problem(const CLI::App& program, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments) {
  constexpr std::size_t kShortest = 4;  // shortest text searched for in a message
  std::string message = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    message = unexpected(program.remaining(true));
  } else {
    for (const std::string& argument : arguments) {
      hide_secrets(message, argument);
      const std::size_t equals = argument.find('=');
      if (!is_option(argument) || equals == std::string::npos) continue;
      const std::string value = argument.substr(equals + 1);
      hide_secrets(message, value);
      if (value.size() < kShortest) continue;
      for (std::size_t at = message.find(value); at != std::string::npos; at = message.find(value, at + 3))
        message.replace(at, value.size(), "...");
    }
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) &&
      program.get_subcommands().empty() && !program.remaining(true).empty())
    message = is_option(program.remaining(true).front())
                  ? "a command is needed before " + name_of(program.remaining(true).front())
                  : "there is no such command";
  const std::string near = suggestion(program);
  return message + (near.empty() ? "" : "; did you mean " + near + "?") +
         "\nRun with --help for more information.";
}

}  // namespace ashlar::apps
