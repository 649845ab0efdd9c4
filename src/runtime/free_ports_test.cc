#include "runtime/free_ports.h"

#include <gtest/gtest.h>

#include <set>

namespace dcr {
namespace {

TEST(FreePorts, Differ) {
  const auto ports = free_ports(100);
  ASSERT_TRUE(ports.ok()) << ports.status().message();
  EXPECT_EQ(std::set<std::uint16_t>(ports->begin(), ports->end()).size(), 100U);
  EXPECT_FALSE(std::set<std::uint16_t>(ports->begin(), ports->end()).contains(0));
  EXPECT_TRUE(free_ports(0)->empty());
}

}  // namespace
}  // namespace dcr
