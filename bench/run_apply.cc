#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "bench/checkpoint_files.h"
#include "bench/checkpoint_owners.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/model.h"
#include "bench/serving_rank.h"
#include "bench/temporary_directory.h"
#include "bench/vector_passes.h"
#include "receiver/decoded.h"
#include "runtime/threads.h"

namespace dcr {
namespace {

// What owners send to take OLD to NEW, decoded, in declared order; and what they may send.
struct Decoded {
  std::vector<std::shared_ptr<const DecodedPayload>> payloads;
  std::vector<std::vector<OwnerBox>> boxes;
};

Result<Decoded> make_payloads(const OpenPair& pair) {
  RefitOptions options;
  options.owners.generate = "fsdp:8";
  DCR_ASSIGN(const std::unique_ptr<CheckpointOwners> owners, CheckpointOwners::make(pair, options));
  std::vector<KeepingSink> keeping(owners->ranks());
  std::vector<PayloadSink*> sinks;
  sinks.reserve(keeping.size());
  for (KeepingSink& sink : keeping) sinks.push_back(&sink);
  DCR_TRY(owners->prepare(sinks).status());
  std::vector<TensorSpec> specs;
  for (const CanonicalTensor& tensor : pair.catalogue.tensors()) {
    specs.push_back({tensor.words, static_cast<std::uint8_t>(word_bytes(tensor.dtype)), false});
  }
  const PayloadLimits limits = {kPayloadStoredBytesMax, kPayloadRawBytesMax};
  Decoded decoded{{}, owners->owners().boxes()};
  for (const KeepingSink& sink : keeping) {
    for (const Bytes& stored : sink.payloads()) {
      DCR_ASSIGN(std::shared_ptr<const DecodedPayload> payload,
                 decode_payload(stored, pair.catalogue.schema(), specs, limits, ~std::uint64_t{0}));
      decoded.payloads.push_back(std::move(payload));
    }
  }
  std::sort(decoded.payloads.begin(), decoded.payloads.end(),
            [](const auto& a, const auto& b) { return a->header.order() < b->header.order(); });
  return decoded;
}

// The changes of one tensor as the scratch path takes them: to its advantage as XOR masks, all
// owners' in one list.
struct Masks {
  std::uint64_t words = 0;
  std::vector<std::uint32_t> positions;
  std::vector<std::uint16_t> masks;
};

std::vector<Masks> make_masks(const WorkloadSpec& spec, const std::vector<ModelTensor>& tensors,
                              const Catalogue& catalogue) {
  std::vector<Masks> all(catalogue.size());
  for (const ModelTensor& tensor : tensors) {
    std::vector<std::uint16_t> before(tensor.words);
    std::vector<std::uint16_t> after(tensor.words);
    fill_tensor(spec, tensor, before, after);
    Masks& masks = all[static_cast<std::size_t>(catalogue.find(tensor.name))];
    masks.words = tensor.words;
    for (std::uint32_t i = 0; i < tensor.words; ++i) {
      if (before[i] == after[i]) continue;
      masks.positions.push_back(i);
      masks.masks.push_back(static_cast<std::uint16_t>(before[i] ^ after[i]));
    }
  }
  return all;
}

// The receiver of the paper (§6.1) as fast as it can be, without a loader between and without any
// check: a scratch of the tensor's size is filled with the placeholder of XOR, the masks are
// scattered into it, and what the rank holds of the tensor is folded in by one vectorised pass.
// Threads take tensor after tensor, each with a scratch of its own.
class PlainScratch {
 public:
  PlainScratch(const std::vector<Masks>& tensors, const ServingRank& rank)
      : tensors_(tensors), runs_(rank.runs()) {
    for (const Masks& tensor : tensors) largest_ = std::max(largest_, tensor.words);
  }

  // `weights`: the rank's storages.
  Status apply(Executor& executor, std::span<const MutableByteSpan> weights) {
    while (scratches_.size() < executor.threads()) scratches_.emplace_back(largest_);
    std::atomic<std::size_t> next{0};
    return ordered_map<bool>(
        executor, executor.threads(), executor.threads(), nullptr,
        [&](std::uint64_t thread) -> Result<bool> {
          std::uint16_t* const scratch = scratches_[static_cast<std::size_t>(thread)].data();
          for (std::size_t i = next++; i < tensors_.size(); i = next++) {
            apply_one(i, scratch, weights);
          }
          return true;
        },
        [](std::uint64_t, bool&&) { return Status(); });
  }

 private:
  void apply_one(std::size_t index, std::uint16_t* scratch,
                 std::span<const MutableByteSpan> weights) const {
    const Masks& tensor = tensors_[index];
    std::memset(scratch, 0, tensor.words * sizeof(std::uint16_t));
    for (std::size_t i = 0; i < tensor.positions.size(); ++i) {
      scratch[tensor.positions[i]] = tensor.masks[i];
    }
    for (const ServingRank::Run& run : runs_[index]) {
      auto* words = reinterpret_cast<std::uint16_t*>(weights[run.storage].data()) + run.word;
      xor_into({words, run.words}, {scratch + run.canonical, run.words});
    }
  }

