#include "tensor/safetensors.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "tensor/json.h"
#include "tensor/text.h"

namespace dcr {

namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::uint64_t kLengthBytes = 8;

std::string tensor_label(const std::string& name) { return "tensor " + quoted_name(name); }

Status tensor_error(Code code, const std::string& name, const std::string& what) {
  return Status(code, tensor_label(name) + ": " + what, name);
}

// The header's grammar: {"__metadata__": {string: string…}, name: {"dtype": string, "shape":
// [unsigned…], "data_offsets": [unsigned, unsigned]}…}. Keeps entries with `offset` and `bytes`
// as the data_offsets stand in the header; what needs the whole header is checked afterwards.
class HeaderVisitor : public JsonVisitor {
 public:
  explicit HeaderVisitor(SafetensorsHeader* header) : header_(header) {}

  bool open(bool is_object) override {
    switch (place_) {
      case Place::kBefore:
        if (!is_object) return fail(Code::kCorrupt, "the header is not a JSON object");
        place_ = Place::kRoot;
        return true;
      case Place::kRoot:
        if (!is_object) return wrong_root_value();
        place_ = in_metadata_ ? Place::kMetadata : Place::kTensor;
        return true;
      case Place::kTensor:
        if (field_ == Field::kDtype || is_object) return wrong_type();
        place_ = Place::kNumbers;
        return true;
      case Place::kMetadata:
      case Place::kNumbers:
        return wrong_type();
    }
    return wrong_type();
  }

  bool close() override {
    switch (place_) {
      case Place::kNumbers:
        place_ = Place::kTensor;
        if (field_ == Field::kOffsets && numbers_ != 2) return wrong_offsets();
        return true;
      case Place::kTensor:
        place_ = Place::kRoot;
        return tensor_complete();
      default:  // the metadata, or the root: then this is the last event
        place_ = Place::kRoot;
        return true;
    }
  }

  bool key(std::string& key) override {
    if (place_ == Place::kRoot) return begin_entry(key);
    if (place_ == Place::kTensor) return begin_field(key);
    if (header_->metadata.size() >= kMetadataEntriesMax) {
      return fail(Code::kTooLarge, "\"__metadata__\" has more than " +
                                       std::to_string(kMetadataEntriesMax) + " entries");
    }
    const auto [entry, inserted] = header_->metadata.try_emplace(std::move(key));
    if (!inserted) {
      return fail(Code::kCorrupt, "\"__metadata__\" repeats the key " + quoted_name(entry->first));
    }
    metadata_value_ = &entry->second;
    return true;
  }

  bool scalar(const JsonScalar& value) override {
    switch (place_) {
      case Place::kBefore:
        return fail(Code::kCorrupt, "the header is not a JSON object");
      case Place::kRoot:
        return wrong_root_value();
      case Place::kMetadata:
        if (value.kind != JsonKind::kString) return wrong_type();
        *metadata_value_ = std::move(*value.string);
        return true;
      case Place::kTensor:
        if (field_ != Field::kDtype || value.kind != JsonKind::kString) return wrong_type();
        return take_dtype(*value.string);
      case Place::kNumbers:
        if (value.kind != JsonKind::kUnsigned) return wrong_number();
        return field_ == Field::kShape ? take_size(value.number) : take_offset(value.number);
    }
    return wrong_type();
  }

 private:
  enum class Place : std::uint8_t { kBefore, kRoot, kMetadata, kTensor, kNumbers };
  enum class Field : std::uint8_t { kDtype = 0, kShape = 1, kOffsets = 2 };
  static constexpr const char* kFieldNames[] = {"dtype", "shape", "data_offsets"};

  TensorEntry& entry() { return header_->tensors.back(); }
  std::string field_label() const {
    return quoted_name(kFieldNames[static_cast<std::size_t>(field_)]);
  }
  bool fail_tensor(Code code, const std::string& what) {
    return fail(code, tensor_label(entry().name) + ": " + what, entry().name);
  }

  bool begin_entry(std::string& key) {
    in_metadata_ = key == kMetadataKey;
    if (in_metadata_) {
      if (metadata_seen_) return fail(Code::kCorrupt, "\"__metadata__\" is repeated");
      metadata_seen_ = true;
      return true;
    }
    if (key.size() > kTensorNameBytesMax) {
      return fail(Code::kTooLarge, "the tensor name " + quoted_name(key) + " is above " +
                                       std::to_string(kTensorNameBytesMax) + " bytes");
    }
    if (header_->tensors.size() >= kTensorsPerCheckpointMax) {
      return fail(Code::kTooLarge,
                  "more than " + std::to_string(kTensorsPerCheckpointMax) + " tensors");
    }
    header_->tensors.emplace_back().name = std::move(key);
    fields_seen_ = 0;
    return true;
  }

