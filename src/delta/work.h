// What every operation on files is given by the layer above: where it runs, and within which
// bounds.
#pragma once

#include <cstdint>
#include <functional>

#include "dcr/status.h"
#include "runtime/file.h"
#include "runtime/threads.h"

namespace dcr {

// Nothing is owned. `files` and `executor` are used during the operation only; operations run on
// the calling thread and on `executor`, of which the caller must be no task.
struct Work {
  FileSystem* files = nullptr;
  Executor* executor = nullptr;
  std::uint64_t memory_bytes_max = 0;  // working memory, beside the checkpoints' tables
  bool force = false;                  // replace an existing output
  const CancelToken* cancel = nullptr;
  // Called on the calling thread with bytes of tensor data; may be empty.
  std::function<void(const char* stage, std::uint64_t bytes_done, std::uint64_t bytes_total)>
      progress;
};

// Counts an operation's bytes and reports them. Not thread-safe: used on the calling thread.
class ProgressCounter {
 public:
  // `work` and `stage` must outlive it.
  ProgressCounter(const Work& work, const char* stage, std::uint64_t bytes_total)
      : work_(work), stage_(stage), total_(bytes_total) {}

  void add(std::uint64_t bytes) {
    done_ += bytes;
    if (work_.progress) work_.progress(stage_, done_, total_);
  }

 private:
  const Work& work_;
  const char* stage_;
  std::uint64_t done_ = 0;
  std::uint64_t total_;
};

}  // namespace dcr
