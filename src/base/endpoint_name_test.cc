#include "base/endpoint_name.h"

#include <gtest/gtest.h>

#include <string>

namespace dcr {
namespace {

TEST(EndpointName, EveryByteIsAllowedOrRefusedByItsNumber) {
  const std::string allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = {'a', static_cast<char>(byte)};
    const Status status = check_endpoint_name(name);
    if (allowed.find(static_cast<char>(byte)) != std::string::npos) {
      EXPECT_TRUE(status.ok()) << byte;
      continue;
    }
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << byte;
    EXPECT_EQ(status.message(), "a name has the byte " + std::to_string(byte) +
                                    ": names are letters, digits, '.', '_' and '-'");
  }
}

TEST(EndpointName, HasAtLeastOneByteAndAtMostTheLimit) {
  EXPECT_EQ(check_endpoint_name("").message(), "an endpoint has an empty name");
  EXPECT_TRUE(check_endpoint_name("a").ok());
  EXPECT_TRUE(check_endpoint_name(std::string(kEndpointNameBytesMax, 'a')).ok());
  EXPECT_EQ(check_endpoint_name(std::string(kEndpointNameBytesMax + 1, 'a')).message(),
            "a name of 65 bytes is longer than the limit of 64");
}

}  // namespace
}  // namespace dcr
