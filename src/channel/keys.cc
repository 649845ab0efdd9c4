#include "channel/keys.h"

#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/endpoint_name.h"
#include "base/hexadecimal.h"
#include "dcr/control.h"

namespace dcr {
namespace {

static_assert(kKeyBytes == crypto_box_PUBLICKEYBYTES);
static_assert(kKeyBytes == crypto_box_SECRETKEYBYTES);
static_assert(kKeyBytes == crypto_scalarmult_BYTES);

constexpr std::string_view kSecretWord = "dcr-secret-key";
constexpr std::uint32_t kSecretPermissions = 0600;
constexpr std::uint32_t kPublicPermissions = 0644;

void initialise() {
  // Idempotent and thread-safe.
  static const int kInitialised = sodium_init();
  DCR_ASSERT(kInitialised >= 0);
}

// Bytes that are wiped when they go.
class SecretBytes {
 public:
  explicit SecretBytes(Bytes bytes) : bytes_(std::move(bytes)) {}
  ~SecretBytes() { sodium_memzero(bytes_.data(), bytes_.size()); }
  SecretBytes(const SecretBytes&) = delete;
  SecretBytes& operator=(const SecretBytes&) = delete;

  const Bytes& get() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  Bytes bytes_;
};

// The words of a line, single spaces between.
std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t space = line.find(' ');
    words.push_back(line.substr(0, space));
    if (space == std::string_view::npos) return words;
    line.remove_prefix(space + 1);
  }
}

Status check_replaceable(FileSystem& files, const std::string& path, bool force) {
  const Result<FileInfo> existing = files.info(path, false);
  if (!existing.ok()) {
    return existing.status().code() == Code::kNotFound ? Status() : existing.status();
  }
  if (existing->kind != FileKind::kRegular) {
    return {Code::kExists, path + " exists and is no regular file: give another path"};
  }
  if (force) return {};
  return {Code::kExists, path + " exists and its key would be lost: --force replaces it"};
}

}  // namespace

SecretKey::~SecretKey() { sodium_memzero(bytes_.data(), bytes_.size()); }

SecretKey::SecretKey(SecretKey&& other) noexcept : bytes_(other.bytes_) {
  sodium_memzero(other.bytes_.data(), other.bytes_.size());
}

SecretKey& SecretKey::operator=(SecretKey&& other) noexcept {
  if (this == &other) return *this;
  bytes_ = other.bytes_;
  sodium_memzero(other.bytes_.data(), other.bytes_.size());
  return *this;
}

KeyPair make_key_pair() {
  initialise();
  KeyPair keys;
  const int failed = crypto_box_keypair(keys.public_key.data(), keys.secret.writable().data());
  DCR_ASSERT(failed == 0);
  return keys;
}

std::string key_text(const PublicKey& key) {
  Bytes text;
  append_hexadecimal(key, &text);
  return {text.begin(), text.end()};
}

Result<PublicKey> parse_key(std::string_view text) {
  PublicKey key;
  if (!parse_hexadecimal(text, key)) {
    return Status(Code::kInvalidArgument,
                  "a public key is 64 lower-case hexadecimal digits, as dcr keygen prints them");
  }
  // With a point of low order every shared secret is zero. libzmq would end the process over it.
  initialise();
  const PublicKey scalar = {8};
  PublicKey shared;
  if (crypto_scalarmult(shared.data(), scalar.data(), key.data()) != 0) {
    return Status(Code::kInvalidArgument, "the public key " + key_text(key) +
                                              " is a point of low order: it keeps nothing "
                                              "secret; make one with dcr keygen");
  }
  return key;
}

Status write_key_file(FileSystem& files, const std::string& path, const NamedKeys& keys,
                      bool force) {
  DCR_TRY(check_endpoint_name(keys.name));
  DCR_TRY(check_replaceable(files, path, force));
  Bytes line;
  line.reserve(kKeyFileBytesMax);  // never moved: no copy of the secret is left behind
  ByteWriter out(&line);
  out.text(kSecretWord);
  out.text(" " + keys.name + " ");
  append_hexadecimal(keys.keys.secret.bytes(), &line);
  out.text("\n");
  const SecretBytes secret(std::move(line));
  return replace_file(files, path, secret.get(), kSecretPermissions);
}

