#include "bench/checkpoint_owners.h"

#include <utility>

#include "bench/model.h"
#include "layout/checkpoint_reader.h"
#include "layout/generators.h"
#include "layout/layout_file.h"
#include "runtime/file.h"

namespace dcr {

Result<std::unique_ptr<OpenPair>> OpenPair::open(const CheckpointPair& paths) {
  auto pair = std::make_unique<OpenPair>();
  DCR_ASSIGN(pair->before, open_checkpoint(posix_file_system(), paths.before));
  DCR_ASSIGN(pair->after, open_checkpoint(posix_file_system(), paths.after));
  DCR_ASSIGN(pair->catalogue, checkpoint_catalogue(pair->before));
  return pair;
}

CheckpointOwners::CheckpointOwners(const OpenPair& pair, RefitOptions options)
    : options_(std::move(options)),
      executor_(make_executor(options_.threads > 0 ? options_.threads : processor_count())),
      context_{options_, pair.catalogue, *executor_, spans_} {}

Result<std::unique_ptr<CheckpointOwners>> CheckpointOwners::make(const OpenPair& pair,
                                                                 RefitOptions options) {
  auto made = std::make_unique<CheckpointOwners>(pair, std::move(options));
  DCR_ASSIGN(const std::string text,
             generate_owner_layout(pair.catalogue, made->options_.owners.generate));
  DCR_ASSIGN(const Layout layout, parse_owner_layout(text));
  DCR_ASSIGN(made->owners_, RefitOwners::create(made->context_, layout));
  DCR_TRY(made->owners_->load(pair.before));
  DCR_TRY(made->owners_->group().initialize(1));
  DCR_TRY(made->owners_->load(pair.after));
  return made;
}

Result<std::vector<PrepareResult>> CheckpointOwners::prepare(std::span<PayloadSink* const> sinks) {
  Attempt attempt;
  attempt.run = context_.catalogue.schema();
  attempt.attempt = 1;
  attempt.candidate = 1;
  attempt.base_version = 1;
  attempt.target_version = 2;
  attempt.mode = options_.construction == RefitConstruction::kMixed ? AttemptMode::kMixed
                                                                    : AttemptMode::kOverwrite;
  return owners_->group().prepare(attempt, sinks);
}

Result<std::uint64_t> CheckpointOwners::construct() {
  std::vector<CountingSink> counting(ranks());
  std::vector<PayloadSink*> sinks;
  sinks.reserve(counting.size());
  for (CountingSink& sink : counting) sinks.push_back(&sink);
  DCR_TRY(prepare(sinks).status());
  std::uint64_t bytes = 0;
  for (const CountingSink& sink : counting) bytes += sink.bytes();
  return bytes;
}

}  // namespace dcr
