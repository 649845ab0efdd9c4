#include "channel/address.h"

#include <gtest/gtest.h>

#include <string>

namespace dcr {
namespace {

TEST(Address, OfOneMachineWithAPort) {
  for (const char* good : {"tcp://127.0.0.1:1", "tcp://10.20.30.40:65535", "tcp://[::1]:4711",
                           "tcp://[fd00:1:2:3:4:5:6:7]:80", "tcp://[::ffff:10.0.0.1]:80"}) {
    EXPECT_TRUE(check_address(good).ok()) << good;
    EXPECT_TRUE(check_listen_address(good).ok()) << good;
  }
  for (const char* listen : {"tcp://127.0.0.1:0", "tcp://0.0.0.0:0", "tcp://[::]:4711"}) {
    EXPECT_EQ(check_address(listen).code(), Code::kInvalidArgument) << listen;
    EXPECT_TRUE(check_listen_address(listen).ok()) << listen;
  }
}

TEST(Address, ASocketInTheFileSystem) {
  const std::string longest = "ipc:///" + std::string(kSocketPathBytesMax - 1, 'x');
  for (const std::string& good : {std::string("ipc:///run/dcr/owner-0.socket"), longest}) {
    EXPECT_TRUE(check_address(good).ok()) << good;
    EXPECT_TRUE(check_listen_address(good).ok()) << good;
  }
  EXPECT_EQ(check_listen_address(longest + "x").message(),
            "the path of a socket has at most 107 bytes, and \"/" + std::string(106, 'x') +
                "…\" has 108: use a folder with a shorter name");
}

TEST(Address, AnythingElseIsRefused) {
  for (const std::string bad : {"",
                                "tcp://",
                                "tcp://:",
                                "tcp://127.0.0.1",
                                "tcp://127.0.0.1:",
                                "tcp://:80",
                                "tcp://*:80",
                                "tcp://eth0:80",
                                "tcp://localhost:80",
                                "tcp://127.0.0.1:65536",
                                "tcp://127.0.0.1:080",
                                "tcp://127.0.0.1:+80",
                                "tcp://127.0.0.1:-1",
                                "tcp://127.0.0.1:80 ",
                                " tcp://127.0.0.1:80",
                                "tcp://127.0.0.1:80/x",
                                "tcp://127.1:80",
                                "tcp://127.0.0.01:80",
                                "tcp://[127.0.0.1]:80",
                                "tcp://::1:80",
                                "tcp://[::1:80",
                                "tcp://[]:80",
                                "ipc://",
                                "ipc://x",
                                "ipc:///",
                                "ipc://*",
                                "ipc://@x",
                                "ipc:///tmp/a b",
                                "inproc://x",
                                "udp://127.0.0.1:80",
                                "tcp://10.0.0.1:1;10.0.0.2:2",
                                "tcp://10.0.0.1;10.0.0.2:2",
                                "tcp://[fe80::1%eth0]:80"}) {
    EXPECT_EQ(check_address(bad).code(), Code::kInvalidArgument) << bad;
    EXPECT_EQ(check_listen_address(bad).code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(check_address(std::string("tcp://127.0.0.1\0:80", 19)).ok());
  EXPECT_FALSE(check_address(std::string("tcp://127.0.0.1:80\0", 19)).ok());
  EXPECT_EQ(check_address("tcp://gpu-7:80").message(),
            "\"tcp://gpu-7:80\" is no address: it is written as tcp://10.0.0.1:4711 or "
            "tcp://[fd00::1]:4711, with a number for the host");
  EXPECT_FALSE(check_address("tcp://" + std::string(100'000, '1') + ":80").ok());
}

}  // namespace
}  // namespace dcr