Result<NamedKeys> read_key_file(FileSystem& files, const std::string& path) {
  DCR_ASSIGN(const FileInfo info, files.info(path, true));
  DCR_TRY(check_secret_file(path, info, ::geteuid()));
  DCR_ASSIGN(Bytes bytes, read_file(files, path, kKeyFileBytesMax));
  const SecretBytes secret(std::move(bytes));
  std::string_view line = secret.text();
  const Status corrupt(Code::kCorrupt, path + " is no key file: it should be one line, \"" +
                                           std::string(kSecretWord) +
                                           " NAME SECRET\", as dcr keygen writes it");
  if (line.empty() || line.back() != '\n') return corrupt;
  line.remove_suffix(1);
  const std::vector<std::string_view> words = words_of(line);
  NamedKeys keys;
  if (words.size() != 3 || words[0] != kSecretWord || !check_endpoint_name(words[1]).ok() ||
      !parse_hexadecimal(words[2], keys.keys.secret.writable())) {
    return corrupt;
  }
  keys.name = words[1];
  initialise();
  const int failed =
      crypto_scalarmult_base(keys.keys.public_key.data(), keys.keys.secret.bytes().data());
  DCR_ASSERT(failed == 0);
  return keys;
}

Status check_secret_file(const std::string& path, const FileInfo& info, std::uint32_t user) {
  if (info.kind != FileKind::kRegular) {
    return {Code::kInvalidArgument, path + " is no regular file, so it holds no key"};
  }
  if (info.owner != user) {
    return {Code::kInvalidArgument, path + " belongs to user " + std::to_string(info.owner) +
                                        ", not to user " + std::to_string(user) +
                                        " who runs this: its key is not this user's secret"};
  }
  if ((info.permissions & ~kSecretPermissions) != 0) {
    return {Code::kInvalidArgument,
            path +
                " holds a secret but others may use it: chmod 600 it, and if others can have "
                "read it, make a new key"};
  }
  return {};
}

Result<MadeKeys> make_key_files(FileSystem& files, const std::string& directory,
                                const std::string& name, bool force) {
  DCR_TRY(check_endpoint_name(name));
  NamedKeys keys{name, make_key_pair()};
  const MadeKeys made{keys.keys.public_key, join_path(directory, name + ".key"),
                      join_path(directory, name + ".pub")};
  DCR_TRY(check_replaceable(files, made.secret_path, force));
  DCR_TRY(check_replaceable(files, made.public_path, force));
  // Between the two steps there may be a secret without its public key, never one with another's.
  const Status removed = files.remove(made.public_path);
  if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
  DCR_TRY(files.sync_directory(directory));
  DCR_TRY(write_key_file(files, made.secret_path, keys, force));
  const std::string line = allow_list_line(name, made.public_key);
  DCR_TRY(replace_file(files, made.public_path,
                       {reinterpret_cast<const std::uint8_t*>(line.data()), line.size()},
                       kPublicPermissions));
  return made;
}

Status AllowList::add(const std::string& name, const PublicKey& key) {
  DCR_TRY(check_endpoint_name(name));
  if (keys_.contains(name)) return {Code::kExists, name + " has a key already"};
  const auto found = names_.find(key);
  if (found != names_.end()) {
    return {Code::kExists, "the key of " + name + " is that of " + found->second +
                               ": every endpoint has a key of its own"};
  }
  if (keys_.size() >= kEndpointsMax) {
    return {Code::kTooLarge,
            "an allow-list has at most " + std::to_string(kEndpointsMax) + " endpoints"};
  }
  keys_.emplace(name, key);
  names_.emplace(key, name);
  return {};
}

std::optional<PublicKey> AllowList::key_of(const std::string& name) const {
  const auto found = keys_.find(name);
  return found == keys_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string> AllowList::name_of(const PublicKey& key) const {
  const auto found = names_.find(key);
  return found == names_.end() ? std::nullopt : std::optional(found->second);
}

std::string allow_list_line(const std::string& name, const PublicKey& key) {
  return name + " " + key_text(key) + "\n";
}

Result<AllowList> parse_allow_list(std::string_view text) {
  if (text.size() > kAllowListBytesMax) {
    return Status(Code::kTooLarge, "an allow-list of " + std::to_string(text.size()) +
                                       " bytes is above the limit of " +
                                       std::to_string(kAllowListBytesMax));
  }
  AllowList list;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::string where = "line " + std::to_string(number) + " of the allow-list";
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() != 2) {
      return Status(Code::kInvalidArgument, where + " is not \"NAME KEY\" with one space between");
    }
    const Result<PublicKey> key = parse_key(words[1]);
    if (!key.ok()) return key.status().with_context(where);
    const Status added = list.add(std::string(words[0]), *key);
    if (!added.ok()) return added.with_context(where);
  }
  return list;
}

}  // namespace dcr
