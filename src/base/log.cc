#include "ashlar/base/log.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "ashlar/base/mutex.h"

namespace ashlar {

struct ScopedLogSink::Target {
  explicit Target(LogSink s) : sink(std::move(s)) {}

  const LogSink sink;
  int lines = 0;  // currently in the sink; guarded by LogTargets::mu
};

namespace {

using Target = ScopedLogSink::Target;

struct LogTargets {
  Mutex mu;
  CondVar line_left;
  std::shared_ptr<Target> current ASHLAR_GUARDED_BY(mu);  // null: stderr
};

// Both are never destroyed, so that a program's last destructors may log.
LogTargets& log_targets() {
  static auto& instance = *new LogTargets();
  return instance;
}

spdlog::logger& stderr_logger() {
  static auto& instance = *[] {
    auto* logger = new spdlog::logger("ashlar", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    logger->set_level(spdlog::level::trace);  // our own level filter ran already
    return logger;
  }();
  return instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

void write(LogLevel level, std::string_view component, std::string_view message) {
  std::string line;
  line.reserve(component.size() + message.size() + 3);
  line += '[';
  line += component;
  line += "] ";
  line += message;
  stderr_logger().log(to_spdlog(level), spdlog::string_view_t(line));
}

std::shared_ptr<Target> enter_target() {
  LogTargets& where = log_targets();
  const MutexLock lock(where.mu);
  if (where.current != nullptr) ++where.current->lines;
  return where.current;
}

void leave_target(Target& target) {
  LogTargets& where = log_targets();
  const MutexLock lock(where.mu);
  --target.lines;
  where.line_left.notify_all();
}

}  // namespace

std::string_view to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kTrace:
      return "trace";
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "unknown";
}

void log(LogLevel level, std::string_view component, std::string_view message) noexcept {
  if (!log_enabled(level)) return;
  try {
    const std::shared_ptr<Target> target = enter_target();
    if (target == nullptr) {
      write(level, component, message);
      return;
    }
    try {
      target->sink(level, component, message);
    } catch (...) {  // NOLINT(bugprone-empty-catch): a line that cannot be written is lost
    }
    leave_target(*target);
  } catch (...) {  // NOLINT(bugprone-empty-catch): as above
  }
}

void log_formatted(LogLevel level, std::string_view component, const char* format, ...) noexcept {
  if (!log_enabled(level)) return;
  std::va_list arguments;
  va_start(arguments, format);
  std::va_list again;
  va_copy(again, arguments);
  std::array<char, 512> buffer;
  const int length = std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  if (length >= 0 && static_cast<std::size_t>(length) < buffer.size()) {
    log(level, component, std::string_view(buffer.data(), static_cast<std::size_t>(length)));
  } else if (length >= 0) {
    try {
      std::string message(static_cast<std::size_t>(length), '\0');
      std::vsnprintf(message.data(), message.size() + 1, format, again);
      log(level, component, message);
    } catch (...) {
      log(level, component, std::string_view(buffer.data(), buffer.size() - 1));
    }
  }
  va_end(again);
}

ScopedLogSink::ScopedLogSink(LogSink sink) : target_(std::make_shared<Target>(std::move(sink))) {
  LogTargets& where = log_targets();
  const MutexLock lock(where.mu);
  previous_ = std::exchange(where.current, target_);
}

ScopedLogSink::~ScopedLogSink() {
  LogTargets& where = log_targets();
  const MutexLock lock(where.mu);
  where.current = std::move(previous_);
  while (target_->lines > 0) where.line_left.wait(where.mu);
}

}  // namespace ashlar
