// MetricRegistry: names for counters, gauges and histograms, and the page that Prometheus reads.
//
// A metric is a family name plus a set of labels. The registry owns those it makes (counter(), gauge(),
// histogram()), which live as long as it does at an address that never changes. Others belong to a component,
// which adds a view of them and holds the MetricRegistration: when that is destroyed the registry has let go,
// and no scrape reads the metric any more.
//
// Names are [a-zA-Z_:][a-zA-Z0-9_:]*, label names [a-zA-Z_][a-zA-Z0-9_]* without a leading "__". One family
// has one type; the help text of the first member stands for all.
//
// Thread safety: thread-safe. Metrics are read and callbacks run outside the registry's lock, each under a
//                lock of its own that only its scrape and its unregistration take.
// Complexity:    all of this is for start-up and scrapes; counting never comes here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/metrics.h"
#include "ashlar/base/result.h"

namespace ashlar {

struct MetricDescription {
  std::string name;
  std::string help;
  std::vector<std::pair<std::string, std::string>> labels = {};  // name, value; the order does not matter
};

class MetricRegistry;

// The stay of a component's metric in a registry; destruction ends it. May outlive the registry.
//
// Destruction waits for a scrape that reads this metric just now, so the owner holds no lock that the
// metric's callback takes, and the callback does not destroy its own registration.
class [[nodiscard]] MetricRegistration {
 public:
  MetricRegistration() = default;  // of nothing

  // Ends the stay now. Does nothing the second time.
  void unregister() { stay_.reset(); }

  MetricRegistration(MetricRegistration&&) noexcept = default;
  MetricRegistration& operator=(MetricRegistration&&) noexcept = default;

 private:
  friend class MetricRegistry;
  struct Stay;
  explicit MetricRegistration(std::shared_ptr<Stay> stay) : stay_(std::move(stay)) {}

  std::shared_ptr<Stay> stay_;  // never shared; its destruction unregisters
};

class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The metric of that name and labels, made when it is not there yet. The result is never null.
  // Errors: invalid_argument for a bad name or label; already_exists where the name belongs to another type,
  //         where the metric is a component's view, and where a histogram's _bucket, _sum or _count is a
  //         name already.
  Result<Counter*> counter(const MetricDescription& description);
  Result<Gauge*> gauge(const MetricDescription& description);
  // An existing histogram must have the same bounds and divisor, else already_exists.
  Result<Histogram*> histogram(const MetricDescription& description, std::vector<std::uint64_t> bounds,
                               std::uint64_t divisor = 1);

  // Adds a view of a metric that the caller owns and that outlives the registration.
  // Errors: as above; already_exists also when the same name and labels are taken.
  Result<MetricRegistration> add(const MetricDescription& description, const Counter& counter);
  Result<MetricRegistration> add(const MetricDescription& description, const Gauge& gauge);
  Result<MetricRegistration> add(const MetricDescription& description, const Histogram& histogram);
  // A gauge that is computed when somebody looks, by any thread. The callback throws nothing.
  Result<MetricRegistration> add(const MetricDescription& description, std::function<double()> callback);

  // All metrics in the Prometheus text format (version 0.0.4), families by name, members by labels.
  std::string prometheus_text() const;

 private:
  friend class MetricRegistration;
  struct Series;
  class Table;
  template <class Instrument, class... Arguments>
  Result<Instrument*> get_or_make(const MetricDescription& description, const Arguments&... arguments);
  template <class View>
  Result<MetricRegistration> add_view(const MetricDescription& description, View view);

  std::shared_ptr<Table> table_;
};

}  // namespace ashlar
