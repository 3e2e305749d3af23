#include "backend/ucx/messages.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "backend/ucx/descriptor_gate.h"
#include "backend/ucx/ucx_library.h"

namespace ashlar::backend::ucx {
namespace {

// How often peers are looked at that may have stopped taking replies.
constexpr Clock::Duration kCheckStalledEvery = std::chrono::milliseconds(10);

// The header of a message, if it has the right size and its sender can be answered.
const RequestHeader* request_of(const void* header, std::size_t length, const ucp_am_recv_param_t* parameters,
                                RequestHeader* out) {
  if (length != sizeof *out || (parameters->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  std::memcpy(out, header, sizeof *out);
  return out;
}

}  // namespace

void take_messages(UcxWorker& worker, unsigned id, ucp_am_recv_callback_t handler, void* user) {
  ucp_am_handler_param_t parameters{};
  parameters.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  parameters.id = id;
  parameters.cb = handler;
  parameters.arg = user;
  const ucs_status_t status = ucx().ucp_worker_set_am_recv_handler(worker.handle(), &parameters);
  ASHLAR_CHECK(status == UCS_OK, "UCX takes no handler for messages: %s", reason(status).c_str());
}

Result<std::unique_ptr<Responder>> Responder::create(std::unique_ptr<UcxWorker> worker,
                                                     std::shared_ptr<RegionTable> table,
                                                     std::unique_ptr<DeviceCopies> devices,
                                                     Clock::Duration reply_limit, const std::string& host) {
  std::unique_ptr<Responder> out(
      new Responder(std::move(worker), std::move(table), std::move(devices), reply_limit));
  take_messages(*out->worker_, kQuestion, asked, out.get());
  take_messages(*out->worker_, kGet, wants_bytes, out.get());
  take_messages(*out->worker_, kPut, brings_bytes, out.get());
  ASHLAR_RETURN_IF_ERROR(out->listen(host));
  return out;
}

Result<void> Responder::listen(const std::string& host) {
  sockaddr_in here{};
  here.sin_family = AF_INET;
  ASHLAR_CHECK(inet_pton(AF_INET, host.c_str(), &here.sin_addr) == 1, "UCX cannot listen at '%s'",
               host.c_str());
  ucp_listener_params_t parameters{};
  parameters.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  parameters.sockaddr = {reinterpret_cast<const sockaddr*>(&here), sizeof here};
  parameters.conn_handler = {connected, this};
  ucs_status_t status = UCS_OK;
  {
    const DescriptorGate::Opening alone;
    status = ucx().ucp_listener_create(worker_->handle(), &parameters, &listener_);
  }
  if (status != UCS_OK) listener_ = nullptr;
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (status == UCS_OK) status = ucx().ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK)
    return make_error(ErrorCode::kIo, "UCX cannot listen for peers at %s: %s", host.c_str(),
                      reason(status).c_str());
  sockaddr_in bound{};
  std::memcpy(&bound, &attributes.sockaddr, sizeof bound);
  port_ = ntohs(bound.sin_port);
  return {};
}

Responder::~Responder() {
  if (listener_ != nullptr) ucx().ucp_listener_destroy(listener_);
  worker_.reset();  // ends replies that are on their way
}

void Responder::connected(ucp_conn_request_h request, void* user) {
  static_cast<Responder*>(user)->arrivals_.push_back(request);
}

void Responder::lost(void* user, ucp_ep_h endpoint, ucs_status_t) {
  static_cast<Responder*>(user)->lost_.push_back(endpoint);
}

bool Responder::progress() {
  const DescriptorGate::Closing together;
  bool moved = worker_->progress();
  while (!arrivals_.empty()) {
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                            UCP_EP_PARAM_FIELD_ERR_HANDLER;
    parameters.conn_request = arrivals_.back();
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    parameters.err_handler = {lost, this};
    arrivals_.pop_back();
    ucp_ep_h endpoint = nullptr;
    // A peer that is gone already is nobody's loss.
    if (ucx().ucp_ep_create(worker_->handle(), &parameters, &endpoint) == UCS_OK)
      peers_.emplace(endpoint, std::make_shared<Peer>());
    moved = true;
  }
  while (!lost_.empty()) {
    const ucp_ep_h endpoint = lost_.back();
    lost_.pop_back();
    disconnect(endpoint);
    worker_->progress();
    moved = true;
  }
  if (devices_ != nullptr && progress_devices()) moved = true;
  return moved;
}

void Responder::disconnect(ucp_ep_h endpoint) {
  if (peers_.erase(endpoint) == 0) return;  // before UCX found it lost
  if (devices_ != nullptr) devices_->forget(endpoint);
  ucp_request_param_t force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t closing = ucx().ucp_ep_close_nbx(endpoint, &force);
  if (UCS_PTR_IS_PTR(closing)) ucx().ucp_request_free(closing);
}

bool Responder::close_stalled(Clock::TimePoint now) {
  if (replies_ == 0 || now - checked_ < kCheckStalledEvery) return false;
  checked_ = now;
  const DescriptorGate::Closing together;
  std::vector<ucp_ep_h> stalled;
  for (const auto& [endpoint, peer] : peers_)
    if (peer->replies != 0 && now - peer->moved >= reply_limit_) stalled.push_back(endpoint);
  for (const ucp_ep_h endpoint : stalled) {
    ASHLAR_LOG(LogLevel::kWarn, "ucx",
               "a peer is disconnected: %zu replies wait, and it took none of them for %lld ms",
               peers_.at(endpoint)->replies,
               static_cast<long long>(reply_limit_ / std::chrono::milliseconds(1)));
    disconnect(endpoint);
  }
  if (!stalled.empty()) worker_->progress();
  return !stalled.empty();
}

bool Responder::progress_devices() {
  bool moved = false;
  for (DeviceCopies::Buffer& buffer : std::exchange(returned_, {})) {
    devices_->give_back(std::move(buffer));
    moved = true;
  }
  for (DeviceCopies::Copy& copy : devices_->take_ended()) {
    const std::uint64_t bytes = copy.buffer.memory == nullptr ? 0 : copy.request.bytes;
    reply(copy.endpoint, kReply, {copy.request.tag, copy.verdict},
          {.bytes = bytes, .buffer = std::move(copy.buffer)});
    moved = true;
  }
  return moved;
}

void Responder::reply(ucp_ep_h endpoint, unsigned id, const ReplyHeader& header, ReplyBytes bytes) {
  auto sending = std::make_unique<Sending>();
  sending->responder = this;
  sending->header = header;
  const storage::Storage* const memory =
      bytes.memory == nullptr ? bytes.buffer.memory.get() : bytes.memory.get();
  const std::byte* start = memory == nullptr ? nullptr : memory->address() + bytes.offset;
  sending->memory = std::move(bytes.memory);
  sending->buffer = std::move(bytes.buffer);
  ucp_request_param_t options{};
  options.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  options.cb.send = sent;
  options.user_data = sending.get();
  options.flags = UCP_AM_SEND_FLAG_EAGER;
  // A peer that is gone gets nothing.
  if (UCS_PTR_IS_PTR(ucx().ucp_am_send_nbx(endpoint, id, &sending->header, sizeof sending->header, start,
                                           bytes.bytes, &options))) {
    Sending* key = sending.get();
    if (const auto peer = peers_.find(endpoint); peer != peers_.end()) {
      sending->peer = peer->second;
      if (sending->peer->replies++ == 0) sending->peer->moved = Clock::real().now();
      ++replies_;
    }
    sending_.emplace(key, std::move(sending));
    return;
  }
  release(*sending);
}

void Responder::release(Sending& sending) {
  if (sending.buffer.memory != nullptr) returned_.push_back(std::move(sending.buffer));
}

void Responder::sent(void* request, ucs_status_t, void* user) {
  auto* sending = static_cast<Sending*>(user);
  Responder* const responder = sending->responder;
  responder->release(*sending);
  if (sending->peer != nullptr) {
    --sending->peer->replies;
    sending->peer->moved = Clock::real().now();
    --responder->replies_;
  }
  responder->sending_.erase(sending);
  ucx().ucp_request_free(request);
}

ucs_status_t Responder::asked(void* user, const void*, std::size_t, void*, std::size_t,
                              const ucp_am_recv_param_t* parameters) {
  if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0)
    static_cast<Responder*>(user)->reply(parameters->reply_ep, kAnswer, {});
  return UCS_OK;
}

ucs_status_t Responder::wants_bytes(void* user, const void* header, std::size_t header_length, void*,
                                    std::size_t, const ucp_am_recv_param_t* parameters) {
  auto* responder = static_cast<Responder*>(user);
  RequestHeader request;
  if (request_of(header, header_length, parameters, &request) == nullptr) return UCS_OK;
  std::shared_ptr<storage::Storage> memory = responder->table_->find(request);
  if (memory == nullptr) {
    responder->reply(parameters->reply_ep, kReply, {request.tag, Verdict::kNotOffered});
  } else if (memory->host_accessible()) {
    responder->reply(parameters->reply_ep, kReply, {request.tag, Verdict::kGranted},
                     {.memory = std::move(memory), .offset = request.offset, .bytes = request.bytes});
  } else if (!responder->devices_->add({.endpoint = parameters->reply_ep, .request = request})) {
    responder->reply(parameters->reply_ep, kReply, {request.tag, Verdict::kBusy});
  }
  return UCS_OK;
}

ucs_status_t Responder::brings_bytes(void* user, const void* header, std::size_t header_length, void* data,
                                     std::size_t length, const ucp_am_recv_param_t* parameters) {
  auto* responder = static_cast<Responder*>(user);
  RequestHeader request;
  if (request_of(header, header_length, parameters, &request) == nullptr) return UCS_OK;
  const bool here = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(data), length);
  bool on_device = false;
  Verdict verdict = here ? responder->table_->write(request, bytes, &on_device) : Verdict::kNotOffered;
  // UCX's bytes are gone after this call.
  if (on_device) {
    if (responder->devices_->add({.endpoint = parameters->reply_ep,
                                  .request = request,
                                  .puts = true,
                                  .bytes = {bytes.begin(), bytes.end()}}))
      return UCS_OK;
    verdict = Verdict::kBusy;
  }
  responder->reply(parameters->reply_ep, kReply, {request.tag, verdict});
  return UCS_OK;
}

}  // namespace ashlar::backend::ucx
