// `ashlar inspect`, run as a person runs it: what it prints, and how it ends.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "apps/run_program.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar {
namespace {

using ::ashlar::testing::Json;

std::string recorded_file() {
  return std::string(ASHLAR_TEST_DATA) + "/vllm/default.kvrec";
}

TEST(AshlarInspect, DescribesForPeopleAndForPrograms) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_two_places(folder.file("events"), "fast", "slow"));
  const Ended text = run("inspect " + folder.file("events"));
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_TRUE(says(text, ": event file\n")) << text.output;
  const Ended json = run("inspect --json " + folder.file("events") + " " + recorded_file());
  EXPECT_EQ(json.status, 0) << json.output;
  const std::size_t line = json.output.find('\n');
  EXPECT_EQ(Json::parse(json.output.substr(0, line))["batches"].number, 1);
  EXPECT_EQ(Json::parse(json.output.substr(line + 1))["kind"].text, "recording of an engine");
}

TEST(AshlarInspect, DamageHasAStatusOfItsOwn) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_two_places(folder.file("events"), "fast", "slow"));
  std::fstream file(folder.file("events"), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(60);
  file.put('x');
  file.close();
  const Ended damaged = run("inspect " + folder.file("events"));
  EXPECT_EQ(damaged.status, 3) << damaged.output;
  EXPECT_TRUE(says(damaged, "1 places that are no whole batches")) << damaged.output;
  std::ofstream(folder.file("cut"), std::ios::binary) << "ASHLARG3 and nothing behind it";
  const Ended cut = run("inspect " + folder.file("cut"));
  EXPECT_EQ(cut.status, 3) << cut.output;
  EXPECT_TRUE(says(cut, "ends at byte 30")) << cut.output;
  std::ofstream(folder.file("other")) << "a letter";
  const Ended other = run("inspect " + folder.file("other") + " " + recorded_file());
  EXPECT_EQ(other.status, 1) << other.output;
  EXPECT_TRUE(says(other, "does not begin like")) << other.output;
  EXPECT_TRUE(says(other, "recording of an engine")) << "the others are described all the same";
}

TEST(AshlarInspect, AddressesOfServicesAreChecked) {
  for (const auto& [url, expected] : {std::pair<std::string, std::string>{"https://h:1", "plain HTTP"},
                                      {"http://user:s3cr3t@h:1", "--token-file"},
                                      {"http://h:1/fleet", "without a path"},
                                      {"http://h:0", "a port that is none"},
                                      {"http://:1", "no host"},
                                      {"http://127.0.0.1:1", "refused"}}) {
    const Ended ended = run("inspect " + url);
    EXPECT_EQ(ended.status, 1) << url << "\n" << ended.output;
    EXPECT_TRUE(says(ended, expected)) << ended.output;
    EXPECT_FALSE(says(ended, "s3cr3t")) << ended.output;
  }
}

}  // namespace
}  // namespace ashlar
