// Where a benchmark keeps its files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "dcr/status.h"
#include "runtime/file.h"

namespace dcr {

// A directory that goes away with its contents.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> make(const std::string& parent) {
    std::string path = join_path(parent, "dcr-bench-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return Status(Code::kIo, "no temporary directory can be made in " + parent);
    }
    return TemporaryDirectory(path);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;  // nothing better can be done in a destructor
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace dcr
