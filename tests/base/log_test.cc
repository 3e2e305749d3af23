#include "ashlar/base/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/mutex.h"

namespace ashlar {
namespace {

// Puts the level back when a test ends.
class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { set_log_level(before_); }

 private:
  const LogLevel before_ = log_level();
};

struct Lines {
  Mutex mu;
  std::vector<std::string> lines ASHLAR_GUARDED_BY(mu);

  LogSink sink() {
    return [this](LogLevel level, std::string_view component, std::string_view message) {
      std::string line(to_string(level));
      line.append(" ").append(component).append(" ").append(message);
      const MutexLock lock(mu);
      lines.push_back(std::move(line));
    };
  }
  std::vector<std::string> all() {
    const MutexLock lock(mu);
    return lines;
  }
};

using Text = std::vector<std::string>;

TEST_F(LogTest, WarnAndAboveAreOnByDefault) {
  EXPECT_EQ(log_level(), LogLevel::kWarn);
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  EXPECT_TRUE(log_enabled(LogLevel::kWarn));
  EXPECT_TRUE(log_enabled(LogLevel::kError));
}

TEST_F(LogTest, LevelDecidesWhatIsWritten) {
  Lines lines;
  const ScopedLogSink scope(lines.sink());
  log(LogLevel::kInfo, "pool", "quiet");
  log(LogLevel::kWarn, "pool", "loud");
  set_log_level(LogLevel::kTrace);
  log(LogLevel::kTrace, "pool", "all");
  set_log_level(LogLevel::kOff);
  log(LogLevel::kError, "pool", "never");
  log(LogLevel::kOff, "pool", "never");
  EXPECT_EQ(lines.all(), (Text{"warn pool loud", "trace pool all"}));
}

TEST_F(LogTest, MacroFormatsAsPrintfDoes) {
  Lines lines;
  const ScopedLogSink scope(lines.sink());
  ASHLAR_LOG(LogLevel::kError, "tiers", "%s has %d blocks", "g2", 7);
  ASHLAR_LOG(LogLevel::kWarn, "tiers", "plain");
  EXPECT_EQ(lines.all(), (Text{"error tiers g2 has 7 blocks", "warn tiers plain"}));
}

TEST_F(LogTest, LineBelowTheLevelEvaluatesNothing) {
  Lines lines;
  const ScopedLogSink scope(lines.sink());
  int evaluated = 0;
  ASHLAR_LOG(LogLevel::kDebug, "pool", "%d", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  ASHLAR_LOG(LogLevel::kWarn, "pool", "%d", ++evaluated);
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(lines.all(), (Text{"warn pool 1"}));
}

TEST_F(LogTest, MacroStandsAloneUnderAnIf) {
  Lines lines;
  const ScopedLogSink scope(lines.sink());
  bool otherwise = false;
  if (otherwise)
    ASHLAR_LOG(LogLevel::kError, "pool", "not reached");
  else
    otherwise = true;
  EXPECT_TRUE(otherwise);
  EXPECT_TRUE(lines.all().empty());
}

TEST_F(LogTest, LongMessagesAreWhole) {
  Lines lines;
  const ScopedLogSink scope(lines.sink());
  for (const std::size_t size : {511U, 512U, 513U, 20000U}) {
    const std::string text(size, 'x');
    ASHLAR_LOG(LogLevel::kWarn, "pool", "%s", text.c_str());
    EXPECT_EQ(lines.all().back(), "warn pool " + text);
  }
}

TEST_F(LogTest, DefaultSinkWritesALineToStderr) {
  testing::internal::CaptureStderr();
  ASHLAR_LOG(LogLevel::kWarn, "pool", "%d%% full {}", 90);
  log(LogLevel::kInfo, "pool", "quiet");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.ends_with(" warning [pool] 90% full {}\n")) << text;
  EXPECT_EQ(text.find("quiet"), std::string::npos);
}

TEST_F(LogTest, SinksNest) {
  Lines outer;
  Lines inner;
  {
    const ScopedLogSink outer_scope(outer.sink());
    {
      const ScopedLogSink inner_scope(inner.sink());
      log(LogLevel::kWarn, "a", "1");
    }
    log(LogLevel::kWarn, "a", "2");
  }
  EXPECT_EQ(inner.all(), (Text{"warn a 1"}));
  EXPECT_EQ(outer.all(), (Text{"warn a 2"}));
}

TEST_F(LogTest, SinkMayLog) {
  std::vector<std::string> lines;
  const ScopedLogSink scope([&](LogLevel level, std::string_view component, std::string_view message) {
    lines.emplace_back(message);
    if (lines.size() == 1) log(level, component, "again");
  });
  log(LogLevel::kWarn, "a", "once");
  EXPECT_EQ(lines, (Text{"once", "again"}));
}

TEST_F(LogTest, ExceptionOfASinkIsSwallowed) {
  const ScopedLogSink scope(
      [](LogLevel, std::string_view, std::string_view) { throw std::runtime_error("full"); });
  log(LogLevel::kWarn, "a", "b");
  ASHLAR_LOG(LogLevel::kWarn, "a", "b");
}

TEST_F(LogTest, EveryLevelHasAName) {
  const std::vector<std::string_view> names = {"trace", "debug", "info", "warn", "error", "off"};
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(to_string(static_cast<LogLevel>(i)), names[i]);
  EXPECT_EQ(to_string(static_cast<LogLevel>(99)), "unknown");
}

TEST_F(LogTest, SinkIsLeftAloneOnceItsScopeHasEnded) {
  set_log_level(LogLevel::kError);
  std::atomic<bool> stop{false};
  Lines outer;
  const ScopedLogSink outer_scope(outer.sink());
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) log(LogLevel::kError, "a", "b");
    });
  }
  for (int round = 0; round < 20; ++round) {
    // Freed at the end of the round: a late call would write to freed memory.
    const auto lines = std::make_unique<Lines>();
    const ScopedLogSink scope(lines->sink());
    while (lines->all().size() < 10) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ashlar
