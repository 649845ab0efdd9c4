// What the protocol costs beside the work: refits of a cluster of real processes on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/limits.h"
#include "bench/checkpoint_files.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/refit_work.h"
#include "bench/temporary_directory.h"
#include "control/sqlite_control.h"
#include "run/local_cluster.h"
#include "runtime/clock.h"
#include "runtime/file.h"
#include "transport/directory_store.h"

namespace dcr {
namespace {

constexpr double kZeroChangeAimMs = 50;
constexpr double kBoundAim = 1.15;
constexpr unsigned kProbes = 50;
constexpr unsigned kWorkRounds = 5;

// Milliseconds that `work` takes, the median of many.
Result<double> probe(const std::function<Status()>& work) {
  std::vector<double> times;
  for (unsigned i = 0; i < kProbes; ++i) {
    const std::uint64_t begin = monotonic_clock().nanoseconds();
    DCR_TRY(work());
    times.push_back(1e-6 * static_cast<double>(monotonic_clock().nanoseconds() - begin));
  }
  return median(std::move(times));
}

// One transaction of the store that a run has.
Result<double> store_transaction_ms(const std::string& directory) {
  SqliteControl::Options options;
  options.directory = directory;
  DCR_ASSIGN(const std::unique_ptr<SqliteControl> control,
             SqliteControl::create(options, RunId{1}, "base"));
  return probe([&] { return control->enrol({"probe", Role::kOwner, {}}).status(); });
}

// One durable object.
Result<double> durable_put_ms(const std::string& directory) {
  DirectoryObjectStore store(posix_file_system(), directory);
  ObjectKey key;
  key.attempt = 1;
  DCR_TRY(store.begin(key));
  std::uint64_t number = 0;
  const Bytes bytes(1000, 1);
  return probe([&] {
    key.number = number++;
    return store.put(key, bytes);
  });
}

Result<LocalResult> run_cluster(const ProtocolOptions& options, const std::string& directory,
                                const std::string& from, std::vector<std::string> to) {
  const CancelToken never;
  LocalOptions local;
  local.base = from;
  local.versions = std::move(to);
  local.owners = options.owners;
  local.nodes = options.nodes;
  local.receivers_per_node = options.receivers_per_node;
  local.directory = directory;
  local.program = options.dcr;
  local.requests = false;  // they would take processors from the refits
  local.cancel = &never;
  local.clock = &monotonic_clock();
  local.note = [](const std::string&) {};
  DCR_TRY(posix_file_system().make_directory(directory, 0700));
  return run_local(local);
}

// Milliseconds from the last owner's call: to the last gate that opened, and to the last of all,
// when refit() has returned on every owner, with baselines that are those of the commit, too.
struct RefitTimes {
  double to_open = 0, to_end = 0;
};

// Medians of refits. Owners call when each has read its shard of the checkpoint, which is none of
// the refit's work; ranks of a trainer call together. Refits and gates that open follow one
// another, and none overlaps the next.
RefitTimes refit_times(const LocalResult& result) {
  std::map<std::string, std::vector<std::pair<double, double>>> by_endpoint;
  for (const LocalSpan& span : result.spans) {
    if (span.stage == "refit" || span.stage == "gate") {
      by_endpoint[span.stage + " " + span.endpoint].emplace_back(span.begin, span.end);
    }
  }
  std::vector<double> to_open, to_end;
  for (std::size_t refit = 0; refit < result.refits; ++refit) {
    double begin = 0, open = 0, end = 0;
    for (auto& [name, spans] : by_endpoint) {
      std::sort(spans.begin(), spans.end());
      if (refit >= spans.size()) continue;
      if (name.starts_with("refit")) begin = std::max(begin, spans[refit].first);
      if (name.starts_with("gate")) open = std::max(open, spans[refit].second);
      end = std::max(end, spans[refit].second);
    }
    to_open.push_back(1e3 * (open - begin));
    to_end.push_back(1e3 * (end - begin));
  }
  return {median(std::move(to_open)), median(std::move(to_end))};
}

// Processor time of all processes in a refit, in milliseconds.
double processor_ms(const LocalResult& result) {
  std::vector<double> times;
  times.reserve(result.windows.size());
  for (const LocalWindow& window : result.windows) times.push_back(1e3 * window.processor);
  return median(std::move(times));
}

Status check_exact(const LocalResult& result) {
  if (result.bytes_differing == 0 && result.reads_different == 0) return {};
  return {Code::kMismatch, "a receiver differs from a dense load"};
}

struct Row {
  std::string name;
  double ms = 0, transaction_ms = 0, put_ms = 0, bound_ms = 0;
  std::uint64_t payload_bytes = 0;
};

void add_row(Report* report, const Row& row) {
  report->add_row({Cell::text(row.name), Cell::number(row.ms, 1),
                   Cell::number(row.transaction_ms, 2), Cell::number(row.put_ms, 2),
                   Cell::number(row.bound_ms, 1), Cell::whole(row.payload_bytes)});
}

struct ProcessorTimes {
  double zero_ms = 0, changed_ms = 0;  // of a refit of no change, and of one of a change
};

// What the bound is made of, and the same of the processes: other programs on the machine change
// how long a refit waits for processors, but hardly how much of them it takes.
void add_work(const ProtocolOptions& options, const RefitWork& work, const ProcessorTimes& times,
              Report* report) {
  const double all = work.processor(static_cast<double>(options.nodes));
  report->add_figure("changed, processor time over that of its work and of the refit of no change",
                     times.changed_ms / (all + times.zero_ms));
  report->add_note(fmt::format(
      "bound: processor ms of its work without protocol and waiting, by {} processors: "
      "construction {:.1f}, put {:.1f}, and on each of {} nodes from the store to receivers "
      "{:.1f}, "
      "applied {:.1f}; baselines, {:.1f}, are updated after the commit and are not in it",
      processor_count(), work.construct, work.put, options.nodes, work.node, work.apply,
      work.baseline));
  report->add_note(
      "the work was measured before the cluster with a change ran and after it; means of the two");
  report->add_note(fmt::format(
      "processor ms of all processes: no change {:.1f}, changed {:.1f}; of the work, with "
      "baselines, {:.1f}",
      times.zero_ms, times.changed_ms, all));
}

std::string others_note(std::optional<double> share) {
  if (!share) return "what other programs took of the processors is unknown";
  return fmt::format(
      "other programs took {:.0f} % of the processors' time while the cluster with a change ran, "
      "from its start to its end; how long refits waited for them is not known",
      100 * *share);
}

}  // namespace

Result<Report> run_protocol(const ProtocolOptions& options) {
  DCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make(options.directory));
  const auto at = [&](const char* name) { return join_path(directory.path(), name); };
  for (const char* const name :
       {"store", "objects", "small", "large", "work-before", "work-after"}) {
    DCR_TRY(posix_file_system().make_directory(at(name), 0700));
  }
  Report report(
      {"refit", "ms", "store_transaction_ms", "durable_put_ms", "bound_ms", "payload_bytes"});
  DCR_ASSIGN(const double transaction_ms, store_transaction_ms(at("store")));
  DCR_ASSIGN(const double put_ms, durable_put_ms(at("objects")));