  bool begin_field(const std::string& key) {
    for (unsigned i = 0; i < 3; ++i) {
      if (key != kFieldNames[i]) continue;
      field_ = static_cast<Field>(i);
      if ((fields_seen_ & (1U << i)) != 0) {
        return fail_tensor(Code::kCorrupt, field_label() + " is repeated");
      }
      fields_seen_ |= 1U << i;
      numbers_ = 0;
      return true;
    }
    return fail_tensor(Code::kCorrupt, "unknown field " + quoted_name(key));
  }

  bool tensor_complete() {
    for (unsigned i = 0; i < 3; ++i) {
      if ((fields_seen_ & (1U << i)) == 0) {
        return fail_tensor(Code::kCorrupt, quoted_name(kFieldNames[i]) + " is missing");
      }
    }
    return true;
  }

  bool take_dtype(const std::string& name) {
    const Result<Dtype> dtype = dtype_from_name(name);
    if (!dtype.ok()) return fail_tensor(dtype.status().code(), dtype.status().message());
    entry().dtype = *dtype;
    return true;
  }

  bool take_size(std::uint64_t size) {
    if (++numbers_ > kRankMax) {
      return fail_tensor(Code::kTooLarge,
                         "the rank in \"shape\" is above " + std::to_string(kRankMax));
    }
    entry().shape.push_back(size);
    return true;
  }

  bool take_offset(std::uint64_t offset) {
    ++numbers_;
    if (numbers_ > 2) return wrong_offsets();
    if (numbers_ == 1) {
      entry().offset = offset;
      return true;
    }
    if (offset < entry().offset) {
      return fail_tensor(Code::kCorrupt, "\"data_offsets\" end before they begin");
    }
    entry().bytes = offset - entry().offset;
    return true;
  }

  bool wrong_root_value() {
    if (in_metadata_) return fail(Code::kCorrupt, "\"__metadata__\" is not an object");
    return fail_tensor(Code::kCorrupt, "its value is not an object");
  }
  bool wrong_offsets() {
    return fail_tensor(Code::kCorrupt, "\"data_offsets\" is not two numbers");
  }
  bool wrong_number() {
    return fail_tensor(Code::kCorrupt,
                       field_label() + " holds what is not an unsigned 64-bit integer");
  }
  bool wrong_type() {
    if (in_metadata_) return fail(Code::kCorrupt, "\"__metadata__\" holds what is not a string");
    if (place_ == Place::kNumbers) return wrong_number();
    return fail_tensor(
        Code::kCorrupt,
        field_label() + (field_ == Field::kDtype ? " is not a string" : " is not an array"));
  }

  SafetensorsHeader* header_;
  Place place_ = Place::kBefore;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string* metadata_value_ = nullptr;
  Field field_ = Field::kDtype;
  unsigned fields_seen_ = 0;  // a bit per Field
  unsigned numbers_ = 0;      // of the array of this field
};

Status check_names(const std::vector<TensorEntry>& tensors) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(&tensor.name);
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  std::sort(names.begin(), names.end(), less);
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (*names[i] == *names[i - 1]) {
      return tensor_error(Code::kCorrupt, *names[i], "the name is repeated");
    }
  }
  return {};
}

