// What the program `ashlar` does with arguments and files that are wrong.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "apps/run_program.h"
#include "support/scratch_folder.h"

namespace ashlar {
namespace {

std::string relay_to(const ScratchFolder& folder) {
  return "relay --from " + recording("default") + " --to file:" + folder.file("x") + " ";
}

TEST(AshlarArguments, AKeyFileIsAPlainFileOfOneKey) {
  const ScratchFolder folder;
  std::ofstream(folder.file("long")) << std::string(17, 'k');
  std::ofstream(folder.file("short")) << std::string(15, 'k');
  std::ofstream(folder.file("empty")).flush();
  std::ofstream(folder.file("good")) << std::string(16, 'k');
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  const std::string relay = relay_to(folder) + "--scheme keyed128 --key-file ";
  for (const auto& [file, expected] : {std::pair<std::string, std::string>{folder.path(), "is no plain file"},
                                       {"/dev/zero", "is no plain file"},
                                       {folder.file("pipe"), "is no plain file"},
                                       {folder.file("long"), "is longer than a key; a key has 16 bytes"},
                                       {folder.file("short"), "has 15 bytes; it must have 16"},
                                       {folder.file("empty"), "is empty; a key has 16 bytes"},
                                       {folder.file("none"), "No such file"}}) {
    const Ended ended = run(relay + file);
    EXPECT_EQ(ended.status, 1) << file << "\n" << ended.output;
    EXPECT_TRUE(says(ended, expected)) << ended.output;
  }
  EXPECT_EQ(run(relay + folder.file("good")).status, 0);
}

// Also where the parser of arguments is the one that complains.
TEST(AshlarArguments, NoSecretIsShown) {
  const ScratchFolder folder;
  for (const std::string arguments :
       {"relay --from s3cr3t@demo.nats.io:4222 --to file:x", "advisor --from s3cr3t@demo.nats.io:4222",
        "advisor --from file:a.ev nats://user:s3cr3t@h:1", "advisor --from file:a.ev --key=s3cr3t",
        "advisor --from file:a.ev --password s3cr3t", "advisor --from file:a.ev -ps3cr3t",
        "advisor --from file:a.ev --quiet=s3cr3t", "relay --from file:a --to file:b --worker=s3cr3t",
        "relay --from file:a --to file:b --worker nats://user:s3cr3t@h:1",
        "relay --from file:a --to file:b --profile nats://user:s3cr3t@h:1",
        "relay --from file:a --to file:b --profile=s3cr3t", "nats://user:s3cr3t@h:1",
        "advisor --from=nats://user:s3cr3t@h:1 --from=nats://user:s3cr3t@h:2"}) {
    const Ended ended = run(arguments);
    EXPECT_NE(ended.status, 0) << arguments;
    EXPECT_FALSE(says(ended, "s3cr3t")) << arguments << "\n" << ended.output;
    EXPECT_FALSE(ended.output.empty()) << arguments;
  }
  EXPECT_TRUE(says(run("advisor --from file:a.ev --kye=1"), "not expected: --kye=..."))
      << "options are named";
  EXPECT_TRUE(says(run("advisor --from file:a.ev nats://user:s3cr3t@h:1"), "nats://...@h:1"));
}

TEST(AshlarArguments, TheParserShowsNoControlCharacters) {
  for (const std::string arguments :
       {"relay --from a:b --to c:d --worker \x1b[31m", "relay --from a:b --to c:d --profile \x1b[31m",
        "advisor --from a:b \x1b[31m", "advisor --from a:b --\x1b[31m", "\x1b[31m"}) {
    const Ended ended = run(arguments);
    EXPECT_GE(ended.status, 100) << ended.output;
    EXPECT_FALSE(says(ended, "\x1b")) << ended.output;
  }
}

TEST(AshlarArguments, PortsAreDigitsAlone) {
  const ScratchFolder folder;
  for (const std::string port : {"-1", "18446744073709551615", "4e4", "41000x", "+41000", "041000", "41000 ",
                                 " 41000", "65536", "", "0x10"}) {
    for (const std::string& address :
         {"zmq://127.0.0.1:" + port, "zmq://127.0.0.1:41000?replay=127.0.0.1:" + port}) {
      const Ended to = run(relay_to(folder) + " '" + address + "'");
      if (says(to, "was built without")) GTEST_SKIP();
      EXPECT_EQ(to.status, 1) << address << "\n" << to.output;
      EXPECT_TRUE(says(to, "write one from 0 to 65535")) << to.output;
      const Ended from = run("relay --from '" + address + "' --to file:" + folder.file("y"));
      EXPECT_EQ(from.status, 1) << address << "\n" << from.output;
      EXPECT_TRUE(says(from, "write one from 0 to 65535")) << from.output;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("x")))
      << "the address is refused before anything is opened";
}

TEST(AshlarArguments, NumbersHaveARange) {
  const ScratchFolder folder;
  const std::string advise = "advisor --from file:" + folder.file("none") + " ";
  for (const auto& [arguments, range] : {
           std::pair<std::string, std::string>{relay_to(folder) + "--worker 99999999999999999999999",
                                               "from 0 to 18446744073709551615"},
           {relay_to(folder) + "--worker -1", "from 0 to 18446744073709551615"},
           {relay_to(folder) + "--incarnation 18446744073709551616", "from 0 to 18446744073709551615"},
           {relay_to(folder) + "--block-size 4294967296", "from 0 to 4294967295"},
           {relay_to(folder) + "--ranks 1025", "from 1 to 1024"},
           {relay_to(folder) + "--status-every nan", "from 0 to 86400"},
           {relay_to(folder) + "--status-every inf", "from 0 to 86400"},
           {relay_to(folder) + "--status-every 1e300", "from 0 to 86400"},
           {advise + "--exec-timeout nan", "from 0.1 to 86400"},
           {advise + "--every nan", "from 0.1 to 86400"},
           {advise + "--every 0", "from 0.1 to 86400"},
           {advise + "--hot nan", "from 0 to 1000000000000"},
           {advise + "--cold inf", "from 0 to 1000000000000"},
           {advise + "--small 1e3", "whole number from 0"},
           {advise + "--memory 0", "from 1 to 1048576"},
       }) {
    const Ended ended = run(arguments);
    EXPECT_GE(ended.status, 100) << arguments << "\n" << ended.output;
    EXPECT_TRUE(says(ended, range)) << arguments << "\n" << ended.output;
    EXPECT_LT(ended.output.size(), 200u) << ended.output;
  }
  for (const std::string seconds : {"inf", "nan", "1e300", "-1", "x"}) {
    const Ended bucket =
        run("relay --from " + recording("default") + " --to nats://127.0.0.1:1?bucket=" + seconds);
    if (says(bucket, "was built without")) GTEST_SKIP();
    EXPECT_EQ(bucket.status, 1) << bucket.output;
    EXPECT_TRUE(says(bucket, "no time from 0 to 100000000 seconds")) << bucket.output;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("x")));
}

TEST(AshlarArguments, FlagsAreOneOfAFewWords) {
  const ScratchFolder folder;
  const std::string relay = "relay --from " + recording("default") + " --to file:" + folder.file("x");
  ASSERT_EQ(run(relay + "?append=false").status, 0);
  for (const std::string wrong : {"no", "reapir", "2", "on"}) {
    const Ended ended = run(relay + "?append=" + wrong);
    EXPECT_EQ(ended.status, 1) << wrong << "\n" << ended.output;
    EXPECT_TRUE(says(ended, "'" + wrong + "' of append is neither 0 nor 1 nor repair")) << ended.output;
    const Ended followed = run("advisor --from 'file:" + folder.file("x") + "?follow=" + wrong + "'");
    EXPECT_EQ(followed.status, 1) << wrong << "\n" << followed.output;
    EXPECT_TRUE(says(followed, "'" + wrong + "' of follow is neither 0 nor 1")) << followed.output;
  }
  EXPECT_EQ(run(relay + "?append=true").status, 0);
  // It ends, so nothing is waited for.
  EXPECT_EQ(run("advisor --quiet --from file:" + folder.file("x") + "?follow=false").status, 0);
}

TEST(AshlarArguments, AdviceThatCannotBeWrittenIsSaid) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_two_places(folder.file("s"), "fast", "slow"));
  const Ended ended = run("advisor --quiet --order fast,slow --cold 0 --from file:" + folder.file("s") +
                          " 2>" + folder.file("said") + " >/dev/full #");
  EXPECT_EQ(ended.status, 1) << ended.output;
  std::string said;
  std::getline(std::ifstream(folder.file("said")), said);
  EXPECT_EQ(said, "ashlar advisor: cannot write advice to standard output: No space left on device");
}

