// Whole passes over memory that the library is measured against, on the widest vectors of the CPU.
#pragma once

#include <cstdint>
#include <span>

namespace dcr {

// The floor of construction: reads every byte of both spans in step, with four independent
// accumulators, and fetches ahead as the library's scan does; the result (an OR of XORs folded to
// one byte) depends on all of them, so that no load can be dropped. REQUIRES: equal sizes.
// Thread-safe.
std::uint64_t read_both(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

// target[i] ^= masks[i]. REQUIRES: equal sizes. Thread-safe on different targets.
void xor_into(std::span<std::uint16_t> target, std::span<const std::uint16_t> masks);

}  // namespace dcr
