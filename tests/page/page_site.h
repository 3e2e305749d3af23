// PageTest: a router with a journal in front of two tiny engines, and a browser, for tests of the live page.
//
// Thread safety: thread-compatible.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "page/browser.h"
#include "page/page_probe.h"
#include "serve/serve_process.h"

namespace ashlar::testing {

// Engines with small caches, so that blocks are removed too, and a router with a journal before them.
class PageTest : public ::testing::Test {
 protected:
  struct Site {
    ScratchFolder folder;
    EngineProcess first{{"--g1", "48", "--g2", "96", "--max-model-len", "384"}};
    EngineProcess second{{"--g1", "48", "--g2", "96", "--max-model-len", "384"}};
    ServeProcess serve;

    Site()
        : serve({"--worker", worker_text(first, ",name=one,g1=48"), "--worker",
                 worker_text(second, ",name=two,g1=48"), "--worker",
                 "http://127.0.0.1:1,name=away,model=tiny,g1=4", "--journal", folder.file("journal"),
                 "--event-patience", "5s"}) {}
    std::string address() const { return "http://127.0.0.1:" + std::to_string(serve.port()); }
  };

  static void SetUpTestSuite() {
    if (find_chromium().empty()) return;
    browser = new Browser(find_chromium());
    site = new Site;
    send_traffic();
  }
  static void TearDownTestSuite() {
    delete std::exchange(browser, nullptr);
    delete std::exchange(site, nullptr);
  }
  void SetUp() override {
    ASHLAR_NEEDS_SERVER(browser != nullptr, "chromium-headless-shell, or chromium, is not installed");
    ASSERT_FALSE(HasFailure());
    browser->prefer("light");
    browser->resize(1280, 900);
  }
  void TearDown() override {
    if (browser == nullptr) return;
    browser->open("about:blank");  // it asks nobody any more
    EXPECT_THAT(browser->take_complaints(), ::testing::IsEmpty()) << "on the browser's console";
  }

  // Prompts that share their beginnings, several turns of each: more blocks than both engines hold on the
  // device. Then nothing happens any more.
  static void send_traffic() {
    site->serve.wait_for_fleet([](const std::vector<Json>& workers) {
      int exact = 0;
      for (const Json& worker : workers)
        for (const Json& rank : worker["ranks"].list)
          exact += worker["up"].number == 1 && rank["state"].text == "EXACT";
      return exact == 2;
    });
    HttpClient client = site->serve.client();
    int sent = 0;
    for (int family = 0; family < 12; ++family)
      for (int turn = 1; turn <= 4; ++turn, ++sent) {
        const HttpAnswer answer = client.post(
            "/v1/completions", R"({"model":"tiny","max_tokens":4,"prompt":)" + prompt_of(family, turn) + "}");
        ASSERT_EQ(answer.status, 200) << answer.body;
      }
    site->serve.wait_for_metric("ashlar_serve_requests_total", sent);
    site->serve.wait_for_metric("ashlar_serve_ended_total{end=\"complete\"}", sent);
  }
  static std::string prompt_of(int family, int turn) {
    std::string tokens = "[";
    for (int i = 0; i < 32 + 16 * turn; ++i)
      tokens += (i == 0 ? "" : ",") + std::to_string(i < 16 ? i : 20 + (37 * family + 11 * i) % 200);
    return tokens + "]";
  }

  static void open_page(const std::string& hash = {}) {
    browser->open("about:blank");
    browser->open(site->address() + "/" + hash);
    browser->wait_for(
        "document.body.dataset.live === 'yes' && document.querySelectorAll('#workers tr').length === 3");
  }
  // A picture for people, where they want one.
  static void keep_picture(const std::string& name) {
    const char* folder = std::getenv("ASHLAR_PICTURES");  // NOLINT(concurrency-mt-unsafe): nobody sets it
    if (folder != nullptr) std::ofstream(std::string(folder) + "/" + name + ".base64") << browser->picture();
  }
  static void expect_contrast(const std::string& where) {
    const Json contrast = browser->value(kContrastScript);
    EXPECT_GT(contrast["seen"].number, 3) << where;
    EXPECT_EQ(contrast["low"].text, "") << where;
  }

  static inline Browser* browser = nullptr;
  static inline Site* site = nullptr;
};

}  // namespace ashlar::testing
