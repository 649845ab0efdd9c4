#include "run/source_watch.h"

#include <algorithm>
#include <utility>

namespace dcr {
namespace {

constexpr std::uint64_t kStoreLookMs = 100;
constexpr std::uint64_t kLookForChangeNs = 500'000'000;

}  // namespace

Result<std::optional<JoinedSource>> SourceWatch::wait(std::uint64_t wait_ms) {
  while (true) {
    const Result<Membership> members = context_.control().read_members();
    // A store that does not answer may do so later.
    const auto owners = members.ok() ? joined_owners(*members) : std::nullopt;
    if (owners) {
      DCR_ASSIGN(std::optional<PublishedSource> source, fetch_source(directory_, owners->source));
      if (source && source->owners() != owners->names.size()) {
        return Status(Code::kMismatch, "the published source is of " +
                                           std::to_string(source->owners()) + " owners, and " +
                                           std::to_string(owners->names.size()) + " have joined");
      }
      if (source) return std::optional<JoinedSource>({*owners, std::move(*source)});
    }
    if (wait_ms == 0 || context_.options().cancel->cancelled()) {
      return std::optional<JoinedSource>();
    }
    const std::uint64_t step = std::min(wait_ms, kStoreLookMs);
    nothing_.pop(step);
    wait_ms -= step;
  }
}

bool SourceWatch::changed(const JoinedOwners& owners) {
  const std::uint64_t now = context_.options().clock->nanoseconds();
  if (now < looked_ns_ + kLookForChangeNs) return false;
  looked_ns_ = now;
  const Result<Membership> members = context_.control().read_members();
  if (!members.ok()) return false;
  const std::optional<JoinedOwners> joined = joined_owners(*members);
  return joined && *joined != owners;
}

}  // namespace dcr
