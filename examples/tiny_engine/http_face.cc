#include "tiny_engine/http_face.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

namespace tiny_engine {
namespace {

using namespace ashlar;
using backend::http::HttpExchange;
using backend::http::HttpServer;

constexpr std::string_view kJson = "application/json";

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void refuse(HttpExchange& exchange, unsigned status, std::string_view message) {
  exchange.reply(status, kJson, error_body(status, message, exchange.target().starts_with("/v1/messages")));
}

void refuse(HttpExchange& exchange, const Error& error) {
  refuse(exchange, error.code() == ErrorCode::kNotFound ? 404 : 400, error.message());
}

std::string endpoint_at(const FaceOptions& options, std::uint16_t port, std::uint32_t rank) {
  return "tcp://" + options.host + ":" + (port == 0 ? std::string("*") : std::to_string(port + rank));
}

}  // namespace

// ---- an answer

// One answer, whole or as a stream; of several prompts, where the request has them. Used by the thread of one
// loop.
class HttpFace::Answer {
 public:
  Answer(HttpFace& face, Exchange exchange, const ApiCall& call, std::string_view id)
      : face_(face),
        exchange_(std::move(exchange)),
        texts_(call, face.options_.card, id, unix_seconds()),
        streams_(call.stream),
        samples_(call.samples),
        max_tokens_(call.max_tokens),
        left_(call.prompts.size()),
        choices_(call.choices()),
        cached_(call.prompts.size()) {
    for (const std::vector<Token>& prompt : call.prompts) prompt_tokens_ += prompt.size();
  }

  bool is_gone() const { return exchange_->is_gone(); }

  void on_token(std::size_t prompt, std::size_t sample, Token token, std::size_t cached_tokens) {
    const std::size_t index = prompt * samples_ + sample;
    ApiChoice& choice = choices_[index];
    choice.tokens.push_back(token);
    choice.is_complete = choice.tokens.size() == max_tokens_;
    cached_[prompt] = cached_tokens;
    if (!streams_ || is_over_) return;
    if (number_ == 0) begin();
    // The middle of the stream.
    if (sent_ >= std::max<std::size_t>(1, choices_.size() * max_tokens_ / 2)) fail_as_told();
    ++sent_;
    if (!is_over_) exchange_->write(texts_.token(index, choice));
  }

  void on_end(const std::vector<Reply>& replies) {
    for (const Reply& reply : replies)
      if (error_.empty()) error_ = reply.error;
    if (--left_ > 0) return;
    if (number_ != 0) fail_as_told();
    if (std::exchange(is_over_, true)) return;
    if (number_ == 0) {
      if (error_.empty()) return exchange_->reply(200, kJson, texts_.whole(choices_, usage()));
      return refuse(*exchange_, 500, error_);
    }
    exchange_->write(error_.empty() ? texts_.end(choices_, usage())
                                    : "data: " + error_body(500, error_, false) + "\n\n");
    exchange_->end();
  }

 private:
  void begin() {
    number_ = ++face_.streams_;
    exchange_->begin(200, "text/event-stream; charset=utf-8", {{"cache-control", "no-cache"}});
    ApiUsage so_far = usage();
    so_far.completion_tokens = 0;
    if (const std::string first = texts_.begin(so_far); !first.empty()) exchange_->write(first);
  }
  ApiUsage usage() const {
    ApiUsage usage{.prompt_tokens = prompt_tokens_, .has_cached = face_.options_.shows_cached_tokens};
    for (const ApiChoice& choice : choices_) usage.completion_tokens += choice.tokens.size();
    for (const std::size_t cached : cached_) usage.cached_tokens += cached;
    if (face_.options_.faults.lie_usage) usage.cached_tokens += face_.options_.engine.block_size;
    return usage;
  }
  void fail_as_told() {
    const FaceFaults& faults = face_.options_.faults;
    if (number_ == faults.die_after) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // what was written leaves first
      std::abort();
    }
    if (number_ != faults.stall_after || is_over_) return;
    is_over_ = true;
    face_.keep_stalled(exchange_);
  }

  HttpFace& face_;
  const Exchange exchange_;
  const ApiAnswer texts_;
  const bool streams_;
  const std::size_t samples_;
  const std::size_t max_tokens_;
  std::size_t prompt_tokens_ = 0;
  std::size_t left_;          // prompts whose replies are to come
  std::uint64_t number_ = 0;  // of the stream, from 1; 0: nothing is sent yet
  std::size_t sent_ = 0;      // tokens
  bool is_over_ = false;      // nothing more is sent
  std::string error_;
  std::vector<ApiChoice> choices_;
  std::vector<std::size_t> cached_;  // by prompt
};

