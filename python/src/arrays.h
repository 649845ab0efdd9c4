// NumPy arrays, and whatever else speaks DLPack (torch tensors), as memory of the core's dtypes.
// Nothing here copies or looks at values, except contiguous_array.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dcr/tensor.h"

namespace dcr::python {

// An array in host memory, which `owner` keeps alive.
struct Array {
  nanobind::object owner;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::uint8_t* data = nullptr;
  std::vector<std::int64_t> strides;  // in words, as many as `shape` has sizes
  bool writable = false;

  std::uint64_t bytes() const;  // of all elements; the shape is within the limits of dcr/tensor.h
  bool contiguous() const;      // rows after rows, the last dimension fastest
  // REQUIRES: contiguous().
  std::span<std::uint8_t> span() const { return {data, static_cast<std::size_t>(bytes())}; }
};

// The array behind `value`, of dtype `dtype_name` (safetensors' spelling: "BF16", "F8_E4M3"), or of
// its own if that is empty. A given dtype has to be the array's own or as wide as its unsigned
// integers are; several elements in a byte come as uint8, whose last dimension counts bytes.
// Throws, naming `name`: Unsupported (not an array, not in host memory, a dtype that the format
// lacks), InvalidArgument (a wrong dtype name, byte order), TooLarge.
Array array_of(nanobind::handle value, const std::string& name, const std::string& dtype_name = {});

// The same, copied if it was not contiguous.
Array contiguous_array(nanobind::handle value, const std::string& name,
                       const std::string& dtype_name = {});

}  // namespace dcr::python
