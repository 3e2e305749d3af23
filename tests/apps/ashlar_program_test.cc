// The program `ashlar`, run as a person runs it: what it prints, what it writes, how it ends.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "apps/held_blocks.h"
#include "apps/run_program.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/stream_receiver.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar {
namespace {

Holder read_stream(const std::string& path) {
  auto source = feed::FileSource::create({.path = path}).value();
  Holder holder;
  feed::StreamReceiver receiver(*source, holder);
  while (receiver.poll({})) {
  }
  return holder;
}

TEST(AshlarProgram, RelaysARecordingOfAnEngineIntoAStreamWithItsNames) {
  for (const std::string name : {"default", "evict", "dup", "reset", "salt"}) {
    const ScratchFolder folder;
    const Ended ended = run("relay --from " + recording(name) + " --to file:" + folder.file("stream") +
                            " --worker 7 --incarnation 3 --block-size 32");
    ASSERT_EQ(ended.status, 0) << ended.output;
    const Holder holder = read_stream(folder.file("stream"));
    EXPECT_EQ(holder.held, held_by_engine(name)) << name;
    EXPECT_EQ(holder.stream, (events::StreamId{{events::WorkerId(7), 0}, 3}));
    EXPECT_EQ(holder.keys.scheme, tokens::HashScheme().fingerprint());
    EXPECT_EQ(holder.keys.block_size, 32u);
    // And once more, from stream to stream.
    const Ended again = run("relay --from file:" + folder.file("stream") +
                            " --to file:" + folder.file("second") + " --profile coarse");
    ASSERT_EQ(again.status, 0) << again.output;
    EXPECT_EQ(read_stream(folder.file("second")).held, holder.held) << name;
  }
}

TEST(AshlarProgram, RelaysSeveralWorkersIntoOneFile) {
  const ScratchFolder folder;
  for (const std::string worker : {"1", "2"})
    ASSERT_EQ(run("relay --from " + recording("default") + " --to file:" + folder.file("in") +
                  "?append=1 --worker " + worker)
                  .status,
              0);
  const Ended ended = run("relay --from file:" + folder.file("in") + " --to file:" + folder.file("out"));
  ASSERT_EQ(ended.status, 0) << ended.output;
  auto source = feed::FileSource::create({.path = folder.file("out")}).value();
  struct Workers final : feed::StreamListener {
    std::map<events::Worker, Held> held;
    void on_reset(const events::StreamId& stream) override { held[stream.worker].clear(); }
    void on_events(const events::EventBatch& batch) override {
      take_in(held[batch.stream.worker], batch.events);
    }
  } workers;
  feed::StreamReceiver receiver(*source, workers);
  while (receiver.poll({})) {
  }
  EXPECT_EQ(workers.held.size(), 2u);
  for (const auto& [worker, held] : workers.held) EXPECT_EQ(held, held_by_engine("default"));
}

TEST(AshlarProgram, AdvisesOnAStream) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_two_places(folder.file("stream"), "fast", "slow"));
  const std::string acted = folder.file("acted");
  const Ended ended = run("advisor --from file:" + folder.file("stream") +
                          " --order fast,slow --cold 0 --exec 'cat >> " + acted + "'");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(ended.output.find(R"({"action":"demote","from":"fast","to":"slow")"), std::string::npos)
      << ended.output;
  EXPECT_NE(ended.output.find("hotness from restores and age"), std::string::npos);
  std::string line;
  std::ifstream(acted) >> line;
  EXPECT_TRUE(line.starts_with(R"({"action":"demote")")) << line;
  const Ended failing = run("advisor --from file:" + folder.file("stream") +
                            " --order fast,slow --cold 0 --exec false --quiet");
  EXPECT_EQ(failing.status, 0);
  EXPECT_NE(failing.output.find("'false' ended with status 1"), std::string::npos) << failing.output;
}

// Batches of one worker, of which some may be damaged afterwards.
void write_stream(const std::string& path, std::uint64_t batches) {
  auto sink = feed::FileSink::create({.path = path}).value();
  for (std::uint64_t i = 0; i < batches; ++i) {
    events::OwnedBatch batch;
    batch.head.stream = {{events::WorkerId(1), 0}, 1};
    batch.head.keys.block_size = 16;
    batch.head.first = i;
    events::KvEvent event;
    event.hash = tokens::SequenceHash::root(i + 1);
    event.tier = events::kTierId<events::G4>;
    batch.events.push_back(event);
    ASSERT_TRUE(sink->publish(batch.view()));
  }
}

