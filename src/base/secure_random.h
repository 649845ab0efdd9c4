// Randomness of the system, for what must not be guessed or met twice: run ids. Everything that has
// to be repeatable takes a seeded Prng (base/prng.h).
#pragma once

#include "base/bytes.h"

namespace dcr {

// Fills `out`. Thread-safe.
void fill_random(MutableByteSpan out);

}  // namespace dcr
