#include "ashlar/backend/zmq/zmq_batch_sink.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/events/event_codec.h"

namespace ashlar::backend::zmq {

class ZmqBatchSink::Snapshots {
 public:
  explicit Snapshots(std::size_t part) : part_(part) {}

  void serve(events::SnapshotSource* source) {
    const MutexLock lock(mutex_);
    while (is_asking_) asked_.wait(mutex_);
    sources_.clear();
    if (source != nullptr) sources_.push_back(source);
  }
  void add(events::SnapshotSource& source) {
    const MutexLock lock(mutex_);
    sources_.push_back(&source);
  }
  void remove(events::SnapshotSource& source) {
    const MutexLock lock(mutex_);
    while (is_asking_) asked_.wait(mutex_);
    std::erase(sources_, &source);
  }
  // One message per part.
  std::vector<std::vector<std::byte>> make() {
    std::vector<events::SnapshotSource*> sources;
    {
      const MutexLock lock(mutex_);
      if (sources_.empty()) return {};
      ASHLAR_CHECK(!is_asking_, "two threads ask for snapshots at once");
      sources = sources_;
      is_asking_ = true;
    }
    const Asking asking(*this);
    std::vector<std::vector<std::byte>> out;
    for (events::SnapshotSource* source : sources) cut(source->snapshot(), out);
    return out;
  }

 private:
  class Asking {
   public:
    explicit Asking(Snapshots& owner) : owner_(owner) {}
    ~Asking() {
      {
        const MutexLock lock(owner_.mutex_);
        owner_.is_asking_ = false;
      }
      owner_.asked_.notify_all();
    }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

   private:
    Snapshots& owner_;
  };

  void cut(const events::OwnedBatch& whole, std::vector<std::vector<std::byte>>& out) const {
    events::EventBatch part = whole.view();
    const std::span<const events::KvEvent> events = part.events;
    part.kind = events::BatchKind::kSnapshot;
    part.parts = static_cast<std::uint32_t>(std::max<std::size_t>((events.size() + part_ - 1) / part_, 1));
    for (part.part = 0; part.part < part.parts; ++part.part) {
      const std::size_t begin = part.part * part_;
      part.events = events.subspan(begin, std::min(part_, events.size() - begin));
      events::encode_batch(part, out.emplace_back());
    }
    ASHLAR_DCHECK(part.parts * part_ >= events.size(), "%u parts of %zu events do not hold all of %zu",
                  part.parts, part_, events.size());
  }

  const std::size_t part_;
  Mutex mutex_;
  CondVar asked_;
  std::vector<events::SnapshotSource*> sources_ ASHLAR_GUARDED_BY(mutex_);
  bool is_asking_ ASHLAR_GUARDED_BY(mutex_) = false;
};

Result<void> ZmqBatchSink::Options::validate() const {
  if (snapshot_part == 0) return make_error(ErrorCode::kInvalidArgument, "snapshot_part must not be 0");
  return publisher.validate();
}

ZmqBatchSink::ZmqBatchSink(Options options, std::shared_ptr<Snapshots> snapshots,
                           std::unique_ptr<EnginePublisher> publisher)
    : options_(std::move(options)), snapshots_(std::move(snapshots)), publisher_(std::move(publisher)) {}

ZmqBatchSink::~ZmqBatchSink() = default;

Result<std::unique_ptr<ZmqBatchSink>> ZmqBatchSink::create(Options options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  auto snapshots = std::make_shared<Snapshots>(options.snapshot_part);
  options.publisher.snapshot = [snapshots] { return snapshots->make(); };
  ASHLAR_TRY(auto publisher, EnginePublisher::create(options.publisher));
  return std::unique_ptr<ZmqBatchSink>(
      new ZmqBatchSink(std::move(options), std::move(snapshots), std::move(publisher)));
}

Result<void> ZmqBatchSink::publish(const events::EventBatch& batch) {
  events::encode_batch(batch, bytes_);
  ASHLAR_RETURN_IF_ERROR(publisher_->publish(options_.topic, bytes_));
  return {};
}

std::string ZmqBatchSink::describe() const {
  return "zmq " + publisher_->endpoint() + " topic '" + options_.topic + "'";
}

void ZmqBatchSink::serve_snapshots(events::SnapshotSource* source) {
  snapshots_->serve(source);
}
void ZmqBatchSink::add_snapshots(events::SnapshotSource& source) {
  snapshots_->add(source);
}
void ZmqBatchSink::remove_snapshots(events::SnapshotSource& source) {
  snapshots_->remove(source);
}

}  // namespace ashlar::backend::zmq
