// DCR_PROBE("text") marks a place that a simulation should have passed: a campaign of the simulator
// reports the marks that it never hit (docs/TESTING.md "Simulation"). Other builds compile it away.
#pragma once

#ifdef DCR_SIMULATION

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace dcr {

// One mark; places with the same text share it. All marks that are linked in are on one list before
// main begins, whether they are ever hit or not.
class Probe {
 public:
  explicit Probe(const char* text) : text_(text), next_(first_) { first_ = this; }

  void hit() {
    if (!hit_.load(std::memory_order_relaxed)) hit_.store(true, std::memory_order_relaxed);
  }

  static const Probe* first() { return first_; }
  const Probe* next() const { return next_; }
  const char* text() const { return text_; }
  bool was_hit() const { return hit_.load(std::memory_order_relaxed); }

 private:
  static inline constinit Probe* first_ = nullptr;  // NOLINT(readability-identifier-naming)

  const char* const text_;
  Probe* const next_;
  std::atomic<bool> hit_{false};
};

// A text as an argument of a template.
template <std::size_t size>
struct ProbeText {
  consteval ProbeText(const char (&text)[size]) {  // NOLINT(google-explicit-constructor)
    std::copy_n(text, size, letters);
  }
  char letters[size] = {};
};

template <ProbeText text>
struct ProbeOf {
  static inline Probe probe{text.letters};
};

}  // namespace dcr

#define DCR_PROBE(text) ::dcr::ProbeOf<text>::probe.hit()

#else

#define DCR_PROBE(text) static_cast<void>(0)

#endif
