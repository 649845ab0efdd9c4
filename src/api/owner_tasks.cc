#include "api/owner_tasks.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/cancelled.h"
#include "base/limits.h"
#include "layout/owner_plan.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {
namespace {

std::string describe(const CanonicalTensor& tensor) {
  return std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape);
}

struct DeclaredTensor {
  const CanonicalTensor* tensor = nullptr;
  std::uint32_t rank = 0;  // the first that declares it
  std::uint32_t last = 0;
};

Result<Catalogue> agree_on_catalogue(std::span<const RankDeclaration> declarations,
                                     const CancelToken* cancel) {
  std::map<std::string_view, DeclaredTensor> seen;
  std::vector<CanonicalTensor> tensors;
  std::uint64_t bytes = 0;
  for (const RankDeclaration& declaration : declarations) {
    DCR_TRY(check_cancelled(cancel));
    for (const CanonicalTensor& tensor : declaration.tensors) {
      const auto [found, fresh] =
          seen.emplace(tensor.name, DeclaredTensor{&tensor, declaration.rank, declaration.rank});
      if (fresh) {
        tensors.push_back(tensor);
        DCR_ASSIGN(const std::uint64_t more, tensor_bytes(tensor.dtype, tensor.shape));
        bytes += std::min(more, kDeclaredTensorBytesMax);
        if (bytes <= kDeclaredTensorBytesMax) continue;
        return Status(Code::kTooLarge,
                      "with tensor " + quoted_name(tensor.name) + " of rank " +
                          std::to_string(declaration.rank) + " there are more than " +
                          std::to_string(kDeclaredTensorBytesMax) + " bytes of tensors",
                      tensor.name);
      }
      DeclaredTensor& first = found->second;
      if (std::exchange(first.last, declaration.rank) == declaration.rank) {
        return Status(Code::kInvalidArgument,
                      "tensor " + quoted_name(tensor.name) + ": rank " +
                          std::to_string(first.last) + " declares it twice",
                      tensor.name);
      }
      if (first.tensor->dtype == tensor.dtype && first.tensor->shape == tensor.shape) continue;
      return Status(Code::kMismatch,
                    "tensor " + quoted_name(tensor.name) + ": rank " + std::to_string(first.rank) +
                        " declares " + describe(*first.tensor) + " and rank " +
                        std::to_string(declaration.rank) + " " + describe(tensor),
                    tensor.name);
    }
  }
  Result<Catalogue> catalogue = Catalogue::make(std::move(tensors));
  if (!catalogue.ok()) return catalogue;
  std::uint64_t words = 0;
  for (const CanonicalTensor& tensor : catalogue->tensors()) {
    if (tensor.words > kDeclaredWordsMax - words) {
      return Status(Code::kTooLarge,
                    "tensor " + quoted_name(tensor.name) + ": with it the tensors have more than " +
                        std::to_string(kDeclaredWordsMax) + " words",
                    tensor.name);
    }
    words += tensor.words;
  }
  return catalogue;
}

using Replicas = std::map<std::string_view, std::vector<std::uint32_t>>;

std::vector<ConversionTask> tasks_of(const RankDeclaration& declaration, const Catalogue& catalogue,
                                     const Replicas& replicas) {
  std::vector<ConversionTask> tasks;
  tasks.reserve(declaration.tasks.size());
  for (const DeclaredTask& declared : declaration.tasks) {
    ConversionTask& task = tasks.emplace_back();
    task.name = declared.name;
    task.view.storage = tasks.size() - 1;
    task.view.dtype = view_dtype(declared.dtype);
    task.view.sizes = declared.sizes;
    task.view.strides = declared.strides;
    for (const DeclaredPart& part : declared.parts) {
      const std::int64_t tensor = catalogue.find(declaration.tensors[part.tensor].name);
      task.placement.push_back({static_cast<std::uint32_t>(tensor), box_of(part.box)});
    }
    task.replicas = replicas.at(declared.name);
  }
  return tasks;
}

Status check_declared_once(const Replicas& replicas) {
  for (const auto& [name, ranks] : replicas) {
    const auto twice = std::ranges::adjacent_find(ranks);
    if (twice == ranks.end()) continue;
    return {Code::kInvalidArgument, "task " + quoted_name(std::string(name)) + ": rank " +
                                        std::to_string(*twice) + " declares it twice"};
  }
  return {};
}

}  // namespace

Result<AgreedTasks> agree_on_tasks(std::span<const RankDeclaration> declarations,
                                   const CancelToken* cancel) {
  Replicas replicas;
  for (std::size_t i = 0; i < declarations.size(); ++i) {
    DCR_TRY(check_cancelled(cancel));
    const RankDeclaration& declaration = declarations[i];
    if (declaration.rank != i || declaration.ranks != declarations.size()) {
      return Status(Code::kMismatch, "declaration " + std::to_string(i) + " of " +
                                         std::to_string(declarations.size()) + " is of rank " +
                                         std::to_string(declaration.rank) + " of " +
                                         std::to_string(declaration.ranks));
    }
    for (const DeclaredTask& task : declaration.tasks) {
      replicas[task.name].push_back(declaration.rank);
    }
  }
  AgreedTasks agreed;
  DCR_ASSIGN(agreed.catalogue, agree_on_catalogue(declarations, cancel));
  DCR_TRY(check_declared_once(replicas));
  for (const RankDeclaration& declaration : declarations) {
    DCR_TRY(check_cancelled(cancel));
    agreed.tasks.push_back(tasks_of(declaration, agreed.catalogue, replicas));
  }
  DCR_TRY(check_tasks(agreed.catalogue, agreed.tasks, cancel));
  return agreed;
}

}  // namespace dcr
