#include <fmt/format.h>

#include <thread>

#include "bench/changes.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/model.h"
#include "bench/vector_passes.h"
#include "simd/kernels.h"

namespace dcr {
namespace {

// Words scanned per call when the scan is measured alone: its outputs stay in the cache, as they
// do where they are consumed at once.
constexpr std::uint64_t kScanBlockWords = std::uint64_t{1} << 16;

struct ScanBuffers {
  std::vector<std::uint32_t> gaps = std::vector<std::uint32_t>(kScanBlockWords + kScanSlackWords);
  std::vector<std::uint16_t> values = std::vector<std::uint16_t>(kScanBlockWords + kScanSlackWords);
};

std::uint64_t scan_all(const Model& model, ScanBuffers* buffers) {
  const std::uint64_t words = model.bytes() / sizeof(std::uint16_t);
  std::uint64_t unchanged = 0;
  std::uint64_t changes = 0;
  for (std::uint64_t first = 0; first < words; first += kScanBlockWords) {
    ScanBox box;
    box.old_words = model.before().data() + first * sizeof(std::uint16_t);
    box.new_words = model.after().data() + first * sizeof(std::uint16_t);
    box.row_words = std::min(kScanBlockWords, words - first);
    changes += kernels().scan_changes(sizeof(std::uint16_t), Encoding::kAdd, box, &unchanged,
                                      buffers->gaps.data(), buffers->values.data());
  }
  return changes;
}

// Buckets of the input where stages are to overlap; an owner of a real model has more.
constexpr std::uint64_t kBuckets = 8;

// One round of whole construction. The first failure is kept in `status`.
void build_once(Model* model, unsigned threads, std::uint64_t buckets, Status* status) {
  const std::unique_ptr<Executor> executor = make_executor(threads);
  CountingSink sink;
  PipelineOptions options;
  options.bucket_bytes = model->bytes() / buckets;
  const Result<PipelineResult> result = model->build(*executor, sink, options);
  if (!result.ok() && status->ok()) *status = result.status();
  keep(sink.bytes());
}

void read_halves(const Model& model) {
  const std::size_t half = model.bytes() / 2;
  std::thread other(
      [&] { keep(read_both(model.before().subspan(half), model.after().subspan(half))); });
  keep(read_both(model.before().first(half), model.after().first(half)));
  other.join();
}

double rate_of(std::uint64_t changes, const SpeedOptions& options) {
  return static_cast<double>(changes) / static_cast<double>(options.elements);
}

void add_construct_figure(double rate, double share, double scan_share, Report* report) {
  const std::string at = fmt::format(" at {:g} %", 100 * rate);
  report->add_figure("scan alone / read-only pass" + at, scan_share);
  const std::string name = "whole construction / read-only pass" + at;
  if (rate == 0.01) {
    report->add_figure(name, share, Report::Aim::kAtLeast, 0.60);
  } else if (rate == 0.03) {
    report->add_figure(name, share, Report::Aim::kAtLeast, 0.40);
  } else {
    report->add_figure(name, share);
  }
}

}  // namespace

Result<Report> run_construct(const SpeedOptions& options) {
  Report report({"changed_rate", "read_gbps", "scan_gbps", "whole_gbps"});
  for (const double rate : options.rates) {
    const WeightPair pair =
        make_weights(workload_at_rate(options.workload, rate, options.seed), options.elements);
    const std::uint64_t changes = count_changes(collect_changes(pair));
    Model model(pair);
    DCR_TRY(build_and_check(model).status());
    Status status;
    ScanBuffers buffers;
    std::uint64_t scanned = 0;
    const Measurement measured(
        ClockKind::kThread, options.rounds,
        {[&] { keep(read_both(model.before(), model.after())); },
         [&] { scanned = scan_all(model, &buffers); }, [&] { build_once(&model, 1, 1, &status); }});
    DCR_TRY(status);
    if (scanned != changes) return Status(Code::kMismatch, "construct: the scan miscounts changes");
    const auto gbps = [&](std::size_t work) {
      return Cell::number(static_cast<double>(model.bytes()) * 1e-9 / measured.seconds(work), 2);
    };
    report.add_row({Cell::number(rate_of(changes, options), 5), gbps(0), gbps(1), gbps(2)});
    add_construct_figure(rate, measured.ratio(0, 2), measured.ratio(0, 1), &report);
  }
  return report;
}

Result<Report> run_threads(const SpeedOptions& options) {
  Report report({"changed_rate", "read_gain", "whole_gain"});
  for (const double rate : options.rates) {
    const WeightPair pair =
        make_weights(workload_at_rate(options.workload, rate, options.seed), options.elements);
    const std::uint64_t changes = count_changes(collect_changes(pair));
    Model model(pair);
    DCR_TRY(build_and_check(model).status());
    Status status;
    const Measurement measured(
        ClockKind::kWall, options.rounds,
        {[&] { keep(read_both(model.before(), model.after())); }, [&] { read_halves(model); },
         [&] { build_once(&model, 1, kBuckets, &status); },
         [&] { build_once(&model, 2, kBuckets, &status); }});
    DCR_TRY(status);
    const double read_gain = measured.ratio(0, 1);
    const double whole_gain = measured.ratio(2, 3);
    report.add_row({Cell::number(rate_of(changes, options), 5), Cell::number(read_gain),
                    Cell::number(whole_gain)});
    // 1.7x, or where memory is the limit, nine tenths of what reading gains.
    report.add_figure(fmt::format("two threads / one at {:g} %", 100 * rate), whole_gain,
                      Report::Aim::kAtLeast, std::min(1.7, 0.9 * read_gain));
  }
  return report;
}

}  // namespace dcr
