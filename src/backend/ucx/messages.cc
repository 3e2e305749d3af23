#include "backend/ucx/messages.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <random>
#include <utility>

#include "ashlar/base/check.h"
#include "backend/ucx/peer_store.h"

namespace ashlar::backend::ucx {
namespace {

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
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker.handle(), &parameters);
  ASHLAR_CHECK(status == UCS_OK, "UCX takes no handler for messages: %s", reason(status).c_str());
}

RegionTable::Name RegionTable::add(std::shared_ptr<storage::Storage> storage, storage::AccessMode mode) {
  std::random_device random;
  const std::uint64_t token = std::uint64_t{random()} << 32 | random();
  const MutexLock lock(mu_);
  const std::uint64_t region = next_++;
  regions_.emplace(region, Region{std::move(storage), token, mode});
  return {region, token};
}

void RegionTable::remove(std::uint64_t region) {
  std::shared_ptr<storage::Storage> last;  // goes outside the lock
  const MutexLock lock(mu_);
  const auto found = regions_.find(region);
  ASHLAR_CHECK(found != regions_.end(), "a region of memory is withdrawn twice");
  last = std::move(found->second.storage);
  regions_.erase(found);
}

const RegionTable::Region* RegionTable::look_up(const RequestHeader& request) const {
  const auto found = regions_.find(request.region);
  if (found == regions_.end() || found->second.token != request.token) return nullptr;
  const std::uint64_t size = found->second.storage->size();
  if (request.bytes == 0 || request.offset > size || request.bytes > size - request.offset) return nullptr;
  return &found->second;
}

std::shared_ptr<storage::Storage> RegionTable::find(const RequestHeader& request) const {
  const MutexLock lock(mu_);
  const Region* region = look_up(request);
  return region == nullptr ? nullptr : region->storage;
}

Verdict RegionTable::write(const RequestHeader& request, std::span<const std::byte> bytes) {
  const MutexLock lock(mu_);
  const Region* region = look_up(request);
  if (region == nullptr || bytes.size() != request.bytes) return Verdict::kNotOffered;
  if (region->mode != storage::AccessMode::kReadWrite) return Verdict::kReadOnly;
  store_for_peer(region->storage->address() + request.offset, bytes);
  return Verdict::kGranted;
}

Result<std::unique_ptr<Responder>> Responder::create(std::unique_ptr<UcxWorker> worker,
                                                     std::shared_ptr<RegionTable> table) {
  std::unique_ptr<Responder> out(new Responder(std::move(worker), std::move(table)));
  take_messages(*out->worker_, kQuestion, asked, out.get());
  take_messages(*out->worker_, kGet, wants_bytes, out.get());
  take_messages(*out->worker_, kPut, brings_bytes, out.get());
  sockaddr_in any{};
  any.sin_family = AF_INET;
  ucp_listener_params_t parameters{};
  parameters.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  parameters.sockaddr = {reinterpret_cast<const sockaddr*>(&any), sizeof any};
  parameters.conn_handler = {connected, out.get()};
  ucs_status_t status = ucp_listener_create(out->worker_->handle(), &parameters, &out->listener_);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (status == UCS_OK) status = ucp_listener_query(out->listener_, &attributes);
  if (status != UCS_OK)
    return make_error(ErrorCode::kIo, "UCX cannot listen for peers: %s", reason(status).c_str());
  sockaddr_in bound{};
  std::memcpy(&bound, &attributes.sockaddr, sizeof bound);
  out->port_ = ntohs(bound.sin_port);
  return out;
}

Responder::~Responder() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  worker_.reset();  // ends replies that are on their way
}

void Responder::connected(ucp_conn_request_h request, void* user) {
  static_cast<Responder*>(user)->arrivals_.push_back(request);
}

void Responder::lost(void* user, ucp_ep_h endpoint, ucs_status_t) {
  static_cast<Responder*>(user)->lost_.push_back(endpoint);
}

bool Responder::progress() {
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
    ucp_ep_create(worker_->handle(), &parameters, &endpoint);  // a peer that is gone already is nobody's loss
    moved = true;
  }
  while (!lost_.empty()) {
    ucp_request_param_t force{};
    force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    force.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucp_ep_h endpoint = lost_.back();
    lost_.pop_back();
    ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint, &force);
    if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
    moved = true;
  }
  return moved;
}

void Responder::reply(const ucp_am_recv_param_t* parameters, unsigned id, const ReplyHeader& header,
                      std::shared_ptr<storage::Storage> memory, std::uint64_t offset, std::uint64_t bytes) {
  auto sending = std::make_unique<Sending>();
  sending->responder = this;
  sending->header = header;
  const std::byte* start = memory == nullptr ? nullptr : memory->address() + offset;
  sending->memory = std::move(memory);
  ucp_request_param_t options{};
  options.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  options.cb.send = sent;
  options.user_data = sending.get();
  options.flags = UCP_AM_SEND_FLAG_EAGER;
  // A peer that is gone gets nothing.
  if (UCS_PTR_IS_PTR(ucp_am_send_nbx(parameters->reply_ep, id, &sending->header, sizeof sending->header,
                                     start, bytes, &options))) {
    Sending* key = sending.get();
    sending_.emplace(key, std::move(sending));
  }
}

void Responder::sent(void* request, ucs_status_t, void* user) {
  auto* sending = static_cast<Sending*>(user);
  sending->responder->sending_.erase(sending);
  ucp_request_free(request);
}

ucs_status_t Responder::asked(void* user, const void*, std::size_t, void*, std::size_t,
                              const ucp_am_recv_param_t* parameters) {
  if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0)
    static_cast<Responder*>(user)->reply(parameters, kAnswer, {}, nullptr, 0, 0);
  return UCS_OK;
}

ucs_status_t Responder::wants_bytes(void* user, const void* header, std::size_t header_length, void*,
                                    std::size_t, const ucp_am_recv_param_t* parameters) {
  auto* responder = static_cast<Responder*>(user);
  RequestHeader request;
  if (request_of(header, header_length, parameters, &request) == nullptr) return UCS_OK;
  std::shared_ptr<storage::Storage> memory = responder->table_->find(request);
  const bool granted = memory != nullptr;
  responder->reply(parameters, kReply, {request.tag, granted ? Verdict::kGranted : Verdict::kNotOffered},
                   std::move(memory), granted ? request.offset : 0, granted ? request.bytes : 0);
  return UCS_OK;
}

ucs_status_t Responder::brings_bytes(void* user, const void* header, std::size_t header_length, void* data,
                                     std::size_t length, const ucp_am_recv_param_t* parameters) {
  auto* responder = static_cast<Responder*>(user);
  RequestHeader request;
  if (request_of(header, header_length, parameters, &request) == nullptr) return UCS_OK;
  const bool here = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  const Verdict verdict =
      here ? responder->table_->write(request, {static_cast<const std::byte*>(data), length})
           : Verdict::kNotOffered;
  responder->reply(parameters, kReply, {request.tag, verdict}, nullptr, 0, 0);
  return UCS_OK;
}

}  // namespace ashlar::backend::ucx
