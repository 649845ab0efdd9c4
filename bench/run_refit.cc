#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/limits.h"
#include "bench/checkpoint_files.h"
#include "bench/checkpoint_owners.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/temporary_directory.h"
#include "dcr/delta.h"
#include "dcr/refit.h"
#include "layout/generators.h"
#include "layout/layout_file.h"
#include "layout/owner_plan.h"
#include "runtime/clock.h"
#include "source/geometry.h"
#include "source/owner.h"

namespace dcr {
namespace {

// Stages that only the calling thread runs.
constexpr const char* kSingleThreaded[] = {"send", kStageFlags};

// One refit, and what it can take at least.
struct Timed {
  RefitResult result;
  double bound = 0;

  double ratio() const { return result.refit_seconds / bound; }
};

Result<Timed> refit_once(const CheckpointPair& pair, const RefitOptions& options,
                         unsigned threads) {
  Timed timed;
  DCR_ASSIGN(timed.result, refit(pair.before, pair.after, options));
  if (timed.result.differing_bytes != 0) {
    return Status(Code::kMismatch, "refit: a receiver differs from a dense load");
  }
  timed.bound = timed.result.refit_busy_seconds / threads;
  for (const RefitStage& stage : timed.result.stages) {
    for (const char* name : kSingleThreaded) {
      if (stage.name == name) timed.bound = std::max(timed.bound, stage.busy);
    }
  }
  return timed;
}

void add_stages(const RefitResult& result, double rate, Report* report) {
  std::string text = fmt::format("stages at {:g} %, seconds of wall / busy:", 100 * rate);
  for (const RefitStage& stage : result.stages) {
    text += fmt::format(" {} {:.2f} / {:.2f};", stage.name, stage.wall, stage.busy);
  }
  report->add_note(text + fmt::format(" start-up {:.2f} in all", result.startup_seconds));
}

// Memory of this process as the system counts it: one line of /proc/self/status, in bytes.
std::uint64_t memory_bytes(std::string_view line) {
  std::ifstream status("/proc/self/status");
  for (std::string text; std::getline(status, text);) {
    if (text.starts_with(line))
      return std::strtoull(text.c_str() + line.size(), nullptr, 10) * kKiB;
  }
  return 0;
}

// One owner and one receiver with the least memory that they may be given: what the transition
// takes at its peak beside the weights and the baseline, which are resident when it begins.
Status measure_memory(const RefitBenchOptions& options, const CheckpointPair& pair,
                      Report* report) {
  std::uint64_t before = 0;
  std::uint64_t peak = 0;
  RefitOptions refit_options;
  refit_options.owners.generate = "fsdp:1";
  refit_options.receivers.generate = "fused-tp:1";
  refit_options.threads = options.threads;
  refit_options.memory_bytes_max = kMemoryBytesMin;
  refit_options.progress = [&](const Progress& progress) {
    const std::string_view stage = progress.stage;
    if (stage == "load") {
      malloc_trim(0);  // what start-up has freed is not to hide what follows
      std::ofstream("/proc/self/clear_refs") << 5;  // the peak is counted from now on
      before = memory_bytes("VmRSS:");
    } else if (stage == kStageCommit) {
      peak = memory_bytes("VmHWM:");
    }
  };
  DCR_ASSIGN(const RefitResult result, refit(pair.before, pair.after, refit_options));
  const std::uint64_t extra = peak > before ? peak - before : 0;
  constexpr std::uint64_t kLimitMib = kMemoryBytesMin / kMiB;
  report->add_figure(
      fmt::format("peak MiB of a refit of {} MiB beside weights and baseline, limits 2 x {} MiB",
                  result.model_bytes / kMiB, kLimitMib),
      static_cast<double>(extra) / static_cast<double>(kMiB), Report::Aim::kAtMost,
      static_cast<double>(2 * kLimitMib));
  return {};
}

Status measure_refits(const RefitBenchOptions& options, Report* report) {
  RefitOptions refit_options;
  refit_options.owners.generate = options.owners;
  refit_options.receivers.generate = options.receivers;
  refit_options.clock = &monotonic_clock();
  refit_options.threads = options.threads > 0 ? options.threads : processor_count();
  for (const double rate : options.rates) {
    DCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make(options.directory));
    DCR_ASSIGN(const CheckpointPair pair,
               write_checkpoints(workload_at_rate(Workload::kAdam, rate, options.seed),
                                 transformer_tensors(options.size), 1, directory.path()));
    std::vector<Timed> rounds;
    for (unsigned round = 0; round < options.rounds; ++round) {
      DCR_ASSIGN(Timed timed, refit_once(pair, refit_options, refit_options.threads));
      rounds.push_back(std::move(timed));
    }
    // Whatever else the machine does only adds to the time between begin and end.
    const Timed& best =
        *std::min_element(rounds.begin(), rounds.end(),
                          [](const Timed& a, const Timed& b) { return a.ratio() < b.ratio(); });
    const RefitResult& result = best.result;
    report->add_row(
        {Cell::number(static_cast<double>(result.changed) / static_cast<double>(result.elements),
                      5),
         Cell::whole(refit_options.threads), Cell::number(result.refit_seconds),
         Cell::number(result.refit_busy_seconds), Cell::number(best.bound),
         Cell::number(best.ratio()), Cell::whole(result.payload_bytes)});
    report->add_figure(fmt::format("refit wall / bound at {:g} %", 100 * rate), best.ratio(),
                       Report::Aim::kAtMost, 1.15);
    add_stages(result, rate, report);
    if (rate == options.rates.back()) DCR_TRY(measure_memory(options, pair, report));
  }
  report->add_note(fmt::format(
      "bound: the larger of processor time / threads and of the slowest stage on one thread; "
      "the round of {} with the lowest ratio",
      options.rounds));
  return {};
}

// Only what is cut by columns: each owner's rows are short pieces of canonical rows.
Status measure_row_parallel(const RefitBenchOptions& options, Report* report) {
  DCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make(options.directory));
  std::vector<ModelTensor> tensors;
  for (ModelTensor& tensor : transformer_tensors(5 * options.row_parallel_size / 2)) {
    const bool row_parallel =
        tensor.name.ends_with("o_proj.weight") || tensor.name.ends_with("down_proj.weight");
    if (row_parallel) tensors.push_back(std::move(tensor));
  }
  DCR_ASSIGN(const CheckpointPair files,
             write_checkpoints(workload_at_rate(Workload::kAdam, 0.01, options.seed), tensors, 1,
                               directory.path()));
  DCR_ASSIGN(const std::unique_ptr<OpenPair> pair, OpenPair::open(files));
  std::uint64_t bytes[2] = {0, 0};
  for (const int sharded : {0, 1}) {
    RefitOptions refit_options;
    refit_options.owners.generate = sharded != 0 ? "tp:8" : "tp:1";
    DCR_ASSIGN(const std::unique_ptr<CheckpointOwners> owners,
               CheckpointOwners::make(*pair, refit_options));
    DCR_ASSIGN(bytes[sharded], owners->construct());
  }
  report->add_figure("payload bytes of row-parallel tensors, tensor parallel 8 / 1",
                     static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]),
                     Report::Aim::kAtMost, 1.03);
  return {};
}

