// Logins by nkey, and by a JWT with its seed.
#include <fstream>

#include "backend/nats/login_keys.h"
#include "backend/nats/nats_fixture.h"

namespace ashlar::backend::nats {
namespace {

using namespace login_keys;

class NatsKeys : public NatsTest {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.file(name)) << text;
    return folder_.file(name);
  }
  // As nsc writes them.
  static std::string credentials(const std::string& jwt, const std::string& seed) {
    return "-----BEGIN NATS USER JWT-----\n" + jwt +
           "\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n" + seed +
           "\n------END USER NKEY SEED------\n";
  }
  static NatsConnectionOptions with_nkey(const NatsServer& server, const std::string& path) {
    NatsConnectionOptions options = server.options();
    options.nkey = kUser;
    options.nkey_seed_file = path;
    return options;
  }
  static NatsConnectionOptions with_credentials(const NatsServer& server, const std::string& path) {
    NatsConnectionOptions options = server.options();
    options.credentials_file = path;
    return options;
  }
  // Is told which option and file to look at, and no secret.
  static void expect_refused(const NatsConnectionOptions& options, const std::string& file) {
    const Error error = error_of(options);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
    EXPECT_NE(error.message().find(file), std::string::npos) << error;
    for (const std::string secret : {kUserSeed, kOtherUserSeed, kUserJwt, kStrangeJwt})
      EXPECT_EQ(error.message().find(secret.substr(0, 12)), std::string::npos) << error;
  }

  const ScratchFolder folder_;
};

TEST_F(NatsKeys, OnlyTheSeedOfTheUsersNkeyIsLetIn) {
  NatsServer server(std::string("authorization { users: [ { nkey: ") + kUser + " } ] }", false);
  const std::string right = file("right.seed", std::string(kUserSeed) + "\n");
  expect_round_trip(with_nkey(server, right));
  EXPECT_EQ(sink_of({.connection = with_nkey(server, right)})->describe(),
            "nats core ashlar.kv at " + server.url());

  expect_refused(with_nkey(server, file("wrong.seed", kOtherUserSeed)), "wrong.seed");
  expect_refused(with_nkey(server, file("no.seed", "not a seed at all\n")), "no.seed");
  expect_refused(with_nkey(server, file("empty.seed", "")), "empty.seed");
  expect_refused(with_nkey(server, file("cut.seed", std::string(kUserSeed).substr(0, 40))), "cut.seed");
  expect_refused(with_nkey(server, folder_.file("missing.seed")), "missing.seed");
  expect_refused(with_nkey(server, file("long.seed", std::string(1 << 17, 'x') + "\n")), "long.seed");

  // A key that the server does not know, with its seed.
  NatsConnectionOptions stranger = with_nkey(server, file("other.seed", kOtherUserSeed));
  stranger.nkey = kOtherUser;
  expect_refused(stranger, kOtherUser);
  const Error error = error_of(server.options());
  EXPECT_NE(error.message().find("nkey"), std::string::npos) << error;
}

// Without a server: nobody is asked.
TEST(NatsKeysMixedUp, ASeedInTheWrongPlaceIsNotSaid) {
  NatsConnectionOptions nkey;
  nkey.nkey = kUserSeed;
  nkey.nkey_seed_file = "/nowhere/user.seed";
  NatsConnectionOptions file;
  file.nkey = kUser;
  file.nkey_seed_file = kUserSeed;
  NatsConnectionOptions credentials;
  credentials.credentials_file = kUserSeed;
  for (const NatsConnectionOptions& options : {nkey, file, credentials}) {
    const Error error = error_of(options);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error;
    EXPECT_EQ(error.message().find(std::string(kUserSeed).substr(0, 12)), std::string::npos) << error;
    EXPECT_NE(error.message().find("file"), std::string::npos) << error;
  }
}

TEST_F(NatsKeys, AJwtIsOfTheAccountsUserAndComesWithItsSeed) {
  NatsServer server(std::string("operator: ") + kOperatorJwt + "\nresolver: MEMORY\nresolver_preload: { " +
                        kAccount + ": " + kAccountJwt + " }",
                    false);
  expect_round_trip(with_credentials(server, file("right.creds", credentials(kUserJwt, kUserSeed))));

  expect_refused(with_credentials(server, file("seed.creds", credentials(kUserJwt, kOtherUserSeed))),
                 "seed.creds");
  expect_refused(with_credentials(server, file("strange.creds", credentials(kStrangeJwt, kUserSeed))),
                 "strange.creds");
  expect_refused(with_credentials(server, file("jwt.creds", kUserJwt)), "jwt.creds");
  expect_refused(with_credentials(server, file("empty.creds", "")), "empty.creds");
  expect_refused(with_credentials(server, folder_.file("missing.creds")), "missing.creds");
}

TEST_F(NatsKeys, AConnectionThatBreaksLogsInAgain) {
  NatsServer server(std::string("authorization { users: [ { nkey: ") + kUser + " } ] }", false);
  const NatsConnectionOptions options = with_nkey(server, file("right.seed", kUserSeed));
  const auto source = source_of({.connection = options});
  const auto sink = sink_of({.connection = options});
  ASSERT_TRUE(source && sink);
  server.kill();
  server.start();
  Collector got;
  EXPECT_TRUE(poll_until(*source, got, [&] { return source->counters().reconnects == 1; }));
  ASSERT_TRUE(sink->publish(batch_of(0, 3).view()));
  EXPECT_TRUE(poll_until(*source, got, [&] { return got.has_all(3); }));
}

}  // namespace
}  // namespace ashlar::backend::nats
