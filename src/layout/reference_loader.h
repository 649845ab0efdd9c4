// A serving runtime's loader, as the layout file says: the executable reference of what receivers
// must get right (docs/LAYOUT.md "Behaviours").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dcr/ports.h"
#include "dcr/status.h"
#include "layout/canonical_reader.h"
#include "layout/receiver_plan.h"
#include "tensor/catalogue.h"

namespace dcr {

// Reads and writes weights through the TargetMemory only, a block at a time, and announces every
// write through the hook first (but for the behaviours that do not).
class ReferenceLoader final : public Loader {
 public:
  // `memory` holds storages 0 … storage_bytes.size() − 1 under these ids. Both outlive this.
  ReferenceLoader(const Catalogue& catalogue, ReceiverRank plan, TargetMemory& memory,
                  std::uint32_t rank);

  std::vector<LoaderTarget> targets() override { return plan_.targets; }

  // Error kNotFound for a name outside the catalogue, kInvalidArgument for a value of another shape
  // or dtype than the catalogue's; the memory's and the hook's.
  Result<LoadReport> load(std::string_view name, const TensorView& value,
                          LoaderHook& hook) override;

  // What the runtime does to its weights once all are loaded (kSwapAfterLoad).
  Status process_after_loading();

 private:
  struct Call;  // one load

  TensorView destination(const LoadWrite& write) const;
  Status run(Call& call);
  Status write_all(Call& call, std::uint64_t source_storage);
  Status write_one(Call& call, const LoadWrite& write, std::uint64_t source_storage);
  Status write_over(Call& call, const TensorView& written);
  Status fill_one(Call& call, const TensorView& destination);
  Status fill_padding(Call& call);
  Status replace(Call& call);
  Status copy(Call& call, const TensorView& source, const TensorView& destination);

  const Catalogue& catalogue_;
  ReceiverRank plan_;
  TargetMemory& memory_;
  std::uint32_t rank_ = 0;
  std::vector<std::uint32_t> times_;  // loads of each canonical tensor so far
};

// A hook that lets every write happen.
class PerformHook final : public LoaderHook {
 public:
  Result<LoaderVerdict> on_event(const LoaderEvent& /*event*/) override {
    return LoaderVerdict::kPerform;
  }
};

// Loads every tensor of the catalogue whole and in order, as a dense refit does: what a receiver
// must equal bit by bit. Each is written to a scratch storage of `memory` first.
Status load_dense(const Catalogue& catalogue, CanonicalReader& reader, TargetMemory& memory,
                  Loader& loader);

}  // namespace dcr
