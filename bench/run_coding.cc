// The subcommands encode and decode: arrays of changes to a compressed body and back, ours against
// the paper's layout. Both start from and end in the same arrays: per tensor ascending positions
// and, for each, a 16-bit difference word (ours: new − old, the paper's: old ^ new).
#include <fmt/format.h>

#include <algorithm>

#include "base/digest.h"
#include "bench/changes.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/model.h"
#include "bench/paper_layout.h"
#include "codec/item_reader.h"

namespace dcr {
namespace {

PaperPayload encode_paper(const std::vector<TensorChanges>& tensors, PaperEncoder* encoder) {
  for (const TensorChanges& tensor : tensors) {
    if (tensor.positions.empty()) continue;
    encoder->append(tensor.words, tensor.positions, tensor.old_words, tensor.new_words,
                    PaperEncoding::kXor);
  }
  return encoder->seal();
}

// Gaps and values as the scan gives them (Kernels::scan_changes).
struct ScanArrays {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint16_t> values;

  void assign(const TensorChanges& tensor) {
    const std::size_t count = tensor.positions.size();
    gaps.resize(count);
    values.resize(count);
    if (count == 0) return;
    gaps[0] = tensor.positions[0];
    for (std::size_t i = 1; i < count; ++i) {
      gaps[i] = tensor.positions[i] - tensor.positions[i - 1] - 1;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto difference = static_cast<std::uint16_t>(tensor.new_words[i] - tensor.old_words[i]);
      const auto sign = static_cast<std::uint16_t>(-(difference >> 15));
      values[i] = static_cast<std::uint16_t>((static_cast<unsigned>(difference) << 1 ^ sign) - 1U);
    }
  }
};

Bytes encode_ours(const std::vector<TensorChanges>& tensors, ItemEncoder* encoder,
                  ScanArrays* arrays, EncodedItem* item) {
  PayloadWriter writer;
  for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    arrays->assign(tensors[tensor]);
    encoder->begin(tensor, kBf16Bytes, ItemBox::range(0, tensors[tensor].words),
                   EncodingChoice::kAdd);
    encoder->take(arrays->gaps, arrays->values.data());
    if (encoder->finish({}, item)) writer.append(*item);
  }
  return writer.seal(PayloadHeader{});
}

// A value as scan_changes gives it back to the difference word that it stands for.
std::uint16_t difference_word(std::uint16_t value) {
  const unsigned zigzag = value + 1U;
  return static_cast<std::uint16_t>((zigzag & 0xffff) >> 1 ^ (0U - (zigzag & 1)));
}

// All items' positions and difference words, one after another. Items here are whole tensors.
void expand_items(const Payload& payload, PaperEntries* entries) {
  std::size_t total = 0;
  for (const ItemView& item : payload.items()) total += item.header.changes;
  entries->positions.resize(total);
  entries->words.resize(total);
  std::size_t at = 0;
  ChangeBlock block;
  for (const ItemView& item : payload.items()) {
    ItemReader reader(item);
    while (reader.next(&block)) {
      std::copy_n(block.positions, block.count, entries->positions.data() + at);
      const auto* values = reinterpret_cast<const std::uint16_t*>(block.values);
      std::uint16_t* words = entries->words.data() + at;
      for (std::size_t i = 0; i < block.count; ++i) words[i] = difference_word(values[i]);
      at += block.count;
    }
  }
}

Status check_entries(const std::vector<TensorChanges>& tensors, const PaperEntries& entries,
                     bool ours) {
  std::size_t at = 0;
  bool equal = count_changes(tensors) == entries.positions.size();
  for (const TensorChanges& tensor : tensors) {
    for (std::size_t i = 0; equal && i < tensor.positions.size(); ++i, ++at) {
      const unsigned word = entries.words[at];
      const unsigned updated = ours ? tensor.old_words[i] + word : tensor.old_words[i] ^ word;
      equal = entries.positions[at] == tensor.positions[i] &&
              static_cast<std::uint16_t>(updated) == tensor.new_words[i];
    }
  }
  if (equal) return {};
  return Status(Code::kMismatch, std::string(ours ? "our layout" : "the paper's layout") +
                                     " decodes to other changes than were encoded");
}

// Both bodies, decoded once and checked.
struct Bodies {
  PaperPayload paper;
  Bytes ours;
};
Result<Bodies> make_bodies(const std::vector<TensorChanges>& tensors, const Model& model) {
  Bodies bodies;
  PaperEncoder paper_encoder;
  bodies.paper = encode_paper(tensors, &paper_encoder);
  ItemEncoder encoder;
  ScanArrays arrays;
  EncodedItem item;
  bodies.ours = encode_ours(tensors, &encoder, &arrays, &item);
  PaperEntries entries;
  DCR_TRY(PaperDecoder().decode(bodies.paper, &entries));
  DCR_TRY(check_entries(tensors, entries, false));
  DCR_ASSIGN(const Payload payload, model.read(bodies.ours));
  expand_items(payload, &entries);
  DCR_TRY(check_entries(tensors, entries, true));
  return bodies;
}

enum Work : std::size_t { kPaper = 0, kOurs = 1, kOurDigest = 2 };

Report coding_report() {
  return Report(
      {"changed_rate", "paper_ms", "ours_ms", "ours_digest_ms", "ratio", "ratio_with_digest"});
}

// `ours` includes our payload's digest, which the paper's body does not have here: its time is
// measured beside and taken off.
void add_coding_row(const Measurement& measured, double rate, double requested, double aim,
                    Report* report) {
  const double ratio = measured.median([](const std::vector<double>& round) {
    return round[kPaper] / (round[kOurs] - round[kOurDigest]);
  });
  const auto milliseconds = [&](std::size_t work) {
    return Cell::number(1e3 * measured.seconds(work), 2);
  };
  report->add_row({Cell::number(rate, 5), milliseconds(kPaper), milliseconds(kOurs),
                   milliseconds(kOurDigest), Cell::number(ratio),
                   Cell::number(measured.ratio(kPaper, kOurs))});
  report->add_figure(fmt::format("times as fast as the paper's layout at {:g} %", 100 * requested),
                     ratio, Report::Aim::kAtLeast, aim);
}

}  // namespace