TEST(AshlarArguments, APlaceIsWrittenOnce) {
  const ScratchFolder folder;
  const std::string relay = "relay --from " + recording("default") + " --to ";
  for (const std::string& twice :
       {"file:" + folder.file("x") + " file:" + folder.file("x"),
        "file:" + folder.file("x") + " file:" + folder.path() + "/./x",
        "file:" + folder.file("x") + "?append=1 --to file:" + folder.file("x") + "?append=1",
        std::string("nats://127.0.0.1:1 nats://127.0.0.1:1?jetstream=1")}) {
    const Ended ended = run(relay + twice);
    if (says(ended, "was built without")) continue;
    EXPECT_EQ(ended.status, 1) << twice << "\n" << ended.output;
    EXPECT_TRUE(says(ended, "is named twice")) << ended.output;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("x")));
  EXPECT_EQ(run(relay + "file:" + folder.file("x") + " file:" + folder.file("y")).status, 0);
}

// A number that somebody wrote with zeros in front of it is longer than the one that follows.
TEST(AshlarArguments, AnIncarnationFileIsWrittenWhole) {
  const ScratchFolder folder;
  std::ofstream(folder.file("life")) << "00000000000000000000000005\n";
  for (const char* stream : {"a", "b"}) {
    const Ended ended = run("relay --from " + recording("default") + " --to file:" + folder.file(stream) +
                            " --incarnation-file " + folder.file("life"));
    EXPECT_EQ(ended.status, 0);
    EXPECT_FALSE(says(ended, "warning")) << ended.output;
  }
  std::ofstream(folder.file("life")) << std::string(40, '0') << "5\n";
  EXPECT_TRUE(says(run("relay --from " + recording("default") + " --to file:" + folder.file("c") +
                       " --incarnation-file " + folder.file("life")),
                   "holds no number"))
      << "its end was not read";
}

}  // namespace
}  // namespace ashlar
