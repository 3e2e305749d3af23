#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "ashlar/service/serve_options.h"
#include "support/scratch_folder.h"

namespace ashlar::service {
namespace {

using namespace std::chrono_literals;
using Environment = std::map<std::string, std::string>;
using Flags = std::vector<std::pair<std::string, std::string>>;

ServeConfig load(std::string_view text, const Environment& environment = {}, const Flags& flags = {}) {
  Result<ServeConfig> config = ServeConfig::load("serve.toml", text, environment, flags);
  EXPECT_TRUE(config.has_value()) << text << ": " << (config ? "" : config.error().message());
  return config ? std::move(*config) : std::move(*ServeConfig::load("", "", {}, {}));
}

std::string refusal(std::string_view text, const Environment& environment = {}, const Flags& flags = {}) {
  const Result<ServeConfig> config = ServeConfig::load("serve.toml", text, environment, flags);
  EXPECT_FALSE(config.has_value()) << text;
  if (config) return "";
  EXPECT_EQ(config.error().code(), ErrorCode::kInvalidArgument);
  return config.error().message();
}

WorkerOptions worker(std::string_view text) {
  Result<WorkerOptions> out = parse_worker(text);
  EXPECT_TRUE(out.has_value()) << text << ": " << (out ? "" : out.error().message());
  return out ? *out : WorkerOptions{};
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TEST(ServeConfig, AFlagWinsOverTheEnvironmentWhichWinsOverTheFile) {
  const ServeConfig config =
      load("port = 1\nthreads = 3\nmax_queued = 5\n",
           {{"ASHLAR_PORT", "2"}, {"ASHLAR_THREADS", "4"}, {"HOME", "/"}}, {{"port", "3"}});
  EXPECT_EQ(config.options().port, 3);
  EXPECT_EQ(config.options().threads, 4u);
  EXPECT_EQ(config.options().max_queued, 5u);
  const std::string text = config.describe();
  EXPECT_TRUE(has(text, "port = 3  # flag\n")) << text;
  EXPECT_TRUE(has(text, "threads = 4  # environment\n")) << text;
  EXPECT_TRUE(has(text, "max_queued = 5  # file\n")) << text;
  EXPECT_TRUE(has(text, "receipts = 16384  # default\n")) << text;
}

TEST(ServeConfig, ValuesHaveUnits) {
  const ServeOptions file = load(
                                "queue_timeout = \"250ms\"\nidle_timeout = 7\nbreaker_rest = 0.5\n"
                                "max_body_bytes = \"2MiB\"\nmax_head_bytes = 2048\ncredit_host = 0.125\n"
                                "weight_decode = 2\npolicy = \"round_robin\"\ntokenize = false\n")
                                .options();
  EXPECT_EQ(file.queue_timeout, 250ms);
  EXPECT_EQ(file.idle_timeout, 7s);
  EXPECT_EQ(file.breaker_rest, 500ms);
  EXPECT_EQ(file.max_body_bytes, 2u << 20);
  EXPECT_EQ(file.max_head_bytes, 2048u);
  EXPECT_EQ(file.weights.credit[1], 125);
  EXPECT_EQ(file.weights.decode, 2000);
  EXPECT_EQ(file.policy, Policy::kRoundRobin);
  EXPECT_FALSE(file.tokenize);
  const ServeConfig flags = load("", {},
                                 {{"queue-timeout", "2m"},
                                  {"credit_remote", "0.001"},
                                  {"tokenize", "false"},
                                  {"seed", "18446744073709551615"},
                                  {"max-body-bytes", "64KiB"}});
  EXPECT_EQ(flags.options().queue_timeout, 2min);
  EXPECT_EQ(flags.options().weights.credit[4], 1);
  EXPECT_FALSE(flags.options().tokenize);
  EXPECT_EQ(flags.options().seed, UINT64_MAX);
  EXPECT_EQ(flags.options().max_body_bytes, 64u << 10);
}

TEST(ServeConfig, WorkersOfAStrongerSourceReplaceTheOthers) {
  const std::string_view file = "[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"https://b\"\ndp = 2\n";
  ASSERT_EQ(load(file).options().workers.size(), 2u);
  EXPECT_EQ(load(file).options().workers[1], worker("https://b,dp=2"));
  EXPECT_EQ(load("worker = ['http://a:1', 'http://b:1']").options().workers.size(), 2u);
  const Environment environment = {{"ASHLAR_WORKER", " http://c:1  http://d:1,name=x\n"}};
  ASSERT_EQ(load(file, environment).options().workers.size(), 2u);
  EXPECT_EQ(load(file, environment).options().workers[1].name, "x");
  const ServeConfig flags = load(file, environment, {{"worker", "http://e:1"}});
  ASSERT_EQ(flags.options().workers.size(), 1u);
  EXPECT_EQ(flags.options().workers[0].name, "e:1");
  EXPECT_TRUE(has(flags.describe(), "[[worker]]  # flag\nurl = \"http://e:1\"\n"));
}

// What describe() prints is a file: read again, it gives the same options.
TEST(ServeConfig, ADescriptionIsAFileOfTheSame) {
  const ServeConfig config = load("", {},
                                  {{"worker",
                                    "http://[::1]:8000,events=tcp://h:5557,replay=tcp://h:6000,"
                                    "topic=kv,dp=4,name=w,model=m,block_size=16,scheme=xxh64_int64,salt=s,"
                                    "g1=1024,g3=4096"},
                                   {"seed", "18446744073709551615"},
                                   {"queue_timeout", "0.000000001"},
                                   {"weight_decode", "0.5"},
                                   {"record", "a \"b\" \\ \x01.jsonl"},
                                   {"max_body_bytes", "1048577"}});
  const ServeConfig again = load(config.describe());
  EXPECT_EQ(again.options().workers, config.options().workers);
  EXPECT_EQ(again.options().seed, config.options().seed);
  EXPECT_EQ(again.options().queue_timeout, 1ns);
  EXPECT_EQ(again.options().weights, config.options().weights);
  EXPECT_EQ(again.options().record, config.options().record);
  EXPECT_EQ(again.options().max_body_bytes, 1'048'577u);
  const auto strip = [](std::string text) {
    for (const char* source : {"# default", "# file", "# flag"})
      for (std::size_t at; (at = text.find(source)) != std::string::npos;)
        text.erase(at, std::string(source).size());
    return text;
  };
  EXPECT_EQ(strip(again.describe()), strip(config.describe()));
}

TEST(ServeConfig, RefusalsSayWhereAndWhatIsAllowed) {
  EXPECT_EQ(refusal("port = 70000"), "serve.toml:1:8: port: should be from 0 to 65535");
  EXPECT_EQ(refusal("\nthreads = 0"), "serve.toml:2:11: threads: should be from 1 to 256");
  EXPECT_EQ(
      refusal("queue_timeout = \"5 s\""),
      "serve.toml:1:17: queue_timeout: should be duration: seconds, or as 250ms, 5s, 2m, 1h, not '5 s'");
  EXPECT_EQ(refusal("prot = 1"), "serve.toml:1:1: no setting is called 'prot'");
  EXPECT_EQ(refusal("", {{"ASHLAR_POLICY", "best"}}),
            "ASHLAR_POLICY: should be one of prefix, least_loaded, round_robin, random, not 'best'");
  EXPECT_EQ(refusal("", {}, {{"log-level", "loud"}}),
            "--log-level: should be trace, debug, info, warn, error or off, not 'loud'");
  EXPECT_EQ(refusal("", {}, {{"no-such", "1"}}), "no flag is called '--no-such'");
  EXPECT_TRUE(has(refusal("[workers]\n"), "serve.toml:1:1: the only tables are [[worker]]"));
  EXPECT_TRUE(has(refusal("[[worker]]\nname = 'x'\n"), "serve.toml:1:1: a worker needs url"));
  EXPECT_TRUE(
      has(refusal("[[worker]]\nurl = 'http://a'\nprot = 1\n"), "serve.toml:3:1: this key is not known"));
  EXPECT_TRUE(
      has(refusal("[[worker]]\nurl = 'http://a'\ndp = -1\n"), "serve.toml:3:6: dp should be a number"));
  for (const char* text :
       {"port = true", "port = [1]", "address = 1", "tokenize = \"true\"", "tokenize = 1",
        "credit_host = 0.0001", "credit_host = -1", "queue_timeout = -0.5", "queue_timeout = inf",
        "worker = 'http://a'", "worker = [1]", "port = 1.5", "max_attempts = 101",
        "max_body_bytes = \"9TiB\"", "snapshot = 'http://u:p@h/dump'", "port = nan"})
    EXPECT_TRUE(has(refusal(text), "serve.toml:1:")) << text;
  for (const char* text : {"tls_key = 'x'", "journal_key = 'x'", "address = ''", "address = 'a b'",
                           "worker = ['http://a:1', 'http://a:1']"})
    refusal(text);
}

TEST(ServeConfig, OtherAddressesThanLoopbackNeedAToken) {
  for (const char* address : {"127.0.0.1", "127.9.8.7", "::1", "localhost", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
    load("", {}, {{"address", address}});
  }
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "::2", "::ffff:10.0.0.1", "gpu1",
                              "127.1", "localhost.example", "127.0.0.1.example", "1270.0.0.1", ""})
    EXPECT_FALSE(is_loopback(address)) << address;
  EXPECT_TRUE(has(refusal("", {}, {{"address", "0.0.0.0"}}), "set a token"));
  EXPECT_EQ(load("token = 'abc'\naddress = '0.0.0.0'").options().token, "abc");
}

TEST(ServeConfig, TheTokenIsNeverShown) {
  const std::string secret = "s3cret-value";
  EXPECT_FALSE(has(load("", {}, {{"token", secret}}).describe(), secret));
  EXPECT_TRUE(has(load("", {}, {{"token", secret}}).describe(), "token = \"(hidden)\"  # flag"));
  EXPECT_TRUE(has(load("").describe(), "token = \"\"  # default"));
  for (const std::string& refused :
       {refusal("token = \"" + secret + " x\""), refusal("", {{"ASHLAR_TOKEN", secret + "\n"}}),
        refusal("", {}, {{"token", secret + "\t"}}),
        refusal("", {}, {{"worker", "http://user:" + secret + "@h:1"}}),
        refusal("[[worker]]\nurl = 'http://u:" + secret + "@h'"),
        refusal("worker = ['http://u:" + secret + "@h']"),
        refusal("", {}, {{"snapshot", "http://u:" + secret + "@h/dump"}}),
        refusal("", {}, {{"worker", "http://h:1,model=" + secret + "@x,dp=0"}}),
        refusal("", {}, {{"worker", "http://h:1,events=tcp://u:" + secret + "@h:1"}}),
        refusal("token = " + secret), refusal("token = 5"), refusal("token = '" + secret + "'\ntoken = 'x'"),
        refusal("token = '" + secret)})
    EXPECT_FALSE(has(refused, secret)) << refused;
}

TEST(ServeConfig, TheTokenMayComeFromAFile) {
  const ScratchFolder folder;
  const std::string path = folder.file("token");
  std::ofstream(path) << "from-a-file\r\n";
  const ServeConfig config = load("address = '0.0.0.0'\ntoken_file = '" + path + "'");
  EXPECT_EQ(config.options().token, "from-a-file");
  EXPECT_FALSE(has(config.describe(), "from-a-file"));
  // The stronger source wins; two of one source do not.
  EXPECT_EQ(load("token_file = '" + path + "'", {}, {{"token", "flag"}}).options().token, "flag");
  EXPECT_EQ(load("token = 'x'", {{"ASHLAR_TOKEN_FILE", path}}).options().token, "from-a-file");
  EXPECT_TRUE(has(refusal("token = 'secret'\ntoken_file = '" + path + "'"), "both given by the file"));
  EXPECT_TRUE(has(refusal("token_file = '" + path + "-gone'"), "cannot be read"));
  std::ofstream(path) << "\n";
  EXPECT_TRUE(has(refusal("token_file = '" + path + "'"), "holds no token"));
  std::ofstream(path) << "two words";
  EXPECT_FALSE(has(refusal("token_file = '" + path + "'"), "two words"));
}

TEST(ServeOptions, ValidateNamesTheSettingAndItsValue) {
  ServeOptions options;
  EXPECT_TRUE(options.validate().has_value());
  options.threads = 0;
  EXPECT_EQ(options.validate().error().message(), "threads: should be from 1 to 256, not '0'");
  options = {};
  options.weights.decode = -1;
  EXPECT_TRUE(has(options.validate().error().message(), "weight_decode: should be from 0 to 1000"));
  options = {};
  options.queue_timeout = -1s;
  EXPECT_FALSE(options.validate().has_value());
  options = {};
  options.token = "a b";
  EXPECT_FALSE(has(options.validate().error().message(), "a b"));
  options = {};
  options.workers = {worker("http://a:1"), worker("http://b:1,name=a:1")};
  EXPECT_TRUE(has(options.validate().error().message(), "two are called 'a:1'"));
}

TEST(ParseWorker, ReadsAUrlAndOptions) {
  const WorkerOptions full = worker(
      "https://gpu1:8443/,events=tcp://gpu1:5557,replay=tcp://gpu1:5558,topic=kv,dp=1,name=w,model=m/"
      "x,block_size=16,scheme=xxh64_int64,salt=s,g1=1024,g2=2048,g3=8192");
  EXPECT_EQ(full.address, (HttpAddress{"gpu1", 8443, true}));
  EXPECT_EQ(full.events, "tcp://gpu1:5557");
  EXPECT_EQ(full.replay, "tcp://gpu1:5558");
  EXPECT_EQ(full.topic, "kv");
  EXPECT_EQ(full.name, "w");
  EXPECT_EQ(full.model, "m/x");
  EXPECT_EQ(full.block_size, 16u);
  EXPECT_EQ(full.scheme, "xxh64_int64");
  EXPECT_EQ(full.salt, "s");
  EXPECT_EQ(full.g1, 1024u);
  EXPECT_EQ(full.g2, 2048u);
  EXPECT_EQ(full.g3, 8192u);
  EXPECT_EQ(worker("http://h").name, "h:80");
  EXPECT_EQ(worker("https://h").address.port, 443);
  const WorkerOptions v6 = worker("http://[fe80::1]:81");
  EXPECT_EQ(v6.address.host, "fe80::1");
  EXPECT_EQ(v6.name, "[fe80::1]:81");
  EXPECT_EQ(worker("http://h:1,dp=4,events=tcp://h:65532").dp, 4u);
}

TEST(ParseWorker, RefusesWhatItDoesNotUnderstand) {
  for (const char* text : {"",
                           "gpu1:8000",
                           "ftp://h",
                           "http://",
                           "http://:1",
                           "http://h:0",
                           "http://h:65536",
                           "http://h:x",
                           "http://h/v1",
                           "http://h?x",
                           "http://[::1",
                           "http://[x]",
                           "http://::1",
                           "http://[::1]x",
                           "http://u@h",
                           "http://h,",
                           "http://h,dp",
                           "http://h,dp=",
                           "http://h,dp=0",
                           "http://h,dp=1025",
                           "http://h,dp=2,dp=2",
                           "http://h,x=1",
                           "http://h,events=gpu1:5557",
                           "http://h,events=tcp://h",
                           "http://h,events=tcp://h:0",
                           "http://h,replay=tcp://h:1",
                           "http://h,topic=x",
                           "http://h,events=ipc:///x,dp=2",
                           "http://h,events=tcp://h:65535,dp=2",
                           "http://h,name=",
                           "http://h,block_size=65537",
                           "http://h,model=m,scheme=md5",
                           "http://h,model=m,scheme=keyed128",
                           "http://h,salt=s",
                           "http://h,scheme=xxh3_chain",
                           "http://h,dp=-1",
                           "http://a b"}) {
    if (std::string_view(text) == "http://h,name=") continue;  // an empty name is the default one
    const Result<WorkerOptions> out = parse_worker(text);
    EXPECT_FALSE(out.has_value()) << text;
  }
}

TEST(ParseWorkerFile, HasWorkersAndNothingElse) {
  const Result<std::vector<WorkerOptions>> workers = parse_worker_file(
      "w.toml", "# none yet\n[[worker]]\nurl = 'http://a:1'\n[[worker]]\nurl = 'http://b:1'\n");
  ASSERT_TRUE(workers.has_value());
  EXPECT_EQ(workers->size(), 2u);
  EXPECT_TRUE(parse_worker_file("w.toml", "")->empty());
  EXPECT_TRUE(
      has(parse_worker_file("w.toml", "port = 1").error().message(), "w.toml:1:1: a worker file has"));
  EXPECT_TRUE(has(parse_worker_file("w.toml", "\n[x]").error().message(), "w.toml:2:1: a worker file has"));
  EXPECT_TRUE(has(parse_worker_file("w.toml", "[[worker]]\nurl='http://a:1'\n[[worker]]\nurl='http://a:1'")
                      .error()
                      .message(),
                  "w.toml:3:1: two workers are called 'a:1'"));
}

TEST(RouterNames, PoliciesAreReadAsWritten) {
  for (const Policy policy : {Policy::kPrefix, Policy::kLeastLoaded, Policy::kRoundRobin, Policy::kRandom})
    EXPECT_EQ(*parse_policy(to_string(policy)), policy);
  EXPECT_FALSE(parse_policy("Prefix").has_value());
  EXPECT_EQ(to_string(WorkerState::kDegraded), "DEGRADED");
}

// The table of docs/serve.md, made of the table of settings.
std::string settings_of_docs() {
  std::string out = "| setting | default | value | meaning |\n|---|---|---|---|\n";
  for (const Setting& setting : serve_settings()) {
    const std::string standard = setting.standard.empty() ? "" : "`" + std::string(setting.standard) + "`";
    out += "| `" + std::string(setting.name) + "` | " + standard + " | " + std::string(setting.unit) + " | " +
           std::string(setting.help) + " |\n";
  }
  return out;
}

TEST(ServeSettings, TheDocumentHasTheTable) {
  std::ifstream file(std::string(ASHLAR_DOCS) + "/serve.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(has(text.str(), "\n" + settings_of_docs() + "\n"))
      << "docs/serve.md should have this table under \"Settings\":\n\n"
      << settings_of_docs();
}

TEST(ReadWholeFile, ReadsAllOrSaysWhyNot) {
  const ScratchFolder folder;
  const std::string text(200'000, 'x');
  std::ofstream(folder.file("long")) << text;
  std::ofstream(folder.file("empty"));
  EXPECT_EQ(read_whole_file(folder.file("long")).value(), text);
  EXPECT_EQ(read_whole_file(folder.file("empty")).value(), "");
  EXPECT_EQ(read_whole_file(folder.file("long"), text.size()).value(), text);
  EXPECT_EQ(read_whole_file(folder.file("long"), text.size() - 1).error().code(), ErrorCode::kCapacity);
  for (const std::string& path : {folder.file("none"), folder.path()}) {
    const auto read = read_whole_file(path);
    ASSERT_FALSE(read) << path;
    EXPECT_EQ(read.error().code(), ErrorCode::kNotFound);
    EXPECT_NE(read.error().message().find("cannot read " + path + ": "), std::string::npos) << read.error();
  }
}

TEST(WorkerKeys, ComeFromFilesAndTheEnvironmentAndAreNeverShown) {
  const ScratchFolder folder;
  std::ofstream(folder.file("one")) << "sesame-one\n";
  std::ofstream(folder.file("all")) << "sesame-all\r\n";
  std::ofstream(folder.file("bad")) << "sesame with spaces";
  const std::map<std::string, std::string> environment = {{"TWO", "sesame-two"}, {"BAD", "sesame\tbad"}};
  const auto load = [&](const std::string& first, const std::string& of_all) {
    return ServeConfig::load("", "", {},
                             {{"worker", "http://a" + first},
                              {"worker", "http://b,key_env=TWO"},
                              {"worker", "http://c"},
                              {"worker_key_file", of_all}});
  };
  const auto config = load(",key_file=" + folder.file("one"), folder.file("all"));
  ASSERT_TRUE(config) << config.error();
  ServeOptions options = config->options();
  ASSERT_TRUE(read_worker_keys(options, environment, options.workers));
  EXPECT_EQ(options.workers[0].key.text, "sesame-one");
  EXPECT_EQ(options.workers[1].key.text, "sesame-two");
  EXPECT_EQ(options.workers[2].key.text, "sesame-all");
  EXPECT_EQ(options.workers[2], config->options().workers[2]) << "another key is not another worker";
  const auto given = ServeConfig::load("", "", {}, {{"worker_key", "sesame-flag"}}).value();
  for (const std::string& shown :
       {config->describe(), config->describe_json(), given.describe(), given.describe_json()})
    EXPECT_EQ(shown.find("sesame"), std::string::npos) << shown;
  // Nor in what is refused.
  const auto refusal = [&](const std::string& first, const std::string& of_all) {
    const auto loaded = load(first, of_all);
    if (!loaded) return loaded.error().message();
    ServeOptions changed = loaded->options();
    const Result<void> read = read_worker_keys(changed, environment, changed.workers);
    EXPECT_FALSE(read);
    return read ? std::string() : read.error().message();
  };
  for (const std::string& message :
       {refusal(",key_env=BAD", ""), refusal(",key_env=NONE", ""),
        refusal(",key_file=" + folder.file("bad"), ""), refusal(",key_file=" + folder.file("none"), ""),
        refusal("", folder.file("bad")), refusal(",key=sesame", ""),
        refusal(",key_env=TWO,key_file=" + folder.file("one"), "")}) {
    EXPECT_NE(message, "");
    EXPECT_EQ(message.find("sesame"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace ashlar::service
