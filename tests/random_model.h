// Random catalogues with a random layout on both sides: the rules, as layout files, that owners and
// receivers of one model may have at the same time. Tiny on purpose; every class of docs/LAYOUT.md
// and every behaviour that a receiver can serve occurs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "tensor/cast.h"
#include "tensor/catalogue.h"

namespace dcr {

// Tensors that some rule may join: "f0.{i}.m0", …, or of experts "f0.{i}.experts.{e}.m0". Those of
// one member have one shape.
struct RandomFamily {
  std::string prefix;
  Dtype dtype = Dtype::kU8;
  std::vector<Shape> shapes;  // by member; those of several have the same dimensions but the first
  std::uint64_t layers = 1;
  std::uint64_t experts = 0;
  bool tied = false;  // two members of one shape, which receivers hold in the same storage

  std::string pattern(std::size_t member) const {
    return prefix + (experts > 0 ? ".{i}.experts.{e}.m" : ".{i}.m") + std::to_string(member);
  }
  std::string name(std::uint64_t layer, std::uint64_t expert, std::size_t member) const {
    const std::string middle = experts > 0 ? ".experts." + std::to_string(expert) : std::string();
    return prefix + "." + std::to_string(layer) + middle + ".m" + std::to_string(member);
  }
};

inline std::string number_list(const std::vector<std::uint64_t>& numbers) {
  std::string text = "[";
  for (const std::uint64_t number : numbers) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  }
  return text + "]";
}

// One side's rules for one family.
class RandomRules {
 public:
  RandomRules(Prng& prng, const RandomFamily& family, std::uint64_t ranks, bool receivers)
      : prng_(prng), family_(family), ranks_(ranks), receivers_(receivers) {}

  // Rules with commas between.
  std::string make() {
    if (family_.tied && receivers_) return make_tied();
    const std::size_t count = family_.shapes.size();
    std::vector<std::size_t> all;
    for (std::size_t m = 0; m < count; ++m) all.push_back(m);
    if (count > 1 && prng_.below(3) > 0) return rule(all, "");
    std::string rules;
    for (const std::size_t m : all) rules += (rules.empty() ? "" : ",\n") + rule({m}, "");
    return rules;
  }

  // What owners hold the family in, where it is not its own dtype.
  const std::optional<Dtype>& held() const { return held_; }
  const std::string& aliases() const { return aliases_; }

 private:
  using Members = std::vector<std::size_t>;

  bool packed() const { return dtype_bits(family_.dtype) < 8; }
  const Shape& shape(std::size_t member) const { return family_.shapes[member]; }
  bool one_in(std::uint64_t count) { return prng_.below(count) == 0; }
  std::uint64_t divisor(std::uint64_t of) {
    std::uint64_t made = 1 + prng_.below(of);
    while (of % made != 0) made = 1 + prng_.below(of);
    return made;
  }

