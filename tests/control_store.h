// The stores that the suites of the control plane run on.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/assert.h"
#include "control/memory_control.h"
#include "control/sqlite_control.h"
#include "tests/support/temp_directory.h"

namespace dcr {

inline constexpr RunId kTestRun = {0xd, 0xc, 0xb, 0xa};

// A store of a new run, and its clients, each as if in a process of its own.
class ControlStore {
 public:
  virtual ~ControlStore() = default;
  virtual ControlPlane& client(unsigned number) = 0;
  // All clients go away and come back: what was not durable is lost.
  virtual void reopen() = 0;
};

class MemoryStore final : public ControlStore {
 public:
  ControlPlane& client(unsigned) override { return control_; }
  void reopen() override {}

 private:
  MemoryControl control_{*new_control_state(kTestRun, "base")};
};

class SqliteStore final : public ControlStore {
 public:
  explicit SqliteStore(const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : directory_(parent) {
    DCR_ASSERT(SqliteControl::create(options(), kTestRun, "base").ok());
  }

  SqliteControl::Options options() const {
    SqliteControl::Options options;
    options.directory = directory_.path();
    return options;
  }

  SqliteControl& client(unsigned number) override {
    std::unique_ptr<SqliteControl>& client = clients_[number];
    if (!client) {
      auto opened = SqliteControl::open(options());
      if (!opened.ok()) std::fprintf(stderr, "%s\n", opened.status().message().c_str());
      DCR_ASSERT(opened.ok());
      client = std::move(opened).value();
    }
    return *client;
  }
  void reopen() override { clients_.clear(); }

 private:
  TempDirectory directory_;
  std::map<unsigned, std::unique_ptr<SqliteControl>> clients_;
};

}  // namespace dcr
