#include "delta/journal.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tensor/checkpoint.h"

namespace dcr {
namespace {

constexpr std::uint8_t kJournalMagic[8] = {'D', 'C', 'R', 'J', 'O', 'U', 'R', 'N'};
constexpr std::uint32_t kJournalVersion = 0;
constexpr std::size_t kDigestBytes = sizeof(Digest);
constexpr std::uint32_t kJournalPermissions = 0600;

Status corrupt_journal(const std::string& what) { return {Code::kCorrupt, "journal: " + what}; }

void put_names(const std::vector<std::string>& names, ByteWriter* writer) {
  writer->u32(static_cast<std::uint32_t>(names.size()));
  for (const std::string& name : names) {
    writer->u16(static_cast<std::uint16_t>(name.size()));
    writer->text(name);
  }
}

Status read_names(const char* field, ByteReader* reader, std::vector<std::string>* names) {
  const std::uint32_t count = reader->u32();
  if (!reader->ok()) return corrupt_journal(std::string(field) + " are missing");
  // A removal for each file of the base and a rename for each of the target.
  if (count > kFilesPerCheckpointMax) return corrupt_journal(std::string("too many ") + field);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint16_t size = reader->u16();
    std::string name(reader->text(size));
    if (!reader->ok()) return corrupt_journal(std::string(field) + " end early");
    DCR_TRY(validate_file_name(name).with_context(std::string("journal: ") + field));
    names->push_back(std::move(name));
  }
  return {};
}

Status read_items(ByteReader* reader, Journal* journal) {
  journal->first_item = reader->u64();
  journal->end_item = reader->u64();
  const std::uint64_t payload_bytes = reader->u64();
  if (!reader->ok()) return corrupt_journal("items end early");
  if (journal->first_item >= journal->end_item) return corrupt_journal("an empty range of items");
  const ByteSpan payload = reader->bytes(payload_bytes);
  if (!reader->ok()) return corrupt_journal("payload bytes disagree with the size");
  journal->payload.assign(payload.begin(), payload.end());
  return {};
}

std::string temporary_path(const std::string& checkpoint) {
  return journal_path(checkpoint) + ".tmp";
}

}  // namespace

Bytes encode_journal(const Journal& journal) {
  Bytes out;
  out.reserve(journal.payload.size() + 128);
  ByteWriter writer(&out);
  writer.bytes(kJournalMagic);
  writer.u32(kJournalVersion);
  writer.u8(static_cast<std::uint8_t>(journal.state));
  writer.u8(kDigestBlake2b128);
  writer.zeros(2);
  writer.bytes(journal.delta);
  if (journal.state == JournalState::kItems) {
    writer.u64(journal.first_item);
    writer.u64(journal.end_item);
    writer.u64(journal.payload.size());
    writer.bytes(journal.payload);
  } else {
    put_names(journal.renames, &writer);
    put_names(journal.removals, &writer);
  }
  const Digest digest = blake2b(out);
  writer.bytes(digest);
  return out;
}

Result<Journal> decode_journal(ByteSpan bytes) {
  if (bytes.size() < sizeof(kJournalMagic) + kDigestBytes) return corrupt_journal("too short");
  const ByteSpan body = bytes.first(bytes.size() - kDigestBytes);
  Digest stored;
  std::copy_n(bytes.end() - kDigestBytes, kDigestBytes, stored.begin());
  if (!digest_equal(stored, blake2b(body))) return corrupt_journal("the digest is wrong");

  ByteReader reader(body);
  if (!std::ranges::equal(reader.bytes(sizeof(kJournalMagic)), kJournalMagic))
    return corrupt_journal("wrong magic");
  const std::uint32_t version = reader.u32();
  if (reader.ok() && version != kJournalVersion) {
    return Status(Code::kUnsupported, "journal: version " + std::to_string(version) +
                                          "; this build reads version " +
                                          std::to_string(kJournalVersion));
  }
  Journal journal;
  const std::uint8_t state = reader.u8();
  const std::uint8_t algorithm = reader.u8();
  const std::uint16_t reserved = reader.u16();
  const ByteSpan delta = reader.bytes(journal.delta.size());
  if (!reader.ok()) return corrupt_journal("the header ends early");
  if (algorithm != kDigestBlake2b128) return corrupt_journal("unknown digest algorithm");
  if (reserved != 0) return corrupt_journal("reserved bytes are not zero");
  std::copy(delta.begin(), delta.end(), journal.delta.begin());
  switch (state) {
    case static_cast<std::uint8_t>(JournalState::kItems):
      journal.state = JournalState::kItems;
      DCR_TRY(read_items(&reader, &journal));
      break;
    case static_cast<std::uint8_t>(JournalState::kRenaming):
      journal.state = JournalState::kRenaming;
      DCR_TRY(read_names("renames", &reader, &journal.renames));
      DCR_TRY(read_names("removals", &reader, &journal.removals));
      break;
    default:
      return corrupt_journal("unknown state");
  }
  if (reader.remaining() != 0) return corrupt_journal("bytes after the end");
  return journal;
}

std::string journal_path(const std::string& checkpoint) { return checkpoint + ".dcr-journal"; }

Result<std::optional<Journal>> read_journal(FileSystem& files, const std::string& checkpoint) {
  const std::string path = journal_path(checkpoint);
  const Result<FileInfo> info = files.info(path, false);
  if (!info.ok()) {
    if (info.status().code() == Code::kNotFound) return std::optional<Journal>();
    return info.status();
  }
  if (info->kind != FileKind::kRegular) {
    return Status(Code::kCorrupt, path + " is not a regular file; move it away");
  }
  Result<Bytes> bytes = read_file(files, path, kJournalBytesMax);
  if (!bytes.ok()) return bytes.status();
  Result<Journal> journal = decode_journal(*bytes);
  if (journal.ok()) return std::optional<Journal>(std::move(journal).value());
  if (journal.status().code() != Code::kCorrupt) return journal.status().with_context(path);
  return Status(journal.status().code(),
                path + ": " + journal.status().message() +
                    "; an interrupted run cannot be completed from it: restore the checkpoint from "
                    "a copy, remove this file and apply again");
}

Status write_journal(FileSystem& files, const std::string& checkpoint, const Journal& journal) {
  DCR_TRY(remove_stale_journal(files, checkpoint));
  const std::string temporary = temporary_path(checkpoint);
  const auto make = [&]() -> Status {
    DCR_ASSIGN(const std::unique_ptr<File> file, files.create(temporary, kJournalPermissions));
    DCR_TRY(file->write(0, encode_journal(journal)));
    return file->sync();
  };
  Status status = make();
  if (status.ok()) status = files.rename(temporary, journal_path(checkpoint));
  if (!status.ok()) {
    const Status removed = remove_stale_journal(files, checkpoint);
    if (removed.ok()) return status;
    return {status.code(), status.message() + "; and " + removed.message()};
  }
  return files.sync_directory(parent_path(checkpoint));
}

Status remove_stale_journal(FileSystem& files, const std::string& checkpoint) {
  return remove_if_present(files, temporary_path(checkpoint));
}

Status remove_journal(FileSystem& files, const std::string& checkpoint) {
  DCR_TRY(remove_stale_journal(files, checkpoint));
  DCR_TRY(remove_if_present(files, journal_path(checkpoint)));
  return files.sync_directory(parent_path(checkpoint));
}

Status remove_if_present(FileSystem& files, const std::string& path) {
  const Result<FileInfo> info = files.info(path, false);
  if (info.ok()) return files.remove(path);
  return info.status().code() == Code::kNotFound ? Status() : info.status();
}

}  // namespace dcr
