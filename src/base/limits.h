// Every limit on what comes from outside, by name and unit (docs/THREAT_MODEL.md).
#pragma once

#include <cstdint>

namespace dcr {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// Tensors.
inline constexpr std::uint64_t kRankMax = 8;
inline constexpr std::uint64_t kDimensionMax = (std::uint64_t{1} << 40) - 1;
inline constexpr std::uint64_t kElementsMax = (std::uint64_t{1} << 48) - 1;
inline constexpr std::uint64_t kTensorNameBytesMax = 1024;

// Checkpoints.
inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the format's own limit
// Headers of all files of a checkpoint together; they are kept to reproduce the files.
inline constexpr std::uint64_t kHeaderBytesPerCheckpointMax = 256 * kMiB;
inline constexpr std::uint64_t kMetadataEntriesMax = 65'536;  // of one "__metadata__"
inline constexpr std::uint64_t kTensorsPerCheckpointMax = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kFilesPerCheckpointMax = 4096;
// Of all its weights files together, so that sums of bytes and of elements need no check.
inline constexpr std::uint64_t kCheckpointBytesMax = std::uint64_t{1} << 60;
inline constexpr std::uint64_t kFileNameBytesMax = 255;
inline constexpr std::uint64_t kCarriedFileBytesMax = 64 * kMiB;
inline constexpr std::uint64_t kJsonDepthMax = 8;
inline constexpr std::uint64_t kJsonStringBytesMax = 16 * kMiB;  // as written, escapes included

// Items and payloads.
inline constexpr std::uint64_t kItemElementsMax = std::uint64_t{1} << 24;  // docs/FORMAT.md "Items"
// What a reader keeps of so many items stays below 64 MiB.
inline constexpr std::uint64_t kItemsPerPayloadMax = std::uint64_t{1} << 17;
inline constexpr std::uint64_t kRunsPerPayloadMax = std::uint64_t{1} << 24;
inline constexpr std::uint64_t kPayloadStoredBytesMax = 2 * kGiB;
inline constexpr std::uint64_t kPayloadRawBytesMax = 8 * kGiB;
// Of a payload with a sample of a baseline, stored, raw and decoded.
inline constexpr std::uint64_t kSampleBytesMax = 32 * kKiB;
inline constexpr std::uint64_t kPayloadsPerDeltaMax = 65'536;
inline constexpr std::uint64_t kZstdWindowLogMax = 27;

// Control messages.
inline constexpr std::uint64_t kControlBodyBytesMax = 16 * kMiB;

// A rank's declaration of what it holds.
inline constexpr std::uint64_t kDeclarationBytesMax = 512 * kMiB;
inline constexpr std::uint64_t kDeclaredRanksMax = 65'536;
// Of all canonical tensors together, since what ranks plan grows with their words: 35 TB of BF16.
inline constexpr std::uint64_t kDeclaredWordsMax = std::uint64_t{1} << 44;
inline constexpr std::uint64_t kPartsPerTaskMax = std::uint64_t{1} << 16;

// Delta files.
inline constexpr std::uint64_t kFooterBytesMax = 512 * kMiB;

static_assert(kCarriedFileBytesMax < kPayloadStoredBytesMax);
static_assert(kPayloadStoredBytesMax <= kPayloadRawBytesMax);

}  // namespace dcr
