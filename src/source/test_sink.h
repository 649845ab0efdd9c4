// Where tests of owners send payloads.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "dcr/ports.h"

namespace dcr {

// Keeps payloads; the one with number `failing_payload` does not fit.
class TestSink final : public PayloadSink {
 public:
  Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) override {
    EXPECT_EQ(number, payloads.size());
    if (number == failing_payload) return {Code::kIo, "the sink is full"};
    payloads.emplace_back(bytes.begin(), bytes.end());
    return {};
  }

  std::vector<Bytes> payloads;
  std::uint64_t failing_payload = ~std::uint64_t{0};
};

}  // namespace dcr