void flip(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

TEST(AshlarProgram, SaysWhyNothingOfARecordingWasRelayed) {
  const ScratchFolder folder;
  const Ended ended =
      run("relay --from " + recording("default") + " --to file:" + folder.file("out") + " --block-size 7");
  EXPECT_EQ(ended.status, 3) << ended.output;
  EXPECT_TRUE(says(ended, "relayed 0 events")) << ended.output;
  EXPECT_TRUE(says(ended, "blocks of 32 tokens, 7 are expected")) << ended.output;
  EXPECT_TRUE(says(ended, "not everything that came was relayed")) << ended.output;
}

TEST(AshlarProgram, ReportsWhatWasRelayedToPrograms) {
  const ScratchFolder folder;
  const std::string relay =
      "relay --json --from " + recording("default") + " --to file:" + folder.file("out");
  const Ended good = run(relay + " --status-every 0");
  ASSERT_EQ(good.status, 0) << good.output;
  const testing::Json report = testing::Json::parse(good.output);
  EXPECT_EQ(report["relayed"].number, static_cast<double>(held_by_engine("default").size()));
  EXPECT_EQ(report["complete"].number, 1);
  EXPECT_EQ(report["source"]["blocks_present"].number, report["relayed"].number);
  EXPECT_GT(report["source"]["messages"].number, 0);
  EXPECT_EQ(report["source"]["lost"].number, 0);
  const Ended refused = run(relay + "2 --status-every 0 --block-size 7");
  EXPECT_EQ(refused.status, 3) << refused.output;
  const testing::Json none = testing::Json::parse(refused.output.substr(0, refused.output.find('\n')));
  EXPECT_EQ(none["relayed"].number, 0);
  EXPECT_EQ(none["complete"].number, 0);
  EXPECT_GT(none["source"]["refused"].number, 0);
  EXPECT_NE(none["source"]["reason"].text.find("7 are expected"), std::string::npos) << refused.output;
}

TEST(AshlarProgram, EndsWithAStatusOfItsOwnAfterDamage) {
  const ScratchFolder folder;
  const std::string path = folder.file("in");
  write_stream(path, 23);
  const std::string relay = "relay --from file:" + path + " --to file:" + folder.file("out");
  const Ended good = run(relay);
  EXPECT_EQ(good.status, 0) << good.output;
  EXPECT_FALSE(says(good, "damaged")) << good.output;
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path) - 16) / 23;
  flip(path, 16 + 2 * size + 4 + 60);  // within the third batch
  flip(path, 16 + 9 * size + 3);       // the length of the tenth
  const Ended damaged = run(relay + "2");
  EXPECT_EQ(damaged.status, 3) << damaged.output;
  EXPECT_TRUE(says(damaged, "22 batches, 1 gaps")) << damaged.output;
  EXPECT_TRUE(says(damaged, "2 damaged")) << damaged.output;
  for (const std::string quiet : {"", " --quiet"}) {
    const Ended advised = run("advisor --from file:" + path + quiet);
    EXPECT_EQ(advised.status, 3) << advised.output;
    EXPECT_TRUE(says(advised, "22 batches, 1 gaps")) << advised.output;
    EXPECT_TRUE(says(advised, "2 damaged")) << advised.output;
  }
  // Nothing is appended to it, unless the damage may be cut out.
  const std::string append = "relay --from " + recording("default") + " --to file:" + path;
  const Ended refused = run(append + "?append=1");
  EXPECT_EQ(refused.status, 1) << refused.output;
  EXPECT_TRUE(says(refused, "is damaged")) << refused.output;
  EXPECT_EQ(static_cast<std::streamoff>(std::filesystem::file_size(path)), 16 + 23 * size);
  const Ended repaired = run(append + "?append=repair --worker 2");
  EXPECT_EQ(repaired.status, 0) << repaired.output;
  EXPECT_TRUE(says(repaired, "22 batches stay")) << repaired.output;
  const Ended again = run(relay + "3");
  EXPECT_EQ(again.status, 3) << "the gap stays\n" << again.output;
  EXPECT_FALSE(says(again, "damaged")) << again.output;
}