Result<Report> run_encode(const SpeedOptions& options) {
  Report report = coding_report();
  for (const double rate : options.rates) {
    const WeightPair pair =
        make_weights(workload_at_rate(options.workload, rate, options.seed), options.elements);
    const std::vector<TensorChanges> tensors = collect_changes(pair);
    const Model model(pair);
    DCR_ASSIGN(const Bodies bodies, make_bodies(tensors, model));
    PaperEncoder paper_encoder;
    ItemEncoder encoder;
    ScanArrays arrays;
    EncodedItem item;
    const Measurement measured(
        ClockKind::kThread, options.rounds,
        {[&] { keep(encode_paper(tensors, &paper_encoder).body.size()); },
         [&] { keep(encode_ours(tensors, &encoder, &arrays, &item).size()); },
         [&] { keep(blake2b(bodies.ours)[0]); }});
    add_coding_row(
        measured,
        static_cast<double>(count_changes(tensors)) / static_cast<double>(options.elements), rate,
        2.5, &report);
  }
  return report;
}

Result<Report> run_decode(const SpeedOptions& options) {
  Report report = coding_report();
  for (const double rate : options.rates) {
    const WeightPair pair =
        make_weights(workload_at_rate(options.workload, rate, options.seed), options.elements);
    const std::vector<TensorChanges> tensors = collect_changes(pair);
    const Model model(pair);
    DCR_ASSIGN(const Bodies bodies, make_bodies(tensors, model));
    PaperDecoder paper_decoder;
    PaperEntries paper_entries;
    PaperEntries entries;
    Status status;
    const auto note = [&](const Status& outcome) {
      if (!outcome.ok() && status.ok()) status = outcome;
    };
    const Measurement measured(ClockKind::kThread, options.rounds,
                               {[&] { note(paper_decoder.decode(bodies.paper, &paper_entries)); },
                                [&] {
                                  const Result<Payload> payload = model.read(bodies.ours);
                                  note(payload.status());
                                  if (payload.ok()) expand_items(payload.value(), &entries);
                                },
                                [&] { keep(blake2b(bodies.ours)[0]); }});
    DCR_TRY(status);
    add_coding_row(
        measured,
        static_cast<double>(count_changes(tensors)) / static_cast<double>(options.elements), rate,
        1.5, &report);
  }
  return report;
}

}  // namespace dcr
