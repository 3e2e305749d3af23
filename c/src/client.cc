// The client of `ashlar serve` in the C interface.
#include <string>
#include <string_view>

#include "ashlar/client/service_client.h"
#include "c/src/calls.h"

namespace ashlar::c_interface {
namespace {

struct ClientObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kClient;
  explicit ClientObject(client::ServiceClient its) : client(std::move(its)) {}
  const client::ServiceClient client;
};

struct AnswerObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kAnswer;
  explicit AnswerObject(client::ServiceAnswer its) : answer(std::move(its)) {}
  const client::ServiceAnswer answer;
};

static_assert(sizeof(ashlar_route_score) == sizeof(client::RouteScore) &&
              offsetof(ashlar_route_score, disk) == offsetof(client::RouteScore, disk));

void open_answer(client::ServiceAnswer answer, ashlar_answer* out) {
  out->id = open_handle(std::make_shared<AnswerObject>(std::move(answer)));
}

std::string_view view_of(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text);
}

}  // namespace
}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;

ashlar_status ashlar_client_create(const ashlar_client_options* options, ashlar_client* client) {
  return waiting_call([&]() -> Outcome<> {
    if (client == nullptr) return null_pointer("client");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_client_options"));
    ashlar::client::ServiceClientOptions its;
    its.url = text_of(given.url);
    its.token = text_of(given.token);
    if (given.timeout_ms != 0) its.timeout = std::chrono::milliseconds(given.timeout_ms);
    if (given.max_bytes != 0) its.max_bytes = given.max_bytes;
    ASHLAR_TRY(auto made, ashlar::client::ServiceClient::create(std::move(its)));
    client->id = open_handle(std::make_shared<ClientObject>(std::move(made)));
    return {};
  });
}

ashlar_status ashlar_client_destroy(ashlar_client client) {
  return waiting_call([&] { return close_handle<ClientObject>(client.id); });
}

ashlar_status ashlar_client_health(ashlar_client client) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<ClientObject>(client.id));
    ASHLAR_RETURN_IF_ERROR(object->client.check_health());
    return {};
  });
}

ashlar_status ashlar_client_ready(ashlar_client client, int* ready) {
  return waiting_call([&]() -> Outcome<> {
    if (ready == nullptr) return null_pointer("ready");
    ASHLAR_TRY(const auto object, object_of<ClientObject>(client.id));
    ASHLAR_TRY(const bool is_ready, object->client.is_ready());
    *ready = is_ready ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_client_route(ashlar_client client, const ashlar_route_query* query,
                                  const uint32_t* tokens, size_t n, ashlar_route_score* out, size_t capacity,
                                  size_t* count) {
  return waiting_call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto given, options_of(query, "ashlar_route_query"));
    ASHLAR_TRY(const auto prompt, elements<const ashlar::tokens::Token>(tokens, n, "tokens"));
    ASHLAR_TRY(const auto object, object_of<ClientObject>(client.id));
    ASHLAR_RETURN_IF_ERROR(check_list(out, capacity, count));
    ASHLAR_TRY(const auto scores, object->client.query({.model = view_of(given.model),
                                                        .tokens = prompt,
                                                        .routing_group = view_of(given.routing_group),
                                                        .lora = view_of(given.lora),
                                                        .cache_salt = view_of(given.tenant)}));
    return write_list(std::span<const ashlar::client::RouteScore>(scores), out, capacity, count);
  });
}

ashlar_status ashlar_client_workers(ashlar_client client, const char* model, ashlar_answer* answer) {
  return waiting_call([&]() -> Outcome<> {
    if (answer == nullptr) return null_pointer("answer");
    ASHLAR_TRY(const auto object, object_of<ClientObject>(client.id));
    ASHLAR_TRY(auto body, object->client.workers(view_of(model)));
    open_answer({.status = 200, .body = std::move(body)}, answer);
    return {};
  });
}

ashlar_status ashlar_client_explain(ashlar_client client, const char* decision, ashlar_answer* answer) {
  return waiting_call([&]() -> Outcome<> {
    if (answer == nullptr) return null_pointer("answer");
    ASHLAR_TRY(const auto object, object_of<ClientObject>(client.id));
    ASHLAR_TRY(auto body, object->client.decision(view_of(decision)));
    open_answer({.status = 200, .body = std::move(body)}, answer);
    return {};
  });
}

ashlar_status ashlar_client_request(ashlar_client client, const char* method, const char* target,
                                    const void* body, size_t bytes, ashlar_answer* answer) {
  return waiting_call([&]() -> Outcome<> {
    if (answer == nullptr) return null_pointer("answer");
    ASHLAR_TRY(const auto sent, elements<const char>(static_cast<const char*>(body), bytes, "body"));
    ASHLAR_TRY(const auto object, object_of<ClientObject>(client.id));
    ASHLAR_TRY(auto got, object->client.request(view_of(method), view_of(target),
                                                std::string_view(sent.data(), sent.size())));
    open_answer(std::move(got), answer);
    return {};
  });
}

ashlar_status ashlar_answer_info(ashlar_answer answer, int32_t* http_status, size_t* bytes) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<AnswerObject>(answer.id));
    if (http_status != nullptr) *http_status = object->answer.status;
    if (bytes != nullptr) *bytes = object->answer.body.size();
    return {};
  });
}

ashlar_status ashlar_answer_body(ashlar_answer answer, char* out, size_t capacity, size_t* count) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<AnswerObject>(answer.id));
    return write_list(std::span<const char>(object->answer.body), out, capacity, count);
  });
}

ashlar_status ashlar_answer_destroy(ashlar_answer answer) {
  return call([&] { return close_handle<AnswerObject>(answer.id); });
}