TEST(AshlarProgram, SaysThatALastBatchWasNotFinished) {
  const ScratchFolder folder;
  const std::string path = folder.file("in");
  write_stream(path, 3);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  const Ended ended = run("relay --from file:" + path + " --to file:" + folder.file("out"));
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_TRUE(says(ended, "bytes of an unfinished batch at the end")) << ended.output;
}

TEST(AshlarProgram, SaysWhatIsWrong) {
  const ScratchFolder folder;
  const std::string file = " --to file:" + folder.file("x");
  const std::map<std::string, std::string> cases = {
      {"relay --from nowhere" + file, "write kind:place"},
      {"relay --from nothing:x" + file, "no 'nothing' feeds"},
      {"relay --from file:" + folder.file("none") + file, "there is no file"},
      {"relay --from " + recording("none") + file, "none.kvrec"},
      {"relay --from " + recording("default") + " --to kvrec:x", "can only be read"},
      {"relay --from " + recording("default") + " --to engine://127.0.0.1:1", ""},
      {"relay --from " + recording("default") + "?what=1" + file, "'what' is not an option"},
      {"relay --from " + recording("default") + file + " --scheme md5", "md5"},
      {"relay --from " + recording("default") + file + " --scheme keyed128", "key"},
      {"relay --from " + recording("default") + " --to file:" + folder.path(), folder.path()},
      {"advisor --from " + recording("default"), "relay them first"},
      {"advisor --from file:" + folder.file("none") + " --scattered 2", "scattered is 2"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.status, 1) << arguments << "\n" << ended.output;
    EXPECT_NE(ended.output.find(expected), std::string::npos) << arguments << "\n" << ended.output;
  }
  EXPECT_NE(run("").status, 0);
  EXPECT_NE(run("relay").status, 0);
  EXPECT_NE(run("dance").status, 0);
}

// What is in an address as a secret is in no message, whatever is wrong with it.
TEST(AshlarProgram, ShowsNoSecretsOfAddresses) {
  const ScratchFolder folder;
  const std::string file = " --to file:" + folder.file("x");
  for (const std::string address :
       {"zmq://user:s3cr3t@127.0.0.1:5557", "engine://user:s3cr3t@127.0.0.1:5557",
        "nats://user:s3cr3t@127.0.0.1:4222", "engine://127.0.0.1:5557?Token=s3cr3t",
        "zmq://127.0.0.1:5557?PASSWORD=s3cr3t", "nats://127.0.0.1:1?s3cr3t",
        "nats://127.0.0.1:1?wait=x&password=s3cr3t", "zmq://127.0.0.1:5557?what=s3cr3t", "nowhere?key=s3cr3t",
        "nothing://user:s3cr3t@x", "kvrec:none?token=s3cr3t", "user:s3cr3t@host",
        "nats://user:s3cr3t?x=1&y@127.0.0.1:1", "zmq://user:s3cr3t?x=y@127.0.0.1:1"}) {
    const Ended from = run("relay --from '" + address + "'" + file);
    EXPECT_EQ(from.status, 1) << address << "\n" << from.output;
    EXPECT_EQ(from.output.find("s3cr3t"), std::string::npos) << address << "\n" << from.output;
    const Ended to = run("relay --from " + recording("default") + " --to '" + address + "'");
    EXPECT_EQ(to.status, 1) << address << "\n" << to.output;
    EXPECT_EQ(to.output.find("s3cr3t"), std::string::npos) << address << "\n" << to.output;
    const Ended advisor = run("advisor --from '" + address + "'");
    EXPECT_EQ(advisor.status, 1) << address << "\n" << advisor.output;
    EXPECT_EQ(advisor.output.find("s3cr3t"), std::string::npos) << address << "\n" << advisor.output;
  }
}

