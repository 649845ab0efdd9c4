// A disk in memory with checkpoints and deltas on it, for tests of src/delta.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "base/digest.h"
#include "base/limits.h"
#include "delta/delta_file.h"
#include "delta/work.h"
#include "runtime/threads.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/test_checkpoint.h"

namespace dcr {

// `delta` with the footer `footer` in place of its own, under a digest that fits.
inline Bytes replace_footer(const Bytes& delta, const Bytes& footer) {
  const std::uint64_t offset =
      load_little<std::uint64_t>(delta.data() + delta.size() - kDeltaTrailerBytes);
  Bytes made(delta.begin(), delta.begin() + static_cast<std::ptrdiff_t>(offset));
  ByteWriter out(&made);
  out.bytes(footer);
  out.u64(offset);
  out.u64(footer.size());
  out.u8(kDigestBlake2b128);
  out.zeros(7);
  Blake2b hash;
  hash.update(ByteSpan(made).first(kDeltaPrologueBytes));
  hash.update(ByteSpan(made).subspan(static_cast<std::size_t>(offset)));
  out.bytes(hash.finish());
  out.u32(kFormatVersion);
  out.zeros(4);
  out.text("DCRTRAIL");
  return made;
}

class DeltaDiskTest : public ::testing::Test {
 protected:
  void put(const std::string& path, const TestCheckpoint& checkpoint) {
    for (const auto& [name, content] : checkpoint.files(path)) disk_.put(name, content);
  }

  Work work() { return work_on(disk_); }
  Work work_on(FileSystem& files) {
    return {&files, executor_.get(), 256 * kMiB, false, nullptr, {}};
  }
  Work forced() {
    Work work = this->work();
    work.force = true;
    return work;
  }

  // The files at or below `path`, by their path from there ("" for a file itself).
  std::map<std::string, Bytes> files_at(const std::string& path) const {
    std::map<std::string, Bytes> found;
    for (auto& [name, bytes] : disk_.all()) {
      if (name == path) found[""] = bytes;
      if (name.starts_with(path + "/")) found[name.substr(path.size() + 1)] = bytes;
    }
    return found;
  }

  // Removes a file or a directory of files, if one is there.
  void clear(const std::string& path) {
    for (const auto& [name, bytes] : files_at(path)) {
      ASSERT_TRUE(disk_.remove(name.empty() ? path : join_path(path, name)).ok());
    }
    if (disk_.exists(path)) {
      ASSERT_TRUE(disk_.remove_directory(path).ok());
    }
  }

  MemoryFileSystem disk_;
  std::unique_ptr<Executor> executor_ = make_executor(1);
};

}  // namespace dcr
