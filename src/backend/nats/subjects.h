// Subjects and ids of batches, requests and snapshots on a server.
//
// Requests have one token more than batches: a stream that keeps `<prefix>.*.*.*` must not capture them.
//
// Thread safety: free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::backend::nats {

// Errors: kInvalidArgument: not a prefix of subjects, or not a name of a stream, durable consumer or bucket.
Result<void> check_prefix(std::string_view prefix);
Result<void> check_name(std::string_view what, std::string_view name);

// Replaces `out`.
void batch_subject(std::string_view prefix, const events::EventBatch& batch, std::string& out);
// The subject that a listener to all workers, or one, subscribes to.
std::string batch_filter(std::string_view prefix, const std::optional<events::Worker>& worker);
std::string request_subject(std::string_view prefix, const events::Worker& worker);
// Where new listeners ask which workers there are.
std::string roll_call_subject(std::string_view prefix);
// Whether a batch of the worker belongs under the subject. The server controls who may publish to a worker's
// subjects, so a batch that names another worker than its subject is refused.
bool is_subject_of(std::string_view subject, std::string_view prefix, const events::Worker& worker);
// The id by which the server recognises a duplicate. Replaces `out`. It contains the end of the batch: a
// batch that grew before it was republished is a new one.
void batch_id(const events::EventBatch& batch, std::string& out);
// "<worker>.<rank>".
std::string worker_token(const events::Worker& worker);

}  // namespace ashlar::backend::nats