TEST(AshlarProgram, TakesNoNumbersThatAreNone) {
  const ScratchFolder folder;
  const std::string relay = "relay --from " + recording("default") + " --to file:" + folder.file("x");
  for (const std::string wrong : {" --worker -1", " --worker x", " --block-size -1", " --incarnation -1",
                                  " --ranks 0", " --workers 0", " --worker nan", " --worker ' -1'"}) {
    const Ended ended = run(relay + wrong);
    EXPECT_GE(ended.status, 100) << wrong;
    EXPECT_LT(ended.output.size(), 200u) << ended.output;
  }
  for (const std::string port : {"99999", "0x10", "", "-1"}) {
    const Ended ended = run("relay --from " + recording("default") + " --to zmq://127.0.0.1:" + port);
    EXPECT_EQ(ended.status, 1) << port << "\n" << ended.output;
  }
}

TEST(AshlarProgram, DoesNotFeedItself) {
  const ScratchFolder folder;
  ASSERT_EQ(run("relay --from " + recording("default") + " --to file:" + folder.file("s")).status, 0);
  std::filesystem::create_symlink(folder.file("s"), folder.file("link"));
  for (const std::string& to : {folder.file("s"), folder.file("link"), folder.path() + "/./s"}) {
    const Ended ended =
        run("relay --from file:" + folder.file("s") + "?follow=1 --to file:" + to + "?append=1");
    EXPECT_EQ(ended.status, 1) << to;
    EXPECT_NE(ended.output.find("is read and written"), std::string::npos) << ended.output;
  }
  for (const std::string address : {"zmq://127.0.0.1:5557", "nats://127.0.0.1:4222"}) {
    const Ended ended = run("relay --from " + address + " --to " + address);
    if (ended.output.find("was built without") != std::string::npos) continue;
    EXPECT_NE(ended.output.find("is read and written"), std::string::npos) << ended.output;
  }
  // The same place in other words.
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"nats://127.0.0.1:4222", "nats://127.0.0.1:4222?prefix=ashlar.kv"},
      {"nats://127.0.0.1:4222?prefix=ashlar.kv", "nats://127.0.0.1:4222"},
      {"nats://localhost", "nats://127.0.0.1:4222"},
      {"nats://LocalHost:4222/", "natss://[::1]:4222"},
      {"nats://bus:4222?prefix=x", "nats://BUS.?prefix=x"},
      {"zmq://localhost:5557", "zmq://127.0.0.1:5557"},
      {"zmq://127.0.0.1:5557", "zmq://*:5557"},
      {"zmq://127.0.0.1:5557", "zmq://tcp://0.0.0.0:5557"},
  };
  for (const auto& [from, to] : pairs) {
    const Ended ended = run("relay --from '" + from + "' --to '" + to + "'");
    if (ended.output.find("was built without") != std::string::npos) continue;
    EXPECT_EQ(ended.status, 1) << from << " " << to;
    EXPECT_NE(ended.output.find("is read and written"), std::string::npos) << from << " " << to << "\n"
                                                                           << ended.output;
  }
}

// One batch of each, in this order.
void write_workers(const std::string& path, const std::vector<events::Worker>& workers) {
  auto sink = feed::FileSink::create({.path = path}).value();
  for (const events::Worker& worker : workers) {
    events::OwnedBatch batch;
    batch.head.stream = {worker, 1};
    batch.head.keys.block_size = 16;
    batch.events.emplace_back().hash = tokens::SequenceHash::root(worker.rank + 1);
    ASSERT_TRUE(sink->publish(batch.view()));
  }
}

