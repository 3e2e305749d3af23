// ashlar bench: the benchmarks by name. Each is an executable of its own, beside this program.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/benchmark_table.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/near_name.h"
#include "service/gateway/json_text.h"

namespace ashlar::apps {
namespace {

struct BenchSettings {
  std::string name;
  std::vector<std::string> arguments;
  std::string folder;
  bool list = false;
  bool json = false;
};

std::filesystem::path folder_of(const BenchSettings& settings) {
  if (!settings.folder.empty()) return settings.folder;
  std::error_code failed;
  return std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
}

bool is_built(const std::filesystem::path& folder, std::string_view name) {
  return access((folder / name).c_str(), X_OK) == 0;
}

int list_benchmarks(const BenchSettings& settings) {
  const std::filesystem::path folder = folder_of(settings);
  if (settings.json) {
    service::JsonText out;
    out.array([&] {
      for (const BenchmarkEntry& entry : kBenchmarks)
        out.object([&] {
          out.field("name", entry.name);
          out.field("measures", entry.measures);
          out.field("target", entry.target);
          out.field("built", is_built(folder, entry.name));
        });
    });
    std::printf("%s\n", out.text().c_str());
    return kExitDone;
  }
  std::size_t built = 0;
  for (const BenchmarkEntry& entry : kBenchmarks) {
    const bool is_here = is_built(folder, entry.name);
    built += is_here ? 1 : 0;
    std::printf("%c %-20s %s%s%s\n", is_here ? '*' : ' ', std::string(entry.name).c_str(),
                std::string(entry.measures).c_str(),
                entry.target.empty() ? "" : "; target: ", std::string(entry.target).c_str());
  }
  std::printf(
      "* built in %s: %zu of %zu. The others: cmake --build --preset release --target "
      "ashlar_benchmarks\n",
      folder.c_str(), built, kBenchmarks.size());
  return kExitDone;
}

// "block" is as good as "block_bench".
auto find_benchmark(const std::string& name) {
  return std::ranges::find_if(kBenchmarks, [&](const BenchmarkEntry& one) {
    return one.name == name || one.name == name + "_bench";
  });
}

Result<void> check_arguments(const BenchSettings& settings) {
  if (settings.list || settings.name.empty()) return {};
  if (find_benchmark(settings.name) == kBenchmarks.end()) {
    std::vector<std::string> names;
    for (const BenchmarkEntry& one : kBenchmarks) {
      names.emplace_back(one.name);
      names.emplace_back(one.name.substr(0, one.name.rfind('_')));
    }
    const std::string near = near_name(settings.name, names);
    return Error(ErrorCode::kInvalidArgument,
                 "there is no such benchmark; " +
                     (near.empty() ? "ashlar bench --list names them" : "did you mean " + near + "?"));
  }
  if (settings.json)
    return Error(
        ErrorCode::kInvalidArgument,
        "--json lists the benchmarks, and the results of one are text; leave out --json, or its name");
  return {};
}

// Requires: check_arguments().
int bench(const BenchSettings& settings) {
  if (settings.list || settings.name.empty()) return list_benchmarks(settings);
  const auto entry = find_benchmark(settings.name);
  const std::filesystem::path program = folder_of(settings) / entry->name;
  if (!is_built(folder_of(settings), entry->name)) {
    say("ashlar bench: " + program.string() + " is not built; run: cmake --build --preset release --target " +
        std::string(entry->name));
    return kExitFailed;
  }
  std::string path = program.string();
  std::vector<std::string> arguments = settings.arguments;
  std::vector<char*> words = {path.data()};
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  execv(path.c_str(), words.data());
  say("ashlar bench: cannot run " + path + ": " + std::generic_category().message(errno));
  return kExitFailed;
}

}  // namespace

void add_bench_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<BenchSettings>();
  CLI::App* command =
      program.add_subcommand("bench", "List the benchmarks with their targets, or run one of them");
  command->add_option("name", settings->name, "benchmark to run, with or without _bench");
  command->add_option("arguments", settings->arguments, "arguments of the benchmark; write -- before them");
  command->add_flag("--list", settings->list, "only list them; * marks those that are built");
  command->add_flag("--json", settings->json, "list them as JSON");
  command->add_option("--folder", settings->folder, "folder of the benchmarks (default: of this program)")
      ->type_name("FOLDER");
  end_help(command, {"ashlar bench --list", "ashlar bench block", "ashlar bench block_bench -- --scaling 4"});
  command->callback([settings, &run] {
    if (const auto fits = check_arguments(*settings); !fits) refuse_arguments(fits.error());
    run = [settings] { return bench(*settings); };
  });
}

}  // namespace ashlar::apps
