// Layout files made from a checkpoint's names and a short word.
#pragma once

#include <string>
#include <string_view>

#include "dcr/status.h"
#include "tensor/catalogue.h"

namespace dcr {

// A layout file for owners. `spec` is a list of "key:number" and words with commas between:
//   fsdp:8        every tensor cut along its first dimension, uneven shards and empty ones included
//   tp:4          as Megatron-Core: matrices by column or row, gate and up in one, query, key and
//                 value packed by groups, vocabulary padded, the rest replicated
//   tp:4,dp:2     the same, each shard twice
//   ep:8          experts on eight ranks, the rest replicated; with tp:2 each of them cut in two
//   f32           floating-point tensors held as F32
// A tensor that a class cannot cut is replicated. Error kInvalidArgument: a spec that is none.
Result<std::string> generate_owner_layout(const Catalogue& catalogue, std::string_view spec);

// A layout file for receivers:
//   fused-tp:8    as serving runtimes hold weights: query, key and value in one parameter, gate and
//                 up in one, experts stacked, row-parallel outputs, vocabulary padded
//   fused-tp:8,ep the experts whole on some ranks instead of cut on all
Result<std::string> generate_receiver_layout(const Catalogue& catalogue, std::string_view spec);

}  // namespace dcr