class HttpFace::PromptClient final : public LoopClient {
 public:
  PromptClient(std::shared_ptr<Answer> answer, std::size_t prompt)
      : answer_(std::move(answer)), prompt_(prompt) {}
  bool is_gone() const override { return answer_->is_gone(); }
  void on_token(std::size_t sample, Token token, std::size_t cached_tokens) override {
    answer_->on_token(prompt_, sample, token, cached_tokens);
  }
  void on_end(std::vector<Reply> replies) override { answer_->on_end(replies); }

 private:
  const std::shared_ptr<Answer> answer_;
  const std::size_t prompt_;
};

// ---- the server

HttpFace::HttpFace(FaceOptions options) : options_(std::move(options)) {}

Result<std::unique_ptr<HttpFace>> HttpFace::create(FaceOptions options) {
  options.engine.model = byte_model(options.seed);
  if (options.layers != 0) options.engine.model.layers = options.layers;
  if (options.hidden != 0) options.engine.model.hidden = options.hidden;
  if (options.card.created == 0) options.card.created = unix_seconds();
  if (options.data_parallel == 0)
    return Error(ErrorCode::kInvalidArgument, "there must be at least one data-parallel rank");
  std::unique_ptr<HttpFace> face(new HttpFace(std::move(options)));
  ASHLAR_RETURN_IF_ERROR(face->start());
  return face;
}

Result<void> HttpFace::start() {
  for (std::uint32_t rank = 0; rank < options_.data_parallel; ++rank) {
    EngineLoopOptions loop{.engine = options_.engine,
                           .sockets = {.endpoint = endpoint_at(options_, options_.events_port, rank),
                                       .attach = backend::zmq::Attach::kBind,
                                       .replay_endpoint = endpoint_at(options_, options_.replay_port, rank),
                                       .buffer_steps = options_.buffer_steps},
                           .events = {.data_parallel_rank = rank, .delay = options_.late_events}};
    if (const std::uint64_t every = options_.faults.drop_event_every; every > 0)
      loop.sockets.sends = [every](std::uint64_t number) { return (number + 1) % every != 0; };
    ASHLAR_TRY(loops_.emplace_back(), EngineLoop::create(std::move(loop)));
    ASHLAR_TRY(std::vector<MetricRegistration> tiers,
               loops_.back()->add_metrics(tier_metrics_, std::to_string(rank)));
    std::move(tiers.begin(), tiers.end(), std::back_inserter(registrations_));
  }
  ASHLAR_TRY(server_, HttpServer::create({.address = options_.host, .port = options_.port},
                                         [this](const Exchange& exchange) { handle(exchange); }));
  return {};
}

HttpFace::~HttpFace() {
  // In this order: loops write to exchanges, which belong to the server, whose handler calls the loops.
  for (const auto& loop : loops_) loop->stop();
  stalled_.clear();
  server_.reset();
}

void HttpFace::drain(Clock::TimePoint until) {
  std::vector<Exchange> stalled;
  {
    const std::lock_guard lock(stalled_mu_);
    stalled.swap(stalled_);
  }
  for (const Exchange& exchange : stalled) exchange->abort();
  server_->drain(until);
}

void HttpFace::keep_stalled(Exchange exchange) {
  const std::lock_guard lock(stalled_mu_);
  stalled_.push_back(std::move(exchange));
}

std::vector<std::string> HttpFace::event_endpoints() const {
  std::vector<std::string> endpoints;
  for (const auto& loop : loops_) endpoints.push_back(loop->events_endpoint());
  return endpoints;
}

std::vector<std::string> HttpFace::replay_endpoints() const {
  std::vector<std::string> endpoints;
  for (const auto& loop : loops_) endpoints.push_back(loop->replay_endpoint());
  return endpoints;
}

// ---- requests

struct HttpFace::Route {
  std::string_view method;
  std::string_view path;
  void (*answer)(HttpFace& face, const Exchange& exchange);
};

