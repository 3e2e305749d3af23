#include "apps/ashlar/feed_kinds.h"

#include <utility>

#include "ashlar/feed/file_feed.h"
#include "ashlar/feed/recording_source.h"

namespace ashlar::apps {

FeedKinds FeedKinds::built() {
  FeedKinds kinds;
  kinds.add(
      "file",
      "file:PATH            a recorded stream; ?follow=1 waits for more, ?append=1 writes behind what is "
      "there,\n"
      "                       ?append=repair the same, and first cuts out what is damaged",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        auto source = feed::FileSource::open({.path = address.place(), .follow = address.flag("follow")});
        if (!source) return source.error();
        return OpenedSource{.stream = *std::move(source)};
      },
      [](const FeedAddress& address, const events::StreamId&,
         events::SnapshotSource&) -> Result<std::shared_ptr<events::BatchSink>> {
        auto sink = feed::FileSink::create({.path = address.place(),
                                            .append = address.flag("append"),
                                            .repair = address.text("append") == "repair"});
        if (!sink) return sink.error();
        return std::shared_ptr<events::BatchSink>(*std::move(sink));
      });
  kinds.add("kvrec", "kvrec:PATH           messages recorded from an engine (source only)",
            [](const FeedAddress& address) -> Result<OpenedSource> {
              auto source = feed::RecordingSource::open({.path = address.place()});
              if (!source) return source.error();
              return OpenedSource{.engine = *std::move(source)};
            },
            {});
  add_nats_feeds(kinds);
  add_zmq_feeds(kinds);
  return kinds;
}

void FeedKinds::add(const std::string& kind, std::string help, OpenSource source, OpenSink sink) {
  kinds_[kind] = {
      .help = std::move(help), .source = std::move(source), .sink = std::move(sink), .missing = {}};
}

void FeedKinds::add_missing(const std::string& kind, std::string package) {
  kinds_[kind] = {.help = {}, .source = {}, .sink = {}, .missing = std::move(package)};
}

Result<const FeedKinds::Kind*> FeedKinds::find(const FeedAddress& address) const {
  const auto at = kinds_.find(address.kind());
  if (at == kinds_.end())
    return make_error(ErrorCode::kNotFound, "'%s': there are no '%s' feeds; see --help",
                      address.shown().c_str(), address.kind().c_str());
  if (!at->second.missing.empty())
    return make_error(ErrorCode::kUnsupported,
                      "'%s': this program was built without %s; install it and build again",
                      address.shown().c_str(), at->second.missing.c_str());
  return &at->second;
}

Result<OpenedSource> FeedKinds::open_source(const std::string& text) const {
  const Result<FeedAddress> address = FeedAddress::parse(text);
  if (!address) return address.error();
  const Result<const Kind*> kind = find(*address);
  if (!kind) return kind.error();
  if (!(*kind)->source)
    return make_error(ErrorCode::kUnsupported, "'%s' feeds can only be written", address->kind().c_str());
  Result<OpenedSource> opened = (*kind)->source(*address);
  if (opened)
    if (Result<void> used = address->all_used(); !used) return used.error();
  return opened;
}

Result<void> FeedKinds::check_sink(const std::string& text) const {
  const Result<FeedAddress> address = FeedAddress::parse(text);
  if (!address) return address.error();
  const Result<const Kind*> kind = find(*address);
  if (!kind) return kind.error();
  if (!(*kind)->sink)
    return make_error(ErrorCode::kUnsupported, "'%s' feeds can only be read", address->kind().c_str());
  return {};
}

Result<std::shared_ptr<events::BatchSink>> FeedKinds::open_sink(const std::string& text,
                                                                const events::StreamId& stream,
                                                                events::SnapshotSource& state) const {
  if (Result<void> good = check_sink(text); !good) return good.error();
  const FeedAddress address = FeedAddress::parse(text).value();
  Result<std::shared_ptr<events::BatchSink>> opened = kinds_.at(address.kind()).sink(address, stream, state);
  if (opened)
    if (Result<void> used = address.all_used(); !used) return used.error();
  return opened;
}

std::string FeedKinds::help() const {
  std::string out = "feeds:\n";
  for (const auto& [name, kind] : kinds_)
    out += "  " + (kind.missing.empty() ? kind.help : name + ": not built, needs " + kind.missing) + "\n";
  return out;
}

}  // namespace ashlar::apps
