#include "apps/ashlar/feed_kinds.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "apps/ashlar/host_port.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::apps {

FeedKinds FeedKinds::built() {
  FeedKinds kinds;
  kinds.add(
      "file",
      "file:PATH            a recorded stream; ?follow=1 waits for more, ?append=1 appends to it,\n"
      "                       ?append=repair appends after cutting out damage",
      [](const FeedAddress& address) -> Result<OpenedSource> {
        ASHLAR_TRY(const bool follow, address.flag("follow"));
        ASHLAR_TRY(auto source, feed::FileSource::create({.path = address.place(), .follow = follow}));
        return OpenedSource{.stream = std::move(source), .is_recorded = !follow};
      },
      [](const FeedAddress& address, const events::StreamId&,
         events::SnapshotSource&) -> Result<std::shared_ptr<events::BatchSink>> {
        ASHLAR_TRY(const bool append, address.flag("append", "repair"));
        ASHLAR_TRY(auto sink, feed::FileSink::create({.path = address.place(),
                                                      .append = append,
                                                      .repair = address.text("append") == "repair"}));
        return std::shared_ptr<events::BatchSink>(std::move(sink));
      },
      {.check = [](const FeedAddress& address) -> Result<void> {
        const Result<bool> append = address.flag("append", "repair");
        return append ? Result<void>() : append.error();
      }});
  kinds.add("kvrec", "kvrec:PATH           messages recorded from an engine (source only)",
            [](const FeedAddress& address) -> Result<OpenedSource> {
              ASHLAR_TRY(auto source, feed::RecordingSource::create({.path = address.place()}));
              return OpenedSource{.engine = std::move(source)};
            },
            {});
  add_nats_feeds(kinds);
  add_zmq_feeds(kinds);
  return kinds;
}

void FeedKinds::add(const std::string& kind, std::string help, OpenSource source, OpenSink sink,
                    Traits traits) {
  kinds_[kind] = {.help = std::move(help),
                  .source = std::move(source),
                  .sink = std::move(sink),
                  .missing = {},
                  .traits = std::move(traits)};
}

void FeedKinds::add_missing(const std::string& kind, std::string package) {
  kinds_[kind] = {.help = {}, .source = {}, .sink = {}, .missing = std::move(package), .traits = {}};
}

Result<const FeedKinds::Kind*> FeedKinds::find(const FeedAddress& address) const {
  const auto at = kinds_.find(address.kind());
  if (at == kinds_.end())
    return make_error(ErrorCode::kNotFound, "'%s': there are no '%s' feeds; see --help",
                      address.shown().c_str(), address.shown_kind().c_str());
  if (!at->second.missing.empty())
    return make_error(ErrorCode::kUnsupported,
                      "'%s': this program was built without %s; install it and build again",
                      address.shown().c_str(), at->second.missing.c_str());
  return &at->second;
}

Result<OpenedSource> FeedKinds::open_source(const std::string& text) const {
  ASHLAR_TRY(const FeedAddress address, FeedAddress::parse(text));
  ASHLAR_TRY(const Kind* const kind, find(address));
  if (!kind->source)
    return make_error(ErrorCode::kUnsupported, "'%s' feeds can only be written", address.kind().c_str());
  Result<OpenedSource> opened = kind->source(address);
  if (opened) ASHLAR_RETURN_IF_ERROR(address.all_used());
  return opened;
}

Result<void> FeedKinds::check_sink(const std::string& text) const {
  ASHLAR_TRY(const FeedAddress address, FeedAddress::parse(text));
  ASHLAR_TRY(const Kind* const kind, find(address));
  if (!kind->sink)
    return make_error(ErrorCode::kUnsupported, "'%s' feeds can only be read", address.kind().c_str());
  return kind->traits.check ? kind->traits.check(address) : Result<void>();
}

Result<std::shared_ptr<events::BatchSink>> FeedKinds::open_sink(const std::string& text,
                                                                const events::StreamId& stream,
                                                                events::SnapshotSource& state) const {
  ASHLAR_RETURN_IF_ERROR(check_sink(text));
  const FeedAddress address = FeedAddress::parse(text).value();
  Result<std::shared_ptr<events::BatchSink>> opened = kinds_.at(address.kind()).sink(address, stream, state);
  if (opened) ASHLAR_RETURN_IF_ERROR(address.all_used());
  return opened;
}

bool FeedKinds::is_of_stream(const std::string& text, const Error& error) const {
  const Result<FeedAddress> address = FeedAddress::parse(text);
  if (!address) return false;
  const auto kind = kinds_.find(address->kind());
  return kind != kinds_.end() && kind->second.traits.has_place_per_rank &&
         (error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kCapacity);
}

bool FeedKinds::is_same_place(const FeedAddress& from, const FeedAddress& to) const {
  if (from.kind() == "file" && to.kind() == "file") {
    std::error_code none;
    return from.place() == to.place() || std::filesystem::equivalent(from.place(), to.place(), none);
  }
  const auto library = [](const FeedAddress& address) {
    return address.kind() == "natss" ? std::string("nats") : address.kind();
  };
  if (library(from) != library(to)) return false;
  const auto kind = kinds_.find(library(to));
  if (kind == kinds_.end()) return false;
  const Traits& traits = kind->second.traits;
  return from.text("prefix", traits.prefix) == to.text("prefix", traits.prefix) &&
         HostPort::parse(from.place(), traits.port).may_reach(HostPort::parse(to.place(), traits.port));
}

std::string FeedKinds::help() const {
  std::string out = "feeds:\n";
  for (const auto& [name, kind] : kinds_)
    out += "  " + (kind.missing.empty() ? kind.help : name + ": not built, needs " + kind.missing) + "\n";
  return out;
}

}  // namespace ashlar::apps