TEST(AshlarProgram, RelaysRanksAndWorkersOfAStreamUpToALimit) {
  const ScratchFolder folder;
  const auto worker = [](std::uint64_t id, std::uint32_t rank) {
    return events::Worker{events::WorkerId(id), rank};
  };
  write_workers(folder.file("in"), {worker(1, 64), worker(1, 4'000'000'000), worker(1, 63), worker(1, 0)});
  const std::string relay = "relay --from file:" + folder.file("in") + " --to file:";
  const Ended ranks = run(relay + folder.file("out"));
  EXPECT_EQ(ranks.status, 3) << ranks.output;
  EXPECT_TRUE(says(ranks, "relayed 2 events")) << ranks.output;
  EXPECT_TRUE(
      says(ranks, "2 events are not relayed: rank 4000000000 of worker 1; ranks below 64 are relayed"))
      << ranks.output;
  const Ended more = run(relay + folder.file("out2") + " --ranks 65");
  EXPECT_TRUE(says(more, "relayed 3 events")) << more.output;
  write_workers(folder.file("many"), {worker(1, 0), worker(2, 0), worker(3, 0), worker(1, 1)});
  const Ended workers =
      run("relay --workers 2 --from file:" + folder.file("many") + " --to file:" + folder.file("out3"));
  EXPECT_EQ(workers.status, 3) << workers.output;
  EXPECT_TRUE(says(workers, "relayed 2 events")) << workers.output;
  EXPECT_TRUE(says(workers, "2 events are not relayed: worker 1 rank 1 comes behind 2 others"))
      << workers.output;
  const Ended all =
      run("relay --workers 4 --from file:" + folder.file("many") + " --to file:" + folder.file("out4"));
  EXPECT_EQ(all.status, 0) << all.output;
}

TEST(AshlarProgram, KeepsWhatItWritesToItself) {
  const ScratchFolder folder;
  ASSERT_EQ(run("relay --from " + recording("default") + " --to file:" + folder.file("s")).status, 0);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(folder.file("s")).permissions() & (perms::group_all | perms::others_all),
            perms::none);
}

// A clock that was set back does not make a later life an earlier one.
TEST(AshlarProgram, LivesAreCountedUp) {
  const ScratchFolder folder;
  const std::string relay =
      "relay --from " + recording("default") + " --incarnation-file " + folder.file("state/life");
  std::uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    const std::string stream = folder.file("s" + std::to_string(i));
    ASSERT_EQ(run(relay + " --to file:" + stream).status, 0);
    const std::uint64_t life = read_stream(stream).stream.incarnation;
    EXPECT_GT(life, last);
    last = life + 1'000'000'000'000;  // far ahead of the clock
    std::ofstream(folder.file("state/life")) << last << "\n";
  }
  std::ofstream(folder.file("state/life")) << "what";
  const Ended warned = run(relay + " --to file:" + folder.file("s3"));
  EXPECT_EQ(warned.status, 0);
  EXPECT_NE(warned.output.find("holds no number"), std::string::npos) << warned.output;
}

// A place's name is whatever somebody in the stream wrote.
TEST(AshlarProgram, ShowsNoControlCharacters) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_two_places(folder.file("stream"), "\x1b[2Jfast\u009b31m", "slow\x07\x7f"));
  const Ended ended = run("advisor --cold 0 --from file:" + folder.file("stream"));
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_NE(ended.output.find("\\x1b[2Jfast"), std::string::npos) << ended.output;
  for (const char* raw : {"\x1b", "\x07", "\x7f", "\u009b"})
    EXPECT_EQ(ended.output.find(raw), std::string::npos) << ended.output;
}

TEST(AshlarProgram, EndsWhileTheProgramOfAnAdviceHangs) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_two_places(folder.file("stream"), "fast", "slow"));
  const std::string started = folder.file("started");
  const std::string command = std::string("exec '") + ASHLAR_PROGRAM +
                              "' advisor --from file:" + folder.file("stream") +
                              " --order fast,slow --cold 0 --quiet --exec-timeout 86400 --exec 'echo > " +
                              started + "; exec tail -f /dev/null'";
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ASSERT_GT(child, 0);
  while (!std::filesystem::exists(started)) std::this_thread::yield();
  ASSERT_EQ(kill(child, SIGTERM), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);  // and not when the program ends, which is never
  EXPECT_TRUE(WIFEXITED(status));
  const Ended late =
      run("advisor --from file:" + folder.file("stream") +
          " --order fast,slow --cold 0 --quiet --exec-timeout 0.1 --exec 'exec tail -f /dev/null'");
  EXPECT_NE(late.output.find("was ended after 100 ms"), std::string::npos) << late.output;
}

TEST(AshlarProgram, ExplainsItself) {
  for (const std::string command : {"--help", "relay --help", "advisor --help"}) {
    const Ended ended = run(command);
    EXPECT_EQ(ended.status, 0);
    EXPECT_NE(ended.output.find("file:PATH"), std::string::npos) << command;
    EXPECT_NE(ended.output.find("nats"), std::string::npos) << command;
    EXPECT_NE(ended.output.find("exit status:"), std::string::npos) << command;
  }
}

}  // namespace
}  // namespace ashlar
