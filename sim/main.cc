// dcr-sim: simulates whole transitions under faults (docs/TESTING.md "Simulation").
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/mutant.h"
#include "base/probe.h"
#include "runtime/threads.h"
#include "sim/campaign.h"
#include "simd/kernels.h"

namespace dcr {
namespace {

struct Arguments {
  CampaignOptions campaign;
  std::size_t trace_lines = 60;
  bool json = false;
  bool verbose = false;
  bool list_mutants = false;
  bool no_canary = false;
  bool complete = false;
};

struct Probes {
  std::uint64_t hit = 0;
  std::vector<std::string> missed;
};

Probes probes() {
  Probes found;
#ifdef DCR_SIMULATION
  for (const Probe* probe = Probe::first(); probe != nullptr; probe = probe->next()) {
    if (probe->was_hit()) {
      ++found.hit;
    } else {
      found.missed.emplace_back(probe->text());
    }
  }
  std::sort(found.missed.begin(), found.missed.end());
#endif
  return found;
}

// A failed assertion ends the process; the seed must not go with it.
extern "C" void on_abort(int) {
  char text[64] = "dcr-sim: in the run of seed ";
  std::size_t length = std::char_traits<char>::length(text);
  char digits[20];
  std::size_t count = 0;
  for (std::uint64_t seed = running_seed(); seed > 0 || count == 0; seed /= 10) {
    digits[count++] = static_cast<char>('0' + seed % 10);
  }
  while (count > 0) text[length++] = digits[--count];
  text[length++] = '\n';
  // There is nothing to be done if it cannot be said.
  const auto written = ::write(STDERR_FILENO, text, length);
  static_cast<void>(written);
}

// Sets the mutant that DCR_MUTANT names; false: there is none of that name.
bool choose_mutant() {
  const char* const name = std::getenv("DCR_MUTANT");  // NOLINT(concurrency-mt-unsafe): one thread
  if (name == nullptr || *name == '\0') return true;
#ifdef DCR_SIMULATION
  for (std::size_t i = 0; i < kMutantCount; ++i) {
    if (kMutants[i].name != name) continue;
    chosen_mutant = i;
    return true;
  }
  std::fprintf(stderr, "dcr-sim: there is no mutant %s; --mutants lists them\n", name);
#else
  std::fprintf(stderr, "dcr-sim: mutants are in the build of preset sim only\n");
#endif
  return false;
}

// What a campaign that sees anything at all sees within its first runs.
bool canary_caught() {
#ifdef DCR_SIMULATION
  CampaignOptions options;
  options.seed = 1;
  options.runs = 100;
  options.stop_at_violation = true;
  options.repeat_one_in = 0;
  chosen_mutant = mutant_number("canary");
  const CampaignResult result = run_campaign(options);
  chosen_mutant = kNoMutant;
  return result.divergences > 0;
#else
  return true;
#endif
}

bool mutant_chosen() {
#ifdef DCR_SIMULATION
  return chosen_mutant != kNoMutant;
#else
  return false;
#endif
}

void print_json(const CampaignResult& result, const Probes& found, bool canary) {
  nlohmann::ordered_json json;
  json["runs"] = result.runs;
  json["transitions"] = result.transitions;
  json["commits"] = result.commits;
  json["failures"] = result.failures;
  json["divergences"] = result.divergences;
  json["violations"] = result.violations.size();
  json["faults"] = result.faults;
  json["zombies"] = result.zombies;
  json["events"] = result.events;
  json["transitions_per_second"] =
      result.seconds > 0 ? static_cast<double>(result.transitions) / result.seconds : 0.0;
  json["full_runs"] = result.full_runs;
  json["retried_runs"] = result.retried_runs;
  json["repeated"] = result.repeated;
  json["unequal"] = result.unequal;
  json["canary_caught"] = canary;
  json["probes_hit"] = found.hit;
  json["probes_missed"] = found.missed;
  nlohmann::ordered_json failing = nlohmann::ordered_json::array();
  for (const Violation& violation : result.violations) {
    if (failing.size() == 20) break;
    failing.push_back({{"seed", violation.seed}, {"violation", violation.text}});
  }
  json["failing"] = failing;
  std::printf("%s\n", json.dump(2).c_str());
}

void print_text(const CampaignResult& result, const Probes& found) {
  std::printf(
      "%llu runs, %llu transitions, %llu faults, %llu divergences, %zu violations, "
      "%.0f transitions per second and core\n",
      static_cast<unsigned long long>(result.runs),
      static_cast<unsigned long long>(result.transitions),
      static_cast<unsigned long long>(result.faults),
      static_cast<unsigned long long>(result.divergences), result.violations.size(),
      result.seconds > 0 ? static_cast<double>(result.transitions) / result.seconds : 0.0);
  for (const std::string& text : found.missed) std::printf("probe missed: %s\n", text.c_str());
}

// The last lines of what happened in a seed's world.
void print_trace(std::uint64_t seed, std::size_t lines) {
  const WorldResult run = run_seed(seed, true);
  const std::size_t from = run.trace.size() > lines ? run.trace.size() - lines : 0;
  for (std::size_t i = from; i < run.trace.size(); ++i) {
    std::fprintf(stderr, "%s\n", run.trace[i].c_str());
  }
  std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed),
               run.violation.empty() ? "nothing wrong" : run.violation.c_str());
}

