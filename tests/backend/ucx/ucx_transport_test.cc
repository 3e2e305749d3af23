#include "ashlar/backend/ucx/ucx_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "backend/ucx/owner_bytes.h"
#include "backend/ucx/ucx_fixture.h"

namespace ashlar::backend::ucx {
namespace {

INSTANTIATE_TEST_SUITE_P(Ucx, UcxTest, ::testing::Values("tcp", "tcp,shm"), transports_name);

TEST_P(UcxTest, ReadsAndWritesMemoryOfAnotherProcess) {
  OwnerProcess owner(GetParam(), kBytes, kOwner);
  owner.fill(1);
  const auto path = connect(owner);
  const auto theirs = remote_set(*path, owner);
  const auto mine = local_set();
  move(theirs, mine);
  EXPECT_EQ(count_other_bytes(bytes_of(mine), 1), 0u);
  fill_bytes(bytes_of(mine), 2);
  move(mine, theirs);
  EXPECT_EQ(owner.check(2), 0u);
}

}  // namespace
}  // namespace ashlar::backend::ucx
