// A table of families, each a map from the rendered label set to its series. A scrape copies the list of
// series under the table's lock and reads them outside it, each under the series' own lock; unregistering
// empties the series under that lock, so the metric can safely be destroyed afterwards.
#include "ashlar/base/metrics.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <variant>

#include "ashlar/base/mutex.h"
#include "base/prometheus_text.h"

namespace ashlar {
namespace {

enum class Type : std::uint8_t { kCounter, kGauge, kHistogram };

const char* type_name(Type type) {
  switch (type) {
    case Type::kCounter:
      return "counter";
    case Type::kGauge:
      return "gauge";
    case Type::kHistogram:
      return "histogram";
  }
  return "untyped";
}

using Callback = std::function<double()>;
using CountCallback = std::function<std::uint64_t()>;
// Several counters, by the value of a label that the others do not have.
struct CountsCallback {
  MetricLabels labels;
  std::string label;
  std::function<std::map<std::string, std::uint64_t>()> counts;
};
// The source of a series; monostate once it is unregistered.
using Source = std::variant<std::monostate, const Counter*, const Gauge*, const Histogram*, Callback,
                            CountCallback, CountsCallback>;

constexpr Type type_of(const Counter*) {
  return Type::kCounter;
}
constexpr Type type_of(const Gauge*) {
  return Type::kGauge;
}
constexpr Type type_of(const Histogram*) {
  return Type::kHistogram;
}
Type type_of(const Callback&) {
  return Type::kGauge;
}
Type type_of(const CountCallback&) {
  return Type::kCounter;
}
Type type_of(const CountsCallback&) {
  return Type::kCounter;
}

// Requires: sorted by name.
std::string render(const MetricLabels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) prometheus::append_label(text, name, value);
  return text;
}

// The labels sorted by name, so that one set has one text.
Result<std::string> render_labels(const MetricDescription& description, Type type) {
  auto labels = description.labels;
  std::sort(labels.begin(), labels.end());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::string& name = labels[i].first;
    if (!prometheus::is_label_name(name)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "metric '%s' has a label named '%s'; use letters, digits and '_', not '__' in front",
                        description.name.c_str(), name.c_str());
    }
    if (type == Type::kHistogram && name == "le") {
      return make_error(ErrorCode::kInvalidArgument,
                        "histogram '%s' has a label 'le', which its buckets need", description.name.c_str());
    }
    if (i > 0 && labels[i - 1].first == name) {
      return make_error(ErrorCode::kInvalidArgument, "metric '%s' has the label '%s' twice",
                        description.name.c_str(), name.c_str());
    }
  }
  return render(labels);
}

}  // namespace

struct MetricRegistry::Series {
  explicit Series(Source view) : source(std::move(view)) {}
  explicit Series(std::unique_ptr<Counter> owned) : counter(std::move(owned)), source(counter.get()) {}
  explicit Series(std::unique_ptr<Gauge> owned) : gauge(std::move(owned)), source(gauge.get()) {}
  explicit Series(std::unique_ptr<Histogram> owned) : histogram(std::move(owned)), source(histogram.get()) {}

  // Constant after construction. An instrument owned by the registry; all null for a component's view.
  std::unique_ptr<Counter> counter;
  std::unique_ptr<Gauge> gauge;
  std::unique_ptr<Histogram> histogram;

  Mutex mu;
  Source source ASHLAR_GUARDED_BY(mu);

  // Appends the samples, unless the series is unregistered. Runs a callback under mu, which is taken only
  // here and when the owner unregisters.
  void append_samples(std::string& out, std::string_view name, const std::string& labels) {
    const MutexLock lock(mu);
    if (const auto* counter_source = std::get_if<const Counter*>(&source)) {
      prometheus::append_sample(out, name, labels, (*counter_source)->value());
    } else if (const auto* gauge_source = std::get_if<const Gauge*>(&source)) {
      prometheus::append_sample(out, name, labels, (*gauge_source)->value());
    } else if (const auto* histogram_source = std::get_if<const Histogram*>(&source)) {
      prometheus::append_histogram(out, name, labels, **histogram_source);
    } else if (const auto* callback = std::get_if<Callback>(&source)) {
      prometheus::append_sample(out, name, labels, (*callback)());
    } else if (const auto* count = std::get_if<CountCallback>(&source)) {
      prometheus::append_sample(out, name, labels, (*count)());
    } else if (const auto* counts = std::get_if<CountsCallback>(&source)) {
      for (const auto& [value, sum] : counts->counts()) {
        MetricLabels all = counts->labels;
        all.emplace_back(counts->label, value);
        std::ranges::sort(all);
        prometheus::append_sample(out, name, render(all), sum);
      }
    }
  }

