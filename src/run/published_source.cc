#include "run/published_source.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/limits.h"
#include "runtime/file.h"
#include "tensor/text.h"

namespace dcr {
namespace {

constexpr std::string_view kSourceMagic = "dcr-source";
constexpr std::uint64_t kSourceFormat = 1;
constexpr std::uint32_t kSourcePermissions = 0600;

Status corrupt_source(const std::string& what) {
  return {Code::kCorrupt, "the published source: " + what};
}

class SourceReader {
 public:
  explicit SourceReader(ByteSpan bytes) : in_(bytes) {}

  Result<PublishedSource> read() {
    if (in_.text(kSourceMagic.size()) != kSourceMagic) return corrupt_source("it is none");
    const std::uint64_t format = in_.varint();
    if (in_.ok() && format != kSourceFormat) {
      return Status(Code::kUnsupported, "a published source of format " + std::to_string(format) +
                                            "; this build reads " + std::to_string(kSourceFormat));
    }
    PublishedSource source;
    DCR_TRY(read_tensors(&source));
    DCR_TRY(read_owners(&source));
    if (!in_.ok()) return ended();
    if (in_.remaining() > 0) {
      return corrupt_source(std::to_string(in_.remaining()) + " bytes too many");
    }
    // Whether boxes stay within their tensors.
    DCR_TRY(Ownership::make(source.catalogue, source.boxes).status());
    return source;
  }

 private:
  static Status ended() {
    return corrupt_source("it ends early, or a number is not spelled as it should");
  }

  // Of entries of at least one byte each, so that a count is never above what could follow.
  Result<std::uint64_t> count(const char* what, std::uint64_t limit) {
    const std::uint64_t entries = in_.varint();
    if (!in_.ok() || entries > in_.remaining()) return ended();
    if (entries > limit) {
      return Status(Code::kTooLarge,
                    "the published source: " + std::to_string(entries) + " " + what);
    }
    return entries;
  }

  Status read_tensors(PublishedSource* source) {
    DCR_ASSIGN(const std::uint64_t tensors, count("tensors", kTensorsPerCheckpointMax));
    std::vector<CanonicalTensor> all;
    for (std::uint64_t i = 0; i < tensors; ++i) {
      CanonicalTensor& tensor = all.emplace_back();
      DCR_ASSIGN(const std::uint64_t name, count("letters of a name", kTensorNameBytesMax));
      tensor.name = in_.text(name);
      const std::uint8_t dtype = in_.u8();
      if (in_.ok() && dtype >= kDtypeCount) {
        return {Code::kUnsupported, "the published source: " + quoted_name(tensor.name) +
                                        " has dtype " + std::to_string(dtype)};
      }
      tensor.dtype = static_cast<Dtype>(dtype);
      DCR_ASSIGN(const std::uint64_t rank, count("dimensions", kRankMax));
      for (std::uint64_t d = 0; d < rank; ++d) tensor.shape.push_back(in_.varint());
      if (!in_.ok()) return ended();
      // In the catalogue's order, so that there is one spelling of each source.
      if (i > 0 && all[i - 1].name >= tensor.name) {
        return corrupt_source("the names are not ascending at " + quoted_name(tensor.name));
      }
    }
    DCR_ASSIGN(source->catalogue, Catalogue::make(std::move(all)));
    return {};
  }

  Status read_owners(PublishedSource* source) {
    DCR_ASSIGN(const std::uint64_t owners, count("owners", kEndpointsMax));
    if (owners == 0) return corrupt_source("it has no owner");
    for (std::uint64_t i = 0; i < owners; ++i) {
      std::vector<OwnerBox>& boxes = source->boxes.emplace_back();
      DCR_ASSIGN(const std::uint64_t size, count("boxes", kPublishedSourceBytesMax));
      for (std::uint64_t b = 0; b < size; ++b) {
        DCR_TRY(read_box(source->catalogue, &boxes.emplace_back()));
      }
    }
    return {};
  }