  std::string make_tied() {
    // The same rule under two names, of which one is the other's alias.
    const Prng same = prng_;
    std::string rules = rule({0}, "first");
    prng_ = same;
    rules += ",\n" + rule({1}, "second");
    if (rules.find("\"none\"") != std::string::npos) return rules;
    for (std::uint64_t layer = 0; layer < family_.layers; ++layer) {
      const std::string start = family_.prefix + "." + std::to_string(layer) + ".";
      aliases_.append(aliases_.empty() ? "" : ", ").append(R"({"name": ")").append(start);
      aliases_.append(R"(second", "of": ")").append(start).append(R"(first"})");
    }
    return rules;
  }

  // A rule of these members. `name`: the local tensor's last part; empty: any.
  std::string rule(const Members& members, const std::string& name) {
    std::string text = R"({"match": )";
    for (std::size_t m = 0; m < members.size(); ++m) {
      text += (m == 0 ? "[\"" : ", \"") + family_.pattern(members[m]) + "\"";
    }
    text += "]";
    const std::string experts = experts_part(members.size(), name);
    for (int tries = 0; tries < 8; ++tries) {
      const std::optional<std::string> cut = cut_part(members);
      if (!cut) continue;
      const bool boxes = cut->starts_with("\"boxes\"");
      if ((boxes || cut->starts_with("\"vocabulary\"") || cut->starts_with("\"qkv\"")) &&
          family_.experts > 0) {
        continue;
      }
      const bool none = cut->starts_with("\"none\"");
      text.append(R"(, "class": )").append(*cut);
      if (!none) text.append(experts).append(value_part(members));
      return text.append("}");
    }
    return text + R"(, "class": "replicated")" + experts + value_part(members) + "}";
  }

  std::string experts_part(std::size_t members, std::string name) {
    if (name.empty()) name = members > 1 ? "joined" : "";
    if (family_.experts == 0) {
      return name.empty() ? name : R"(, "name": ")" + family_.prefix + ".{i}." + name + "\"";
    }
    const bool stacked = one_in(2);
    if (name.empty()) name = stacked ? "stack" + std::to_string(next_name_++) : "";
    std::string text = R"(, "experts": )" + std::to_string(family_.experts);
    expert_groups_ = divisor(ranks_);
    text += R"(, "expert_groups": )" + std::to_string(expert_groups_);
    if (name.empty()) return text;
    return text + R"(, "name": ")" + family_.prefix + ".{i}." + name + (stacked ? "\"" : "{e}\"");
  }

  // The class and its own keys; nothing if this one does not go with the shapes.
  std::optional<std::string> cut_part(const Members& members) {
    const std::uint64_t shards = divisor(ranks_ / expert_groups_);
    std::vector<std::uint64_t> permute;
    const std::size_t dims = shape(members[0]).size();
    if (dims >= 2 && !packed() && one_in(3)) {
      for (std::size_t d = 0; d < dims; ++d) permute.push_back(d);
      std::shuffle(permute.begin(), permute.end(), prng_);
    }
    const std::string tail = permute.empty() ? "" : R"(, "permute": )" + number_list(permute);
    const auto size = [&](std::size_t member, std::size_t dim) {
      return shape(member)[permute.empty() ? dim : permute[dim]];
    };
    // Joined tensors must agree in all dimensions but the local first.
    if (members.size() > 1 && !permute.empty() && permute[0] != 0) return std::nullopt;
    if (packed() && members.size() > 1) return R"("replicated")";
    const std::string cut = R"(, "shards": )" + std::to_string(shards) + tail;
    switch (prng_.below(receivers_ ? 9 : 8)) {
      case 0:
        return "\"replicated\"" + tail;
      case 1:
      case 2:
        return along_dimension(members, dims, shards, size, cut);
      case 3:
        return gated(members, dims, shards, size, cut);
      case 4:
        return vocabulary(members, dims, shards, cut);
      case 5:
      case 6:
        return members.size() == 1 ? std::optional(fsdp(dims, cut)) : qkv(members, shards, cut);
      case 7:
        return boxes(members);
      default:
        if (!one_in(3)) return std::nullopt;
        return one_in(2) ? R"("none")" : R"("none", "behaviour": "claim_loaded")";
    }
  }

  template <typename Size>
  std::optional<std::string> along_dimension(const Members& members, std::size_t dims,
                                             std::uint64_t shards, const Size& size,
                                             const std::string& cut) {
    if (packed() || dims == 0) return std::nullopt;
    const std::size_t dim = prng_.below(dims);
    const bool row = dim == 1 && one_in(2);
    std::vector<std::uint64_t> copies;
    for (const std::size_t m : members) {
      copies.push_back(receivers_ && !row && one_in(3) ? divisor(shards) : 1);
      if (size(m, dim) % (shards / copies.back()) != 0) return std::nullopt;
      // Cut differently, tensors can only be joined along the dimension that is cut.
      if (dim != 0 && copies.back() != copies[0]) return std::nullopt;
    }
    if (row) return "\"row\"" + cut;
    std::string text = "\"column\"" + cut + R"(, "dim": )" + std::to_string(dim);
    if (receivers_) text += R"(, "copies": )" + number_list(copies);
    return text;
  }

  template <typename Size>
  std::optional<std::string> gated(const Members& members, std::size_t dims, std::uint64_t shards,
                                   const Size& size, const std::string& cut) {
    if (packed() || dims == 0 || members.size() != 2) return std::nullopt;
    for (const std::size_t m : members) {
      if (size(m, 0) % shards != 0) return std::nullopt;
    }
    return "\"gated\"" + cut;
  }

  std::optional<std::string> vocabulary(const Members& members, std::size_t dims,
                                        std::uint64_t shards, const std::string& cut) {
    if (packed() || dims == 0 || members.size() != 1) return std::nullopt;
    return "\"vocabulary\"" + cut + R"(, "multiple": )" +
           std::to_string(shards * (1 + prng_.below(4)));
  }

  std::string fsdp(std::size_t dims, const std::string& cut) {
    const std::uint64_t dim = packed() || dims == 0 ? 0 : prng_.below(dims);
    return "\"fsdp\"" + cut + R"(, "dim": )" + std::to_string(dim);
  }

  std::optional<std::string> qkv(const Members& members, std::uint64_t shards,
                                 const std::string& cut) {
    const std::size_t dims = shape(members[0]).size();
    if (members.size() != 3 || dims == 0 || dims > 2 || packed()) return std::nullopt;
    if (cut.find("permute") != std::string::npos) return std::nullopt;
    const std::uint64_t groups = 1 + prng_.below(4);
    std::uint64_t rows = 0;
    for (const std::size_t m : members) {
      if (shape(m)[0] % groups != 0) return std::nullopt;
      rows += shape(m)[0];
    }
    if (rows % shards != 0) return std::nullopt;
    return "\"qkv\"" + cut + R"(, "groups": )" + std::to_string(groups);
  }

  // Explicit boxes: the tensor's words as a matrix, cut into cells, dealt out to shards.
  std::optional<std::string> boxes(const Members& members) {
    if (members.size() != 1) return std::nullopt;
    const std::uint64_t words = words_of(shape(members[0]));
    if (words == 0) return std::nullopt;
    const std::uint64_t columns = divisor(words);
    const std::uint64_t rows = words / columns;
    const std::vector<std::uint64_t> row_cuts = cuts(rows);
    const std::vector<std::uint64_t> column_cuts = cuts(columns);
    std::vector<std::string> shards(1 + prng_.below(ranks_));
    std::vector<std::uint64_t> sizes(shards.size(), 0);
    for (std::size_t r = 0; r + 1 < row_cuts.size(); ++r) {
      for (std::size_t c = 0; c + 1 < column_cuts.size(); ++c) {
        if (receivers_ && one_in(8)) continue;  // on no rank
        const std::size_t shard = prng_.below(shards.size());
        const std::uint64_t height = row_cuts[r + 1] - row_cuts[r];
        const std::uint64_t width = column_cuts[c + 1] - column_cuts[c];
        const std::vector<std::uint64_t> local = one_in(3) ? std::vector<std::uint64_t>{1, height}
                                                           : std::vector<std::uint64_t>{width, 1};
        shards[shard] += (shards[shard].empty() ? "" : ", ") + std::string(R"({"local": )") +
                         std::to_string(sizes[shard]) + R"(, "canonical": )" +
                         std::to_string(row_cuts[r] * columns + column_cuts[c]) + R"(, "sizes": )" +
                         number_list({height, width}) + R"(, "local_strides": )" +
                         number_list(local) + R"(, "canonical_strides": )" +
                         number_list({columns, 1}) + "}";
        sizes[shard] += height * width;
      }
    }
    return boxes_of(shards, sizes);
  }

  // Shard s is on rank s, and further ranks have some shard too (or, on receivers, none).
  std::string boxes_of(const std::vector<std::string>& shards,
                       const std::vector<std::uint64_t>& sizes) {
    std::vector<std::vector<std::uint64_t>> ranks(shards.size());
    for (std::uint64_t rank = 0; rank < ranks_; ++rank) {
      if (rank < shards.size()) {
        ranks[rank].push_back(rank);
      } else if (!receivers_ || !one_in(3)) {
        ranks[prng_.below(shards.size())].push_back(rank);
      }
    }
    std::string text = R"("boxes", "boxes": [)";
    for (std::size_t s = 0; s < shards.size(); ++s) {
      text += std::string(s == 0 ? "" : ", ") + R"({"ranks": )" + number_list(ranks[s]) +
              R"(, "shape": )" + number_list({sizes[s]}) + R"(, "boxes": [)" + shards[s] + "]}";
    }
    return text + "]";
  }

  std::uint64_t words_of(const Shape& of) const {
    return tensor_bytes(family_.dtype, of).value() / word_bytes(family_.dtype);
  }

  std::vector<std::uint64_t> cuts(std::uint64_t size) {
    std::vector<std::uint64_t> made = {0, size};
    for (std::uint64_t n = prng_.below(3); n > 0; --n) made.push_back(prng_.below(size + 1));
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end()), made.end());
    return made;
  }

  // Dtype and behaviour.
  std::string value_part(const Members& members) {
    const bool floats =
        family_.dtype != Dtype::kU8 && cast_supported(family_.dtype, Dtype::kF32).ok();
    if (!receivers_) return floats ? held_part() : "";
    std::string text;
    const bool cast = floats && one_in(5);
    if (cast) {
      constexpr Dtype kFloats[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64,
                                   Dtype::kF8E4M3};
      const Dtype to = kFloats[prng_.below(std::size(kFloats))];
      text = R"(, "dtype": ")" + std::string(dtype_name(to)) + "\"";
    }
    std::vector<std::string> behaviours = {"contiguous",    "twice",      "index_put",
                                           "claim_skipped", "zero_given", "copy"};
    // What makes tensors whole on one rank cannot talk to the others.
    const bool ordinary = family_.dtype == Dtype::kF32 || family_.dtype == Dtype::kBF16 ||
                          family_.dtype == Dtype::kF16;
    if (!cast || ordinary) behaviours.emplace_back("collective");
    if (ordinary) behaviours.insert(behaviours.end(), {"double", "negative_exp", "negative_exp"});
    const auto one = [&](std::size_t m) { return !packed() && words_of(shape(m)) == 1; };
    if (std::all_of(members.begin(), members.end(), one)) {
      behaviours.insert(behaviours.end(), {"fill", "fill", "fill"});
    }
    if (family_.tied) behaviours = {"contiguous", "twice", "claim_skipped"};
    if (one_in(2)) return text;
    return text + R"(, "behaviour": ")" + behaviours[prng_.below(behaviours.size())] + "\"";
  }

  // Owners hold the family in a wider dtype, from which the cast back gives the same numbers.
  std::string held_part() {
    if (!decided_) {
      decided_ = true;
      if (one_in(4) && family_.dtype != Dtype::kF64) {
        held_ = one_in(4) || family_.dtype == Dtype::kF32 ? Dtype::kF64 : Dtype::kF32;
      }
    }
    return held_ ? R"(, "dtype": ")" + std::string(dtype_name(*held_)) + "\"" : "";
  }

  Prng& prng_;
  const RandomFamily& family_;
  const std::uint64_t ranks_;
  const bool receivers_;
  std::uint64_t expert_groups_ = 1;
  std::uint64_t next_name_ = 0;
  bool decided_ = false;
  std::optional<Dtype> held_;
  std::string aliases_;
};

