// Log lines: a level, a component, a message.
//
// Lines go to stderr from level warn upward, until a program sets another level or a test installs its own
// sink. Logging never throws and never fails: a line that cannot be written is lost. The library logs nothing
// while it holds a lock.
//
//   ASHLAR_LOG(LogLevel::kWarn, "tiers", "volume %s is slow: %d ms", name.c_str(), ms);
//
// Thread safety: thread-safe.
// Complexity:    a line below the level costs one relaxed load, and its arguments are not evaluated.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace ashlar {

// kOff is a setting, not the level of a line.
enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };

// The name of the level: "trace", "debug", "info", "warn", "error", "off".
std::string_view to_string(LogLevel level) noexcept;

namespace detail {
inline constinit std::atomic<LogLevel> current_log_level{LogLevel::kWarn};
}  // namespace detail

// relaxed, both: an independent value; it publishes nothing.
inline LogLevel log_level() noexcept {
  return detail::current_log_level.load(std::memory_order_relaxed);
}
// Applies to later lines of all threads.
inline void set_log_level(LogLevel level) noexcept {
  detail::current_log_level.store(level, std::memory_order_relaxed);
}
// Whether a line of this level would be written.
inline bool log_enabled(LogLevel level) noexcept {
  return level >= log_level() && level != LogLevel::kOff;
}

// Writes a line if its level is on.
void log(LogLevel level, std::string_view component, std::string_view message) noexcept;

// The same with a printf-formatted message. Call it through ASHLAR_LOG.
void log_formatted(LogLevel level, std::string_view component, const char* format, ...) noexcept
    __attribute__((format(printf, 3, 4)));

// Receives every line whose level is on. It must not throw.
using LogSink = std::function<void(LogLevel level, std::string_view component, std::string_view message)>;

// Sends all lines to a sink for the life of this object, then back to the previous one. Sinks nest: the last
// one created is the first one destroyed. Destruction waits for lines currently in the sink; the sink may log
// and may be called by several threads at once. Its exceptions are swallowed.
class ScopedLogSink {
 public:
  explicit ScopedLogSink(LogSink sink);
  ~ScopedLogSink();
  ScopedLogSink(const ScopedLogSink&) = delete;
  ScopedLogSink& operator=(const ScopedLogSink&) = delete;

  // One destination of lines; defined in log.cc.
  struct Target;

 private:
  std::shared_ptr<Target> target_;
  std::shared_ptr<Target> previous_;
};

// Untrusted text made safe for a terminal or a log. Control characters, those of C1 and DEL included, those
// that change the direction of text, and bytes that are not UTF-8 become \xNN; everything else stays.
// Newlines stay in multi-line text.
std::string printable(std::string_view text);
std::string printable_lines(std::string_view text);

}  // namespace ashlar

#define ASHLAR_LOG(level, component, ...)                     \
  do {                                                        \
    if (::ashlar::log_enabled(level)) [[unlikely]]            \
      ::ashlar::log_formatted(level, component, __VA_ARGS__); \
  } while (false)
