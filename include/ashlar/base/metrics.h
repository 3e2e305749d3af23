// Counter, Gauge, Histogram: exact and cheap instruments of a component. MetricRegistry: names them and
// writes the page that Prometheus reads.
//
// A component holds its instruments as members; they count whether or not a scrape reads them. Values are
// integers, so that a test reads exact counts.
//
// Thread safety: thread-safe. Adds are relaxed: a value read while others add is a recent one; it is exact
//                once the adders are known to be done (a join, a lock).
// Complexity:    each of the first 32 living threads (8 for a Histogram) adds to cache lines of its own with
//                plain loads and stores; those beyond share a few lines, atomically. Reading sums all lines.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar {

namespace detail {

// The first stripes have one writer each, the living thread that claimed it; the others are shared.
inline constexpr std::uint32_t kOwnStripes = 32;
inline constexpr std::uint32_t kSharedStripes = 8;

// One more than the stripe of this thread; 0 until its first claim.
inline constinit thread_local std::uint32_t thread_stripe = 0;

// Claims the lowest stripe that no living thread holds, else assigns a shared one, for the life of this
// thread.
std::uint32_t claim_thread_stripe() noexcept;

inline std::uint32_t stripe_of_this_thread() noexcept {
  const std::uint32_t known = thread_stripe;
  if (known != 0) [[likely]]
    return known - 1;
  return claim_thread_stripe();
}

// Adds to a cell. A cell with one writer needs no read-modify-write instruction, which is most of the cost.
inline void add_to_cell(std::atomic<std::uint64_t>& cell, std::uint64_t n, bool one_writer) noexcept {
  // relaxed: only the sum matters; it publishes nothing. The release and the acquire of the claim order two
  // owners of one stripe.
  if (one_writer) {
    cell.store(cell.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  } else {
    cell.fetch_add(n, std::memory_order_relaxed);
  }
}

}  // namespace detail

// A number that only grows.
class Counter {
 public:
  Counter() = default;
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  // Wait-free; the first call of a thread claims its stripe.
  void add(std::uint64_t n = 1) noexcept {
    const std::uint32_t stripe = detail::stripe_of_this_thread();
    detail::add_to_cell(stripes_[stripe].count, n, stripe < detail::kOwnStripes);
  }

  // The sum over all threads.
  std::uint64_t value() const noexcept {
    std::uint64_t sum = 0;
    // relaxed: as in add_to_cell().
    for (const Stripe& stripe : stripes_) sum += stripe.count.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  struct alignas(64) Stripe {
    std::atomic<std::uint64_t> count{0};
  };

  std::array<Stripe, detail::kOwnStripes + detail::kSharedStripes> stripes_;
};

// A number that goes up and down. One word: adders share its cache line. For a value that the component
// already knows, prefer a callback (MetricRegistry::add), which costs nothing between scrapes.
class Gauge {
 public:
  Gauge() = default;
  Gauge(const Gauge&) = delete;
  Gauge& operator=(const Gauge&) = delete;

