#include "arrays.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "errors.h"

namespace dcr::python {
namespace {

namespace nb = nanobind;

struct NumpyName {
  const char* name;
  Dtype dtype;
};

// NumPy's dtypes and those of ml_dtypes. Its four- and six-bit types take a byte an element, unlike
// the format's.
constexpr NumpyName kNumpyNames[] = {
    {"bool", Dtype::kBool},
    {"uint8", Dtype::kU8},
    {"int8", Dtype::kI8},
    {"uint16", Dtype::kU16},
    {"int16", Dtype::kI16},
    {"uint32", Dtype::kU32},
    {"int32", Dtype::kI32},
    {"uint64", Dtype::kU64},
    {"int64", Dtype::kI64},
    {"float16", Dtype::kF16},
    {"float32", Dtype::kF32},
    {"float64", Dtype::kF64},
    {"complex64", Dtype::kC64},
    {"bfloat16", Dtype::kBF16},
    {"float8_e5m2", Dtype::kF8E5M2},
    {"float8_e4m3fn", Dtype::kF8E4M3},
    {"float8_e8m0fnu", Dtype::kF8E8M0},
    {"float8_e4m3fnuz", Dtype::kF8E4M3Fnuz},
    {"float8_e5m2fnuz", Dtype::kF8E5M2Fnuz},
};

// DLPack's type codes (dlpack.h); nanobind does not name the last ones.
enum DlpackCode : std::uint8_t {
  kDlInt = 0,
  kDlUint = 1,
  kDlFloat = 2,
  kDlBfloat = 4,
  kDlComplex = 5,
  kDlBool = 6,
  kDlFloat8E4M3Fn = 10,
  kDlFloat8E4M3Fnuz = 11,
  kDlFloat8E5M2 = 12,
  kDlFloat8E5M2Fnuz = 13,
  kDlFloat8E8M0Fnu = 14,
};

std::optional<Dtype> sized(std::uint8_t bits, std::optional<Dtype> of_8, std::optional<Dtype> of_16,
                           std::optional<Dtype> of_32, std::optional<Dtype> of_64) {
  switch (bits) {
    case 8:
      return of_8;
    case 16:
      return of_16;
    case 32:
      return of_32;
    case 64:
      return of_64;
    default:
      return std::nullopt;
  }
}

std::optional<Dtype> dlpack_dtype(nb::dlpack::dtype type) {
  if (type.lanes != 1) return std::nullopt;
  switch (type.code) {
    case kDlInt:
      return sized(type.bits, Dtype::kI8, Dtype::kI16, Dtype::kI32, Dtype::kI64);
    case kDlUint:
      return sized(type.bits, Dtype::kU8, Dtype::kU16, Dtype::kU32, Dtype::kU64);
    case kDlFloat:
      return sized(type.bits, {}, Dtype::kF16, Dtype::kF32, Dtype::kF64);
    case kDlBfloat:
      return sized(type.bits, {}, Dtype::kBF16, {}, {});
    case kDlComplex:
      return sized(type.bits, {}, {}, {}, Dtype::kC64);
    case kDlBool:
      return sized(type.bits, Dtype::kBool, {}, {}, {});
    case kDlFloat8E4M3Fn:
      return Dtype::kF8E4M3;
    case kDlFloat8E4M3Fnuz:
      return Dtype::kF8E4M3Fnuz;
    case kDlFloat8E5M2:
      return Dtype::kF8E5M2;
    case kDlFloat8E5M2Fnuz:
      return Dtype::kF8E5M2Fnuz;
    case kDlFloat8E8M0Fnu:
      return Dtype::kF8E8M0;
    default:
      return std::nullopt;
  }
}

std::string quoted(const std::string& name) { return "tensor \"" + name + "\" "; }

[[noreturn]] void refuse(Code code, const std::string& name, const std::string& what) {
  raise(Status(code, quoted(name) + what, name));
}

bool is_numpy(nb::handle value) {
  // Without an import of ours: whoever has a NumPy array has NumPy.
  const nb::object modules = nb::module_::import_("sys").attr("modules");
  const nb::object numpy = modules.attr("get")("numpy");
  return !numpy.is_none() && nb::isinstance(value, numpy.attr("ndarray"));
}

// By the array interface, which unlike DLPack knows read-only arrays and the types of ml_dtypes.
Array numpy_array(nb::handle value, const std::string& name) {
  const nb::object dtype = value.attr("dtype");
  const std::string dtype_text = nb::cast<std::string>(nb::str(dtype));
  const std::string dtype_word = nb::cast<std::string>(dtype.attr("name"));
  Array array;
  bool known = false;
  for (const NumpyName& entry : kNumpyNames) {
    if (dtype_word != entry.name) continue;
    array.dtype = entry.dtype;
    known = true;
  }
  if (!known) refuse(Code::kUnsupported, name, "has the dtype " + dtype_text);
  if (!nb::cast<bool>(dtype.attr("isnative"))) {
    refuse(Code::kInvalidArgument, name,
           "is not in this machine's byte order (" + dtype_text + ")");
  }
  const nb::dict interface = nb::cast<nb::dict>(value.attr("__array_interface__"));
  const nb::tuple data = nb::cast<nb::tuple>(interface["data"]);
  array.owner = nb::borrow(value);
  array.data = reinterpret_cast<std::uint8_t*>(nb::cast<std::uintptr_t>(data[0]));
  array.writable = !nb::cast<bool>(data[1]);
  array.shape = nb::cast<Shape>(value.attr("shape"));
  const auto width = static_cast<std::int64_t>(word_bytes(array.dtype));
  for (const nb::handle stride : value.attr("strides")) {
    const auto in_bytes = nb::cast<std::int64_t>(stride);
    if (in_bytes % width != 0) {
      refuse(Code::kUnsupported, name, "has elements that do not lie at multiples of their size");
    }
    array.strides.push_back(in_bytes / width);
  }
  return array;
}

Array dlpack_array(nb::handle value, const std::string& name) {
  nb::object source = nb::borrow(value);
  // A leaf of autograd exports its memory only when detached; the memory is the same.
  if (nb::hasattr(source, "requires_grad") && nb::cast<bool>(source.attr("requires_grad"))) {
    source = source.attr("detach")();
  }
  if (!nb::hasattr(source, "__dlpack__")) {
    refuse(Code::kUnsupported, name,
           "is a " + nb::cast<std::string>(value.type().attr("__name__")) +
               ", neither a NumPy array nor one that has DLPack");
  }
  // Asked before the export: a runtime may refuse to export what is on a device.
  const nb::tuple place = nb::cast<nb::tuple>(source.attr("__dlpack_device__")());
  const nb::object kind = place[0];  // torch's is an enumeration
  const int device = nb::cast<int>(nb::int_(kind));
  constexpr int kCpu = 1, kPinned = 3;  // memory of the host
  if (device != kCpu && device != kPinned) {
    refuse(Code::kUnsupported, name, "is not in host memory: copy it there first");
  }
  const auto exported = nb::cast<nb::ndarray<nb::ro>>(source);
  Array array;
  const std::optional<Dtype> dtype = dlpack_dtype(exported.dtype());
  if (!dtype) {
    refuse(Code::kUnsupported, name,
           "has the dtype " + nb::cast<std::string>(nb::str(value.attr("dtype"))));
  }
  array.dtype = *dtype;
  array.data = static_cast<std::uint8_t*>(const_cast<void*>(exported.data()));
  array.writable = true;
  for (std::size_t i = 0; i < exported.ndim(); ++i) {
    array.shape.push_back(exported.shape(i));
    array.strides.push_back(exported.stride(i));
  }
  // The export's own reference keeps the memory, whatever happens to the tensor's storage.
  array.owner = nb::make_tuple(source, nb::cast(exported));
  return array;
}

bool is_words(Dtype dtype) {
  return dtype == Dtype::kU8 || dtype == Dtype::kU16 || dtype == Dtype::kU32 ||
         dtype == Dtype::kU64;
}

// Has the array's words taken as `dtype`.
void retype(const std::string& name, Dtype dtype, Array* array) {
  if (dtype == array->dtype) return;
  if (!is_words(array->dtype) || word_bytes(dtype) != word_bytes(array->dtype)) {
    refuse(Code::kInvalidArgument, name,
           "is an array of " + std::string(dtype_name(array->dtype)) + " and cannot be taken as " +
               std::string(dtype_name(dtype)));
  }
  array->dtype = dtype;
  const unsigned bits = dtype_bits(dtype);
  if (bits == 8 * word_bytes(dtype)) return;
  // Several elements a byte: the array counts bytes in its last dimension, the format elements.
  if (array->shape.empty() || array->shape.back() * 8 % bits != 0) {
    refuse(Code::kInvalidArgument, name,
           "does not hold whole elements of " + std::string(dtype_name(dtype)));
  }
  array->shape.back() = array->shape.back() * 8 / bits;
}

}  // namespace

std::uint64_t Array::bytes() const { return tensor_bytes(dtype, shape).value(); }

bool Array::contiguous() const {
  std::uint64_t expected = 1;
  const bool packed = dtype_bits(dtype) != 8 * word_bytes(dtype);
  if (tensor_elements(shape).value() == 0) return true;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const bool last = i + 1 == shape.size();
    const std::uint64_t size = packed && last ? shape[i] * dtype_bits(dtype) / 8 : shape[i];
    if (size > 1 && strides[i] != static_cast<std::int64_t>(expected)) return false;
    expected *= size;
  }
  return true;
}

Array array_of(nb::handle value, const std::string& name, const std::string& dtype_name) {
  Array array = is_numpy(value) ? numpy_array(value, name) : dlpack_array(value, name);
  if (!dtype_name.empty()) {
    const Result<Dtype> dtype = dtype_from_name(dtype_name);
    if (!dtype.ok()) refuse(Code::kInvalidArgument, name, "has " + dtype.status().message());
    retype(name, *dtype, &array);
  }
  const Result<std::uint64_t> bytes = tensor_bytes(array.dtype, array.shape);
  if (!bytes.ok()) refuse(bytes.status().code(), name, bytes.status().message());
  return array;
}

Array contiguous_array(nb::handle value, const std::string& name, const std::string& dtype_name) {
  Array array = array_of(value, name, dtype_name);
  if (array.contiguous()) return array;
  if (is_numpy(value)) return array_of(value.attr("copy")("C"), name, dtype_name);
  if (nb::hasattr(value, "contiguous")) {
    return array_of(value.attr("contiguous")(), name, dtype_name);
  }
  refuse(Code::kUnsupported, name, "is not contiguous: make a contiguous copy first");
}

}  // namespace dcr::python
