#include "source/geometry.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/cancelled.h"
#include "tensor/box.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::size_t kSharesComparedMax = 1024;  // pair by pair, to say which two overlap

// Each once, in order.
std::string rank_text(std::vector<std::uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks_text(ranks);
}

// One rank's boxes of one canonical tensor.
struct Share {
  std::uint32_t rank = 0;
  const Box* box = nullptr;
};

// Why the shares of one tensor do not cover it exactly once, with ranks. `fault` is the reason.
Status name_fault(const CanonicalTensor& tensor, std::span<const Share> shares,
                  const Status& fault) {
  const bool overlap = fault.message().find("twice") != std::string::npos;
  for (std::size_t i = 0; overlap && i < std::min(shares.size(), kSharesComparedMax); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      std::vector<Box> pair = {*shares[i].box};
      if (j < i) pair.push_back(*shares[j].box);
      if (destinations_disjoint(pair)) continue;
      return about_tensor(
          tensor, Status(fault.code(),
                         fault.message() + " by " + rank_text({shares[i].rank, shares[j].rank})));
    }
  }
  if (shares.empty()) return about_tensor(tensor, Status(fault.code(), "no rank makes it"));
  std::vector<std::uint32_t> ranks;
  for (const Share& share : shares) ranks.push_back(share.rank);
  return about_tensor(tensor, Status(fault.code(), fault.message() + "; it comes from " +
                                                       rank_text(std::move(ranks))));
}

// A converter's part as a box from its own order to the canonical tensor.
Result<Box> box_of_part(const ConverterPart& part, std::uint64_t tensor_words) {
  if (part.sizes.size() != part.strides.size()) {
    return Status(Code::kInvalidArgument, "a part has " + std::to_string(part.sizes.size()) +
                                              " sizes and " + std::to_string(part.strides.size()) +
                                              " strides");
  }
  DCR_ASSIGN(const std::uint64_t elements, tensor_elements(part.sizes));
  Box box{0, part.offset, {}};
  std::uint64_t position = 1;
  box.dims.resize(part.sizes.size());
  for (std::size_t i = part.sizes.size(); i-- > 0;) {
    box.dims[i] = {part.sizes[i], position, part.strides[i]};
    position *= std::max<std::uint64_t>(part.sizes[i], 1);
  }
  DCR_TRY(validate_box(box, elements, tensor_words));
  const Box normal = normalize(std::move(box));
  DCR_ASSIGN(const Box ordered, in_canonical_order(normal));
  if (ordered != normal) {
    return Status(Code::kUnsupported, "a part is not in the order of the canonical tensor");
  }
  return ordered;
}

}  // namespace

Result<OwnerDeclaration> declare_owner(const OwnerInput& input) {
  OwnerDeclaration declaration;
  declaration.rank = input.rank;
  const auto no_rank = [](const std::string& name) {
    return Status(Code::kInvalidArgument,
                  "source tensor " + quoted_name(name) + ": no rank holds it");
  };
  for (const ConversionTask& task : input.tasks) {
    if (task.replicas.empty()) return no_rank(task.name);
    if (!owns(task.name, task.replicas, input.rank)) continue;
    declaration.sources.push_back(task.name);
    declaration.direct.insert(declaration.direct.end(), task.placement.begin(),
                              task.placement.end());
  }
  for (const TrackedSource& source : input.tracked) {
    if (source.replicas.empty()) return no_rank(source.name);
    if (owns(source.name, source.replicas, input.rank)) declaration.sources.push_back(source.name);
  }
  for (const Converter* converter : input.converters) {
    declaration.converters.push_back(converter->declare());
  }
  return declaration;
}

class GeometryBuilder {
 public:
  GeometryBuilder(const Catalogue& catalogue, std::span<const OwnerDeclaration> ranks,
                  const CancelToken* cancel, Geometry* geometry)
      : catalogue_(catalogue), ranks_(ranks), cancel_(cancel), geometry_(*geometry) {}

