// Bits of the footer's flag bytes (docs/FORMAT.md "Footer").
#pragma once

namespace dcr {

inline constexpr unsigned kFooterDirectory = 1;
inline constexpr unsigned kFileInBase = 1, kFileInTarget = 2, kFileSameAsBase = 4, kFileIsOther = 8;
inline constexpr unsigned kTensorInBase = 1, kTensorInTarget = 2, kTensorCommon = 4;

}  // namespace dcr
