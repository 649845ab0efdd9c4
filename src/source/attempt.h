// One attempt at a transition, as owners see it (paper §6.3, B.1; docs/PROTOCOL.md rule 4).
#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "dcr/options.h"
#include "source/buckets.h"
#include "source/geometry.h"

namespace dcr {

struct Attempt {
  Digest run{};
  std::uint64_t attempt = 0;
  // Names the weights: attempts with the same number refit the same candidate, which must not have
  // changed in between.
  std::uint64_t candidate = 0;
  std::uint64_t base_version = 0;
  std::uint64_t target_version = 0;
  AttemptMode mode = AttemptMode::kMixed;
  EncodingChoice mixed = EncodingChoice::kSmallest;  // of kMixed, where a tensor needs no other
  std::vector<Need> needs;                           // by canonical tensor; empty: any of each
};

// A stream that brings a version whole to receivers that restore it. Payloads say that they go from
// the version to itself.
struct RestoreHeader {
  Digest run{};
  std::uint64_t attempt = 0;  // by which payloads name the stream
  std::uint64_t version = 0;
};

// What one owner made of an attempt.
struct PrepareResult {
  PipelineResult pipeline;  // payloads, items, bytes; `changed` is all entries but those of kDense
  AttemptMode mode = AttemptMode::kMixed;  // kDense also where the owner had no baseline
  // Of the owner's elements those whose bits changed: of source tensors (once each, however many
  // canonical tensors have it), of canonical tensors by projection, and by conversion. Without a
  // baseline nothing is known: 0.
  std::uint64_t changed_source_elements = 0;
  std::uint64_t changed_projected_words = 0;
  std::uint64_t changed_residual_words = 0;
  std::uint64_t converted_bytes = 0;  // residual tensors that were compared
};

// What one owner owns; fixed by the geometry.
struct OwnerSizes {
  std::uint64_t source_elements = 0;  // once each, those that only converters read too
  std::uint64_t projected_words = 0;
  std::uint64_t projected_bytes = 0;
  std::uint64_t residual_words = 0;
  std::uint64_t residual_bytes = 0;
  std::uint64_t tracked_bytes = 0;   // of source tensors, for their change flags only
  std::uint64_t baseline_bytes = 0;  // the arena
};

// Stages of spans (paper Figure C.5). "compress" and "send" are those of Buckets.
inline constexpr const char* kStageScan = "scan";
inline constexpr const char* kStageFlags = "flags";
inline constexpr const char* kStageConvert = "convert";
inline constexpr const char* kStageAssemble = "assemble";
inline constexpr const char* kStageCommit = "commit";
inline constexpr const char* kStageInitialize = "initialize";
inline constexpr const char* kStageRestore = "restore";
inline constexpr const char* kStageDigest = "digest";

}  // namespace dcr
