// The journal of an in-place application (docs/FORMAT.md "Journal"): what a later run needs to
// finish an interrupted one. It lies beside the checkpoint, is replaced as a whole by rename, and
// is there from before the first byte of the checkpoint is written until after the last one was
// verified.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/limits.h"
#include "codec/payload.h"
#include "dcr/status.h"
#include "runtime/file.h"

namespace dcr {

// What a journal may hold, so that a run within any memory bound can read another's. A batch aims
// at most at kBatchBytesMax and ends before the item that would take it above, so only items far
// larger than a piece (source/pipeline.h) could come near the limits.
inline constexpr std::uint64_t kBatchBytesMax = 64 * kMiB;
inline constexpr PayloadLimits kJournalPayloadLimits{2 * kBatchBytesMax, 2 * kBatchBytesMax};
inline constexpr std::uint64_t kJournalBytesMax = kJournalPayloadLimits.stored_bytes_max + kKiB;

enum class JournalState : std::uint8_t {
  kItems = 0,     // items are being written into the files
  kRenaming = 1,  // all items are in place; files written beside are being renamed
};

struct Journal {
  Digest delta{};  // DeltaReader::id() of the delta that is being applied
  JournalState state = JournalState::kItems;

  // kItems. Items are counted over the whole delta in its order. Those below `first_item` are in
  // the files durably, those in [first_item, end_item) may be in part, those from `end_item` on are
  // not; items of tensors that are not written in place are counted and skipped.
  std::uint64_t first_item = 0, end_item = 0;
  // The new bits of items [first_item, end_item): a sealed payload of overwrite items, bound by the
  // delta's schema.
  Bytes payload;

  // kRenaming. File names in the checkpoint's directory, in the order in which they are renamed and
  // then removed.
  std::vector<std::string> renames, removals;

  bool operator==(const Journal&) const = default;
};

// REQUIRES: names of one component (validate_file_name).
Bytes encode_journal(const Journal& journal);

// Verifies the digest, then validates every field. The payload is verified by Payload::read.
// Errors: kCorrupt, kUnsupported (version), naming the field.
Result<Journal> decode_journal(ByteSpan bytes);

// "<checkpoint>.dcr-journal", for a file as for a directory.
std::string journal_path(const std::string& checkpoint);

// The journal beside `checkpoint`, or nothing. Errors: decode_journal's, saying what to do; kIo.
Result<std::optional<Journal>> read_journal(FileSystem& files, const std::string& checkpoint);

// Replaces the journal: written under a temporary name, synced, renamed, directory synced. On
// success the new journal survives power loss; on an error the one before does.
Status write_journal(FileSystem& files, const std::string& checkpoint, const Journal& journal);

// Removes the temporary file of an interrupted write_journal, if there is one.
Status remove_stale_journal(FileSystem& files, const std::string& checkpoint);

// Removes the journal, if there is one, and its temporary file, and syncs the directory.
Status remove_journal(FileSystem& files, const std::string& checkpoint);

// Removes a file; success if there is none.
Status remove_if_present(FileSystem& files, const std::string& path);

}  // namespace dcr
