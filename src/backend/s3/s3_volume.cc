#include "ashlar/backend/s3/s3_volume.h"

#include <curl/curl.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "backend/s3/answers.h"
#include "backend/s3/http_loop.h"
#include "backend/s3/multipart_put.h"
#include "backend/s3/options.h"

namespace ashlar::backend::s3 {
namespace {

// A batch borrows a loop with its open connections, and returns it.
class S3Volume final : public tiers::Volume {
 public:
  explicit S3Volume(S3Options options) : options_(std::move(options)) {}

  std::string describe() const override { return options_.describe(); }
  std::vector<Result<void>> put(std::span<const tiers::ObjectWrite> objects,
                                const tiers::CallLimits& limits) override;
  std::vector<Result<void>> get(std::span<const tiers::ObjectRead> objects,
                                const tiers::CallLimits& limits) override;
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                     const tiers::CallLimits& limits) override;
  std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                   const tiers::CallLimits& limits) override;

 private:
  // Loops beyond these are closed after their batch.
  static constexpr std::size_t kIdleLoops = 8;

  Result<std::unique_ptr<HttpLoop>> take() {
    {
      const MutexLock lock(mu_);
      if (!idle_.empty()) {
        std::unique_ptr<HttpLoop> loop = std::move(idle_.back());
        idle_.pop_back();
        return loop;
      }
    }
    return HttpLoop::create(options_);
  }
  void give_back(std::unique_ptr<HttpLoop> loop) {
    const MutexLock lock(mu_);
    if (idle_.size() < kIdleLoops) idle_.push_back(std::move(loop));
  }

  // add(loop, i) submits the requests of object i. Objects with an invalid key are answered here.
  template <class R, class Key, class Add>
  void run(const tiers::CallLimits& limits, std::vector<R>& results, const Key& key, const Add& add) {
    Result<std::unique_ptr<HttpLoop>> loop = take();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (const Result<void> good = tiers::check_key(key(i)); !good) {
        results[i] = good.error();
      } else if (!loop) {
        results[i] = loop.error();
      } else {
        add(**loop, i);
      }
    }
    if (!loop) return;
    (*loop)->run(limits);
    give_back(std::move(*loop));
  }

  const S3Options options_;
  Mutex mu_;
  std::vector<std::unique_ptr<HttpLoop>> idle_ ASHLAR_GUARDED_BY(mu_);
};

std::vector<Result<void>> S3Volume::put(std::span<const tiers::ObjectWrite> objects,
                                        const tiers::CallLimits& limits) {
  std::vector<Result<void>> results(objects.size());
  std::vector<std::unique_ptr<MultipartPut>> large;
  run(
      limits, results, [&](std::size_t i) { return objects[i].key; },
      [&](HttpLoop& loop, std::size_t i) {
        const tiers::ObjectWrite& object = objects[i];
        if (object.size() > options_.multipart_bytes) {
          large.push_back(std::make_unique<MultipartPut>(loop, options_, object, results[i]));
          return large.back()->start();
        }
        Request request{.method = Method::kPut, .key = object.key, .if_none_match = options_.if_none_match};
        request.body = Body(object.parts, 0, object.size());
        request.done = [&, i](Response& response) {
          results[i] = put_result(options_, objects[i].key, response);
        };
        loop.submit(std::move(request));
      });
  return results;
}

std::vector<Result<void>> S3Volume::get(std::span<const tiers::ObjectRead> objects,
                                        const tiers::CallLimits& limits) {
  std::vector<Result<void>> results(objects.size());
  run(
      limits, results, [&](std::size_t i) { return objects[i].key; },
      [&](HttpLoop& loop, std::size_t i) {
        Request request{.method = Method::kGet, .key = objects[i].key, .parts = objects[i].parts};
        request.done = [&, i](Response& response) {
          results[i] = get_result(options_, objects[i], response);
        };
        loop.submit(std::move(request));
      });
  return results;
}

std::vector<Result<bool>> S3Volume::contains(std::span<const std::string_view> keys,
                                             const tiers::CallLimits& limits) {
  std::vector<Result<bool>> results(keys.size(), false);
  run(
      limits, results, [&](std::size_t i) { return keys[i]; },
      [&](HttpLoop& loop, std::size_t i) {
        Request request{.method = Method::kHead, .key = keys[i]};
        request.done = [&, i](Response& response) {
          results[i] = contains_result(options_, keys[i], response);
        };
        loop.submit(std::move(request));
      });
  return results;
}

std::vector<Result<void>> S3Volume::remove(std::span<const std::string_view> keys,
                                           const tiers::CallLimits& limits) {
  std::vector<Result<void>> results(keys.size());
  run(
      limits, results, [&](std::size_t i) { return keys[i]; },
      [&](HttpLoop& loop, std::size_t i) {
        Request request{.method = Method::kDelete, .key = keys[i]};
        request.done = [&, i](Response& response) {
          results[i] = remove_result(options_, keys[i], response);
        };
        loop.submit(std::move(request));
      });
  return results;
}

}  // namespace

Result<std::unique_ptr<tiers::Volume>> attach(const tiers::VolumeDescriptor& descriptor) {
  static const CURLcode ready =
      curl_global_init(CURL_GLOBAL_DEFAULT);  // libcurl requires this once, before threads start
  if (ready != CURLE_OK) return make_error(ErrorCode::kInternal, "libcurl: %s", curl_easy_strerror(ready));
  ASHLAR_TRY(S3Options options, S3Options::read(descriptor));
  return std::unique_ptr<tiers::Volume>(new S3Volume(std::move(options)));
}

}  // namespace ashlar::backend::s3
