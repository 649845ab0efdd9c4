// The commands, run in this process, for their tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/test_streams.h"
#include "runtime/threads.h"

namespace dcr {

struct Ran {
  int exit_code = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline Ran run(std::vector<const char*> arguments, bool terminal = false) {
  arguments.insert(arguments.begin(), "dcr");
  MemoryStream out;
  MemoryStream err;
  const CancelToken cancel;
  Ran ran;
  ran.exit_code = run_cli(static_cast<int>(arguments.size()), arguments.data(),
                          {out.file(), err.file(), terminal}, cancel);
  ran.out = out.text();
  ran.err = err.text();
  return ran;
}

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// `text` without the figures of time: from the last ", " before the end on.
inline std::string without_time(const std::string& text) {
  return text.substr(0, text.rfind(", "));
}

}  // namespace dcr