  Status read_box(const Catalogue& catalogue, OwnerBox* box) {
    const std::uint64_t tensor = in_.varint();
    box->box.offset = in_.varint();
    DCR_ASSIGN(const std::uint64_t dims, count("dimensions of a box", kRankMax));
    if (tensor >= catalogue.size()) {
      return corrupt_source("a box of tensor " + std::to_string(tensor) + " of " +
                            std::to_string(catalogue.size()));
    }
    box->tensor = static_cast<std::uint32_t>(tensor);
    for (std::uint64_t d = 0; d < dims; ++d) {
      ItemDimension& dim = box->box.dims.emplace_back();
      dim.size = in_.varint();
      dim.stride = in_.varint();
    }
    return in_.ok() ? Status() : ended();
  }

  ByteReader in_;
};

std::string source_path(const std::string& directory, const Digest& digest) {
  return join_path(directory, digest_text(digest));
}

}  // namespace

Bytes encode_source(const PublishedSource& source) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.text(kSourceMagic);
  out.varint(kSourceFormat);
  out.varint(source.catalogue.size());
  for (const CanonicalTensor& tensor : source.catalogue.tensors()) {
    out.varint(tensor.name.size());
    out.text(tensor.name);
    out.u8(static_cast<std::uint8_t>(tensor.dtype));
    out.varint(tensor.shape.size());
    for (const std::uint64_t size : tensor.shape) out.varint(size);
  }
  out.varint(source.boxes.size());
  for (const std::vector<OwnerBox>& boxes : source.boxes) {
    out.varint(boxes.size());
    for (const OwnerBox& box : boxes) {
      out.varint(box.tensor);
      out.varint(box.box.offset);
      out.varint(box.box.dims.size());
      for (const ItemDimension& dim : box.box.dims) {
        out.varint(dim.size);
        out.varint(dim.stride);
      }
    }
  }
  return bytes;
}

Digest source_digest(const PublishedSource& source) { return blake2b(encode_source(source)); }

Result<PublishedSource> decode_source(ByteSpan bytes) {
  if (bytes.size() > kPublishedSourceBytesMax) {
    return Status(Code::kTooLarge,
                  "a published source of " + std::to_string(bytes.size()) + " bytes");
  }
  Result<PublishedSource> source = SourceReader(bytes).read();
  if (source.ok()) source->digest = blake2b(bytes);
  return source;
}

Status publish_source(const std::string& directory, const PublishedSource& source) {
  return replace_file(posix_file_system(), source_path(directory, source.digest),
                      encode_source(source), kSourcePermissions);
}

Result<std::optional<PublishedSource>> fetch_source(const std::string& directory,
                                                    const Digest& digest) {
  const std::string path = source_path(directory, digest);
  const Result<Bytes> bytes = read_file(posix_file_system(), path, kPublishedSourceBytesMax);
  if (bytes.status().code() == Code::kNotFound) return std::optional<PublishedSource>();
  if (!bytes.ok()) return bytes.status();
  // Before anything is made of them.
  if (blake2b(*bytes) != digest) return corrupt_source("its bytes have another digest: " + path);
  Result<PublishedSource> source = decode_source(*bytes);
  if (!source.ok()) return source.status().with_context(path);
  return std::optional<PublishedSource>(std::move(source).value());
}

std::optional<JoinedOwners> joined_owners(const Membership& members) {
  struct Joining {
    JoinedOwners owners;
    std::uint64_t newest = 0;  // incarnation
  };
  std::map<std::pair<Digest, std::uint32_t>, Joining> trainers;  // by source and number of owners
  for (const Member& member : members.members) {
    if (member.role != Role::kOwner || member.state == MemberState::kEnrolled) continue;
    const Result<OwnerDetails> details = decode_owner_details(member.needs);
    if (!details.ok()) continue;  // no leader binds it
    Joining& joining = trainers[{details->catalogue, details->owners}];
    joining.owners.source = details->catalogue;
    joining.owners.names.resize(details->owners);
    joining.owners.names[details->rank] = member.endpoint.name;
    joining.newest = std::max(joining.newest, member.endpoint.incarnation);
  }
  const Joining* chosen = nullptr;
  for (const auto& [source, joining] : trainers) {
    const auto missing = [](const std::string& name) { return name.empty(); };
    if (std::any_of(joining.owners.names.begin(), joining.owners.names.end(), missing)) continue;
    if (chosen == nullptr || chosen->newest < joining.newest) chosen = &joining;
  }
  return chosen == nullptr ? std::nullopt : std::optional(chosen->owners);
}

}  // namespace dcr