  // relaxed, all three: an independent value; it publishes nothing.
  void set(std::int64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  void add(std::int64_t n) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
  std::int64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// How often a value fell into each of a fixed set of buckets, and the sum of all values.
//
// Values are whole numbers in the unit the code measures (nanoseconds, bytes). The page shows them divided by
// `divisor`, so that a latency is kept in nanoseconds and shown in seconds: Histogram(bounds, 1'000'000'000).
class Histogram {
 public:
  // Bucket i counts the values v with bounds[i - 1] < v <= bounds[i]; one more bucket takes those above the
  // last. Requires: bounds rise strictly; divisor > 0.
  explicit Histogram(std::vector<std::uint64_t> bounds, std::uint64_t divisor = 1);
  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  // `count` bounds: first, first * factor, first * factor^2, … Requires: first > 0, factor > 1, no overflow.
  static std::vector<std::uint64_t> exponential_bounds(std::uint64_t first, std::uint64_t factor,
                                                       std::size_t count);

  // Counts the value in its bucket. O(log buckets), without a lock.
  void observe(std::uint64_t value) noexcept;

  struct Snapshot {
    std::vector<std::uint64_t> buckets;  // per bucket, not cumulative; the last one is above every bound
    std::uint64_t count = 0;             // always the sum of the buckets
    std::uint64_t sum = 0;
  };
  // Sums all stripes. Buckets and sum may miss values that are being added.
  Snapshot snapshot() const;

  // As given at construction.
  std::span<const std::uint64_t> bounds() const noexcept { return bounds_; }
  std::uint64_t divisor() const noexcept { return divisor_; }

 private:
  struct alignas(64) Line {
    std::array<std::atomic<std::uint64_t>, 8> words{};
  };

  // Fewer stripes than a Counter has, as each is larger.
  static constexpr std::uint32_t kOwnStripes = 8;
  static constexpr std::uint32_t kStripes = kOwnStripes + 4;

  // The words of a stripe: one per bucket, then the sum.
  std::atomic<std::uint64_t>& word(std::size_t stripe, std::size_t index) const noexcept {
    return lines_[stripe * lines_per_stripe_ + index / 8].words[index % 8];
  }

  // Constant after construction; the words that lines_ leads to are atomic.
  std::vector<std::uint64_t> bounds_;
  std::uint64_t divisor_;
  std::size_t lines_per_stripe_;
  std::unique_ptr<Line[]> lines_;
};

// Names and values; the order does not matter.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// A metric by name and labels.
struct MetricDescription {
  std::string name;
  std::string help;
  MetricLabels labels = {};
};

class MetricRegistry;

// The registration of a component's metric; destruction ends it. May outlive the registry.
//
// Destruction waits for a scrape that is reading this metric, so the owner must hold no lock that the
// metric's callback takes, and the callback must not destroy its own registration.
class [[nodiscard]] MetricRegistration {
 public:
  MetricRegistration() = default;  // empty

  // Unregisters now. No effect the second time.
  void unregister() { stay_.reset(); }

  MetricRegistration(MetricRegistration&&) noexcept = default;
  MetricRegistration& operator=(MetricRegistration&&) noexcept = default;

 private:
  friend class MetricRegistry;
  struct Stay;
  explicit MetricRegistration(std::shared_ptr<Stay> stay) : stay_(std::move(stay)) {}

  std::shared_ptr<Stay> stay_;  // never shared; its destruction unregisters
};

// Names for counters, gauges and histograms, and the page that Prometheus reads.
//
// A metric is a family name plus a set of labels. The registry owns those it creates (counter(), gauge(),
// histogram()), which live as long as it does at a stable address. Others belong to a component, which adds a
// view of them and holds the MetricRegistration: once that is destroyed, no scrape reads the metric.
//
// Names are [a-zA-Z_:][a-zA-Z0-9_:]*, label names [a-zA-Z_][a-zA-Z0-9_]* without a leading "__". One family
// has one type; the help text of the first member stands for all.
//
// Thread safety: thread-safe. Metrics are read and callbacks run outside the registry's lock, each under a
//                lock of its own that only its scrape and its unregistration take.
// Complexity:    all of this is for start-up and scrapes; counting never comes here.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The metric of that name and labels, created if missing. The result is never null.
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
  // A gauge computed by the scrape, on its thread. The callback must not throw.
  Result<MetricRegistration> add(const MetricDescription& description, std::function<double()> callback);
  // The same for a counter that the component keeps in another form. Its values never fall.
  Result<MetricRegistration> add_counter(const MetricDescription& description,
                                         std::function<std::uint64_t()> callback);
  // Counters of things that come and go: the scrape asks which there are, by the value of the label `label`.
  // Each member has the labels of the description and this one. No member may be registered otherwise.
  // Errors: as above; the label must not be one of the description's.
  Result<MetricRegistration> add_counters(const MetricDescription& description, const std::string& label,
                                          std::function<std::map<std::string, std::uint64_t>()> callback);

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