void HttpFace::handle(const Exchange& exchange) {
  static const std::array kRoutes = std::to_array<Route>({
      {"POST", "/v1/chat/completions", [](auto& face, auto& to) { face.generate(ApiForm::kChat, to); }},
      {"POST", "/v1/completions", [](auto& face, auto& to) { face.generate(ApiForm::kCompletions, to); }},
      {"POST", "/v1/responses", [](auto& face, auto& to) { face.generate(ApiForm::kResponses, to); }},
      {"POST", "/v1/messages", [](auto& face, auto& to) { face.generate(ApiForm::kMessages, to); }},
      {"POST", "/v1/embeddings", [](auto& face, auto& to) { face.generate(ApiForm::kEmbeddings, to); }},
      {"POST", "/v1/chat/completions/render", [](auto& face, auto& to) { face.render(ApiForm::kChat, to); }},
      {"POST", "/v1/completions/render",
       [](auto& face, auto& to) { face.render(ApiForm::kCompletions, to); }},
      {"POST", "/v1/responses/render", [](auto& face, auto& to) { face.render(ApiForm::kResponses, to); }},
      {"POST", "/v1/messages/render", [](auto& face, auto& to) { face.render(ApiForm::kMessages, to); }},
      {"POST", "/tokenize", [](auto& face, auto& to) { face.tokenize(to); }},
      {"POST", "/detokenize", [](auto& face, auto& to) { face.detokenize(to); }},
      {"POST", "/reset_prefix_cache", [](auto& face, auto& to) { face.reset_prefix_cache(to); }},
      {"GET", "/v1/models", [](auto& face, auto& to) { face.show_models(to); }},
      {"GET", "/metrics", [](auto& face, auto& to) { face.show_metrics(to); }},
      {"GET", "/health", [](auto&, auto& to) { to->reply(200, kJson, ""); }},
      {"GET", "/version", [](auto&, auto& to) { to->reply(200, kJson, R"({"version":"tiny-0.1.0"})"); }},
  });
  const std::string_view path = exchange->target().substr(0, exchange->target().find('?'));
  const auto route =
      std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& one) { return one.path == path; });
  if (route == kRoutes.end() || (options_.faults.no_tokenize && path == "/tokenize"))
    return refuse(*exchange, 404, "there is no " + std::string(path));
  if (route->method != exchange->method())
    return exchange->reply(405, kJson,
                           error_body(405, std::string(path) + " takes " + std::string(route->method), false),
                           {{"allow", std::string(route->method)}});
  route->answer(*this, exchange);
}

void HttpFace::generate(ApiForm form, const Exchange& exchange) {
  const Result<Json> body = Json::parse(exchange->body());
  if (!body) return refuse(*exchange, body.error());
  Result<ApiCall> call = read_call(form, *body, options_.card);
  if (!call) return refuse(*exchange, call.error());
  const Result<EngineLoop*> loop = choose_rank(exchange);
  if (!loop) return refuse(*exchange, loop.error());
  std::string id(exchange->header("x-request-id"));
  if (id.empty()) id = std::to_string(++requests_);
  const auto answer = std::make_shared<Answer>(*this, exchange, *call, id);
  for (std::size_t i = 0; i < call->prompts.size(); ++i)
    (*loop)->submit({.prompt = std::move(call->prompts[i]),
                     .new_tokens = call->max_tokens,
                     .samples = call->samples,
                     .tenant = call->tenant},
                    std::make_shared<PromptClient>(answer, i));
}

Result<EngineLoop*> HttpFace::choose_rank(const Exchange& exchange) {
  if (const std::string_view name = exchange->header("x-data-parallel-rank"); !name.empty()) {
    std::size_t rank = 0;
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), rank);
    if (wrong != std::errc() || end != name.data() + name.size() || rank >= loops_.size())
      return Error(ErrorCode::kInvalidArgument, "X-data-parallel-rank must be a number below " +
                                                    std::to_string(loops_.size()) + ", not '" +
                                                    std::string(name) + "'");
    return loops_[rank].get();
  }
  const auto least = std::min_element(loops_.begin(), loops_.end(),
                                      [](const auto& a, const auto& b) { return a->load() < b->load(); });
  return least->get();
}

void HttpFace::render(ApiForm form, const Exchange& exchange) {
  if (!options_.renders)
    return refuse(*exchange, 403, "Scale-out endpoints are disabled; --enable-scale-out enables them.");
  const Result<Json> body = Json::parse(exchange->body());
  if (!body) return refuse(*exchange, body.error());
  const Result<ApiCall> call = read_call(form, *body, options_.card);
  if (!call) return refuse(*exchange, call.error());
  exchange->reply(200, kJson, render_body(*call, options_.card, std::to_string(++requests_)));
}

