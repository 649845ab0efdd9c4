// Carries out a node's work (protocol/node.h): fetches payloads from the object store, decodes each
// once into sealed memory, and hands that over to receivers of this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "channel/descriptors.h"
#include "protocol/node.h"
#include "receiver/decoded.h"
#include "run/process_context.h"
#include "run/run_model.h"
#include "transport/object_transport.h"

namespace dcr {

class NodeWork {
 public:
  using Post = std::function<void(NodeEvent)>;

  NodeWork(ProcessContext& context, const RunModel& model);
  ~NodeWork();

  // Begins work; its answer goes to `post`. Thread-safe.
  void begin(const NodeEffect& effect, const Post& post);

 private:
  using Key = std::tuple<StreamId, std::uint32_t, std::uint64_t>;  // owner, number

  // A payload in this process, in one of its two forms.
  struct Held {
    Bytes stored;                                    // as it came
    std::shared_ptr<const OwnedDescriptor> decoded;  // sealed memory (receiver/decoded_memory.h)
  };

  NodeTransport& transport(const StreamId& stream);
  EndFetched fetch_end(const FetchEnd& work);
  PayloadFetched fetch(const FetchPayload& work);
  PayloadDecoded decode(const DecodePayload& work);
  void hand_over(const HandOver& work);
  void drop(const DropPayloads& work);

  ProcessContext& context_;
  const RunModel& model_;
  std::vector<TensorSpec> specs_;
  ObjectNodeTransport payloads_;
  ObjectNodeTransport restores_;
  std::mutex mutex_;
  std::map<Key, Held> held_;  // guarded by mutex_
  std::unique_ptr<Executor> fetchers_;
  std::unique_ptr<Executor> decoder_;  // one thread: decodes, hands over and drops in their order
};

}  // namespace dcr
