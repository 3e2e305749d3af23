// ashlar advisor: listens to events and advises how a storage could place blocks better.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/feed_address.h"
#include "apps/ashlar/feed_kinds.h"
#include "apps/ashlar/feed_report.h"
#include "apps/ashlar/program_hook.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/feed/storage_advisor.h"

namespace ashlar::apps {
namespace {

constexpr double kLargest = 1e12;  // of heat and seconds

struct AdvisorSettings {
  std::string from;
  feed::StorageAdvisor::Options advisor;
  double every = 10;
  std::string program;
  double program_patience = 60;  // seconds
  bool quiet = false;
  std::size_t memory_mib = 256;
};

std::int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class Advising {
 public:
  explicit Advising(const AdvisorSettings& settings)
      : settings_(settings),
        hook_(settings.program,
              std::chrono::milliseconds(static_cast<std::int64_t>(settings.program_patience * 1000))) {}

  int run() {
    auto advisor = feed::StorageAdvisor::create(settings_.advisor);
    if (!advisor) return fail(advisor.error());
    Result<OpenedSource> opened = FeedKinds::built().open_source(settings_.from);
    if (!opened) return fail(opened.error());
    if (opened->stream == nullptr)
      return fail(make_error(ErrorCode::kUnsupported,
                             "%s: engines do not report volumes; relay them first (ashlar relay)",
                             FeedAddress::parse(settings_.from)->shown().c_str()));
    recorded_ = opened->is_recorded;
    feed::StreamReceiver receiver(*opened->stream, **advisor,
                                  {.max_waiting_bytes = settings_.memory_mib << 20});
    const auto every = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(settings_.every));
    auto next = std::chrono::steady_clock::now() + every;
    while (!StopSignal::received()) {
      const Result<std::size_t> came = receiver.poll(std::chrono::milliseconds(200));
      if (!came && came.error().code() == ErrorCode::kNotFound) break;
      if (!came && came.error().code() != ErrorCode::kUnavailable) return fail(came.error());
      if (std::chrono::steady_clock::now() < next) continue;
      next += every;
      if (const Result<void> written = report(**advisor, report_of(receiver, *opened->stream)); !written)
        return fail(written.error());
    }
    const FeedReport heard = report_of(receiver, *opened->stream);
    if (const Result<void> written = report(**advisor, heard); !written) return fail(written.error());
    if (!heard.is_incomplete) return kExitDone;
    say("ashlar advisor: not everything was heard: " + heard.text);
    return kExitIncomplete;
  }

 private:
  int fail(const Error& error) const {
    std::string message = error.message();
    hide_secrets(message, settings_.from);
    say("ashlar advisor: " + message);
    return kExitFailed;
  }
  // An advice is repeated only after it has changed. Errors: kIo: standard output cannot be written.
  Result<void> report(feed::StorageAdvisor& advisor, const FeedReport& heard) {
    std::set<std::string> now;
    std::vector<feed::Advice> fresh;
    for (feed::Advice& advice : advisor.advise(recorded_ ? advisor.latest_ns() : unix_ns())) {
      std::string key = std::string(to_string(advice.action)) + " " + advice.from + " " + advice.to + " " +
                        (advice.group ? advice.group->to_string() : "") + " " +
                        std::to_string(advice.blocks.size());
      if (!said_.contains(key)) fresh.push_back(std::move(advice));
      now.insert(std::move(key));
    }
    said_ = std::move(now);
    for (const feed::Advice& advice : fresh)
      if (std::printf("%s\n", advice.to_json().c_str()) < 0) return unwritten();
    if (std::fflush(stdout) != 0) return unwritten();
    if (!settings_.program.empty()) {
      advisor.act(fresh, hook_);
      if (advisor.counters().hook_failures != failures_) {
        failures_ = advisor.counters().hook_failures;
        say("ashlar advisor: " + std::to_string(failures_) +
            " actions failed; the last: " + advisor.last_hook_error());
      }
    }
    if (!settings_.quiet)
      say(advisor.table() + "heard " + heard.text + "\n" + std::to_string(fresh.size()) + " new advice\n");
    return {};
  }
  static Error unwritten() {
    return make_error(ErrorCode::kIo, "cannot write advice to standard output: %s",
                      std::generic_category().message(errno).c_str());
  }

  const AdvisorSettings settings_;
  ProgramHook hook_;
  bool recorded_ = false;  // the feed's own time counts, not ours
  std::set<std::string> said_;
  std::uint64_t failures_ = 0;
};

}  // namespace

void add_advisor_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<AdvisorSettings>();
  feed::StorageAdvisor::Options& advisor = settings->advisor;
  CLI::App* command =
      program.add_subcommand("advisor", "follow events and print advice for storages, as JSON lines");
  command->add_option("--from", settings->from, "feed to read")->required();
  command->add_option("--order", advisor.order, "places from the fastest to the slowest")->delimiter(',');
  command->add_option("--every", settings->every, "seconds between two rounds of advice")
      ->check(real_number(0.1, 86400))
      ->capture_default_str();
  command->add_option("--hot", advisor.hot_heat, "uses per block from which a prefix is promoted")
      ->check(real_number(0, kLargest))
      ->capture_default_str();
  command->add_option("--half-life", advisor.half_life_seconds, "seconds in which heat halves")
      ->check(real_number(0, kLargest))
      ->capture_default_str();
  command->add_option("--cold", advisor.cold_seconds, "seconds unused from which a prefix is demoted")
      ->check(real_number(0, kLargest))
      ->capture_default_str();
  command->add_option("--small", advisor.small_object, "bytes below which an object counts as small")
      ->check(whole_number())
      ->capture_default_str();
  command
      ->add_option("--coalesce", advisor.coalesce_blocks,
                   "small objects of a prefix from which they are coalesced")
      ->check(whole_number())
      ->capture_default_str();
  command
      ->add_option("--scattered", advisor.scattered,
                   "share of removed bytes from which a place should be compacted")
      ->check(real_number(0, kLargest))
      ->capture_default_str();
  command->add_option("--exec", settings->program,
                      "program that gets each advice as a line on its standard input");
  command
      ->add_option("--exec-timeout", settings->program_patience,
                   "seconds after which that program is killed with its process group")
      ->check(real_number(0.1, 86400))
      ->capture_default_str();
  command->add_flag("--quiet", settings->quiet, "no table on standard error");
  command
      ->add_option("--memory", settings->memory_mib,
                   "MiB for waiting events: behind gaps, in unfinished snapshots")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", settings->quiet,
                    "advice is JSON anyway; this leaves out the table, as --quiet");
  end_help(command,
           {"ashlar advisor --from file:/tmp/events --order nvme,disk",
            "ashlar advisor --from nats://bus:4222 --order nvme,disk,bucket --every 30 --json | jq .action"},
           FeedKinds::built().help());
  command->callback([settings, &run] { run = [settings] { return Advising(*settings).run(); }; });
}

}  // namespace ashlar::apps
