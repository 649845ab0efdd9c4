#include "delta/journal.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/support/campaign.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"

namespace dcr {
namespace {

Journal items_journal() {
  Journal journal;
  journal.delta.fill(7);
  journal.first_item = 3;
  journal.end_item = 9;
  journal.payload = {1, 2, 3, 4, 5};
  return journal;
}

Journal renaming_journal() {
  Journal journal;
  journal.delta.fill(9);
  journal.state = JournalState::kRenaming;
  journal.renames = {"model-1-of-2.safetensors", "config.json"};
  journal.removals = {"old.json"};
  return journal;
}

// `body` with the digest that makes it a journal whose fields are looked at.
Bytes sealed(Bytes body) {
  const Digest digest = blake2b(body);
  body.insert(body.end(), digest.begin(), digest.end());
  return body;
}

// The journal without its digest.
Bytes body_of(const Journal& journal) {
  Bytes bytes = encode_journal(journal);
  bytes.resize(bytes.size() - sizeof(Digest));
  return bytes;
}

void expect_error(const Bytes& bytes, Code code, const std::string& message) {
  const Result<Journal> read = decode_journal(bytes);
  EXPECT_EQ(read.status().code(), code);
  EXPECT_EQ(read.status().message(), message);
}

TEST(JournalTest, RoundTrip) {
  for (const Journal& journal : {items_journal(), renaming_journal()}) {
    const Result<Journal> read = decode_journal(encode_journal(journal));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(*read, journal);
  }
}

TEST(JournalTest, BytesAreAsDocumented) {
  const Bytes bytes = encode_journal(items_journal());
  ASSERT_EQ(bytes.size(), 56u + 5 + 16);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), "DCRJOURN");
  EXPECT_EQ(load_little<std::uint32_t>(&bytes[8]), 0u);
  EXPECT_EQ(bytes[12], 0);  // state
  EXPECT_EQ(bytes[13], kDigestBlake2b128);
  EXPECT_EQ(load_little<std::uint16_t>(&bytes[14]), 0u);
  EXPECT_EQ(bytes[16], 7);  // the delta's id
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[32]), 3u);
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[40]), 9u);
  EXPECT_EQ(load_little<std::uint64_t>(&bytes[48]), 5u);
  EXPECT_EQ(bytes[56], 1);
}

TEST(JournalTest, EveryFlippedBitIsFound) {
  for (const Journal& journal : {items_journal(), renaming_journal()}) {
    const Bytes bytes = encode_journal(journal);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      Bytes flipped = bytes;
      flipped[bit / 8] = static_cast<std::uint8_t>(flipped[bit / 8] ^ (1u << (bit % 8)));
      expect_error(flipped, Code::kCorrupt, "journal: the digest is wrong");
    }
  }
}

TEST(JournalTest, EveryTruncationIsFound) {
  for (const Journal& journal : {items_journal(), renaming_journal()}) {
    const Bytes bytes = encode_journal(journal);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(decode_journal(ByteSpan(bytes).first(size)).status().code(), Code::kCorrupt);
    }
    // With a digest that is right, the fields themselves must end where they should.
    const Bytes body = body_of(journal);
    for (std::size_t size = 0; size < body.size(); ++size) {
      const Bytes cut =
          sealed(Bytes(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(size)));
      EXPECT_EQ(decode_journal(cut).status().code(), Code::kCorrupt) << size;
    }
  }
}

TEST(JournalTest, FieldsAreValidated) {
  const auto changed = [](const Journal& journal, std::size_t at, std::uint8_t value) {
    Bytes body = body_of(journal);
    body[at] = value;
    return sealed(body);
  };
  expect_error(changed(items_journal(), 0, 'X'), Code::kCorrupt, "journal: wrong magic");
  expect_error(changed(items_journal(), 8, 1), Code::kUnsupported,
               "journal: version 1; this build reads version 0");
  expect_error(changed(items_journal(), 12, 2), Code::kCorrupt, "journal: unknown state");
  expect_error(changed(items_journal(), 13, 9), Code::kCorrupt,
               "journal: unknown digest algorithm");
  expect_error(changed(items_journal(), 14, 1), Code::kCorrupt,
               "journal: reserved bytes are not zero");
  expect_error(changed(items_journal(), 32, 9), Code::kCorrupt, "journal: an empty range of items");
  expect_error(changed(items_journal(), 48, 6), Code::kCorrupt,
               "journal: payload bytes disagree with the size");
  expect_error(changed(items_journal(), 48, 4), Code::kCorrupt, "journal: bytes after the end");
  expect_error(changed(renaming_journal(), 33, 0xff), Code::kCorrupt, "journal: too many renames");
  Bytes longer = body_of(renaming_journal());
  longer.push_back(0);
  expect_error(sealed(longer), Code::kCorrupt, "journal: bytes after the end");
}

