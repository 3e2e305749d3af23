#include "ashlar/feed/engine_source.h"

#include <utility>

#include "feed/recording_reader.h"

namespace ashlar::feed {

RecordingSource::RecordingSource(Options options, std::unique_ptr<RecordingReader> reader)
    : options_(std::move(options)), reader_(std::move(reader)) {}

RecordingSource::~RecordingSource() = default;

Result<std::unique_ptr<RecordingSource>> RecordingSource::create(Options options) {
  ASHLAR_TRY(auto reader, RecordingReader::create(options.path, options.max_message_bytes));
  if (!options.replay_path.empty()) {
    ASHLAR_RETURN_IF_ERROR(RecordingReader::create(options.replay_path, options.max_message_bytes));
  }
  return std::unique_ptr<RecordingSource>(new RecordingSource(std::move(options), std::move(reader)));
}

Result<std::optional<EngineMessage>> RecordingSource::receive(Clock::Duration) {
  Result<std::optional<EngineMessage>> message = reader_->next();
  if (!message || *message || !reader_->has_ended()) return message;
  return make_error(ErrorCode::kNotFound, "the recording %s has ended", options_.path.c_str());
}

Result<EngineReplay> RecordingSource::replay(std::uint64_t from) {
  if (options_.replay_path.empty())
    return make_error(ErrorCode::kUnsupported, "the recording %s has no replay file beside it",
                      options_.path.c_str());
  auto reader = RecordingReader::create(options_.replay_path, options_.max_message_bytes);
  if (!reader) return make_error(ErrorCode::kUnavailable, "%s", reader.error().message().c_str());
  EngineReplay replay;
  std::size_t bytes = 0;
  for (;;) {
    ASHLAR_TRY(std::optional<EngineMessage> message, (*reader)->next());
    if (!message && (*reader)->has_ended()) break;
    if (!message) continue;
    if (message->sequence < from) continue;
    bytes += message->bytes();
    if (bytes > options_.max_replay_bytes && replay.messages.size() > 1) {
      replay.is_cut = true;
      break;
    }
    replay.messages.push_back(*std::move(message));
  }
  damaged_in_replays_ += (*reader)->damaged();
  return replay;
}

std::uint64_t RecordingSource::damaged() const noexcept {
  return reader_->damaged() + damaged_in_replays_;
}

std::uint64_t RecordingSource::unfinished_bytes() const noexcept {
  return reader_->unfinished_bytes();
}

}  // namespace ashlar::feed
