// Keys of endpoints and who may take part. Every endpoint has a CURVE key pair (Curve25519); all
// know each other's public keys from a configuration, the allow-list, and talk to nobody else.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "dcr/status.h"
#include "runtime/file.h"

namespace dcr {

inline constexpr std::size_t kKeyBytes = 32;
// Of a key file and of a whole allow-list.
inline constexpr std::uint64_t kKeyFileBytesMax = 256;
inline constexpr std::uint64_t kAllowListBytesMax = std::uint64_t{4} << 20;

using PublicKey = std::array<std::uint8_t, kKeyBytes>;

// Wiped when it is destroyed or moved from.
class SecretKey {
 public:
  SecretKey() = default;
  ~SecretKey();
  SecretKey(SecretKey&& other) noexcept;
  SecretKey& operator=(SecretKey&& other) noexcept;
  SecretKey(const SecretKey&) = delete;
  SecretKey& operator=(const SecretKey&) = delete;

  const std::array<std::uint8_t, kKeyBytes>& bytes() const { return bytes_; }
  MutableByteSpan writable() { return bytes_; }

 private:
  std::array<std::uint8_t, kKeyBytes> bytes_{};
};

struct KeyPair {
  SecretKey secret;
  PublicKey public_key{};
};

// From the system's randomness.
KeyPair make_key_pair();

// 64 lower-case hexadecimal digits.
std::string key_text(const PublicKey& key);
// Error: kInvalidArgument, for any other spelling and for the few keys of which everybody knows the
// secret.
Result<PublicKey> parse_key(std::string_view text);

// An endpoint and its keys, as key files have them.
struct NamedKeys {
  std::string name;
  KeyPair keys;
};

// A key file is one line, "dcr-secret-key NAME SECRET"; only its owner may read it.
//
// Appears complete and synced, or not at all, with permissions 0600. Errors: kExists (without
// `force`, or something else than a file), kInvalidArgument for the name, kIo.
Status write_key_file(FileSystem& files, const std::string& path, const NamedKeys& keys,
                      bool force);

// Errors: kInvalidArgument, others may read or write the file or own it; kCorrupt; kNotFound; kIo.
// No message holds any of the secret.
Result<NamedKeys> read_key_file(FileSystem& files, const std::string& path);

// Whether a file can be trusted to hold a secret of user `user` (a system's number). Error:
// kInvalidArgument saying what to do.
Status check_secret_file(const std::string& path, const FileInfo& info, std::uint32_t user);

// What make_key_files made.
struct MadeKeys {
  PublicKey public_key{};
  std::string secret_path, public_path;
};

// Makes the keys of endpoint `name` in `directory`: NAME.key, the secret, and NAME.pub, its line of
// an allow-list. Errors as write_key_file's; with one, no public file of another secret is left.
Result<MadeKeys> make_key_files(FileSystem& files, const std::string& directory,
                                const std::string& name, bool force);

// Who may take part, as a channel asks: a name for each key and a key for each name. Thread-safe.
class PeerKeys {
 public:
  virtual ~PeerKeys() = default;
  // Nothing if there is none.
  virtual std::optional<PublicKey> key_of(const std::string& name) const = 0;
  virtual std::optional<std::string> name_of(const PublicKey& key) const = 0;
  // So many there may be.
  virtual std::size_t size() const = 0;
};

// Those that a configuration has. Changed by nobody while a channel uses it.
class AllowList final : public PeerKeys {
 public:
  // Errors: kInvalidArgument for the name; kExists, the name has a key or the key a name;
  // kTooLarge, kEndpointsMax.
  Status add(const std::string& name, const PublicKey& key);

  std::optional<PublicKey> key_of(const std::string& name) const override;
  std::optional<std::string> name_of(const PublicKey& key) const override;
  std::size_t size() const override { return keys_.size(); }

 private:
  std::map<std::string, PublicKey> keys_;
  std::map<PublicKey, std::string> names_;
};

// One endpoint's line of an allow-list, "NAME KEY" and a newline.
std::string allow_list_line(const std::string& name, const PublicKey& key);

// Lines as above; empty ones and those that begin with '#' are passed over. Error:
// kInvalidArgument, kTooLarge or kExists naming the line.
Result<AllowList> parse_allow_list(std::string_view text);

}  // namespace dcr
