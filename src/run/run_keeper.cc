#include "run/run_keeper.h"

#include <optional>
#include <utility>

#include "run/coordinator_process.h"
#include "run/mailbox.h"
#include "run/node_process.h"

namespace dcr {
namespace {

constexpr std::uint64_t kLookNs = 300'000'000;
constexpr std::uint64_t kWithoutMemberNs = 30'000'000'000;

// A process of a run directory: its keeper, and what it has open.
struct DirectoryProcess {
  DirectoryProcess(RunDirectory& directory, const std::string& name, const ProcessOptions& given)
      : keeper(directory, name, *given.clock, given.cancel), options(given) {
    options.cancel = &keeper.ended();
    options.idle = [this] {
      if (context != nullptr) keeper.look(context->control(), options);
    };
  }

  Status open(RunDirectory& directory) {
    DCR_ASSIGN(context, ProcessContext::open(directory.config(), options, directory.peers()));
    return {};
  }

  RunKeeper keeper;
  ProcessOptions options;
  std::unique_ptr<ProcessContext> context;
};

}  // namespace

void RunKeeper::look(ControlPlane& control, const ProcessOptions& options) {
  if (cancel_->cancelled()) ended_.cancel();
  const std::uint64_t now = clock_.nanoseconds();
  if (now < looked_ns_ + kLookNs) return;
  looked_ns_ = now;
  const Result<bool> members = directory_.has_members();
  // A directory that is gone has none.
  if (members.ok() && *members) member_ns_ = now;
  if (now >= member_ns_ + kWithoutMemberNs) {
    options.log("run", "there has been no member for a time: this process ends");
    ended_.cancel();
  }
  const Result<bool> first = directory_.is_first_process(name_);
  if (!first.ok() || !*first) return;
  const Status barred = bar_the_gone(control, options);
  if (!barred.ok())
    options.log("run", "cannot look for members that are gone: " + barred.message());
}

// A member whose lock is free is no process any more. To enrol under its name bars what it was, and
// joins nobody.
Status RunKeeper::bar_the_gone(ControlPlane& control, const ProcessOptions& options) {
  DCR_ASSIGN(const Membership members, control.read_members());
  for (const Member& member : members.members) {
    if (member.role == Role::kCoordinator || member.state == MemberState::kEnrolled) continue;
    const std::string& name = member.endpoint.name;
    DCR_ASSIGN(const bool present, directory_.is_present(name));
    if (present) continue;
    DCR_TRY(directory_.if_gone(name, [&]() -> Status {
      options.log("run", name + " is gone");
      return control.enrol({name, member.role, member.engine}).status();
    }));
  }
  return {};
}

Status run_directory_coordinator(RunDirectory& directory, const ProcessOptions& options,
                                 const std::string& name) {
  const auto presence = directory.enter(name, {Role::kCoordinator});
  if (presence.status().code() == Code::kExists) return {};
  if (!presence.ok()) return presence.status();
  DirectoryProcess process(directory, name, options);
  DCR_TRY(process.open(directory));
  return run_coordinator(*process.context, name, false, {});
}

Status run_directory_node(RunDirectory& directory, const ProcessOptions& options,
                          const std::string& name) {
  const auto presence = directory.enter(name, {Role::kNode});
  if (presence.status().code() == Code::kExists) return {};
  if (!presence.ok()) return presence.status();
  DirectoryProcess process(directory, name, options);
  DCR_TRY(process.open(directory));
  return serve_joined_owners(*process.context, name, process.options.idle);
}

}  // namespace dcr
