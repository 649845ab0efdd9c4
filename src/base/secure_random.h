// Randomness of the system, for what must not be guessed or met twice: run ids. Everything that has
// to be repeatable takes a seeded Prng (base/prng.h).
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace dcr {

// Fills `out`. Thread-safe.
void fill_random(MutableByteSpan out);

// From 1 to `most`, which is a power of two. Thread-safe.
std::uint64_t random_number(std::uint64_t most);

}  // namespace dcr