  Status run() {
    geometry_.catalogue_ = &catalogue_;
    geometry_.ranks_ = static_cast<std::uint32_t>(ranks_.size());
    geometry_.projected_.assign(catalogue_.size(), true);
    group_of_.assign(catalogue_.size(), -1);
    DCR_TRY(check_ranks());
    DCR_TRY(add_groups());
    DCR_TRY(link_inputs());
    DCR_TRY(add_parts());
    DCR_TRY(check_cover());
    FlagLayout& flags = geometry_.flags_;
    flags.source = flags.dense + ranks_.size();
    flags.count = flags.source + geometry_.source_names_.size();
    return {};
  }

 private:
  // A source tensor and the rank that says to own it. In the order of hashes, which takes a
  // fraction of the time that the order of names does, as those begin alike.
  struct Source {
    std::uint64_t hash = 0;
    std::string_view name;
    std::uint32_t rank = 0;
    bool operator<(const Source& other) const {
      return std::tie(hash, name, rank) < std::tie(other.hash, other.name, other.rank);
    }
  };
  static Source source_of(std::string_view name, std::uint32_t rank) {
    return {name_hash(name), name, rank};
  }

  // Ranks are in order, declare the same groups, and each source tensor has one owner.
  Status check_ranks() {
    std::size_t sources = 0;
    for (const OwnerDeclaration& rank : ranks_) sources += rank.sources.size();
    sources_.reserve(sources);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      DCR_TRY(check_cancelled(cancel_));
      if (ranks_[i].rank != i) {
        return {Code::kInvalidArgument, "declaration " + std::to_string(i) + " is of rank " +
                                            std::to_string(ranks_[i].rank)};
      }
      for (const std::string& name : ranks_[i].sources) {
        sources_.push_back(source_of(name, static_cast<std::uint32_t>(i)));
      }
      DCR_TRY(check_groups(ranks_[i]));
    }
    std::sort(sources_.begin(), sources_.end());
    const Source* twice = nullptr;  // the second of two; the first by name
    for (std::size_t i = 1; i < sources_.size(); ++i) {
      if (sources_[i].hash != sources_[i - 1].hash || sources_[i].name != sources_[i - 1].name) {
        continue;
      }
      if (twice == nullptr || sources_[i].name < twice->name) twice = &sources_[i];
    }
    if (twice == nullptr) return {};
    return {Code::kMismatch,
            "source tensor " + quoted_name(twice->name) +
                " has two owners or two tasks: " + rank_text({(twice - 1)->rank, twice->rank})};
  }

  Status check_groups(const OwnerDeclaration& rank) const {
    const std::vector<ConverterDeclaration>& first = ranks_[0].converters;
    if (rank.converters.size() != first.size()) {
      return {Code::kMismatch, "rank 0 has " + std::to_string(first.size()) +
                                   " converters and rank " + std::to_string(rank.rank) + " " +
                                   std::to_string(rank.converters.size())};
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      const ConverterDeclaration& a = first[i];
      const ConverterDeclaration& b = rank.converters[i];
      if (a.name == b.name && a.inputs_unknown == b.inputs_unknown &&
          a.custom_export == b.custom_export && a.outputs == b.outputs) {
        continue;
      }
      return {Code::kMismatch, "converter " + std::to_string(i) + " is " + quoted_name(a.name) +
                                   " on rank 0 and another or otherwise declared on rank " +
                                   std::to_string(rank.rank) + " (" + quoted_name(b.name) + ")"};
    }
    return {};
  }

  Status add_groups() {
    if (ranks_.empty()) return {};
    for (const ConverterDeclaration& declared : ranks_[0].converters) {
      const auto index = static_cast<std::int64_t>(geometry_.groups_.size());
      Geometry::Group& group = geometry_.groups_.emplace_back();
      group.name = declared.name;
      geometry_.some_inputs_unknown_ = geometry_.some_inputs_unknown_ || declared.inputs_unknown;
      for (const std::string& output : declared.outputs) {
        const std::int64_t tensor = catalogue_.find(output);
        if (tensor < 0) {
          return {Code::kNotFound, "converter " + quoted_name(declared.name) + ": its output " +
                                       quoted_name(output) + " is not in the catalogue"};
        }
        const auto slot = static_cast<std::size_t>(tensor);
        if (group_of_[slot] >= 0) {
          const auto other = static_cast<std::size_t>(group_of_[slot]);
          return {Code::kMismatch,
                  "tensor " + quoted_name(output) + ": converters " +
                      quoted_name(geometry_.groups_[other].name) + " and " +
                      quoted_name(declared.name) + " both make it",
                  output};
        }
        group_of_[slot] = index;
        group.outputs.push_back(static_cast<std::uint32_t>(tensor));
        if (declared.custom_export) geometry_.projected_[slot] = false;
      }
    }
    return {};
  }

  // Inputs are source tensors, or canonical tensors that another group makes; a name of both means
  // both, as a change that is overlooked would stay so.
  Status link_inputs() {
    if (ranks_.empty()) return {};
    std::vector<std::string>& names = geometry_.source_names_;
    std::vector<std::vector<std::string>> inputs;  // by group
    for (std::size_t i = 0; i < geometry_.groups_.size(); ++i) {
      inputs.push_back(inputs_of(i));
      for (const std::string& input : inputs.back()) {
        if (is_source(input)) names.push_back(input);
      }
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    for (std::size_t i = 0; i < geometry_.groups_.size(); ++i) {
      Geometry::Group& group = geometry_.groups_[i];
      for (const std::string& input : inputs[i]) {
        const std::int64_t source = geometry_.find_source(input);
        if (source >= 0) group.inputs.push_back(static_cast<std::uint32_t>(source));
        const std::int64_t tensor = catalogue_.find(input);
        const std::int64_t maker = tensor < 0 ? -1 : group_of_[static_cast<std::size_t>(tensor)];
        if (maker >= 0) group.upstream.push_back(static_cast<std::uint32_t>(maker));
        if (source < 0 && maker < 0) {
          return {Code::kNotFound,
                  "converter " + quoted_name(group.name) + ": its input " + quoted_name(input) +
                      " is no source tensor of any rank and no converter makes it"};
        }
      }
    }
    return {};
  }

  // What a group reads on any rank: each declares its own shards, or those of all.
  std::vector<std::string> inputs_of(std::size_t group) const {
    std::vector<std::string> inputs;
    for (const OwnerDeclaration& rank : ranks_) {
      const std::vector<std::string>& declared = rank.converters[group].inputs;
      inputs.insert(inputs.end(), declared.begin(), declared.end());
    }
    std::sort(inputs.begin(), inputs.end());
    inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
    return inputs;
  }

  bool is_source(const std::string& name) const {
    const auto found = std::lower_bound(sources_.begin(), sources_.end(), source_of(name, 0));
    return found != sources_.end() && found->name == name;
  }

  // Cuts every rank's parts into pieces.
  Status add_parts() {
    for (const OwnerDeclaration& rank : ranks_) {
      DCR_TRY(check_cancelled(cancel_));
      for (std::size_t group = 0; group < rank.converters.size(); ++group) {
        const Status status = add_parts_of(rank, static_cast<std::uint32_t>(group));
        if (!status.ok()) {
          return status.with_context("converter " + quoted_name(geometry_.groups_[group].name) +
                                     " on rank " + std::to_string(rank.rank));
        }
      }
    }
    std::sort(geometry_.residual_.begin(), geometry_.residual_.end(),
              [](const ResidualPiece& a, const ResidualPiece& b) {
                return std::tie(a.group, a.tensor, a.box.offset, a.from, a.part, a.first) <
                       std::tie(b.group, b.tensor, b.box.offset, b.from, b.part, b.first);
              });
    return {};
  }

  Status add_parts_of(const OwnerDeclaration& rank, std::uint32_t group) {
    std::map<std::uint32_t, std::uint64_t> parts_of_tensor;
    const std::vector<ConverterPart>& parts = rank.converters[group].parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t found = catalogue_.find(parts[i].canonical);
      const bool ours = found >= 0 && group_of_[static_cast<std::size_t>(found)] == group;
      if (!ours) {
        return {Code::kNotFound, "a part is of " + quoted_name(parts[i].canonical) +
                                     ", which is none of its outputs"};
      }
      const auto tensor = static_cast<std::uint32_t>(found);
      const Result<Box> box = box_of_part(parts[i], catalogue_[tensor].words);
      if (!box.ok()) return about_tensor(catalogue_[tensor], box.status());
      boxes_.push_back({tensor, rank.rank, *box});
      add_pieces(rank.rank, group, tensor, i, parts_of_tensor[tensor]++, *box);
    }
    return {};
  }

  void add_pieces(std::uint32_t rank, std::uint32_t group, std::uint32_t tensor,
                  std::uint64_t converter_part, std::uint64_t part, const Box& box) {
    ResidualPiece piece;
    piece.group = group;
    piece.tensor = tensor;
    piece.from = rank;
    piece.to = geometry_.residual_owner(tensor);
    piece.converter_part = converter_part;
    piece.part = part;
    piece.width = static_cast<std::uint8_t>(word_bytes(catalogue_[tensor].dtype));
    for (const Box& cut : split(box, piece_words(piece.width))) {
      piece.words = cut.elements();
      piece.box = canonical_side(cut);
      geometry_.residual_.push_back(piece);
      piece.first += piece.words;
    }
  }

  Status check_cover() {
    // Sorted by counting, for each rank may have a share of each tensor: those of tensor t end up
    // in [ends[t - 1], ends[t]), in the order of ranks.
    std::vector<std::size_t> ends(catalogue_.size(), 0);
    for (const OwnerDeclaration& rank : ranks_) {
      DCR_TRY(check_cancelled(cancel_));
      for (const PlacementPart& part : rank.direct) {
        if (part.destination >= catalogue_.size()) {
          return {Code::kInvalidArgument,
                  "rank " + std::to_string(rank.rank) + " projects to tensor index " +
                      std::to_string(part.destination) + ", which is not in the catalogue"};
        }
        const CanonicalTensor& tensor = catalogue_[part.destination];
        const Status valid = validate_box(part.box, ~std::uint64_t{0}, tensor.words);
        if (!valid.ok()) return about_tensor(tensor, valid);
        if (geometry_.projected_[part.destination]) ++ends[part.destination];
      }
    }
    for (const ConvertedBox& converted : boxes_) ++ends[converted.tensor];
    std::vector<Share> shares(std::reduce(ends.begin(), ends.end()));
    std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), std::size_t{0});
    for (const OwnerDeclaration& rank : ranks_) {
      for (const PlacementPart& part : rank.direct) {
        if (!geometry_.projected_[part.destination]) continue;
        shares[ends[part.destination]++] = {rank.rank, &part.box};
      }
    }
    for (const ConvertedBox& converted : boxes_) {
      shares[ends[converted.tensor]++] = {converted.rank, &converted.box};
    }
    std::vector<Box> boxes;  // of one tensor; one list for all, as it keeps the memory of its boxes
    std::size_t begin = 0;
    for (std::uint32_t tensor = 0; tensor < catalogue_.size(); ++tensor) {
      DCR_TRY(check_cancelled(cancel_));
      const auto of_tensor = std::span<const Share>(shares).subspan(begin, ends[tensor] - begin);
      begin = ends[tensor];
      boxes.resize(of_tensor.size());
      std::transform(of_tensor.begin(), of_tensor.end(), boxes.begin(),
                     [](const Share& share) -> const Box& { return *share.box; });
      const Status cover = covers_exactly_once(boxes, catalogue_[tensor].words);
      if (!cover.ok()) return name_fault(catalogue_[tensor], of_tensor, cover);
    }
    return {};
  }

  struct ConvertedBox {
    std::uint32_t tensor = 0;
    std::uint32_t rank = 0;
    Box box;
  };

  const Catalogue& catalogue_;
  const std::span<const OwnerDeclaration> ranks_;
  const CancelToken* const cancel_;
  Geometry& geometry_;
  std::vector<std::int64_t> group_of_;  // by tensor; -1: none
  std::vector<Source> sources_;         // by hash, name and rank
  std::vector<ConvertedBox> boxes_;
};

