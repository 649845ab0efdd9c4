#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/checked.h"
#include "bench/changes.h"
#include "bench/checkpoint_files.h"
#include "bench/checkpoint_owners.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/paper_layout.h"
#include "bench/temporary_directory.h"

namespace dcr {
namespace {

struct Mode {
  const char* name;
  RefitConstruction construction;
};
constexpr Mode kModes[] = {{"X", RefitConstruction::kMixed},
                           {"P", RefitConstruction::kOverwrite},
                           {"F", RefitConstruction::kFullConversion}};

// Input bytes of one of the paper's payloads.
constexpr std::uint64_t kPaperBucketBytes = std::uint64_t{512} << 20;

// What the paper's mode P sends of the same changes: whole tensors, as if one owner had them all,
// which costs it the least.
std::uint64_t paper_bytes(const WorkloadSpec& spec, const std::vector<ModelTensor>& tensors) {
  PaperEncoder encoder;
  std::uint64_t bytes = 0;
  std::uint64_t input = 0;
  for (const ModelTensor& tensor : tensors) {
    std::vector<std::uint16_t> before(tensor.words);
    std::vector<std::uint16_t> after(tensor.words);
    fill_tensor(spec, tensor, before, after);
    TensorChanges changes;
    for (std::uint32_t i = 0; i < tensor.words; ++i) {
      if (before[i] == after[i]) continue;
      changes.positions.push_back(i);
      changes.old_words.push_back(before[i]);
      changes.new_words.push_back(after[i]);
    }
    if (changes.positions.empty()) continue;
    encoder.append(tensor.words, changes.positions, changes.old_words, changes.new_words,
                   PaperEncoding::kOverwrite);
    input += tensor.words * sizeof(std::uint16_t);
    if (input < kPaperBucketBytes) continue;
    bytes += encoder.seal().body.size();
    input = 0;
  }
  return input > 0 ? bytes + encoder.seal().body.size() : bytes;
}

double ratio(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

Status measure_modes(const ModesOptions& options, double rate, Report* report) {
  DCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make(options.directory));
  const WorkloadSpec spec = workload_at_rate(Workload::kRelative, rate, options.seed);
  const std::vector<ModelTensor> tensors = transformer_tensors(options.size);
  DCR_ASSIGN(const CheckpointPair files, write_checkpoints(spec, tensors, 1, directory.path()));
  DCR_ASSIGN(const std::unique_ptr<OpenPair> pair, OpenPair::open(files));
  std::vector<std::unique_ptr<CheckpointOwners>> owners;
  std::vector<std::uint64_t> bytes(std::size(kModes));
  std::vector<std::function<void()>> works;
  Status status;
  for (std::size_t i = 0; i < std::size(kModes); ++i) {
    RefitOptions refit_options;
    refit_options.owners.generate = options.owners;
    refit_options.construction = kModes[i].construction;
    refit_options.threads = options.threads;
    DCR_ASSIGN(std::unique_ptr<CheckpointOwners> made,
               CheckpointOwners::make(*pair, refit_options));
    works.emplace_back([&bytes, &status, i, mode = made.get()] {
      const Result<std::uint64_t> sent = mode->construct();
      if (sent.ok()) {
        bytes[i] = *sent;
      } else {
        status = sent.status();
      }
    });
    owners.push_back(std::move(made));
  }
  const Measurement measured(ClockKind::kWall, options.rounds, works);
  DCR_TRY(status);
  for (std::size_t i = 0; i < std::size(kModes); ++i) {
    report->add_row({Cell::text(kModes[i].name), Cell::number(rate, 5),
                     Cell::number(measured.seconds(i)), Cell::whole(bytes[i])});
  }
  const std::string at = fmt::format(" at {:g} %", 100 * rate);
  const double faster = measured.ratio(2, 0);
  if (rate == 0.03) {
    report->add_figure("F / X seconds" + at, faster, Report::Aim::kAtLeast, 1.5);
  } else {
    report->add_figure("F / X seconds" + at, faster);
  }
  report->add_figure("P / X seconds" + at, measured.ratio(1, 0));
  report->add_figure("X / P bytes" + at, ratio(bytes[0], bytes[1]));
  report->add_figure("X bytes / those of the paper's layout in mode P" + at,
                     ratio(bytes[0], paper_bytes(spec, tensors)), Report::Aim::kAtMost, 0.45);
  return {};
}

}  // namespace

Result<Report> run_modes(const ModesOptions& options) {
  Report report({"mode", "changed_rate", "seconds", "payload_bytes"});
  for (const double rate : options.rates) {
    DCR_TRY(measure_modes(options, rate, &report));
  }
  return report;
}

}  // namespace dcr
