// The keys of workers, from files and the environment. No message has a part of one.
#include <algorithm>
#include <string>
#include <utility>

#include "ashlar/base/log.h"
#include "ashlar/service/serve_options.h"

namespace ashlar::service {
namespace {

constexpr std::size_t kMaxKeyBytes = 4096;

// What a header may have. Errors: kInvalidArgument, with `where` it stands.
Result<std::string> checked_key(std::string key, const std::string& where) {
  while (key.ends_with('\n') || key.ends_with('\r')) key.pop_back();
  const auto is_visible = [](char c) { return c > ' ' && c < 0x7F; };
  if (key.empty() || key.size() > kMaxKeyBytes || !std::ranges::all_of(key, is_visible))
    return make_error(ErrorCode::kInvalidArgument,
                      "%s holds no key: a key is 1 to %zu visible characters without spaces", where.c_str(),
                      kMaxKeyBytes);
  return key;
}

Result<std::string> key_in_file(const std::string& path, const std::string& what) {
  const std::string where = what + " '" + printable(path) + "'";
  auto text = read_whole_file(path, kMaxKeyBytes + 2);
  if (!text) return Error(ErrorCode::kInvalidArgument, what + ": " + text.error().message());
  return checked_key(*std::move(text), where);
}

}  // namespace

Result<void> read_worker_keys(const ServeOptions& options,
                              const std::map<std::string, std::string>& environment,
                              std::span<WorkerOptions> workers) {
  std::string of_all;
  if (!options.worker_key.empty() && !options.worker_key_file.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "worker_key and worker_key_file are both set: keep one of them");
  if (!options.worker_key.empty()) {
    ASHLAR_TRY(of_all, checked_key(options.worker_key, "worker_key"));
  } else if (!options.worker_key_file.empty()) {
    ASHLAR_TRY(of_all, key_in_file(options.worker_key_file, "worker_key_file"));
  }
  for (WorkerOptions& worker : workers) {
    const std::string of_worker = "the worker '" + printable(worker.name) + "': ";
    worker.key.text = of_all;
    if (!worker.key_file.empty()) {
      ASHLAR_TRY(worker.key.text, key_in_file(worker.key_file, of_worker + "key_file"));
    } else if (!worker.key_env.empty()) {
      const auto found = environment.find(worker.key_env);
      const std::string where = of_worker + "the variable " + printable(worker.key_env);
      if (found == environment.end()) return Error(ErrorCode::kInvalidArgument, where + " is not set");
      ASHLAR_TRY(worker.key.text, checked_key(found->second, where));
    }
  }
  return {};
}

}  // namespace ashlar::service