TEST(JournalTest, NamesThatLeaveTheDirectoryAreRefused) {
  for (const std::string name : {"..", ".", "a/b", "/etc/passwd", ""}) {
    Journal journal = renaming_journal();
    journal.removals = {name};
    const Status status = decode_journal(encode_journal(journal)).status();
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_NE(status.message().find("journal: removals"), std::string::npos) << status.message();
  }
}

TEST(JournalTest, AnyFieldsUnderARightDigest) {
  for (std::uint64_t seed = 0; seed < campaign_cases(200'000); ++seed) {
    Prng prng(seed);
    Bytes body = body_of(prng.below(2) == 0 ? items_journal() : renaming_journal());
    for (std::uint64_t changes = 1 + prng.below(4); changes > 0; --changes) {
      body[12 + prng.below(body.size() - 12)] = static_cast<std::uint8_t>(prng.next());
    }
    const Bytes bytes = sealed(body);
    const Result<Journal> read = decode_journal(bytes);
    if (!read.ok()) {
      EXPECT_EQ(read.status().code(), Code::kCorrupt) << "seed " << seed;
    } else {
      EXPECT_EQ(encode_journal(*read), bytes) << "seed " << seed;  // nothing was lost
    }
  }
}

TEST(JournalFileTest, NoneIsNoError) {
  MemoryFileSystem disk;
  disk.put("dir/model.safetensors", {});
  const Result<std::optional<Journal>> read = read_journal(disk, "dir/model.safetensors");
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(read->has_value());
  EXPECT_TRUE(remove_journal(disk, "dir/model.safetensors").ok());
}

TEST(JournalFileTest, DamageSaysWhatToDo) {
  MemoryFileSystem disk;
  disk.put("dir/m.dcr-journal", Bytes(100, 1));
  const Status status = read_journal(disk, "dir/m").status();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(),
            "dir/m.dcr-journal: journal: the digest is wrong; an interrupted run cannot be "
            "completed from it: restore the checkpoint from a copy, remove this file and apply "
            "again");
}

// Whatever happens while one journal replaces another, one of the two is there, whole; and once
// write_journal returned, it is the new one.
TEST(JournalFileTest, ReplacedWholeOrNotAtAll) {
  const Journal before = items_journal();
  const Journal after = renaming_journal();
  for (const Fault::Kind kind : {Fault::Kind::kKill, Fault::Kind::kFail}) {
    bool fired = true;
    for (std::uint64_t n = 0; fired; ++n) {
      for (const bool half_done : {false, true}) {
        MemoryFileSystem disk;
        disk.put("dir/m.dcr-journal", encode_journal(before));
        disk.put("dir/m.dcr-journal.tmp", Bytes{1});
        FaultFileSystem files(disk);
        files.set_fault({.operation = n, .kind = kind, .half_done = half_done});
        const Status status = write_journal(files, "dir/m", after);
        fired = files.fired();
        EXPECT_EQ(status.ok(), !fired);
        if (kind == Fault::Kind::kFail && fired) {
          EXPECT_EQ(disk.exists("dir/m.dcr-journal.tmp"), n == 0 && !half_done);
        }
        for (std::uint64_t seed = 0; seed < 12; ++seed) {
          const Unsynced unsynced = seed == 0   ? Unsynced::kNone
                                    : seed == 1 ? Unsynced::kAll
                                                : Unsynced::kSome;
          const auto survivor = disk.recover(unsynced, seed);
          const Result<std::optional<Journal>> read = read_journal(*survivor, "dir/m");
          ASSERT_TRUE(read.ok()) << read.status().message();
          ASSERT_TRUE(read->has_value());
          EXPECT_TRUE(**read == after || (fired && **read == before)) << n << " seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dcr
