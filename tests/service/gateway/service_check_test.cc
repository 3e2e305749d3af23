// What `ashlar serve --check` finds before a start would: Service::check().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "service/gateway/fake_workers.h"
#include "support/scratch_folder.h"

namespace ashlar::service {
namespace {

using ::testing::HasSubstr;

Result<std::unique_ptr<feed::EngineSource>> no_source(const EngineEndpoint&) {
  return Error(ErrorCode::kUnavailable, "nobody is asked");
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

class ServiceCheck : public ::testing::Test {
 protected:
  // The refusal of these options; empty: they are fine. A start says the same, and a check leaves no trace.
  std::string refusal(const std::function<void(ServeOptions&)>& change,
                      EngineSourceFactory source = no_source) {
    ServeOptions options = ServiceUnderTest::options_of(2);
    change(options);
    const auto count = [&] {
      const auto files = std::filesystem::recursive_directory_iterator(folder_.path());
      return std::distance(begin(files), end(files));
    };
    const auto before = count();
    const Result<void> checked = Service::check(options, source);
    EXPECT_EQ(count(), before);
    const auto started = Service::create(options, std::move(source));
    EXPECT_EQ(checked.has_value(), started.has_value()) << (checked ? started.error() : checked.error());
    return checked ? std::string() : checked.error().message();
  }
  std::string file(const std::string& name) const { return folder_.file(name); }

  const ScratchFolder folder_;
};

TEST_F(ServiceCheck, FindsWorkersThatDoNotFitEachOther) {
  EXPECT_EQ(refusal([](ServeOptions&) {}), "");
  EXPECT_THAT(refusal([](ServeOptions& options) { options.workers[1].name = "w0"; }),
              HasSubstr("two are called 'w0'"));
  EXPECT_THAT(refusal([](ServeOptions& options) { options.workers[0].salt = "pepper"; }), "");
  EXPECT_THAT(refusal([](ServeOptions& options) {
                options.workers[0].salt = "pepper";
                options.workers[1].salt = "salt";
              }),
              HasSubstr("different schemes or salts"));
}

TEST_F(ServiceCheck, FindsEventsThatCannotBeHeard) {
  const auto events = [](std::uint32_t ranks, const std::string& port, const std::string& replay) {
    return [=](ServeOptions& options) {
      options.workers[0].events = "tcp://127.0.0.1:" + port;
      if (!replay.empty()) options.workers[0].replay = "tcp://127.0.0.1:" + replay;
      options.workers[0].dp = ranks;
    };
  };
  EXPECT_EQ(refusal(events(2, "65534", "")), "");
  EXPECT_THAT(refusal(events(3, "65534", "")), HasSubstr("a port for every rank"));
  EXPECT_THAT(refusal(events(3, "5557", "65534")), HasSubstr("replay should be"));
  EXPECT_THAT(refusal(events(1, "5557", ""), {}), HasSubstr("no ZeroMQ"));
}

TEST_F(ServiceCheck, FindsJournalsThatCannotBeWritten) {
  write_file(file("plain"), "text");
  write_file(file("short"), "key");
  const auto journal = [this](const std::string& at, const std::string& key = {}) {
    return [=, this](ServeOptions& options) {
      options.journal = file(at);
      if (!key.empty()) options.journal_key = file(key);
    };
  };
  EXPECT_THAT(refusal(journal("plain")), HasSubstr("plain of the journal cannot be written"));
  EXPECT_THAT(refusal(journal("plain/below")), HasSubstr("plain/below of the journal cannot be written"));
  EXPECT_THAT(refusal(journal("one", "none")), HasSubstr("cannot read the key file"));
  EXPECT_THAT(refusal(journal("two", "short")), HasSubstr("too few bytes"));
  EXPECT_EQ(refusal(journal("deep/three")), "");
  std::filesystem::create_directory(file("four"));
  write_file(file("four/key"), "key");
  EXPECT_THAT(refusal(journal("four")), HasSubstr("too few bytes"));
  EXPECT_THAT(refusal([this](ServeOptions& options) { options.record = file("none/trace.jsonl"); }),
              HasSubstr("of the recording cannot be written"));
}

TEST_F(ServiceCheck, FindsSnapshotsThatCannotBeRead) {
  write_file(file("broken.json"), "[1]");
  write_file(file("empty.json"), "{}");
  const auto snapshot = [](const std::string& from) {
    return [=](ServeOptions& options) { options.snapshot = from; };
  };
  EXPECT_THAT(refusal(snapshot(file("none.json"))), HasSubstr("snapshot: cannot read"));
  EXPECT_THAT(refusal(snapshot(file("broken.json"))), HasSubstr("not the dump of a router"));
  EXPECT_THAT(refusal(snapshot("http://[peer/dump")), HasSubstr("neither a file nor the address"));
  EXPECT_EQ(refusal(snapshot(file("empty.json"))), "");
  EXPECT_EQ(refusal(snapshot("http://127.0.0.1:1/dump")), "");
}

}  // namespace
}  // namespace ashlar::service