  // The callback's own captures are destroyed after the lock is released.
  void detach() {
    Source released;
    const MutexLock lock(mu);
    released.swap(source);
  }
};

class MetricRegistry::Table {
 public:
  // The series of a description, found or created.
  struct Slot {
    std::shared_ptr<Series> series;
    std::string labels;
    bool is_new = false;
  };

  // Calls make() for the series when none has that name and labels yet.
  template <class Make>
  Result<Slot> find_or_insert(const MetricDescription& description, Type type, Make&& make) {
    if (!prometheus::is_metric_name(description.name)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "'%s' cannot name a metric; use letters, digits, '_' and ':', and no digit in front",
                        description.name.c_str());
    }
    ASHLAR_TRY(std::string labels, render_labels(description, type));

    const MutexLock lock(mu_);
    auto family = families_.find(description.name);
    if (family != families_.end() && family->second.type != type) {
      return make_error(ErrorCode::kAlreadyExists, "metric '%s' is a %s already and cannot also be a %s",
                        description.name.c_str(), type_name(family->second.type), type_name(type));
    }
    if (family == families_.end()) {
      if (const std::string clash = clash_locked(description.name, type); !clash.empty()) {
        return make_error(ErrorCode::kAlreadyExists, "metric '%s' would write the same series as metric '%s'",
                          description.name.c_str(), clash.c_str());
      }
      family = families_.emplace(description.name, Family{type, description.help, {}}).first;
    }
    auto [place, is_new] = family->second.series.try_emplace(labels);
    if (is_new) place->second = make();
    return Slot{place->second, std::move(labels), is_new};
  }

  void remove(const std::string& name, const std::string& labels) {
    const MutexLock lock(mu_);
    const auto family = families_.find(name);
    if (family == families_.end()) return;
    const std::size_t erased = family->second.series.erase(labels);
    ASHLAR_CHECK(erased == 1, "a registration of '%s' {%s} ended %zu series", name.c_str(), labels.c_str(),
                 erased);
    if (family->second.series.empty()) families_.erase(family);
  }

  std::string text() const {
    struct Member {
      std::string labels;
      std::shared_ptr<Series> series;
    };
    struct Page {
      std::string name;
      std::string help;
      Type type;
      std::vector<Member> members;
    };
    std::vector<Page> pages;
    {
      const MutexLock lock(mu_);
      pages.reserve(families_.size());
      for (const auto& [name, family] : families_) {
        Page& page = pages.emplace_back(Page{name, family.help, family.type, {}});
        for (const auto& [labels, series] : family.series) page.members.push_back({labels, series});
      }
    }
    std::string out;
    for (const Page& page : pages) {
      std::string samples;
      for (const Member& member : page.members)
        member.series->append_samples(samples, page.name, member.labels);
      if (samples.empty()) continue;
      prometheus::append_header(out, page.name, page.help, type_name(page.type));
      out += samples;
    }
    return out;
  }

 private:
  struct Family {
    Type type;
    std::string help;
    std::map<std::string, std::shared_ptr<Series>> series;  // by rendered labels
  };

  // The family whose series names would clash with those of a new family; empty when there is none.
  std::string clash_locked(const std::string& name, Type type) const ASHLAR_REQUIRES(mu_) {
    for (const std::string_view suffix : {"_bucket", "_sum", "_count"}) {
      if (type == Type::kHistogram) {
        const std::string series = name + std::string(suffix);
        if (families_.contains(series)) return series;
      }
      if (name.ends_with(suffix)) {
        const auto family = families_.find(name.substr(0, name.size() - suffix.size()));
        if (family != families_.end() && family->second.type == Type::kHistogram) return family->first;
      }
    }
    return {};
  }

  mutable Mutex mu_;
  std::map<std::string, Family> families_ ASHLAR_GUARDED_BY(mu_);
};

struct MetricRegistration::Stay {
  std::shared_ptr<MetricRegistry::Table> table;
  std::shared_ptr<MetricRegistry::Series> series;
  std::string name;
  std::string labels;

  Stay(std::shared_ptr<MetricRegistry::Table> in, MetricRegistry::Table::Slot slot, std::string metric)
      : table(std::move(in)),
        series(std::move(slot.series)),
        name(std::move(metric)),
        labels(std::move(slot.labels)) {}
  ~Stay() {
    table->remove(name, labels);
    series->detach();
  }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;
};

