#include "transport/directory_store.h"

#include <gtest/gtest.h>

#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "transport/object_transport.h"

namespace dcr {
namespace {

constexpr Digest kRun = {1};
const Bytes kBytes(2000, 7);
const std::string kPath = "store/" + digest_text(kRun);

std::unique_ptr<MemoryFileSystem> empty_disk() {
  auto disk = std::make_unique<MemoryFileSystem>();
  disk->put("store/unused", {});
  return disk;
}

// One payload and the end of attempt 2.
Status send_all(FileSystem& files) {
  DirectoryObjectStore store(files, "store");
  ObjectOwnerTransport owner(store, {kRun, 1, {}}, 0);
  DCR_TRY(owner.begin(2));
  DCR_TRY(owner.send(2, 0, kBytes, blake2b(kBytes)));
  return owner.end(2);
}

// Either nothing or exactly what was sent, and a cleanup leaves neither objects nor unfinished
// ones.
void expect_whole_or_absent(MemoryFileSystem& disk, bool present) {
  DirectoryObjectStore store(disk, "store");
  ObjectNodeTransport node(store, {kRun, 1, {}});
  const auto payload = node.receive(2, 0, 0, 1 << 20);
  ASSERT_TRUE(payload.ok()) << payload.status().message();
  if (present || *payload) {
    ASSERT_EQ(*payload, kBytes);
  }
  const auto end = node.receive_end(2, 0);
  ASSERT_TRUE(end.ok()) << end.status().message();
  if (present || *end) {
    ASSERT_EQ(**end, (AttemptEnd{{{kBytes.size(), blake2b(kBytes)}}}));
    ASSERT_TRUE(*payload);  // what is counted is there
  }
  ObjectOwnerTransport cleaner(store, {kRun, 1, {}}, 0);
  ASSERT_TRUE(cleaner.cleanup(2).ok());
  ASSERT_EQ(disk.all().size(), 1U);
  ASSERT_FALSE(disk.exists(kPath + "/2"));
}

TEST(DirectoryStore, ObjectsHaveExactNames) {
  const auto disk = empty_disk();
  ASSERT_TRUE(send_all(*disk).ok());
  EXPECT_EQ(disk->get(kPath + "/2/0/0"), kBytes);
  EXPECT_TRUE(disk->exists(kPath + "/2/0/end"));
  EXPECT_EQ(disk->all().size(), 3U);
}

TEST(DirectoryStore, WhatWasSentSurvivesPowerLoss) {
  const auto disk = empty_disk();
  ASSERT_TRUE(send_all(*disk).ok());
  expect_whole_or_absent(*disk->recover(Unsynced::kNone), true);
}

TEST(DirectoryStore, AKillOrPowerLossAnywhereLeavesWholeObjectsOnly) {
  for (const bool half_done : {false, true}) {
    for (std::uint64_t at = 0;; ++at) {
      const auto disk = empty_disk();
      FaultFileSystem files(*disk);
      files.set_fault({.operation = at, .kind = Fault::Kind::kKill, .half_done = half_done});
      const Status status = send_all(files);
      if (!files.fired()) {
        EXPECT_GT(at, 12U);
        break;
      }
      EXPECT_FALSE(status.ok());
      SCOPED_TRACE("killed in " + files.trace().back());
      for (const Unsynced unsynced : {Unsynced::kNone, Unsynced::kAll, Unsynced::kSome}) {
        expect_whole_or_absent(*disk->recover(unsynced, at), false);
      }
      expect_whole_or_absent(*disk, false);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(DirectoryStore, AFailedOperationMayBeRepeated) {
  for (const bool half_done : {false, true}) {
    for (std::uint64_t at = 0;; ++at) {
      const auto disk = empty_disk();
      FaultFileSystem files(*disk);
      files.set_fault({.operation = at, .kind = Fault::Kind::kFail, .half_done = half_done});
      DirectoryObjectStore store(files, "store");
      ObjectOwnerTransport owner(store, {kRun, 1, {}}, 0);
      const auto twice = [](const std::function<Status()>& operation) {
        const Status status = operation();
        if (status.ok()) return status;
        EXPECT_EQ(status.code(), Code::kIo) << status.message();
        return operation();
      };
      EXPECT_TRUE(twice([&] { return owner.begin(2); }).ok());
      EXPECT_TRUE(twice([&] { return owner.send(2, 0, kBytes, blake2b(kBytes)); }).ok());
      EXPECT_TRUE(twice([&] { return owner.end(2); }).ok());
      if (!files.fired()) break;
      SCOPED_TRACE("failed in operation " + std::to_string(at));
      expect_whole_or_absent(*disk->recover(Unsynced::kNone), true);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(DirectoryStore, AnInterruptedCleanupMayBeRepeated) {
  for (std::uint64_t at = 0;; ++at) {
    const auto disk = empty_disk();
    ASSERT_TRUE(send_all(*disk).ok());
    disk->put(kPath + "/1/3/7.part", kBytes);
    FaultFileSystem files(*disk);
    files.set_fault({.operation = at, .kind = Fault::Kind::kKill, .half_done = at % 2 == 0});
    DirectoryObjectStore store(files, "store");
    const Status status = store.remove_attempts(kRun, 2);
    if (!files.fired()) {
      EXPECT_TRUE(status.ok());
      break;
    }
    const auto after = disk->recover(Unsynced::kSome, at);
    DirectoryObjectStore again(*after, "store");
    ASSERT_TRUE(again.remove_attempts(kRun, 2).ok());
    ASSERT_EQ(after->all().size(), 1U);
  }
}

TEST(DirectoryStore, CleanupTouchesNothingElse) {
  const auto disk = empty_disk();
  disk->put(kPath + "/3/0/0", kBytes);
  disk->put(kPath + "/02/0/0", kBytes);  // no attempt's name
  disk->put(kPath + "/2x/0/0", kBytes);
  disk->put(kPath + "/1", kBytes);  // a file
  disk->put("store/other/1/0/0", kBytes);
  disk->put(kPath + "/2/stray", kBytes);
  DirectoryObjectStore store(*disk, "store");
  ASSERT_TRUE(store.remove_attempts(kRun, 2).ok());
  EXPECT_EQ(disk->all().size(), 6U);
  EXPECT_FALSE(disk->exists(kPath + "/2"));
  ASSERT_TRUE(store.remove_attempts({9}, 2).ok());  // of a run that never was
}

TEST(DirectoryStore, AnObjectInTheWayIsNamed) {
  const auto disk = empty_disk();
  disk->put(kPath + "/2/0/0", Bytes(2000, 8));
  const Status status = send_all(*disk);
  EXPECT_EQ(status.code(), Code::kConflict);
  EXPECT_EQ(status.message(), "object " + digest_text(kRun) + "/2/0/0 is there with other bytes");
}

TEST(DirectoryStore, TooMuchIsNotRead) {
  const auto disk = empty_disk();
  disk->put(kPath + "/2/0/0", kBytes);
  DirectoryObjectStore store(*disk, "store");
  const Status status = store.get({kRun, 2, 0, 0}, 1999).status();
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_EQ(status.message(), "object " + digest_text(kRun) + "/2/0/0: " + kPath +
                                  "/2/0/0 has 2000 bytes, more than the limit of 1999");
}

}  // namespace
}  // namespace dcr
