#include "ashlar/tokens/namespace_fingerprint.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

namespace ashlar::tokens {
namespace {

TEST(NamespaceFingerprintTest, EveryFieldCounts) {
  const std::set<NamespaceFingerprint> different = {
      NamespaceFingerprint({"model", "bf16", "layer-first", 16}),
      NamespaceFingerprint({"model2", "bf16", "layer-first", 16}),
      NamespaceFingerprint({"model", "fp8", "layer-first", 16}),
      NamespaceFingerprint({"model", "bf16", "fused", 16}),
      NamespaceFingerprint({"model", "bf16", "layer-first", 32}),
      NamespaceFingerprint(),
  };
  EXPECT_EQ(different.size(), 6u);
  EXPECT_EQ(NamespaceFingerprint({"model", "bf16", "fused", 16}),
            NamespaceFingerprint({"model", "bf16", "fused", 16}));
}

TEST(NamespaceFingerprintTest, FieldsDoNotRunIntoEachOther) {
  const std::set<NamespaceFingerprint> different = {
      NamespaceFingerprint({"ab", "c", "", 16}), NamespaceFingerprint({"a", "bc", "", 16}),
      NamespaceFingerprint({"", "abc", "", 16}), NamespaceFingerprint({"abc", "", "", 16}),
      NamespaceFingerprint({"", "", "abc", 16}),
  };
  EXPECT_EQ(different.size(), 5u);
}

TEST(NamespaceFingerprintTest, ValueIsStable) {
  EXPECT_EQ(NamespaceFingerprint({"model", "bf16", "layer-first", 16}).to_string(),
            "b67e65f9d0029d290c456de44f5d5ae0");
}

TEST(NamespaceFingerprintTest, BytesAndTextRoundTrip) {
  const NamespaceFingerprint fingerprint({"model", "bf16", "layer-first", 16});
  EXPECT_EQ(NamespaceFingerprint::from_bytes(fingerprint.to_bytes()), fingerprint);
  EXPECT_EQ(NamespaceFingerprint::parse(fingerprint.to_string()).value(), fingerprint);
  EXPECT_EQ(NamespaceFingerprint::from_bits(0x0102030405060708u, 0x090a0b0c0d0e0f10u).to_string(),
            "0102030405060708090a0b0c0d0e0f10");
  std::ostringstream out;
  out << fingerprint;
  EXPECT_EQ(out.str(), fingerprint.to_string());
  for (const char* text : {"", "01", "0102030405060708090a0b0c0d0e0f1", "0102030405060708090a0b0c0d0e0f1g",
                           "0102030405060708090a0b0c0d0e0f100"}) {
    EXPECT_EQ(NamespaceFingerprint::parse(text).error().code(), ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace ashlar::tokens
