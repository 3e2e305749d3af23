#include "apps/ashlar/command_tree.h"

#include <algorithm>

namespace ashlar::apps {
namespace {

OptionEntry entry_of(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.flags.push_back("--" + name);
  entry.name = option.get_single_name();
  entry.help = option.get_description();
  entry.standard = option.get_default_str();
  entry.is_required = option.get_required();
  entry.is_repeatable = option.get_items_expected_max() > 1;
  if (option.get_items_expected_max() == 0) return entry;
  // "TEXT:{a,b}", "UINT:from 1 to 5".
  entry.value = option.get_type_name();
  const std::size_t open = entry.value.find('{');
  const std::size_t close = entry.value.find('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    std::string word;
    for (std::size_t i = open + 1; i <= close; ++i) {
      if (i < close && entry.value[i] != ',') {
        word += entry.value[i];
        continue;
      }
      entry.choices.push_back(std::move(word));
      word.clear();
    }
  }
  entry.value = entry.value.substr(0, entry.value.find(':'));
  if (entry.value.empty()) entry.value = "TEXT";
  return entry;
}

CommandEntry entry_of(const CLI::App& app) {
  CommandEntry entry{
      .name = app.get_name(), .help = app.get_description(), .ending = app.get_footer(), .options = {}};
  for (const CLI::Option* option : app.get_options()) entry.options.push_back(entry_of(*option));
  return entry;
}

}  // namespace

CommandTree CommandTree::of(const CLI::App& program) {
  CommandTree tree{.program = entry_of(program), .commands = {}};
  tree.program.name = "ashlar";
  for (const CLI::App* command : program.get_subcommands({})) tree.commands.push_back(entry_of(*command));
  return tree;
}

const CommandEntry* CommandTree::find(const std::string& name) const {
  const auto found = std::ranges::find(commands, name, &CommandEntry::name);
  return found == commands.end() ? nullptr : &*found;
}

}  // namespace ashlar::apps
