// What the hostile-payload suite asks of every case.
#pragma once

#include <string>

#include "base/bytes.h"
#include "codec/payload.h"
#include "dcr/status.h"
#include "tests/support/payload_forge.h"

namespace dcr {

// The receiver's own table: 100 words of 2 bytes, 64 of 4, 40 of 1, and one that is too large to be
// here (2^40 words of 1 byte).
inline constexpr std::uint64_t kHostileWords[] = {100, 64, 40, std::uint64_t{1} << 40};
inline constexpr unsigned kHostileWidths[] = {2, 4, 1, 1};
inline constexpr PayloadLimits kHostileLimits = {8u << 20, 1u << 20};

// Reads a payload as a receiver does and applies what is valid. Expects that it is refused with
// exactly this error, without an allocation above the limits, and that no byte of a target changed.
void expect_refused(const Bytes& stored, Code code, const std::string& message,
                    const PayloadLimits& limits = kHostileLimits);

// The same for a payload that may be valid: expects all but which error it is, and that the error's
// code is one of those that bytes from outside can cause. Returns whether it was valid.
bool expect_harmless(const Bytes& stored);

// A payload that is right: two items that are gaps and a bitmap, planes and symbols.
PayloadForge valid_forge();

}  // namespace dcr