// The entries (offsets within the data) tile [0, data_bytes), and each agrees with dtype × shape.
Status check_tiling(const std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return tensor_error(bytes.status().code(), tensor.name, bytes.status().message());
    }
    if (*bytes != tensor.bytes) {
      return tensor_error(Code::kCorrupt, tensor.name,
                          "\"data_offsets\" hold " + std::to_string(tensor.bytes) +
                              " bytes, but dtype " + std::string(dtype_name(tensor.dtype)) +
                              " and shape " + shape_text(tensor.shape) + " need " +
                              std::to_string(*bytes));
    }
    if (tensor.offset != end) {
      return tensor_error(
          Code::kCorrupt, tensor.name,
          std::string("\"data_offsets\" ") +
              (tensor.offset < end ? "overlap another tensor's: they" : "leave a hole: they") +
              " begin at " + std::to_string(tensor.offset) + ", not at " + std::to_string(end));
    }
    end += tensor.bytes;
    if (end > data_bytes) {
      return tensor_error(Code::kCorrupt, tensor.name,
                          "\"data_offsets\" end at " + std::to_string(end) +
                              ", past the end of the data at " + std::to_string(data_bytes));
    }
  }
  if (end != data_bytes) {
    return Status(Code::kCorrupt, "the tensors end at " + std::to_string(end) +
                                      ", but the data are " + std::to_string(data_bytes) +
                                      " bytes");
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(ByteSpan header, std::uint64_t file_bytes) {
  if (header.size() > kSafetensorsHeaderBytesMax) {
    return Status(Code::kTooLarge, "the header of " + std::to_string(header.size()) +
                                       " bytes is above " +
                                       std::to_string(kSafetensorsHeaderBytesMax));
  }
  const std::uint64_t data_offset = kLengthBytes + header.size();
  if (file_bytes < data_offset) {
    return Status(Code::kCorrupt, "the header of " + std::to_string(header.size()) +
                                      " bytes does not fit into the file of " +
                                      std::to_string(file_bytes));
  }
  if (header.empty() || header[0] != '{') {
    return Status(Code::kCorrupt, "the header does not begin with '{'");
  }
  SafetensorsHeader parsed;
  parsed.data_offset = data_offset;
  parsed.file_bytes = file_bytes;
  HeaderVisitor visitor(&parsed);
  const Status status = parse_json(header, visitor);
  if (!status.ok()) {
    return status.tensor().empty() ? status.with_context("the header") : status;
  }
  DCR_TRY(check_names(parsed.tensors));
  const auto by_offset = [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
  };
  if (!std::is_sorted(parsed.tensors.begin(), parsed.tensors.end(), by_offset)) {
    std::stable_sort(parsed.tensors.begin(), parsed.tensors.end(), by_offset);
  }
  DCR_TRY(check_tiling(parsed.tensors, file_bytes - data_offset));
  for (TensorEntry& tensor : parsed.tensors) tensor.offset += data_offset;
  return parsed;
}

Result<SafetensorsFile> read_safetensors(const File& file, const std::string& path) {
  const std::string label = "safetensors file " + quoted_name(path);
  DCR_ASSIGN(const std::uint64_t file_bytes, file.size());
  if (file_bytes < kLengthBytes) {
    return Status(Code::kCorrupt, label + ": " + std::to_string(file_bytes) +
                                      " bytes are too short for the header's length");
  }
  std::uint8_t length_bytes[kLengthBytes];
  DCR_TRY(file.read(0, length_bytes));
  const auto length = load_little<std::uint64_t>(length_bytes);
  if (length > kSafetensorsHeaderBytesMax) {
    return Status(Code::kTooLarge, label + ": the header's length " + std::to_string(length) +
                                       " is above " + std::to_string(kSafetensorsHeaderBytesMax));
  }
  if (length > file_bytes - kLengthBytes) {
    return Status(Code::kCorrupt, label + ": the header's length " + std::to_string(length) +
                                      " does not fit into the file of " +
                                      std::to_string(file_bytes) + " bytes");
  }
  SafetensorsFile read;
  read.prefix.resize(static_cast<std::size_t>(kLengthBytes + length));
  DCR_TRY(file.read(0, read.prefix));
  // The two reads see the same length, or the file was replaced in between.
  if (load_little<std::uint64_t>(read.prefix.data()) != length) {
    return Status(Code::kIo, label + ": changed while it was read");
  }
  auto header = parse_safetensors_header(ByteSpan(read.prefix).subspan(kLengthBytes), file_bytes);
  if (!header.ok()) return header.status().with_context(label);
  read.header = std::move(header).value();
  return read;
}

Result<Bytes> make_safetensors_prefix(const std::vector<TensorEntry>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  const auto comma = [&json] {
    if (json.size() > 1) json += ',';
  };
  for (const auto& [key, value] : metadata) {
    if (!valid_utf8(key) || !valid_utf8(value)) {
      return Status(Code::kInvalidArgument,
                    "\"__metadata__\" entry " + quoted_name(key) + " is not UTF-8");
    }
    json += json.size() == 1 ? json_string(kMetadataKey) + ":{" : ",";
    json += json_string(key) + ":" + json_string(value);
  }
  if (!metadata.empty()) json += '}';
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (!valid_utf8(tensor.name) || tensor.name == kMetadataKey) {
      return tensor_error(Code::kInvalidArgument, tensor.name,
                          "the name is not UTF-8, or that of the metadata");
    }
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return tensor_error(bytes.status().code(), tensor.name, bytes.status().message());
    }
    const auto next = checked_add(end, *bytes);
    if (!next) return tensor_error(Code::kTooLarge, tensor.name, "the file has too many bytes");
    comma();
    json += json_string(tensor.name) + ":{\"dtype\":\"" + std::string(dtype_name(tensor.dtype)) +
            "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i != 0) json += ',';
      json += std::to_string(tensor.shape[i]);
    }
    json += "],\"data_offsets\":[" + std::to_string(end) + "," + std::to_string(*next) + "]}";
    end = *next;
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  const auto file_bytes = checked_add(end, kLengthBytes + json.size());
  if (!file_bytes) return Status(Code::kTooLarge, "the file has too many bytes");
  Bytes prefix(kLengthBytes + json.size());
  store_little<std::uint64_t>(prefix.data(), json.size());
  std::copy(json.begin(), json.end(), prefix.begin() + kLengthBytes);
  // What was written must be what is read: limits, repeated names.
  DCR_TRY(parse_safetensors_header(ByteSpan(prefix).subspan(kLengthBytes), *file_bytes).status());
  return prefix;
}

}  // namespace dcr
