#include "peers/arguments.h"

#include <charconv>
#include <string_view>

namespace ashlar::peers {
namespace {

Result<void> set_switch(bool& option, std::string_view name, std::string_view value) {
  if (value != "on" && value != "off") {
    return make_error(ErrorCode::kInvalidArgument, "%s takes on or off, not %s", name.data(), value.data());
  }
  option = value == "on";
  return {};
}

Result<void> set_number(std::size_t& option, std::string_view name, std::string_view value) {
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), option);
  if (status != std::errc() || end != value.data() + value.size() || option == 0) {
    return make_error(ErrorCode::kInvalidArgument, "%s takes a number above 0, not %s", name.data(),
                      value.data());
  }
  return {};
}

Result<void> set(Arguments& out, std::string_view name, std::string_view value) {
  if (name == "--workload")
    out.workload = value;
  else if (name == "--backend")
    out.backend = value;
  else if (name == "--op")
    out.op = value;
  else if (name == "--frequency")
    return set_switch(out.frequency, name, value);
  else if (name == "--events")
    return set_switch(out.events, name, value);
  else if (name == "--threads")
    return set_number(out.threads, name, value);
  else if (name == "--rounds")
    return set_number(out.rounds, name, value);
  else
    return make_error(ErrorCode::kInvalidArgument, "unknown option %s", name.data());
  return {};
}

}  // namespace

Result<Arguments> Arguments::parse(std::span<char*> args) {
  Arguments out;
  for (std::size_t i = 0; i < args.size(); i += 2) {
    if (i + 1 == args.size()) return make_error(ErrorCode::kInvalidArgument, "%s needs a value", args[i]);
    ASHLAR_RETURN_IF_ERROR(set(out, args[i], args[i + 1]));
  }
  if (out.workload.empty()) return Error(ErrorCode::kInvalidArgument, "--workload is missing");
  if (out.backend.empty()) return Error(ErrorCode::kInvalidArgument, "--backend is missing");
  if (out.op.empty()) return Error(ErrorCode::kInvalidArgument, "--op is missing");
  if (out.threads > 1 && out.op != "match_active" && out.op != "match_shared") {
    return make_error(ErrorCode::kInvalidArgument,
                      "--threads %zu works with match_active and match_shared, not with %s", out.threads,
                      out.op.c_str());
  }
  return out;
}

const char* Arguments::usage() noexcept {
  return "usage: ashlar_block_peer --workload FILE --backend lru|multi_lru|lineage|hashmap "
         "--op cycle|match_inactive|match_active|match_shared|bulk_drop|match_miss "
         "[--frequency on|off] [--events on|off] [--threads N] [--rounds N]";
}

}  // namespace ashlar::peers
