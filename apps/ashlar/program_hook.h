// ProgramHook: each advice to a program of its own, as one line on its standard input.
//
// The program is a command of the shell, in a process group of its own. One that is still there when
// `patience` has passed, or when this program is told to end, is ended with its group: first asked (SIGTERM),
// then killed.
//
// Thread safety: confined.
#pragma once

#include <chrono>
#include <string>

#include "ashlar/feed/storage_advisor.h"

namespace ashlar::apps {

class ProgramHook final : public feed::AdviceHook {
 public:
  ProgramHook(std::string program, std::chrono::milliseconds patience)
      : program_(std::move(program)), patience_(patience) {}

  // Errors: kIo: the program cannot be started, or ended with another status than 0; kTimeout: it took too
  // long; kCancelled: this program was told to end.
  Result<void> on_advice(const feed::Advice& advice) override;

 private:
  const std::string program_;
  const std::chrono::milliseconds patience_;
};

}  // namespace ashlar::apps
