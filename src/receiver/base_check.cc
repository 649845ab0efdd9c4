#include "receiver/base_check.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/limits.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// Runs of at least so many bytes are read by themselves; shorter ones with what lies between them,
// so many bytes at a time.
constexpr std::uint64_t kRunBytesMin = 4 * kKiB;
constexpr std::uint64_t kSpanBytesMax = 256 * kKiB;

// Digests the words of one box after another.
class BoxDigester {
 public:
  BoxDigester(const Catalogue& catalogue, const CanonicalRead& base)
      : catalogue_(catalogue), base_(base) {
    leaf_.reserve(kDigestLeafBytes);
  }

  Result<Digest> digest(const OwnerBox& box) {
    tensor_ = box.tensor;
    width_ = word_bytes(catalogue_[box.tensor].dtype);
    span_.clear();
    leaf_.clear();
    leaves_.clear();
    ItemBox runs = box.box;
    std::uint64_t run = 1;
    if (!runs.dims.empty() && runs.dims.back().stride == 1) {
      run = runs.dims.back().size;
      runs.dims.pop_back();
    }
    const std::uint64_t end = box.box.end();
    std::vector<std::uint64_t> index(runs.dims.size(), 0);
    while (true) {
      std::uint64_t first = runs.offset;
      for (std::size_t i = 0; i < index.size(); ++i) first += index[i] * runs.dims[i].stride;
      DCR_TRY(add_run(first, run, end));
      std::size_t at = index.size();
      while (at > 0 && ++index[at - 1] == runs.dims[at - 1].size) index[--at] = 0;
      if (at == 0) break;
    }
    if (!leaf_.empty()) leaves_.push_back(xxh3(leaf_));
    return combine_leaves(leaves_);
  }

 private:
  Status add_run(std::uint64_t first, std::uint64_t words, std::uint64_t end) {
    while (words > 0) {
      const std::uint64_t room = (kDigestLeafBytes - leaf_.size()) / width_;
      const std::uint64_t part = std::min(words, room);
      const std::size_t at = leaf_.size();
      leaf_.resize(at + static_cast<std::size_t>(part * width_));
      DCR_TRY(read(first, MutableByteSpan(leaf_).subspan(at), end));
      if (leaf_.size() == kDigestLeafBytes) {
        leaves_.push_back(xxh3(leaf_));
        leaf_.clear();
      }
      first += part;
      words -= part;
    }
    return {};
  }

  Status read(std::uint64_t first, MutableByteSpan out, std::uint64_t end) {
    if (out.size() >= kRunBytesMin) return base_(tensor_, first, out);
    const std::uint64_t words = out.size() / width_;
    const bool held = first >= span_first_ && first + words <= span_first_ + span_.size() / width_;
    if (span_.empty() || !held) {
      const std::uint64_t bytes = std::min((end - first) * width_, kSpanBytesMax);
      span_.resize(static_cast<std::size_t>(bytes));
      span_first_ = first;
      DCR_TRY(base_(tensor_, first, span_));
    }
    const auto at = static_cast<std::size_t>((first - span_first_) * width_);
    std::memcpy(out.data(), span_.data() + at, out.size());
    return {};
  }

  const Catalogue& catalogue_;
  const CanonicalRead& base_;
  std::uint32_t tensor_ = 0;
  std::uint64_t width_ = 1;
  Bytes leaf_;  // the one that fills
  std::vector<Digest> leaves_;
  Bytes span_;  // words from span_first_ on
  std::uint64_t span_first_ = 0;
};

}  // namespace

Status check_base(const Catalogue& catalogue, std::span<const std::vector<OwnerBox>> owners,
                  std::span<const std::vector<Digest>> digests, const CanonicalRead& base) {
  if (owners.size() != digests.size()) {
    return {Code::kMismatch, "digests of the base come from " + std::to_string(digests.size()) +
                                 " owners, and there are " + std::to_string(owners.size())};
  }
  BoxDigester digester(catalogue, base);
  for (std::size_t owner = 0; owner < owners.size(); ++owner) {
    const std::vector<OwnerBox>& boxes = owners[owner];
    if (boxes.size() != digests[owner].size()) {
      return {Code::kMismatch, "owner " + std::to_string(owner) + " has digests of " +
                                   std::to_string(digests[owner].size()) +
                                   " boxes of the base, not " + std::to_string(boxes.size()) +
                                   ": it was set up from another catalogue or layout"};
    }
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      DCR_ASSIGN(const Digest found, digester.digest(boxes[i]));
      if (digest_equal(found, digests[owner][i])) continue;
      const std::string& name = catalogue[boxes[i].tensor].name;
      return {Code::kMismatch,
              "tensor " + quoted_name(name) +
                  ": the base that was loaded here differs from owner " + std::to_string(owner) +
                  "'s in its box from word " + std::to_string(boxes[i].box.offset) +
                  " on; restore, or load the same base",
              name};
    }
  }
  return {};
}

}  // namespace dcr
