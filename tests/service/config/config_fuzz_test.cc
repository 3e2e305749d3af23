// Files of settings and texts of workers, damaged in every way: read or refused. What is read is described,
// and the description read again.
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/service/serve_options.h"
#include "ashlar/testing/time_box.h"
#include "service/config/toml_reader.h"
#include "support/damage.h"

namespace ashlar::service {
namespace {

constexpr std::string_view kFiles[] = {
    "port = 80\naddress = \"127.0.0.1\" # here\nqueue_timeout = \"250ms\"\ncredit_host = 0.125\n[[worker]]\n"
    "url = 'http://a:1'\ndp = 2\n[[worker]]\nurl = \"https://b\"\n",
    "worker = ['http://a:1',\n 'http://b:2,dp=3']\ntokenize = false\nseed = 0x1F\nrecord = "
    "\"\"\"a\nb\"\"\"\n",
    "token = \"\\u0041bc\"\nlog_level = 'warn'\nmax_body_bytes = \"2MiB\"\nidle_timeout = 1e1\n",
};
constexpr std::string_view kWorkers[] = {
    "http://gpu1:8000,events=tcp://gpu1:5557,replay=tcp://gpu1:5558,dp=4,name=gpu1",
    "https://[::1]:1,model=m,block_size=16",
};

template <std::size_t N>
std::string damaged(const std::string_view (&seeds)[N], Random& random) {
  const auto seed = std::as_bytes(std::span(seeds[random.below(N)]));
  std::vector<std::byte> bytes(seed.begin(), seed.end());
  testing::damage(bytes, random);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ConfigFuzz, DamagedFilesAreReadOrRefused) {
  Random random(3);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(0.5);
  for (int round = 0; round < 500 || accepted == 0 || refused == 0 || !box.over(); ++round) {
    const std::string text = damaged(kFiles, random);
    (void)read_toml("file", text);
    (void)parse_worker_file("file", text);
    const Result<ServeConfig> config = ServeConfig::load("file", text, {}, {});
    (config ? accepted : refused) += 1;
    if (!config || !config->options().token.empty()) continue;
    const std::string description = config->describe();
    const Result<ServeConfig> again = ServeConfig::load("description", description, {}, {});
    ASSERT_TRUE(again.has_value()) << again.error().message() << "\n" << description;
    ASSERT_EQ(again->options().workers, config->options().workers) << text;
    ASSERT_EQ(again->options().record, config->options().record) << text;
  }
}

TEST(ConfigFuzz, DamagedWorkersAreReadOrRefused) {
  Random random(4);
  std::size_t accepted = 0;
  std::size_t refused = 0;
  const testing::TimeBox box(0.2);
  for (int round = 0; round < 500 || accepted == 0 || refused == 0 || !box.over(); ++round) {
    const std::string text = damaged(kWorkers, random);
    const Result<WorkerOptions> worker = parse_worker(text);
    (worker ? accepted : refused) += 1;
    if (!worker) continue;
    ServeOptions options;
    options.workers = {*worker};
    ASSERT_TRUE(options.validate().has_value()) << text;
  }
}

TEST(ConfigFuzz, LongFilesAreReadInProportion) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "[[worker]]\nurl = 'http://h" + std::to_string(i) + ":1'\n";
  EXPECT_EQ(parse_worker_file("file", text)->size(), 20'000u);
  std::string keys;
  for (int i = 0; i < 50'000; ++i) keys += "k" + std::to_string(i) + " = [1, 2]\n";
  EXPECT_EQ(read_toml("file", keys)->front().entries.size(), 50'000u);
}

}  // namespace
}  // namespace ashlar::service