  const WorkloadSpec spec = workload_at_rate(Workload::kRelative, options.rate, options.seed);
  DCR_ASSIGN(const CheckpointPair small,
             write_checkpoints(spec, transformer_tensors(options.small_size), 1, at("small")));
  DCR_ASSIGN(const LocalResult zero,
             run_cluster(options, at("zero"), small.before,
                         std::vector<std::string>(options.refits, small.before)));
  DCR_TRY(check_exact(zero));
  const RefitTimes zero_ms = refit_times(zero);
  add_row(&report, {"no change", zero_ms.to_open, transaction_ms, put_ms, 0, zero.payload_bytes});
  report.add_figure("no change, refit() to gates open, ms", zero_ms.to_open, Report::Aim::kAtMost,
                    kZeroChangeAimMs);

  DCR_ASSIGN(const CheckpointPair large,
             write_checkpoints(spec, transformer_tensors(options.size), 1, at("large")));
  std::vector<std::string> versions;
  for (std::uint64_t i = 0; i < options.changes; ++i) {
    versions.push_back(i % 2 == 0 ? large.after : large.before);
  }
  const RefitShape shape{options.owners, options.receivers_per_node};
  DCR_ASSIGN(const RefitWork work_before,
             measure_refit_work(large, shape, kWorkRounds, at("work-before")));
  const ProcessorUse begin = ProcessorUse::now();
  DCR_ASSIGN(const LocalResult changed,
             run_cluster(options, at("changed"), large.before, std::move(versions)));
  const std::optional<double> others = ProcessorUse::share_of_others(begin, ProcessorUse::now());
  DCR_TRY(check_exact(changed));
  DCR_ASSIGN(const RefitWork work_after,
             measure_refit_work(large, shape, kWorkRounds, at("work-after")));
  const RefitWork work = RefitWork::mean(work_before, work_after);
  const auto nodes = static_cast<double>(options.nodes);
  const double bound_ms = work.until_gates_open(nodes, processor_count());
  const RefitTimes changed_ms = refit_times(changed);
  add_row(&report, {fmt::format("{:g} %", 100 * options.rate), changed_ms.to_open, transaction_ms,
                    put_ms, bound_ms, changed.payload_bytes / changed.refits});
  report.add_figure("changed, less the refit of no change, over the bound of its work",
                    (changed_ms.to_open - zero_ms.to_open) / bound_ms, Report::Aim::kAtMost,
                    kBoundAim);
  report.add_figure("the same until refit() has returned, over the bound with baselines",
                    (changed_ms.to_end - zero_ms.to_end) / work.until_end(nodes, processor_count()),
                    Report::Aim::kAtMost, kBoundAim);
  add_work(options, work, {processor_ms(zero), processor_ms(changed)}, &report);
  report.add_note(fmt::format(
      "{} owners, {} nodes with {} receivers each, {} processors; medians of {} refits of no "
      "change on {} of weights, {} of {:g} % on {}; no requests are served meanwhile",
      options.owners, options.nodes, options.receivers_per_node, processor_count(), options.refits,
      options.small_size, options.changes, 100 * options.rate, options.size));
  report.add_note(others_note(others));
  return report;
}

}  // namespace dcr
