// What the headers of G3 and of volume objects keep of a record.
#include <gtest/gtest.h>

#include "tiers/disk/g3_file.h"
#include "tiers/pool/tier_record.h"
#include "tiers/volume/volume_object.h"

namespace ashlar::tiers {
namespace {

template <class Header>
class TierRecordTest : public ::testing::Test {};
using Headers = ::testing::Types<G3Header, VolumeObject>;
TYPED_TEST_SUITE(TierRecordTest, Headers);

TYPED_TEST(TierRecordTest, AHeaderKeepsEveryField) {
  const tokens::SequenceHash root = tokens::SequenceHash::root(3);
  const tokens::SequenceHash parent = root.child(4).value();
  const TierRecord record{.hash = parent.child(5).value(),
                          .parent = parent,
                          .salt = tokens::salt_fingerprint(tokens::Salt("lora", "tenant")),
                          .prefix = tokens::PrefixDigest::from_bits(6, 7),
                          .root = root,
                          .local = tokens::LocalHash(8),
                          .group = 9,
                          .metadata = 10,
                          .retention = {.priority = 11}};
  TypeParam header;
  record.write_to(header);
  const TierRecord read = TierRecord::read_from(header);
  EXPECT_EQ(read.hash, record.hash);
  EXPECT_EQ(read.parent, record.parent);
  EXPECT_EQ(read.salt, record.salt);
  EXPECT_EQ(read.prefix, record.prefix);
  EXPECT_EQ(read.root, record.root);
  EXPECT_EQ(read.local, record.local);
  EXPECT_EQ(read.group, record.group);
  EXPECT_EQ(read.metadata, record.metadata);
  EXPECT_EQ(read.retention, record.retention);
  EXPECT_FALSE(read.checksum) << "its reader compares the bytes first";
}

}  // namespace
}  // namespace ashlar::tiers