Result<std::shared_ptr<const Geometry>> Geometry::make(const Catalogue& catalogue,
                                                       std::span<const OwnerDeclaration> ranks,
                                                       const CancelToken* cancel) {
  Geometry geometry;
  DCR_TRY(GeometryBuilder(catalogue, ranks, cancel, &geometry).run());
  return std::shared_ptr<const Geometry>(std::make_shared<Geometry>(std::move(geometry)));
}

std::int64_t Geometry::find_source(const std::string& name) const {
  const auto found = std::lower_bound(source_names_.begin(), source_names_.end(), name);
  if (found == source_names_.end() || *found != name) return -1;
  return found - source_names_.begin();
}

bool Geometry::feeds(const std::string& name) const {
  return some_inputs_unknown_ || find_source(name) >= 0;
}

std::uint32_t Geometry::residual_owner(std::uint32_t tensor) const {
  return static_cast<std::uint32_t>(name_hash((*catalogue_)[tensor].name) % ranks_);
}

std::vector<std::uint32_t> Geometry::select(std::span<const std::uint8_t> flags,
                                            std::span<const Need> needs) const {
  std::vector<bool> selected(groups_.size(), false);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    bool reached = false;
    for (const std::uint32_t input : group.inputs) {
      reached = reached || flags[flags_.source + input] != 0;
    }
    for (const std::uint32_t tensor : group.outputs) {
      reached = reached || flags[flags_.dense + residual_owner(tensor)] != 0 ||
                (!needs.empty() && needs[tensor] == Need::kDense);
    }
    selected[i] = reached;
  }
  // A custom hook that reads what it does not declare may read anything (paper A.1): with it, every
  // residual tensor is selected.
  if (some_inputs_unknown_ && flags[FlagLayout::kChanged] != 0) {
    selected.assign(groups_.size(), true);
  }
  // Through groups that make what others read, until nothing is added.
  std::vector<std::vector<std::uint32_t>> readers(groups_.size());
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    for (const std::uint32_t maker : groups_[i].upstream) readers[maker].push_back(i);
  }
  std::vector<std::uint32_t> open;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    if (selected[i]) open.push_back(i);
  }
  while (!open.empty()) {
    const std::uint32_t group = open.back();
    open.pop_back();
    for (const std::uint32_t reader : readers[group]) {
      if (selected[reader]) continue;
      selected[reader] = true;
      open.push_back(reader);
    }
  }
  std::vector<std::uint32_t> pieces;
  for (std::uint32_t i = 0; i < residual_.size(); ++i) {
    if (selected[residual_[i].group]) pieces.push_back(i);
  }
  return pieces;
}

std::vector<std::vector<std::uint32_t>> Geometry::rounds(
    std::span<const std::uint32_t> pieces) const {
  std::vector<std::vector<std::uint32_t>> rounds;
  // By receiving owner: the round that takes its next piece, and what that round holds for it.
  std::vector<std::size_t> round(ranks_, 0);
  std::vector<std::uint64_t> bytes(ranks_, 0);
  for (const std::uint32_t index : pieces) {
    const ResidualPiece& piece = residual_[index];
    const std::uint64_t more = piece.words * piece.width;
    if (bytes[piece.to] > 0 && bytes[piece.to] + more > kRoundBytesMax) {
      ++round[piece.to];
      bytes[piece.to] = 0;
    }
    bytes[piece.to] += more;
    if (rounds.size() == round[piece.to]) rounds.emplace_back();
    rounds[round[piece.to]].push_back(index);
  }
  return rounds;
}

}  // namespace dcr
