// The live page: embedded files, and the headers that keep it to itself.
#include <algorithm>

#include "service/gateway/api.h"
#include "service/page/page_files.h"

namespace ashlar::service {

namespace {

constexpr std::string_view kPageFolder = "/ui/";
constexpr std::string_view kFirstPage = "index.html";
// The page loads its own files, asks its own server and is shown in no frame.
constexpr std::string_view kPageRules =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// The same page: it finds out by its address that it is about the journal.
bool is_past(std::string_view path) {
  return path == "/past" || path == "/past/";
}

}  // namespace

bool is_page_path(std::string_view path) {
  return path == "/" || path == "/ui" || path.starts_with(kPageFolder) || is_past(path);
}

Reply answer_page(std::string_view path, bool needs_token) {
  ASHLAR_DCHECK(is_page_path(path), "no path of the page");
  const bool is_first = path == "/" || path == "/ui" || path == kPageFolder || is_past(path);
  const std::string_view name = is_first ? kFirstPage : path.substr(kPageFolder.size());
  if (name == "session.json")
    return json_reply(200, needs_token ? R"({"needs_token":true})" : R"({"needs_token":false})");
  const auto file = std::ranges::find(page_files(), name, &PageFile::name);
  if (file == page_files().end()) return json_reply(404, R"({"error":"the page has no such file"})");
  return Reply{.status = 200,
               .headers = {{"Content-Type", std::string(file->type)},
                           {"Content-Security-Policy", std::string(kPageRules)},
                           {"X-Content-Type-Options", "nosniff"},
                           {"Referrer-Policy", "no-referrer"},
                           {"Cache-Control", "no-cache"}},
               .body = std::string(file->content)};
}

}  // namespace ashlar::service
