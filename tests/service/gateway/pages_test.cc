// What the pages list is what there is.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "service/gateway/fake_workers.h"
#include "support/scratch_folder.h"

namespace ashlar::service {
namespace {

std::string page(const std::string& name) {
  std::ifstream in(std::string(ASHLAR_DOCS) + "/" + name);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::set<std::string> all_matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at)
    found.insert((*at)[1].str());
  return found;
}

TEST(Pages, MetricsAreThoseOfTheService) {
  const ScratchFolder folder;
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.journal = folder.file("journal");
  options.record = folder.file("trace.jsonl");
  ServiceUnderTest service(options);
  const std::set<std::string> listed = all_matches(page("metrics.md"), "`(ashlar_serve_[a-z_]+)`");
  const std::set<std::string> told =
      all_matches(service->metrics().prometheus_text(), "# TYPE (ashlar_serve_[a-z_]+) ");
  EXPECT_EQ(listed, told);
}

TEST(Pages, EndpointsAreThoseOfTheService) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1));
  const std::string openapi = service.get("/openapi.json").body;
  const std::set<std::string> described = all_matches(openapi, "\"(/[a-z_./0-9{}]*)\": \\{");
  ASSERT_FALSE(described.empty());
  const std::set<std::string> listed =
      all_matches(page("http.md"), "\\| `(?:GET|POST) (/[a-z_./0-9{}]*)[?`]");
  EXPECT_EQ(listed, described);
  // None of them is a worker's, whatever its method.
  for (const std::string& path : described)
    for (const char* method : {"GET", "POST"}) {
      const auto open = service.begin(path, "{}", {}, method);
      service.finish(*open);
      EXPECT_TRUE(std::holds_alternative<Reply>(open->step)) << method << " " << path;
    }
}

}  // namespace
}  // namespace ashlar::service
