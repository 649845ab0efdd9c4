// A Device on CUDA. The shared object has one symbol, and CUDA's runtime in it; the driver is
// looked for when the first call is made.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "device/device.h"
#include "device/open_device.h"

namespace dcr {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kBlocksMax = 65'535;

// The runtime keeps the last error of a thread until it is asked for it: taken here, it can't be
// taken for a later call's.
void forget_error() { static_cast<void>(cudaGetLastError()); }

std::string advice(cudaError_t error) {
  if (error == cudaErrorInsufficientDriver) {
    return ": install NVIDIA's driver for CUDA " + std::to_string(CUDART_VERSION / 1000) +
           ", or build DCR with the nvcc of an older CUDA";
  }
  if (error == cudaErrorNoDevice || error == cudaErrorInvalidDevice) {
    return ": CUDA_VISIBLE_DEVICES says which there are";
  }
  return {};
}

Status failed(const char* what, cudaError_t error) {
  forget_error();
  const Code code = error == cudaErrorMemoryAllocation ? Code::kTooLarge : Code::kUnavailable;
  return {code, std::string("CUDA: ") + what + ": " + cudaGetErrorString(error) + advice(error)};
}

Status check(const char* what, cudaError_t error) {
  return error == cudaSuccess ? Status() : failed(what, error);
}

unsigned blocks_for(std::uint64_t count) {
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kBlocksMax));
}

static_assert(kThreads == kDeviceTurn);

__global__ void apply_batch(DeviceBatch batch) {
  for (std::uint64_t turn = blockIdx.x; turn < batch.turns; turn += gridDim.x) {
    // All threads of a block take the same turns, since they count together.
    const DeviceChanges& changes = target_of(batch, turn);
    bool different = false;
    const bool hit = apply_turn(changes, turn, threadIdx.x, &different);
    const int hits = __syncthreads_count(hit ? 1 : 0);
    const int differing = __syncthreads_count(different ? 1 : 0);
    if (threadIdx.x == 0 && hits > 0) {
      using Counter = unsigned long long;
      atomicAdd(reinterpret_cast<Counter*>(&changes.counts->words), static_cast<Counter>(hits));
      atomicAdd(reinterpret_cast<Counter*>(&changes.counts->different),
                static_cast<Counter>(differing));
    }
  }
}

template <typename Word, bool kOut>
__global__ void copy_words(DeviceWords words) {
  auto* const storage = static_cast<Word*>(words.storage);
  auto* const packed = static_cast<Word*>(words.packed);
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t at = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < words.count;
       at += step) {
    const std::uint64_t word = view_word(words.view, words.first + at);
    if (kOut) {
      packed[at] = storage[word];
    } else {
      storage[word] = packed[at];
    }
  }
}

template <bool kOut>
Status launch_copy(const DeviceWords& words, cudaStream_t stream) {
  if (words.count == 0) return {};
  const unsigned blocks = blocks_for(words.count);
  switch (words.width) {
    case 1:
      copy_words<std::uint8_t, kOut><<<blocks, kThreads, 0, stream>>>(words);
      break;
    case 2:
      copy_words<std::uint16_t, kOut><<<blocks, kThreads, 0, stream>>>(words);
      break;
    case 4:
      copy_words<std::uint32_t, kOut><<<blocks, kThreads, 0, stream>>>(words);
      break;
    default:
      copy_words<std::uint64_t, kOut><<<blocks, kThreads, 0, stream>>>(words);
      break;
  }
  return check(kOut ? "gather" : "scatter", cudaGetLastError());
}

// Whether the process has work or memory on a device. The driver is asked, which the runtime finds:
// any question of the runtime's own would make the device ready for work.
bool in_use(int index) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found,
                                                             12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    forget_error();
    return false;
  }
  unsigned flags = 0;
  int active = 0;
  const auto ask = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(found);
  return ask(index, &flags, &active) == CUDA_SUCCESS && active != 0;
}