struct RandomModel {
  Catalogue catalogue;
  std::vector<std::optional<Dtype>> held;  // by tensor; see RandomRules::held
  std::string owners, receivers;           // layout files

  std::string text() const {
    std::string text = "owners " + owners + "\nreceivers " + receivers;
    for (const CanonicalTensor& tensor : catalogue.tensors()) {
      text += "\n" + tensor.name + " " + std::string(dtype_name(tensor.dtype)) + " " +
              shape_text(tensor.shape);
    }
    return text;
  }

  explicit RandomModel(Prng& prng) {
    constexpr std::uint64_t kOwners[] = {1, 2, 3, 4, 6};
    constexpr std::uint64_t kReceivers[] = {1, 2, 3, 4};
    const std::uint64_t owner_ranks = kOwners[prng.below(std::size(kOwners))];
    const std::uint64_t receiver_ranks = kReceivers[prng.below(std::size(kReceivers))];
    std::vector<CanonicalTensor> tensors;
    std::map<std::string, std::optional<Dtype>> held_by_name;
    std::string aliases;
    for (std::uint64_t n = 0, count = 1 + prng.below(3); n < count; ++n) {
      const RandomFamily family = random_family(prng, "f" + std::to_string(n));
      RandomRules of_owners(prng, family, owner_ranks, false);
      RandomRules of_receivers(prng, family, receiver_ranks, true);
      owners += (n == 0 ? "" : ",\n") + of_owners.make();
      receivers += (n == 0 ? "" : ",\n") + of_receivers.make();
      if (!of_receivers.aliases().empty()) {
        aliases += (aliases.empty() ? "" : ", ") + of_receivers.aliases();
      }
      for (std::uint64_t layer = 0; layer < family.layers; ++layer) {
        for (std::uint64_t e = 0; e < std::max<std::uint64_t>(family.experts, 1); ++e) {
          for (std::size_t m = 0; m < family.shapes.size(); ++m) {
            const std::string name = family.name(layer, e, m);
            tensors.push_back({name, family.dtype, family.shapes[m], 0});
            held_by_name[name] = of_owners.held();
          }
        }
      }
    }
    catalogue = Catalogue::make(std::move(tensors)).value();
    for (const CanonicalTensor& tensor : catalogue.tensors()) {
      held.push_back(held_by_name[tensor.name]);
    }
    owners = file_text(owner_ranks, owners) + "}";
    receivers = file_text(receiver_ranks, receivers) + R"(, "aliases": [)" + aliases + "]";
    if (prng.below(3) == 0) {
      receivers += R"(, "buffers": [{"name": "positions", "dtype": "I32", "shape": [5]}])";
    }
    receivers += "}";
  }

