#include "sim/campaign.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>

#include "runtime/clock.h"
#include "runtime/threads.h"

namespace dcr {
namespace {

constexpr std::uint64_t kModels = 48;
constexpr std::uint64_t kBatchRuns = 1000;

thread_local std::uint64_t current_seed = 0;

// A thread's models, made when they are first wanted.
class Models {
 public:
  SimModel& of(std::uint64_t seed) {
    std::unique_ptr<SimModel>& made = models_[seed % kModels];
    if (made == nullptr) made = SimModel::make(seed % kModels);
    return *made;
  }

 private:
  std::map<std::uint64_t, std::unique_ptr<SimModel>> models_;
};

WorldResult run_on(Models& models, std::uint64_t seed, bool traced) {
  current_seed = seed;
  WorldOptions options;
  options.traced = traced;
  World world(models.of(seed), seed, std::move(options));
  WorldResult result = world.run();
  current_seed = 0;
  return result;
}

void add(const WorldResult& run, CampaignResult* all) {
  ++all->runs;
  all->transitions += run.transitions;
  all->commits += run.commits;
  all->failures += run.failures;
  all->divergences += run.diverged ? 1 : 0;
  all->faults += run.faults;
  all->zombies += run.zombies;
  all->events += run.events;
  if (run.owners >= 2 && run.nodes >= 2 && run.receivers >= 3 && run.payloads_most >= 4) {
    ++all->full_runs;
  }
  if (run.retried > 0) ++all->retried_runs;
}

void add(CampaignResult share, CampaignResult* all) {
  all->runs += share.runs;
  all->transitions += share.transitions;
  all->commits += share.commits;
  all->failures += share.failures;
  all->divergences += share.divergences;
  all->faults += share.faults;
  all->zombies += share.zombies;
  all->events += share.events;
  all->full_runs += share.full_runs;
  all->retried_runs += share.retried_runs;
  all->repeated += share.repeated;
  all->unequal += share.unequal;
  all->seconds += share.seconds;
  std::move(share.violations.begin(), share.violations.end(), std::back_inserter(all->violations));
}

// Seeds that every job takes its share of.
struct Batch {
  std::uint64_t seed = 0;  // the first
  std::uint64_t runs = 0;
  std::atomic<bool>* stopped = nullptr;
};

CampaignResult run_share(const CampaignOptions& options, const Batch& batch, std::uint64_t job,
                         Models* models) {
  CampaignResult result;
  const std::uint64_t began = monotonic_clock().thread_nanoseconds();
  for (std::uint64_t i = job; i < batch.runs && !*batch.stopped; i += options.jobs) {
    const std::uint64_t seed = batch.seed + i;
    const WorldResult run = run_on(*models, seed, false);
    add(run, &result);
    if (!run.violation.empty()) {
      result.violations.push_back({seed, run.violation});
      if (options.stop_at_violation) *batch.stopped = true;
    }
    if (options.repeat_one_in == 0 || seed % options.repeat_one_in != 0) continue;
    ++result.repeated;
    if (run_on(*models, seed, false).hash == run.hash) continue;
    ++result.unequal;
    result.violations.push_back({seed, "something else happens when it is run again"});
  }
  result.seconds = static_cast<double>(monotonic_clock().thread_nanoseconds() - began) / 1e9;
  return result;
}

}  // namespace

std::uint64_t running_seed() { return current_seed; }

WorldResult run_seed(std::uint64_t seed, bool traced) {
  Models models;
  return run_on(models, seed, traced);
}

CampaignResult run_campaign(const CampaignOptions& options) {
  std::vector<Models> models(options.jobs);
  const std::unique_ptr<Executor> executor = make_executor(options.jobs);
  std::atomic<bool> stopped{false};
  CampaignResult all;
  const auto run_batch = [&](std::uint64_t runs) {
    const Batch batch{options.seed + all.runs, runs, &stopped};
    std::vector<CampaignResult> shares(options.jobs);
    std::atomic<unsigned> left{options.jobs};
    for (unsigned job = 0; job < options.jobs; ++job) {
      executor->submit([&, job] {
        shares[job] = run_share(options, batch, job, &models[job]);
        --left;
        executor->notify();
      });
    }
    executor->wait([&] { return left == 0; });
    for (CampaignResult& share : shares) add(std::move(share), &all);
  };
  run_batch(options.runs);
  while (all.transitions < options.transitions && !stopped) run_batch(kBatchRuns);
  std::sort(all.violations.begin(), all.violations.end(),
            [](const Violation& a, const Violation& b) { return a.seed < b.seed; });
  return all;
}

}  // namespace dcr
