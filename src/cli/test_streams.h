// Streams in memory for the tests of the commands.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/assert.h"

namespace dcr {

class MemoryStream {
 public:
  MemoryStream() : file_(open_memstream(&text_, &size_)) { DCR_ASSERT(file_ != nullptr); }
  ~MemoryStream() {
    static_cast<void>(std::fclose(file_));
    std::free(text_);  // NOLINT(cppcoreguidelines-no-malloc): open_memstream's
  }
  MemoryStream(const MemoryStream&) = delete;
  MemoryStream& operator=(const MemoryStream&) = delete;

  std::FILE* file() { return file_; }

  // Everything written so far.
  std::string text() {
    DCR_ASSERT(std::fflush(file_) == 0);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

}  // namespace dcr