MetricRegistry::MetricRegistry() : table_(std::make_shared<Table>()) {}
MetricRegistry::~MetricRegistry() = default;

template <class Instrument, class... Arguments>
Result<Instrument*> MetricRegistry::get_or_make(const MetricDescription& description,
                                                const Arguments&... arguments) {
  const auto owned = [](Series& series) -> std::unique_ptr<Instrument>& {
    if constexpr (std::is_same_v<Instrument, Counter>) return series.counter;
    if constexpr (std::is_same_v<Instrument, Gauge>) return series.gauge;
    if constexpr (std::is_same_v<Instrument, Histogram>) return series.histogram;
  };
  const auto make = [&] { return std::make_shared<Series>(std::make_unique<Instrument>(arguments...)); };
  const Type type = type_of(static_cast<const Instrument*>(nullptr));
  ASHLAR_TRY(const auto slot, table_->find_or_insert(description, type, make));
  Instrument* const instrument = owned(*slot.series).get();
  if (instrument == nullptr) {
    return make_error(ErrorCode::kAlreadyExists, "metric '%s' {%s} belongs to a component",
                      description.name.c_str(), slot.labels.c_str());
  }
  return instrument;
}

Result<Counter*> MetricRegistry::counter(const MetricDescription& description) {
  return get_or_make<Counter>(description);
}

Result<Gauge*> MetricRegistry::gauge(const MetricDescription& description) {
  return get_or_make<Gauge>(description);
}

Result<Histogram*> MetricRegistry::histogram(const MetricDescription& description,
                                             std::vector<std::uint64_t> bounds, std::uint64_t divisor) {
  auto made = get_or_make<Histogram>(description, bounds, divisor);
  if (made && (!std::ranges::equal((*made)->bounds(), bounds) || (*made)->divisor() != divisor)) {
    return make_error(ErrorCode::kAlreadyExists, "histogram '%s' exists with other bounds",
                      description.name.c_str());
  }
  return made;
}

template <class View>
Result<MetricRegistration> MetricRegistry::add_view(const MetricDescription& description, View view) {
  const Type type = type_of(view);
  const auto make = [&] { return std::make_shared<Series>(Source(std::move(view))); };
  ASHLAR_TRY(auto slot, table_->find_or_insert(description, type, make));
  if (!slot.is_new) {
    return make_error(ErrorCode::kAlreadyExists, "metric '%s' {%s} is registered already",
                      description.name.c_str(), slot.labels.c_str());
  }
  return MetricRegistration(
      std::make_shared<MetricRegistration::Stay>(table_, std::move(slot), description.name));
}

Result<MetricRegistration> MetricRegistry::add(const MetricDescription& description, const Counter& counter) {
  return add_view(description, &counter);
}
Result<MetricRegistration> MetricRegistry::add(const MetricDescription& description, const Gauge& gauge) {
  return add_view(description, &gauge);
}
Result<MetricRegistration> MetricRegistry::add(const MetricDescription& description,
                                               const Histogram& histogram) {
  return add_view(description, &histogram);
}
Result<MetricRegistration> MetricRegistry::add(const MetricDescription& description,
                                               std::function<double()> callback) {
  ASHLAR_CHECK(callback != nullptr, "metric '%s' was added with an empty callback", description.name.c_str());
  return add_view(description, std::move(callback));
}
Result<MetricRegistration> MetricRegistry::add_counter(const MetricDescription& description,
                                                       std::function<std::uint64_t()> callback) {
  ASHLAR_CHECK(callback != nullptr, "metric '%s' was added with an empty callback", description.name.c_str());
  return add_view(description, std::move(callback));
}

Result<MetricRegistration> MetricRegistry::add_counters(
    const MetricDescription& description, const std::string& label,
    std::function<std::map<std::string, std::uint64_t>()> callback) {
  ASHLAR_CHECK(callback != nullptr, "metric '%s' was added with an empty callback", description.name.c_str());
  MetricDescription member = description;
  member.labels.emplace_back(label, "");
  ASHLAR_RETURN_IF_ERROR(render_labels(member, Type::kCounter));
  return add_view(description, CountsCallback{description.labels, label, std::move(callback)});
}

std::string MetricRegistry::prometheus_text() const {
  return table_->text();
}

}  // namespace ashlar