// Makes a device the calling thread's current one, and then the one that was. A thread whose device
// nobody has used, the first one as a rule, keeps this one: to choose the other again would take
// some hundred MiB there.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index)
      : index_(index),
        before_(current(index)),
        status_(check("choose the device", cudaSetDevice(index))) {}
  ~CurrentDevice() {
    if (before_ == index_ || !in_use(before_)) return;
    if (cudaSetDevice(before_) != cudaSuccess) forget_error();
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  const Status& status() const { return status_; }

 private:
  static int current(int otherwise) {
    int device = 0;
    if (cudaGetDevice(&device) == cudaSuccess) return device;
    forget_error();
    return otherwise;
  }

  const int index_;
  const int before_;
  const Status status_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {}

  ~CudaDevice() override {
    const CurrentDevice here(index_);
    if (!here.status().ok()) return;
    if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_));
    for (const cudaEvent_t event : events_) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
    forget_error();
  }

  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  Status open() {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    cudaDeviceProp properties{};
    DCR_TRY(check("properties of the device", cudaGetDeviceProperties(&properties, index_)));
    name_ = properties.name;
    DCR_TRY(check("a stream", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
    for (cudaEvent_t& event : events_) {
      DCR_TRY(check("an event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    }
    return {};
  }

  std::string name() const override { return name_; }

  Result<void*> allocate(std::uint64_t bytes) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    void* memory = nullptr;
    DCR_TRY(check("memory of the device", cudaMalloc(&memory, std::max<std::uint64_t>(bytes, 1))));
    return memory;
  }

  void release(void* memory) override {
    const CurrentDevice here(index_);
    if (!here.status().ok() || cudaFree(memory) != cudaSuccess) forget_error();
  }

  Result<void*> allocate_pinned(std::uint64_t bytes) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    void* memory = nullptr;
    DCR_TRY(check("pinned memory",
                  cudaHostAlloc(&memory, std::max<std::uint64_t>(bytes, 1), cudaHostAllocDefault)));
    return memory;
  }

  void release_pinned(void* memory) override {
    const CurrentDevice here(index_);
    if (!here.status().ok() || cudaFreeHost(memory) != cudaSuccess) forget_error();
  }

  Status copy_in(void* device, const void* pinned, std::uint64_t bytes) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return check("copy to the device",
                 cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream_));
  }

  Status copy_out(void* pinned, const void* device, std::uint64_t bytes) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return check("copy from the device",
                 cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream_));
  }

  Status zero(void* device, std::uint64_t bytes) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return check("fill with zeros", cudaMemsetAsync(device, 0, bytes, stream_));
  }

  Status apply(const DeviceBatch& batch) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    const auto blocks = static_cast<unsigned>(std::min(batch.turns, kBlocksMax));
    apply_batch<<<blocks, kThreads, 0, stream_>>>(batch);
    return check("apply", cudaGetLastError());
  }

  Status gather(const DeviceWords& words) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return launch_copy<true>(words, stream_);
  }

  Status scatter(const DeviceWords& words) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return launch_copy<false>(words, stream_);
  }

  Status follow(void* stream) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    const cudaEvent_t followed = events_[kDeviceMarks];
    DCR_TRY(check("note a stream", cudaEventRecord(followed, static_cast<cudaStream_t>(stream))));
    return check("follow a stream", cudaStreamWaitEvent(stream_, followed, 0));
  }

  Status mark(unsigned mark) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return check("mark", cudaEventRecord(events_[mark], stream_));
  }

  Status wait(unsigned mark) override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return check("wait", cudaEventSynchronize(events_[mark]));
  }

  Status synchronize() override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return check("synchronize", cudaStreamSynchronize(stream_));
  }

  Status wait_idle() override {
    const CurrentDevice here(index_);
    DCR_TRY(here.status());
    return check("wait for the device", cudaDeviceSynchronize());
  }

 private:
  const int index_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[kDeviceMarks + 1] = {};  // of marks, and of what is followed
};

}  // namespace
}  // namespace dcr

extern "C" dcr::Device* dcr_open_device(std::uint64_t layout, int index, dcr::Status* status) {
  if (layout != dcr::kDeviceLayout) {
    dcr::Status other(dcr::Code::kUnsupported, "the library of devices is of another build");
    std::swap(*status, other);
    return nullptr;
  }
  auto device = std::make_unique<dcr::CudaDevice>(index);
  dcr::Status opened = device->open();
  std::swap(*status, opened);
  return status->ok() ? device.release() : nullptr;
}
