#include <cstdlib>

#include "bench/changes.h"
#include "bench/commands.h"
#include "bench/entropy.h"
#include "bench/model.h"
#include "bench/paper_layout.h"

namespace dcr {
namespace {

// One row of Table 2: megabytes (10^6 bytes) as the paper prints them.
struct PaperSizes {
  float amplitude;
  const char* name;
  double overwrite_mb, xor_mb, ours_aim_mb;
};
constexpr PaperSizes kTable2[] = {
    {1e-4F, "1e-4", 0.74, 0.33, 0.19},
    {1e-3F, "1e-3", 7.02, 3.23, 1.81},
    {1e-2F, "1e-2", 25.70, 14.93, 9.90},
};
constexpr double kToleranceMb = 0.015;
constexpr std::uint64_t kTable2Elements = 20'000'000;

double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) * 1e-6; }

// Little-endian words, as the paper's streams hold them.
Bytes word_bytes(const std::vector<std::uint16_t>& words) {
  Bytes bytes(words.size() * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < words.size(); ++i) store_little(&bytes[2 * i], words[i]);
  return bytes;
}

struct Streams {
  std::uint64_t overwrite_bytes = 0, xor_bytes = 0;
};

// The paper's two streams, compressed, decoded and checked.
Result<Streams> paper_streams(const std::vector<TensorChanges>& tensors) {
  std::vector<std::uint16_t> overwrites;
  std::vector<std::uint16_t> masks;
  std::vector<std::uint16_t> inputs;
  for (const TensorChanges& tensor : tensors) {
    for (std::size_t i = 0; i < tensor.positions.size(); ++i) {
      inputs.push_back(tensor.old_words[i]);
      overwrites.push_back(tensor.new_words[i]);
      masks.push_back(static_cast<std::uint16_t>(tensor.old_words[i] ^ tensor.new_words[i]));
    }
  }
  const Bytes overwrite_raw = word_bytes(overwrites);
  const Bytes overwrite_stream = zstd_level1(overwrite_raw);
  const Bytes xor_stream = zstd_level1(word_bytes(masks));
  DCR_ASSIGN(const Bytes overwrite_back, zstd_expand(overwrite_stream, overwrite_raw.size()));
  DCR_ASSIGN(const Bytes xor_back, zstd_expand(xor_stream, overwrite_raw.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto mask = load_little<std::uint16_t>(&xor_back[2 * i]);
    if (load_little<std::uint16_t>(&overwrite_back[2 * i]) != overwrites[i] ||
        (inputs[i] ^ mask) != overwrites[i]) {
      return Status(Code::kMismatch, "codec: a decoded stream of the paper's has other words");
    }
  }
  return Streams{overwrite_stream.size(), xor_stream.size()};
}

// Stored bytes of all streams that hold values.
std::uint64_t value_bytes(const std::vector<Payload>& payloads) {
  std::uint64_t bytes = 0;
  for (const Payload& payload : payloads) {
    for (const StreamEntry& entry : payload.streams()) {
      if (entry.kind >= StreamKind::kSymbol2) bytes += entry.stored_bytes;
    }
  }
  return bytes;
}

}  // namespace

Result<Report> run_codec(const CodecOptions& options) {
  Report report({"amplitude", "changed_rate", "overwrite_mb", "xor_mb", "ours_mb", "entropy_mb"});
  const NoiseVectors vectors = make_noise_vectors(options.elements, options.seed);
  for (const PaperSizes& paper : kTable2) {
    const WeightPair pair{vectors.inputs, add_noise(vectors, paper.amplitude)};
    const std::vector<TensorChanges> tensors = collect_changes(pair);
    DCR_ASSIGN(const Streams streams, paper_streams(tensors));
    Model model(pair);
    DCR_ASSIGN(const BuiltPayloads built, build_and_check(model));
    const double ours = megabytes(value_bytes(built.payloads));
    const double overwrite = megabytes(streams.overwrite_bytes);
    const double masks = megabytes(streams.xor_bytes);
    report.add_row({Cell::number(std::strtod(paper.name, nullptr), 4),
                    Cell::number(static_cast<double>(count_changes(tensors)) /
                                     static_cast<double>(options.elements),
                                 5),
                    Cell::number(overwrite), Cell::number(masks), Cell::number(ours),
                    Cell::number(value_entropy_bits(tensors) / 8e6)});
    // The paper's figures are for its own number of elements.
    if (options.elements != kTable2Elements) continue;
    const std::string at = std::string(" at amplitude ") + paper.name;
    report.add_figure("overwrite MB off the paper's" + at, std::abs(overwrite - paper.overwrite_mb),
                      Report::Aim::kAtMost, kToleranceMb);
    report.add_figure("xor MB off the paper's" + at, std::abs(masks - paper.xor_mb),
                      Report::Aim::kAtMost, kToleranceMb);
    report.add_figure("ours MB" + at, ours, Report::Aim::kAtMost, paper.ours_aim_mb);
  }
  return report;
}

}  // namespace dcr