void HttpFace::tokenize(const Exchange& exchange) {
  const Result<Json> body = Json::parse(exchange->body());
  if (!body) return refuse(*exchange, body.error());
  if (const auto known = check_model(*body, options_.card); !known) return refuse(*exchange, known.error());
  const auto tokens = read_tokenize(*body);
  if (!tokens) return refuse(*exchange, tokens.error());
  std::string out = "{\"count\":" + std::to_string(tokens->size()) +
                    ",\"max_model_len\":" + std::to_string(options_.card.max_model_len) +
                    ",\"tokens\":" + token_list(*tokens) + ",\"token_strs\":";
  if ((*body)["return_token_strs"].truth) {
    for (std::size_t i = 0; i < tokens->size(); ++i)
      out += (i == 0 ? "[" : ",") + json_quoted(byte_text(std::span(*tokens).subspan(i, 1)));
    out += tokens->empty() ? "[]" : "]";
  } else {
    out += "null";
  }
  exchange->reply(200, kJson, out + "}");
}

void HttpFace::detokenize(const Exchange& exchange) {
  const Result<Json> body = Json::parse(exchange->body());
  if (!body) return refuse(*exchange, body.error());
  if (const auto known = check_model(*body, options_.card); !known) return refuse(*exchange, known.error());
  const auto tokens = read_token_ids((*body)["tokens"]);
  if (!tokens) return refuse(*exchange, tokens.error());
  exchange->reply(200, kJson, "{\"prompt\":" + json_quoted(byte_text(*tokens)) + "}");
}

void HttpFace::show_models(const Exchange& exchange) {
  const std::string name = json_quoted(options_.card.name);
  exchange->reply(200, kJson,
                  R"({"object":"list","data":[{"id":)" + name + R"(,"object":"model","created":)" +
                      std::to_string(options_.card.created) + R"(,"owned_by":"vllm","root":)" + name +
                      R"(,"parent":null,"max_model_len":)" + std::to_string(options_.card.max_model_len) +
                      R"(,"permission":[]}]})");
}

void HttpFace::show_metrics(const Exchange& exchange) {
  std::vector<LoopGauges> gauges;
  for (const auto& loop : loops_) gauges.push_back(loop->gauges());
  std::string out;
  const auto add = [&](const std::string& name, std::string_view kind, auto value,
                       const std::string& labels = {}) {
    if (!kind.empty()) out += "# TYPE " + name + " " + std::string(kind) + "\n";
    for (std::size_t rank = 0; rank < gauges.size(); ++rank)
      out += name + "{engine=\"" + std::to_string(rank) + "\"," + labels +
             "model_name=" + json_quoted(options_.card.name) + "} " + std::to_string(value(gauges[rank])) +
             "\n";
  };
  add("vllm:num_requests_running", "gauge", [](const LoopGauges& of) { return of.running; });
  add("vllm:num_requests_waiting", "gauge", [](const LoopGauges& of) { return of.waiting; });
  add("vllm:prefix_cache_queries_total", "counter", [](const LoopGauges& of) { return of.prompt_tokens; });
  add("vllm:prefix_cache_hits_total", "counter", [](const LoopGauges& of) { return of.cached_tokens; });
  add("vllm:num_preemptions_total", "counter", [](const LoopGauges& of) { return of.preemptions; });
  add(
      "vllm:request_success_total", "counter", [](const LoopGauges& of) { return of.finished; },
      "finished_reason=\"length\",");
  add(
      "vllm:request_success_total", "", [](const LoopGauges& of) { return of.aborted; },
      "finished_reason=\"abort\",");
  out += "# TYPE vllm:cache_config_info gauge\n";
  for (std::size_t rank = 0; rank < gauges.size(); ++rank)
    out += "vllm:cache_config_info{block_size=\"" + std::to_string(options_.engine.block_size) +
           "\",enable_prefix_caching=\"" + (options_.engine.prefix_caching ? "True" : "False") +
           "\",engine=\"" + std::to_string(rank) + "\",num_gpu_blocks=\"" +
           std::to_string(options_.engine.kv.g1.block_count) + "\"} 1\n";
  out += tier_metrics_.prometheus_text();
  exchange->reply(200, "text/plain; version=0.0.4; charset=utf-8", out);
}

// Of every rank.
void HttpFace::reset_prefix_cache(const Exchange& exchange) {
  struct Pending {
    std::atomic<std::size_t> left;
    std::atomic<bool> all_done{true};
  };
  const bool preempt = exchange->target().find("reset_running_requests=true") != std::string_view::npos;
  const auto pending = std::make_shared<Pending>();
  pending->left = loops_.size();
  for (const auto& loop : loops_)
    loop->reset_prefix_cache(preempt, [pending, exchange](bool done) {
      if (!done) pending->all_done = false;
      if (--pending->left == 0)
        exchange->reply(200, kJson, pending->all_done ? R"({"success":true})" : R"({"success":false})");
    });
}

}  // namespace tiny_engine
