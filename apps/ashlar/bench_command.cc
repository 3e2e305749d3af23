// ashlar bench: the benchmarks by name. Each is an executable of its own, beside this program.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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
#include "ashlar/base/check.h"
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

void put_entry(service::JsonText& out, const BenchmarkEntry& entry) {
  out.field("name", entry.name);
  out.field("measures", entry.measures);
  out.field("target", entry.target);
}

int list_benchmarks(const BenchSettings& settings) {
  const std::filesystem::path folder = folder_of(settings);
  if (settings.json) {
    service::JsonText out;
    out.object([&] {
      out.field("folder", folder.string());
      out.field("benchmarks", [&] {
        out.array([&] {
          for (const BenchmarkEntry& entry : kBenchmarks)
            out.object([&] {
              put_entry(out, entry);
              out.field("built", is_built(folder, entry.name));
            });
        });
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
  return {};
}

// Runs a program and gives its standard output, line by line; its standard error goes where ours goes.
Result<int> run_for_lines(const std::vector<char*>& words, std::vector<std::string>& lines) {
  const auto failed = [&](const char* what) {
    return make_error(ErrorCode::kIo, "cannot %s %s: %s", what, words[0],
                      std::generic_category().message(errno).c_str());
  };
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return failed("read from");
  const pid_t child = fork();
  if (child < 0) return failed("start");
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    execv(words[0], words.data());
    _exit(127);
  }
  close(ends[1]);
  std::FILE* const from = fdopen(ends[0], "r");
  ASHLAR_CHECK(from != nullptr, "a pipe is a stream");
  char* line = nullptr;
  std::size_t room = 0;
  for (ssize_t size = 0; (size = getline(&line, &room, from)) > 0;) {
    if (line[size - 1] == '\n') --size;
    lines.emplace_back(line, static_cast<std::size_t>(size));
  }
  std::free(line);
  std::fclose(from);
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return failed("wait for");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// One object: what was run, and what it printed.
int bench_as_json(const BenchmarkEntry& entry, const std::vector<char*>& words) {
  std::vector<std::string> lines;
  const auto begun = std::chrono::steady_clock::now();
  const auto status = run_for_lines(words, lines);
  if (!status) {
    say("ashlar bench: " + status.error().message());
    return kExitFailed;
  }
  const auto took =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun);
  service::JsonText out;
  out.object([&] {
    put_entry(out, entry);
    out.field("status", *status);
    out.field("took_ms", took.count());
    out.field("output", [&] {
      out.array([&] {
        for (const std::string& line : lines) out.value(line);
      });
    });
  });
  std::printf("%s\n", out.text().c_str());
  return *status;
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
  if (settings.json) return bench_as_json(*entry, words);
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
  command->add_flag("--json", settings->json, "JSON: the list, or what the benchmark printed, line by line");
  command->add_option("--folder", settings->folder, "folder of the benchmarks (default: of this program)")
      ->type_name("FOLDER");
  end_help(command, {"ashlar bench --list", "ashlar bench block", "ashlar bench block_bench -- --scaling 4"});
  command->callback([settings, &run] {
    if (const auto fits = check_arguments(*settings); !fits) refuse_arguments(fits.error());
    run = [settings] { return bench(*settings); };
  });
}

}  // namespace ashlar::apps
