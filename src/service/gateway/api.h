// The service's own endpoints: health, metrics, receipts, the fleet, and questions about prefixes without a
// proxy. docs/http.md lists them.
//
// Thread safety: free functions over thread-safe parts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "service/gateway/service_parts.h"

namespace ashlar::service {

// Paths that need no token: is it alive, does it take requests, and the page, which holds no data.
bool is_public_path(std::string_view method, std::string_view target);
// Whether an answer takes long: it must be had elsewhere than on a thread that serves connections.
bool is_slow_api(const ClientRequest& request);
// The answer to a request for the service itself; nullopt: it is for a worker.
std::optional<Reply> answer_api(ServiceParts& parts, const ClientRequest& request);

// Parts of it, by file: questions in the form of indexers (api_query.cc), receipts (api_receipts.cc), what
// the page shows (api_live.cc, api_tree.cc).
Reply answer_query(ServiceParts& parts, std::string_view path, std::string_view body);
Reply answer_register(ServiceParts& parts, std::string_view body);
Reply answer_unregister(ServiceParts& parts, std::string_view body);
Reply answer_workers(ServiceParts& parts, std::string_view query);
Reply answer_dump(ServiceParts& parts);
Reply answer_decision(ServiceParts& parts, std::string_view name);
Reply answer_decisions(ServiceParts& parts, std::string_view query);
Reply answer_fleet(ServiceParts& parts);
Reply answer_live(ServiceParts& parts, std::string_view query);
Reply answer_tree(ServiceParts& parts, std::string_view query);
Reply answer_past(ServiceParts& parts, const ClientRequest& request);

// A counted number of a query such as "limit=10", at most `most`; `standard` where there is none. Errors:
// kInvalidArgument: it is no number.
Result<std::size_t> query_number(std::string_view query, std::string_view name, std::size_t standard,
                                 std::size_t most);
Reply json_reply(unsigned status, std::string body);
// The value of a name in a query such as "a=1&b=2", percent-decoded; empty: none.
std::string query_value(std::string_view query, std::string_view name);

// The live page and its files, at /, /ui and /ui/{file}, and at /past over the journal; session.json among
// them tells it whether the other paths need a token.
bool is_page_path(std::string_view path);
Reply answer_page(std::string_view path, bool needs_token);

// The description of these endpoints, as OpenAPI 3.1.
std::string_view openapi_text();

}  // namespace ashlar::service
