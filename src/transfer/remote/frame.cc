#include "transfer/remote/frame.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/byte_io.h"
#include "base/wide.h"

namespace ashlar::transfer {
namespace {

constexpr std::size_t kMaxSentence = 1024;

}  // namespace

std::vector<std::byte> LinkFrame::error_body(const Error& error) {
  ByteWriter out;
  out.put(static_cast<std::uint8_t>(error.code()));
  const std::string_view sentence = std::string_view(error.message()).substr(0, kMaxSentence);
  out.put_bytes(std::as_bytes(std::span(sentence)));
  return std::move(out.bytes());
}

Error LinkFrame::error_of(std::span<const std::byte> body) {
  ByteReader in(body);
  const auto code = in.get<std::uint8_t>();
  const std::span<const std::byte> sentence = in.get_bytes(std::min(in.left(), kMaxSentence));
  const bool known = code <= static_cast<std::uint8_t>(ErrorCode::kInternal);
  return {known ? static_cast<ErrorCode>(code) : ErrorCode::kInternal,
          printable({reinterpret_cast<const char*>(sentence.data()), sentence.size()})};
}

void FrameSealer::seal(const LinkFrame& frame, std::vector<std::byte>* out) {
  const std::size_t tag = key_ ? LinkFrame::kTagBytes : 0;
  ASHLAR_CHECK(frame.body.size() <= UINT32_MAX - LinkFrame::kHeadBytes - tag, "a frame of %zu bytes",
               frame.body.size());
  ByteWriter head;
  head.put(static_cast<std::uint32_t>(LinkFrame::kHeadBytes + frame.body.size() + tag));
  head.put(static_cast<std::uint8_t>(frame.kind));
  head.put(std::uint8_t{0});
  head.put(frame.method);
  head.put(next_++);
  head.put(frame.id);
  ASHLAR_DCHECK(head.bytes().size() == LinkFrame::kHeadBytes, "a head of %zu bytes", head.bytes().size());
  out->insert(out->end(), head.bytes().begin(), head.bytes().end());
  out->insert(out->end(), frame.body.begin(), frame.body.end());
  if (!key_) return;
  const MacKey::Mac mac = key_->of({head.bytes(), frame.body});
  out->insert(out->end(), mac.begin(), mac.begin() + LinkFrame::kTagBytes);
}

void FrameOpener::feed(std::span<const std::byte> bytes) {
  if (taken_ > 0) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<LinkFrame>> FrameOpener::next() {
  ASHLAR_DCHECK(taken_ <= bytes_.size(), "more was taken than came");
  const std::span<const std::byte> waiting = std::span(bytes_).subspan(taken_);
  const std::size_t tag = key_ ? LinkFrame::kTagBytes : 0;
  if (waiting.size() < sizeof(std::uint32_t)) return std::optional<LinkFrame>();
  ByteReader in(waiting);
  const std::size_t length = in.get<std::uint32_t>();
  if (length < LinkFrame::kHeadBytes + tag || length - LinkFrame::kHeadBytes - tag > max_body_)
    return make_error(ErrorCode::kCorruption, "a frame says %zu bytes; frames have %zu to %llu here", length,
                      LinkFrame::kHeadBytes + tag, wide(LinkFrame::kHeadBytes + tag + max_body_));
  if (waiting.size() < length) return std::optional<LinkFrame>();
  const std::span<const std::byte> whole = waiting.first(length);
  if (key_) {
    const MacKey::Mac mac = key_->of({whole.first(length - tag)});
    if (!MacKey::equal(std::span(mac).first(LinkFrame::kTagBytes), whole.last(LinkFrame::kTagBytes)))
      return make_error(ErrorCode::kCorruption, "frame %llu does not agree with its tag", wide(next_));
  }
  LinkFrame frame;
  const auto kind = in.get<std::uint8_t>();
  const auto nothing = in.get<std::uint8_t>();
  frame.method = in.get<std::uint16_t>();
  const auto number = in.get<std::uint64_t>();
  frame.id = in.get<std::uint64_t>();
  if (number != next_)
    return make_error(ErrorCode::kCorruption, "frame %llu came where %llu is the next", wide(number),
                      wide(next_));
  if (kind < static_cast<std::uint8_t>(FrameKind::kRequest) ||
      kind > static_cast<std::uint8_t>(FrameKind::kBye) || nothing != 0)
    return make_error(ErrorCode::kCorruption, "frame %llu is of kind %u, which is none", wide(number), kind);
  frame.kind = static_cast<FrameKind>(kind);
  const std::span<const std::byte> body = in.get_bytes(length - LinkFrame::kHeadBytes - tag);
  frame.body.assign(body.begin(), body.end());
  ++next_;
  taken_ += length;
  if (taken_ == bytes_.size()) {
    bytes_.clear();
    taken_ = 0;
  }
  return std::optional<LinkFrame>(std::move(frame));
}

}  // namespace ashlar::transfer
