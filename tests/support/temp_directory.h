// A directory of a test's own, removed with everything in it.
#pragma once

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/assert.h"
#include "base/bytes.h"
#include "runtime/file.h"

namespace dcr {

class TempDirectory {
 public:
  TempDirectory() : TempDirectory(std::filesystem::temp_directory_path()) {}
  explicit TempDirectory(const std::filesystem::path& parent) {
    std::string pattern = (parent / "dcr_test_XXXXXX").string();
    DCR_ASSERT(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDirectory() {
    std::error_code ignored;  // the system's own cleaning takes what is left
    std::filesystem::remove_all(path_, ignored);
  }
  // One in memory, where the machine has such: for tests that sync often and for nothing.
  static std::filesystem::path in_memory() {
    std::error_code ignored;
    const std::filesystem::path shared = "/dev/shm";
    return std::filesystem::is_directory(shared, ignored) ? shared
                                                          : std::filesystem::temp_directory_path();
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string at(const std::string& name) const { return join_path(path_, name); }

  // Creates or replaces a file with exactly these bytes.
  void put(const std::string& name, ByteSpan bytes) const {
    std::FILE* file = std::fopen(at(name).c_str(), "wb");
    DCR_ASSERT(file != nullptr);
    DCR_ASSERT(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    DCR_ASSERT(std::fclose(file) == 0);
  }
  void put(const std::string& name, const std::string& text) const {
    put(name, ByteSpan(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
  }

 private:
  std::string path_;
};

}  // namespace dcr