// Experts of many layers, small enough that nothing but their number counts.
Result<Catalogue> many_names(std::uint64_t count) {
  std::vector<CanonicalTensor> tensors;
  constexpr const char* kParts[] = {"gate_proj", "up_proj", "down_proj"};
  for (std::uint64_t i = 0; i < count; ++i) {
    tensors.push_back({fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", i / 384, i % 384 / 3,
                                   kParts[i % 3]),
                       Dtype::kBF16,
                       {8, 8},
                       0});
  }
  return Catalogue::make(std::move(tensors));
}

// One owner of a group: what it does from a layout file to being ready, the other ranks'
// declarations having come.
class PlannedOwner {
 public:
  PlannedOwner(const Catalogue& catalogue, std::string layout)
      : catalogue_(catalogue), text_(std::move(layout)) {}

  Status declare_all() {
    DCR_ASSIGN(const Layout layout, parse_owner_layout(text_));
    DCR_ASSIGN(const OwnerPlan plan, OwnerPlan::make(catalogue_, layout));
    for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
      DCR_ASSIGN(OwnerDeclaration declaration, declare_owner(input_of(plan, rank)));
      declarations_.push_back(std::move(declaration));
    }
    return {};
  }

  Status plan_first() {
    DCR_ASSIGN(const Layout layout, parse_owner_layout(text_));
    DCR_ASSIGN(const OwnerPlan plan, OwnerPlan::make(catalogue_, layout));
    OwnerInput input = input_of(plan, 0);
    DCR_ASSIGN(declarations_[0], declare_owner(input));
    DCR_ASSIGN(const std::shared_ptr<const Geometry> geometry,
               Geometry::make(catalogue_, declarations_));
    return Owner::create(geometry, std::move(input), {}).status();
  }

 private:
  OwnerInput input_of(const OwnerPlan& plan, std::uint32_t rank) const {
    OwnerInput input;
    input.rank = rank;
    input.tasks = plan.rank(catalogue_, rank).tasks;
    return input;
  }

  const Catalogue& catalogue_;
  const std::string text_;
  std::vector<OwnerDeclaration> declarations_;
};

Status measure_planning(const RefitBenchOptions& options, Report* report) {
  DCR_ASSIGN(const Catalogue catalogue, many_names(options.planned_names));
  DCR_ASSIGN(const std::string text, generate_owner_layout(catalogue, options.owners));
  PlannedOwner owner(catalogue, text);
  Status status;
  const double all = seconds_of(ClockKind::kThread, [&] { status = owner.declare_all(); });
  DCR_TRY(status);
  const double one = seconds_of(ClockKind::kThread, [&] { status = owner.plan_first(); });
  DCR_TRY(status);
  const std::string of = fmt::format(" {} names, owners {}", options.planned_names, options.owners);
  report->add_figure("seconds of one owner to plan" + of, one, Report::Aim::kAtMost, 1);
  report->add_figure("seconds of all ranks' declarations, one after another," + of, all);
  return {};
}

}  // namespace

Result<Report> run_refit(const RefitBenchOptions& options) {
  Report report({"changed_rate", "threads", "wall_seconds", "busy_seconds", "bound_seconds",
                 "ratio", "payload_bytes"});
  DCR_TRY(measure_planning(options, &report));
  DCR_TRY(measure_row_parallel(options, &report));
  DCR_TRY(measure_refits(options, &report));
  return report;
}

}  // namespace dcr
