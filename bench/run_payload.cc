#include <fmt/format.h>

#include "bench/changes.h"
#include "bench/commands.h"
#include "bench/entropy.h"
#include "bench/model.h"
#include "bench/paper_layout.h"

namespace dcr {
namespace {

constexpr double kContainerBytes = 256;  // per payload, not counted

struct Sizes {
  double changed_rate = 0;
  double paper_bits = 0, ours_bits = 0, entropy_bits = 0;  // per change
};

// The body of the paper's layout in its smaller, XOR, form; decoded and checked.
Result<std::uint64_t> paper_bytes(const std::vector<TensorChanges>& tensors) {
  PaperEncoder encoder;
  for (const TensorChanges& tensor : tensors) {
    if (tensor.positions.empty()) continue;
    encoder.append(tensor.words, tensor.positions, tensor.old_words, tensor.new_words,
                   PaperEncoding::kXor);
  }
  const PaperPayload payload = encoder.seal();
  PaperDecoder decoder;
  PaperEntries entries;
  DCR_TRY(decoder.decode(payload, &entries));
  std::size_t at = 0;
  for (const TensorChanges& tensor : tensors) {
    for (std::size_t i = 0; i < tensor.positions.size(); ++i, ++at) {
      if (entries.positions[at] != tensor.positions[i] ||
          (tensor.old_words[i] ^ entries.words[at]) != tensor.new_words[i]) {
        return Status(Code::kMismatch, "payload: the paper's layout decodes to other changes");
      }
    }
  }
  return payload.body.size();
}

Result<Sizes> measure(const WorkloadSpec& spec, std::uint64_t elements) {
  const WeightPair pair = make_weights(spec, elements);
  const std::vector<TensorChanges> tensors = collect_changes(pair);
  const auto changes = static_cast<double>(count_changes(tensors));
  DCR_ASSIGN(const std::uint64_t paper, paper_bytes(tensors));
  Model model(pair);
  DCR_ASSIGN(const BuiltPayloads built, build_and_check(model));
  const double ours = static_cast<double>(built.stored_bytes) -
                      kContainerBytes * static_cast<double>(built.payloads.size());
  Sizes sizes;
  sizes.changed_rate = changes / static_cast<double>(elements);
  sizes.paper_bits = 8 * static_cast<double>(paper) / changes;
  sizes.ours_bits = 8 * ours / changes;
  sizes.entropy_bits = (location_entropy_bits(tensors) + value_entropy_bits(tensors)) / changes;
  return sizes;
}

void add_figures(Workload workload, const Sizes& sizes, Report* report) {
  const std::string at =
      fmt::format(" ({}, {:.3g} %)", workload_name(workload), 100 * sizes.changed_rate);
  const double over_entropy = sizes.ours_bits / sizes.entropy_bits;
  if (workload == Workload::kAdam) {
    report->add_figure("ours / paper's layout" + at, sizes.ours_bits / sizes.paper_bits,
                       Report::Aim::kAtMost, 0.68);
    report->add_figure("ours / entropy" + at, over_entropy, Report::Aim::kAtMost, 1.02);
  } else {
    report->add_figure("ours / entropy" + at, over_entropy, Report::Aim::kAtMost, 1.03);
  }
}

}  // namespace

Result<Report> run_payload(const PayloadOptions& options) {
  Report report({"workload", "changed_rate", "paper_bits", "ours_bits", "entropy_bits"});
  std::vector<WorkloadSpec> specs{{Workload::kAdam, 0, kAdamStep, options.seed}};
  for (const Workload workload : {Workload::kUnit, Workload::kRelative}) {
    for (const double rate : options.rates) {
      specs.push_back(workload_at_rate(workload, rate, options.seed));
    }
  }
  for (const WorkloadSpec& spec : specs) {
    DCR_ASSIGN(const Sizes sizes, measure(spec, options.elements));
    report.add_row({Cell::text(workload_name(spec.workload)), Cell::number(sizes.changed_rate, 5),
                    Cell::number(sizes.paper_bits), Cell::number(sizes.ours_bits),
                    Cell::number(sizes.entropy_bits)});
    add_figures(spec.workload, sizes, &report);
  }
  return report;
}

}  // namespace dcr
