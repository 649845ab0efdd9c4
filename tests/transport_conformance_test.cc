#include "tests/transport_conformance.h"

#include <algorithm>
#include <filesystem>

#include "base/prng.h"
#include "runtime/file.h"
#include "tests/support/campaign.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/temp_directory.h"
#include "transport/directory_store.h"
#include "transport/memory_store.h"
#include "transport/object_transport.h"

namespace dcr {
namespace {

class ObjectWorld : public TransportWorld {
 public:
  std::unique_ptr<OwnerTransport> owner(std::uint32_t number) override {
    return std::make_unique<ObjectOwnerTransport>(store(), options(1), number);
  }
  std::unique_ptr<NodeTransport> node() override {
    return std::make_unique<ObjectNodeTransport>(store(), options(1));
  }
  std::unique_ptr<OwnerTransport> owner_of_other_run() override {
    return std::make_unique<ObjectOwnerTransport>(store(), options(2), 0);
  }

 private:
  static ObjectTransportOptions options(std::uint8_t run) { return {{run}, kOwners, Bytes(32, 9)}; }
  virtual ObjectStore& store() = 0;
};

class MemoryWorld final : public ObjectWorld {
 public:
  std::size_t objects() override { return store_.size(); }

 private:
  ObjectStore& store() override { return store_; }
  MemoryObjectStore store_;
};

class MemoryDirectoryWorld final : public ObjectWorld {
 public:
  MemoryDirectoryWorld() { DCR_ASSERT(disk_.make_directory("store", 0755).ok()); }
  std::size_t objects() override { return disk_.all().size(); }

 private:
  ObjectStore& store() override { return store_; }
  MemoryFileSystem disk_;
  DirectoryObjectStore store_{disk_, "store"};
};

class PosixDirectoryWorld final : public ObjectWorld {
 public:
  std::size_t objects() override {
    using Iterator = std::filesystem::recursive_directory_iterator;
    return static_cast<std::size_t>(
        std::count_if(Iterator(directory_.path()), Iterator(),
                      [](const auto& entry) { return entry.is_regular_file(); }));
  }

 private:
  ObjectStore& store() override { return store_; }
  TempDirectory directory_;
  DirectoryObjectStore store_{posix_file_system(), directory_.path()};
};

template <typename World>
std::unique_ptr<TransportWorld> make_world() {
  return std::make_unique<World>();
}

INSTANTIATE_TEST_SUITE_P(Memory, TransportConformanceTest,
                         ::testing::Values(MakeTransportWorld{make_world<MemoryWorld>}));
INSTANTIATE_TEST_SUITE_P(MemoryDirectory, TransportConformanceTest,
                         ::testing::Values(MakeTransportWorld{make_world<MemoryDirectoryWorld>}));
INSTANTIATE_TEST_SUITE_P(PosixDirectory, TransportConformanceTest,
                         ::testing::Values(MakeTransportWorld{make_world<PosixDirectoryWorld>}));

void expect_same(const Status& given, const Status& expected) {
  EXPECT_EQ(given.code(), expected.code()) << given.message() << " | " << expected.message();
}

// Random operations of two owners on both: the same comes of them.
TEST(TransportProperty, DirectoriesAreLikeMemory) {
  for (std::uint64_t seed = 0; seed < campaign_cases(300); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    MemoryWorld memory;
    MemoryDirectoryWorld directory;
    std::unique_ptr<OwnerTransport> owners[2][2];
    for (std::uint32_t i = 0; i < 2; ++i) {
      owners[i][0] = memory.owner(i);
      owners[i][1] = directory.owner(i);
    }
    for (unsigned step = 0; step < 60; ++step) {
      const auto who = static_cast<std::uint32_t>(prng.below(2));
      const std::uint64_t attempt = 1 + step / 12 + prng.below(2) - prng.below(2);
      const std::uint64_t number = prng.below(3), choice = prng.below(12);
      const Bytes bytes(prng.below(3), static_cast<std::uint8_t>(prng.below(2)));
      const auto act = [&](OwnerTransport& on) {
        if (choice < 2) return on.begin(attempt);
        if (choice < 8) return on.send(attempt, number, bytes, blake2b(bytes));
        if (choice < 10) return on.end(attempt);
        return choice == 10 ? on.stop_and_wait(attempt) : on.cleanup(attempt);
      };
      expect_same(act(*owners[who][1]), act(*owners[who][0]));
      if (prng.below(15) == 0) {
        owners[who][0] = memory.owner(who);
        owners[who][1] = directory.owner(who);
      }
      ASSERT_EQ(directory.objects(), memory.objects());
      const auto expected = memory.node()->receive(attempt, who, number, 10);
      const auto given = directory.node()->receive(attempt, who, number, 10);
      ASSERT_TRUE(expected.ok() && given.ok());
      ASSERT_EQ(*given, *expected);
      const auto expected_end = memory.node()->receive_end(attempt, who);
      const auto given_end = directory.node()->receive_end(attempt, who);
      ASSERT_TRUE(expected_end.ok() && given_end.ok());
      ASSERT_EQ(*given_end, *expected_end);
    }
  }
}

}  // namespace
}  // namespace dcr