// Whether the campaign was one of what it has to be one of; says what is missing.
bool complete(const CampaignResult& result, const Probes& found) {
  bool complete = found.missed.empty();
  for (const std::string& text : found.missed) {
    std::fprintf(stderr, "dcr-sim: probe missed: %s\n", text.c_str());
  }
  const auto demand = [&](const char* what, std::uint64_t runs, std::uint64_t percent) {
    if (runs * 100 >= result.runs * percent) return;
    complete = false;
    std::fprintf(stderr, "dcr-sim: %llu of %llu runs %s; at least %llu %% have to\n",
                 static_cast<unsigned long long>(runs),
                 static_cast<unsigned long long>(result.runs), what,
                 static_cast<unsigned long long>(percent));
  };
  demand("have several owners, nodes, payloads and receivers", result.full_runs, 90);
  demand("have a retry", result.retried_runs, 30);
  demand("were run again", result.repeated, 5);
  return complete;
}

int run(const Arguments& arguments) {
  const bool mutant = mutant_chosen();
  const bool canary = mutant || arguments.no_canary || canary_caught();
  const CampaignResult result = run_campaign(arguments.campaign);
  const Probes found = probes();
  if (arguments.json) {
    print_json(result, found, canary);
  } else {
    print_text(result, found);
  }
  if (!result.violations.empty()) {
    const Violation& first = result.violations.front();
    std::fprintf(stderr,
                 "dcr-sim: seed %llu: %s\ndcr-sim: replay it: dcr-sim --seed %llu --verbose\n",
                 static_cast<unsigned long long>(first.seed), first.text.c_str(),
                 static_cast<unsigned long long>(first.seed));
    if (!mutant && arguments.trace_lines > 0) print_trace(first.seed, arguments.trace_lines);
    return EXIT_FAILURE;
  }
  if (!canary) {
    std::fprintf(stderr, "dcr-sim: the canary was not seen: this campaign would see nothing\n");
    return EXIT_FAILURE;
  }
  return !arguments.complete || complete(result, found) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace dcr

int main(int argc, char** argv) {
  dcr::Arguments arguments;
  CLI::App app("Simulates transitions of a run under faults, each seed one world.", "dcr-sim");
  app.add_option("--seed", arguments.campaign.seed, "the first seed");
  app.add_option("--runs", arguments.campaign.runs, "how many seeds");
  app.add_option("--transitions", arguments.campaign.transitions,
                 "more seeds, until there were so many transitions");
  arguments.campaign.jobs = dcr::processor_count();
  app.add_option("--jobs", arguments.campaign.jobs, "threads; else one for each core")
      ->check(CLI::Range(1, 256));
  app.add_option("--trace", arguments.trace_lines, "lines of a failing run's trace to print");
  app.add_flag("--json", arguments.json, "one object of results");
  app.add_flag("--verbose", arguments.verbose, "print everything that happens in one seed's world");
  app.add_flag("--stop", arguments.campaign.stop_at_violation, "stop at the first violation");
  app.add_flag("--no-canary", arguments.no_canary, "do not look for the canary first");
  app.add_flag(
      "--complete", arguments.complete,
      "a probe that was not hit is a failure, as are too few large, retried or repeated runs");
  app.add_flag("--mutants", arguments.list_mutants, "list the mutants that DCR_MUTANT may name");
  CLI11_PARSE(app, argc, argv);
  if (!dcr::select_kernels().ok() || !dcr::choose_mutant()) return EXIT_FAILURE;
  std::signal(SIGABRT, dcr::on_abort);
#ifdef DCR_SIMULATION
  if (arguments.list_mutants) {
    for (const dcr::Mutant& mutant : dcr::kMutants) {
      std::printf("%s\t%s\n", std::string(mutant.name).c_str(), std::string(mutant.breaks).c_str());
    }
    return EXIT_SUCCESS;
  }
#endif
  if (arguments.verbose) {
    dcr::print_trace(arguments.campaign.seed, ~std::size_t{0});
    return EXIT_SUCCESS;
  }
  return dcr::run(arguments);
}
