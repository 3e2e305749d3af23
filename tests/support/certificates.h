// Certificates of an authority that is made for a test: for 127.0.0.1, and for a host that nobody is.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/scratch_folder.h"

namespace ashlar::testing {

class Certificates {
 public:
  struct Pair {
    std::string certificate;
    std::string key;
  };

  Certificates() {
    run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout CA.key -out CA.pem -days "
        "2 "
        "-subj /CN=authority");
    issue("here", "IP:127.0.0.1");
    issue("elsewhere", "DNS:elsewhere.example");
  }
  std::string authority() const { return folder_.file("CA.pem"); }
  Pair here() const { return pair("here"); }
  Pair elsewhere() const { return pair("elsewhere"); }

 private:
  Pair pair(const std::string& name) const {
    return {.certificate = folder_.file(name + ".pem"), .key = folder_.file(name + ".key")};
  }
  void issue(const std::string& name, const std::string& subject) {
    run("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout " + name + ".key -out " + name +
        ".csr -subj /CN=" + name);
    run("x509 -req -in " + name + ".csr -CA CA.pem -CAkey CA.key -CAcreateserial -days 2 -out " + name +
        ".pem -extfile <(echo subjectAltName=" + subject + ")");
  }
  void run(const std::string& words) {
    const std::string command =
        "cd " + folder_.path() + " && bash -c 'openssl " + words + "' > openssl.log 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  ScratchFolder folder_;
};

}  // namespace ashlar::testing
