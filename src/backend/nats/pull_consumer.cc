#include "backend/nats/pull_consumer.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/nats/nats_error.h"

namespace ashlar::backend::nats {
namespace {

constexpr std::chrono::minutes kForgetAfter(5);
constexpr std::chrono::seconds kRequest(30);
constexpr std::chrono::seconds kGrace(5);
constexpr std::chrono::milliseconds kTurn(100);
// In flight to a consumer, or not yet acknowledged by it. The server's default is 1000.
constexpr std::int64_t kUnacknowledged = 1 << 20;

Result<ConsumerInfo> find_or_make(const JetStream& jet_stream, const PullConsumer::Options& options) {
  const std::string what = "a consumer of stream '" + options.stream + "'";
  ConsumerInfo info;
  auto code = static_cast<jsErrCode>(0);
  if (!options.durable.empty()) {
    const natsStatus status = js_GetConsumerInfo(Out(info), jet_stream.get(), options.stream.c_str(),
                                                 options.durable.c_str(), nullptr, &code);
    if (status == NATS_OK) {
      const char* filter = info->Config->FilterSubject;
      if (filter != nullptr && options.subjects == filter && info->Config->DeliverSubject == nullptr)
        return info;
      return make_error(
          ErrorCode::kInvalidArgument,
          "the durable consumer '%s' of stream '%s' is for %s, not for %s; give another name, or delete it",
          options.durable.c_str(), options.stream.c_str(), filter == nullptr ? "everything" : filter,
          options.subjects.c_str());
    }
    if (status != NATS_NOT_FOUND) return JetStream::error(status, code, what);
  }
  jsConsumerConfig config;
  jsConsumerConfig_Init(&config);
  if (options.durable.empty()) {
    config.InactiveThreshold = std::chrono::nanoseconds(kForgetAfter).count();
  } else {
    config.Durable = options.durable.c_str();
  }
  config.FilterSubject = options.subjects.c_str();
  config.DeliverPolicy = options.from_start ? js_DeliverAll : js_DeliverNew;
  config.AckPolicy = options.acknowledge ? js_AckExplicit : js_AckNone;
  if (options.acknowledge) {
    config.AckWait = std::chrono::nanoseconds(options.ack_wait).count();
    config.MaxAckPending = kUnacknowledged;
  }
  const natsStatus status =
      js_AddConsumer(Out(info), jet_stream.get(), options.stream.c_str(), &config, nullptr, &code);
  if (status != NATS_OK) return JetStream::error(status, code, what);
  return info;
}

}  // namespace

Result<PullConsumer> PullConsumer::create(NatsConnection& connection, const JetStream& jet_stream,
                                          const Options& options) {
  ASHLAR_TRY(ConsumerInfo info, find_or_make(jet_stream, options));
  PullConsumer self(connection, options);
  self.pending_ = info->NumPending;
  self.subject_ = "$JS.API.CONSUMER.MSG.NEXT." + options.stream + "." + info->Name;
  self.generation_ = connection.reconnects();
  natsStatus status = natsInbox_Create(Out(self.inbox_));
  if (status == NATS_OK) status = connection.subscribe(self.inbox_.get(), self.subscription_);
  // As many arrive as were requested.
  if (status == NATS_OK) status = natsSubscription_SetPendingLimits(self.subscription_.get(), -1, -1);
  if (status != NATS_OK) return nats_error(status, "a consumer of JetStream");
  return self;
}

PullConsumer::~PullConsumer() {
  if (subscription_ == nullptr || !acknowledge_) return;
  std::uint64_t queued = 0;
  natsSubscription_QueuedMsgs(subscription_.get(), &queued);
  for (; queued > 0; --queued) {
    Message message;
    if (natsSubscription_NextMsg(Out(message), subscription_.get(), 1) != NATS_OK) continue;
    const char* reply = natsMsg_GetReply(message.get());
    if (reply != nullptr) natsConnection_PublishString(connection_->get(), reply, "-NAK");
  }
}

Result<void> PullConsumer::request() {
  const std::string text = "{\"batch\":" + std::to_string(ahead_) +
                           ",\"expires\":" + std::to_string(std::chrono::nanoseconds(kRequest).count()) + "}";
  const natsStatus status = natsConnection_PublishRequest(connection_->get(), subject_.c_str(), inbox_.get(),
                                                          text.data(), static_cast<int>(text.size()));
  if (status != NATS_OK) return nats_error(status, "a request to JetStream");
  ASHLAR_DCHECK(asked_for_ <= ahead_,
                "%zu messages are requested already; another request may follow %zu at most", asked_for_,
                ahead_);
  asked_for_ += ahead_;
  expires_ = std::chrono::steady_clock::now() + kRequest + kGrace;
  return {};
}

// An empty message without a reply subject is about a request: it expired, or its consumer is gone.
Result<void> PullConsumer::read_status(natsMsg* message) {
  const char* status = nullptr;
  const char* description = nullptr;
  const char* left = nullptr;
  natsMsgHeader_Get(message, "Status", &status);
  natsMsgHeader_Get(message, "Description", &description);
  natsMsgHeader_Get(message, "Nats-Pending-Messages", &left);
  const std::string_view code = status == nullptr ? "" : status;
  const std::string_view text = description == nullptr ? "" : description;
  if (code == "100") return {};
  if (code == "409" &&
      (text.find("Deleted") != std::string_view::npos || text.find("Push") != std::string_view::npos))
    return make_error(ErrorCode::kUnavailable, "a consumer of JetStream: %s", description);
  std::size_t pending = asked_for_;
  if (left != nullptr) std::from_chars(left, left + std::string_view(left).size(), pending);
  asked_for_ -= std::min(pending, asked_for_);
  return {};
}

Result<std::size_t> PullConsumer::fetch(std::size_t count, std::chrono::milliseconds timeout,
                                        const std::function<void(natsMsg*)>& take) {
  const Time deadline = std::chrono::steady_clock::now() + timeout;
  std::size_t got = 0;
  bool waited = false;
  while (got < count) {
    const Time now = std::chrono::steady_clock::now();
    // A server we reconnected to has forgotten our request.
    if (const std::uint64_t generation = connection_->reconnects();
        generation != generation_ || now >= expires_) {
      generation_ = generation;
      asked_for_ = 0;
    }
    if (asked_for_ <= ahead_ / 2) {
      ASHLAR_RETURN_IF_ERROR(request());
    }
    std::uint64_t queued = 0;
    natsSubscription_QueuedMsgs(subscription_.get(), &queued);
    if (queued == 0 && (got > 0 || (waited && now >= deadline))) break;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now).count();
    Message message;
    // In slices, in case the connection comes back meanwhile.
    const natsStatus status = natsSubscription_NextMsg(
        Out(message), subscription_.get(), queued > 0 ? 1 : std::clamp<std::int64_t>(left, 1, kTurn.count()));
    waited = true;
    if (status == NATS_TIMEOUT) continue;
    if (status != NATS_OK) return nats_error(status, "fetching from JetStream");
    const char* reply = natsMsg_GetReply(message.get());
    if (reply == nullptr || reply[0] == '\0') {
      ASHLAR_RETURN_IF_ERROR(read_status(message.get()));
      continue;
    }
    asked_for_ -= std::min<std::size_t>(asked_for_, 1);
    ++got;
    take(message.get());
    // A lost acknowledgement only causes a redelivery.
    if (acknowledge_) natsConnection_PublishString(connection_->get(), reply, "+ACK");
  }
  ASHLAR_DCHECK(got <= count, "a fetch of %zu messages handed over %zu", count, got);
  return got;
}

}  // namespace ashlar::backend::nats
