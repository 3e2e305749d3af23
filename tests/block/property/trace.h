// Trace: what a property test did so far, and the first thing that went wrong.
//
// A check of the library that stops the process prints the trace as well: see TraceOnAbort.
//
// Thread safety: confined.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ashlar::block::property {

class Trace {
 public:
  explicit Trace(std::string title) : title_(std::move(title)) {}

  void add(std::string operation) { operations_.push_back(std::move(operation)); }
  // Adds to the description of the last operation.
  void note(const std::string& more) { operations_.back() += more; }

  bool failed() const noexcept { return !problem_.empty(); }
  void fail(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }
  template <class A, class B>
  void expect_equal(const char* what, const A& manager, const B& model) {
    if (manager == model) return;
    std::ostringstream text;
    text << what << ": the manager says " << show(manager) << ", the model " << show(model);
    fail(text.str());
  }

  std::string report() const {
    std::string text =
        title_ + "\n" + (problem_.empty() ? "stopped" : problem_) + "\nafter these operations:\n";
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      text += "  " + std::to_string(i) + "  " + operations_[i] + "\n";
    }
    return text;
  }

 private:
  template <class T>
  static std::string show(const T& value) {
    if constexpr (requires(std::ostringstream& out) { out << value; }) {
      std::ostringstream out;
      out << value;
      return out.str();
    } else if constexpr (requires { value.has_value(); }) {
      return value.has_value() ? show(*value) : "nothing";
    } else if constexpr (requires { value.begin(); }) {
      std::string text = "[";
      for (const auto& each : value) text += (text.size() == 1 ? "" : " ") + show(each);
      return text + "]";
    } else if constexpr (requires { value.first; }) {
      return show(value.first) + "=" + show(value.second);
    } else if constexpr (requires { value.value(); }) {
      return show(value.value());
    } else {
      return show(static_cast<std::int64_t>(value));
    }
  }

  std::string title_;
  std::string problem_;
  std::vector<std::string> operations_;
};

// Prints the trace when the process is stopped while this lives.
class TraceOnAbort {
 public:
  explicit TraceOnAbort(const Trace& trace) : before_(std::signal(SIGABRT, &print)) { current_ = &trace; }
  TraceOnAbort(const TraceOnAbort&) = delete;
  TraceOnAbort& operator=(const TraceOnAbort&) = delete;
  ~TraceOnAbort() {
    current_ = nullptr;
    std::signal(SIGABRT, before_);
  }

 private:
  static void print(int) {
    if (current_ != nullptr) std::fprintf(stderr, "%s\n", std::exchange(current_, nullptr)->report().c_str());
  }
  static inline const Trace* current_ = nullptr;
  void (*before_)(int);
};

}  // namespace ashlar::block::property
