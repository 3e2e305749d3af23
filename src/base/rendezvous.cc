#include "ashlar/base/rendezvous.h"

#include "ashlar/base/log.h"

namespace ashlar {

Result<void> Rendezvous::check_name(std::string_view name) {
  bool good = !name.empty() && name.size() <= kMaxName && name.back() != '.';
  char last = '.';
  for (const char c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    good = good && (plain || (c == '.' && last != '.'));
    last = c;
  }
  if (good) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "'%s' is no name of a record: use letters, digits, '-' and '_', parts joined by dots, at "
                    "most %zu characters",
                    printable(name.substr(0, kMaxName)).c_str(), kMaxName);
}

}  // namespace ashlar
