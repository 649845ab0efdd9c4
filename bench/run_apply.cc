#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/changes.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/model.h"
#include "bench/vector_passes.h"
#include "codec/item_reader.h"

namespace dcr {
namespace {

// The receiver of the paper (§6.1), without a loader between: a scratch of the tensor's size is
// filled with the placeholder of XOR, the masks are scattered into it, and a pass over the whole
// tensor folds it in. It starts from decoded arrays, to its advantage.
class ScratchPath {
 public:
  explicit ScratchPath(const std::vector<TensorChanges>& tensors) : tensors_(tensors) {
    std::uint64_t words = 0;
    for (const TensorChanges& tensor : tensors) {
      words = std::max(words, tensor.words);
      std::vector<std::uint16_t>& masks = masks_.emplace_back(tensor.positions.size());
      for (std::size_t i = 0; i < masks.size(); ++i) {
        masks[i] = static_cast<std::uint16_t>(tensor.old_words[i] ^ tensor.new_words[i]);
      }
    }
    scratch_.resize(words);
  }

  void apply(std::uint16_t* weights) {
    for (std::size_t index = 0; index < tensors_.size(); ++index) {
      const TensorChanges& tensor = tensors_[index];
      std::uint16_t* scratch = scratch_.data();
      std::memset(scratch, 0, tensor.words * sizeof(std::uint16_t));
      const std::vector<std::uint16_t>& masks = masks_[index];
      for (std::size_t i = 0; i < masks.size(); ++i) scratch[tensor.positions[i]] = masks[i];
      xor_into({weights, tensor.words}, {scratch, tensor.words});
      weights += tensor.words;
    }
  }

 private:
  const std::vector<TensorChanges>& tensors_;
  std::vector<std::vector<std::uint16_t>> masks_;
  std::vector<std::uint16_t> scratch_;
};

std::uint64_t apply_straight(const std::vector<Payload>& payloads, std::uint16_t* weights) {
  std::uint64_t written = 0;
  for (const Payload& payload : payloads) {
    for (const ItemView& item : payload.items()) {
      const ItemBox& box = item.header.box;
      const std::uint64_t first = item.header.tensor * kTensorWords + box.offset;
      auto* bytes = reinterpret_cast<std::uint8_t*>(weights + first);
      written += apply_item(item, MutableByteSpan(bytes, box.words() * sizeof(std::uint16_t)));
    }
  }
  return written;
}

}  // namespace

Result<Report> run_apply(const SpeedOptions& options) {
  Report report({"changed_rate", "scratch_ms", "straight_ms", "ratio"});
  for (const double rate : options.rates) {
    const WeightPair pair =
        make_weights(workload_at_rate(options.workload, rate, options.seed), options.elements);
    const std::vector<TensorChanges> tensors = collect_changes(pair);
    Model model(pair);
    DCR_ASSIGN(const BuiltPayloads built, build_and_check(model));
    ScratchPath scratch(tensors);
    std::vector<std::uint16_t> scratch_weights = pair.before;
    std::vector<std::uint16_t> straight_weights = pair.before;
    bool equal = true;
    const Measurement measured(
        ClockKind::kThread, options.rounds,
        {[&] { scratch.apply(scratch_weights.data()); },
         [&] { keep(apply_straight(built.payloads, straight_weights.data())); },
         // Not a measurement: each round's results are checked and the old weights restored.
         [&] {
           equal = equal && scratch_weights == pair.after && straight_weights == pair.after;
           scratch_weights = straight_weights = pair.before;
         }});
    if (!equal) return Status(Code::kMismatch, "apply: a path gives other weights than NEW");
    const double changed =
        static_cast<double>(count_changes(tensors)) / static_cast<double>(options.elements);
    report.add_row({Cell::number(changed, 5), Cell::number(1e3 * measured.seconds(0), 1),
                    Cell::number(1e3 * measured.seconds(1), 1),
                    Cell::number(measured.ratio(0, 1))});
    const std::string name = fmt::format("straight against scratch at {:g} %", 100 * rate);
    if (rate == 0.01) {
      report.add_figure(name, measured.ratio(0, 1), Report::Aim::kAtLeast, 2.5);
    } else {
      report.add_figure(name, measured.ratio(0, 1));
    }
  }
  return report;
}

}  // namespace dcr