  const std::vector<Masks>& tensors_;
  const std::vector<std::vector<ServingRank::Run>> runs_;
  std::uint64_t largest_ = 0;
  std::vector<std::vector<std::uint16_t>> scratches_;
};

// What one rate is measured on.
struct Inputs {
  const OpenPair& pair;
  const Decoded& sent;
  const std::vector<Masks>& masks;
  double changed_rate = 0;
  double gigabytes = 0;
};

// Both paths on one thread and on all; each round's results are checked.
Status measure_rank(const Inputs& inputs, unsigned tensor_parallel, unsigned rounds, double rate,
                    Report* report) {
  DCR_ASSIGN(const std::unique_ptr<ServingRank> rank,
             ServingRank::make(inputs.pair, tensor_parallel, inputs.sent.boxes));
  PlainScratch scratch(inputs.masks, *rank);
  DCR_ASSIGN(ServingRank::Weights scratch_weights, rank->copy_of_old());
  Status status;
  const auto keep_first = [&status](const Status& one) {
    if (status.ok()) status = one;
  };
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<std::function<void()>> works;
  for (const unsigned threads : {1U, processor_count()}) {
    executors.push_back(make_executor(threads));
    Executor* const executor = executors.back().get();
    works.emplace_back(
        [&, executor] { keep_first(scratch.apply(*executor, scratch_weights.storages)); });
    works.emplace_back([&] { keep_first(rank->check_and_restore(scratch_weights.storages)); });
    DCR_TRY(rank->prepare(threads));
    works.emplace_back([&, threads] { keep_first(rank->apply(threads, inputs.sent.payloads)); });
    works.emplace_back([&] { keep_first(rank->check_and_restore(rank->storages())); });
  }
  const Measurement measured(ClockKind::kWall, rounds, works);
  DCR_TRY(status);
  const auto scratch_seconds = [](const std::vector<double>& round) {
    return std::min(round[0], round[4]);
  };
  const auto traced_seconds = [](const std::vector<double>& round) {
    return std::min(round[2], round[6]);
  };
  const double speedup = measured.median([&](const std::vector<double>& round) {
    return scratch_seconds(round) / traced_seconds(round);
  });
  report->add_row({Cell::number(inputs.changed_rate, 5), Cell::whole(tensor_parallel),
                   Cell::number(inputs.gigabytes / measured.median(traced_seconds), 2),
                   Cell::number(inputs.gigabytes / measured.median(scratch_seconds), 2),
                   Cell::number(speedup, 2)});
  const std::string name =
      fmt::format("traced / scratch at {:g} %, tensor parallel {}", 100 * rate, tensor_parallel);
  if (rate == 0.01) {
    report->add_figure(name, speedup, Report::Aim::kAtLeast, tensor_parallel == 1 ? 2.5 : 12);
  } else {
    report->add_figure(name, speedup);
  }
  return {};
}

}  // namespace

Result<Report> run_apply(const SpeedOptions& options) {
  Report report({"changed_rate", "tensor_parallel", "traced_gbps", "scratch_gbps", "speedup"});
  const std::vector<ModelTensor> tensors =
      transformer_tensors(options.elements * sizeof(std::uint16_t));
  for (const double rate : options.rates) {
    DCR_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::make(options.directory));
    const WorkloadSpec spec = workload_at_rate(options.workload, rate, options.seed);
    DCR_ASSIGN(const CheckpointPair files, write_checkpoints(spec, tensors, 1, directory.path()));
    DCR_ASSIGN(const std::unique_ptr<OpenPair> pair, OpenPair::open(files));
    DCR_ASSIGN(const Decoded sent, make_payloads(*pair));
    const std::vector<Masks> masks = make_masks(spec, tensors, pair->catalogue);
    std::uint64_t words = 0;
    std::uint64_t changed = 0;
    for (const Masks& tensor : masks) {
      words += tensor.words;
      changed += tensor.positions.size();
    }
    const Inputs inputs{*pair, sent, masks,
                        static_cast<double>(changed) / static_cast<double>(words),
                        static_cast<double>(words * sizeof(std::uint16_t)) * 1e-9};
    for (const unsigned tensor_parallel : {1U, 8U}) {
      DCR_TRY(measure_rank(inputs, tensor_parallel, options.rounds, rate, &report));
    }
  }
  report.add_note(
      "GB of the whole model per second and rank, each path on one thread or on all, whichever is "
      "quicker; scratch: memset, scatter and one pass over the rank's part, with no loader and no "
      "checks; traced: the product's, from decoded payloads");
  return report;
}

}  // namespace dcr