 private:
  static std::string file_text(std::uint64_t ranks, const std::string& rules) {
    return R"({"format": 0, "ranks": )" + std::to_string(ranks) + R"(, "rules": [)" + rules + "]";
  }

  static RandomFamily random_family(Prng& prng, std::string prefix) {
    RandomFamily family;
    family.prefix = std::move(prefix);
    constexpr Dtype kMost[] = {Dtype::kBF16, Dtype::kF16, Dtype::kF32};
    family.dtype = prng.below(2) == 0 ? kMost[prng.below(std::size(kMost))]
                                      : static_cast<Dtype>(prng.below(kDtypeCount));
    family.layers = 1 + prng.below(2);
    constexpr std::uint64_t kSizes[] = {1, 2, 3, 4, 6, 8, 12};
    const auto size = [&] { return kSizes[prng.below(std::size(kSizes))]; };
    // Several elements to a byte: tensors end on one.
    const bool packed = dtype_bits(family.dtype) < 8;
    const std::uint64_t step = packed ? 4 : 1;
    Shape shape;
    for (std::uint64_t d = prng.below(packed ? 2 : 3); d > 0; --d) shape.push_back(size() / 2 + 1);
    if (!shape.empty() && prng.below(30) == 0) shape[prng.below(shape.size())] = 0;
    const std::uint64_t members = 1 + prng.below(3);
    const bool scalar = !packed && shape.empty() && members == 1 && prng.below(2) == 0;
    for (std::uint64_t m = 0; m < members; ++m) {
      Shape made = shape;
      if (!scalar) {
        made.insert(made.begin(), prng.below(20) == 0 ? 0 : step * size());
      }
      family.shapes.push_back(std::move(made));
    }
    if (prng.below(4) == 0) family.experts = 1 + prng.below(4);
    if (family.experts == 0 && members == 2 && prng.below(2) == 0) {
      family.tied = true;
      family.shapes[1] = family.shapes[0];
    }
    return family;
  }
};

}  // namespace dcr
