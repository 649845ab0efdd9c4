// Waits for the owners of a run directory and for what they have published.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "run/process_context.h"
#include "run/published_source.h"
#include "runtime/event_queue.h"

namespace dcr {

struct JoinedSource {
  JoinedOwners owners;
  PublishedSource source;
};

// Not thread-safe.
class SourceWatch {
 public:
  // `directory`: where sources lie. `context` must outlive it.
  SourceWatch(ProcessContext& context, std::string directory)
      : context_(context), directory_(std::move(directory)) {}

  // Those that are there now, or come within `wait_ms`. Errors: fetch_source's, and kMismatch, it
  // is for another number of owners.
  Result<std::optional<JoinedSource>> wait(std::uint64_t wait_ms);

  // Whether owners with another source have joined since; looks a few times a second.
  bool changed(const JoinedOwners& owners);

 private:
  ProcessContext& context_;
  const std::string directory_;
  std::uint64_t looked_ns_ = 0;
  EventQueue<bool> nothing_;
};

}  // namespace dcr
