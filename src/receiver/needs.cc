#include "receiver/needs.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "tensor/text.h"

namespace dcr {

namespace {

unsigned strength(Need need) {
  switch (need) {
    case Need::kSkip:
      return 0;
    case Need::kAny:
      return 1;
    case Need::kOverwrite:
      return 2;
    case Need::kDense:
      break;
  }
  return 3;
}

Status refusal_of(const Receiver& receiver, std::uint32_t tensor, const std::string& why) {
  const std::string& name = receiver.catalogue()[tensor].name;
  return {Code::kUnsupported, "tensor " + quoted_name(name) + " cannot be refitted exactly: " + why,
          name};
}

}  // namespace

std::vector<Need> needs_of(std::span<const TensorClass> classes) {
  std::vector<Need> needs;
  needs.reserve(classes.size());
  for (const TensorClass& one : classes) needs.push_back(one.need);
  return needs;
}

Status check_not_refused(const Receiver& receiver) {
  const std::span<const TensorClass> classes = receiver.classes();
  for (std::uint32_t tensor = 0; tensor < classes.size(); ++tensor) {
    if (classes[tensor].path != TensorPath::kRefused) continue;
    return refusal_of(receiver, tensor, classes[tensor].reason);
  }
  return {};
}

Status check_not_collective(const Receiver& receiver) {
  const std::span<const TensorClass> classes = receiver.classes();
  for (std::uint32_t tensor = 0; tensor < classes.size(); ++tensor) {
    if (!classes[tensor].collective) continue;
    return refusal_of(receiver, tensor, "its loader talks to other ranks");
  }
  return {};
}

void add_needs(std::span<const Need> more, std::vector<Need>* needs) {
  DCR_ASSERT(more.size() == needs->size());
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (strength(more[i]) > strength((*needs)[i])) (*needs)[i] = more[i];
  }
}

Status share_collectives(std::span<Receiver* const> ranks) {
  const std::size_t tensors = ranks.empty() ? 0 : ranks[0]->classes().size();
  for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
    const bool collective = std::any_of(ranks.begin(), ranks.end(), [&](const Receiver* rank) {
      return rank->classes()[tensor].collective;
    });
    if (!collective) continue;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      DCR_TRY(ranks[rank]
                  ->require_scratch(static_cast<std::uint32_t>(tensor))
                  .with_context("receiver " + std::to_string(rank)));
    }
  }
  return {};
}

}  // namespace dcr
