// ProgramHook: runs a program for each advice, with the advice as one line on its standard input.
//
// The program is a shell command in its own process group. If it still runs after `patience`, or when this
// program is told to end, its group is ended: SIGTERM first, then SIGKILL.
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

  // Errors: kIo: the program cannot be started, or ended with a status other than 0; kTimeout: it took too
  // long; kCancelled: this program was told to end.
  Result<void> on_advice(const feed::Advice& advice) override;

 private:
  const std::string program_;
  const std::chrono::milliseconds patience_;
};

}  // namespace ashlar::apps
