// What the CUDA backend does with the runtime, which only a stand-in of it can see or bring about (stand_in.h).
#include "tests/realrun/cuda_runtime/stand_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "realrun/cuda/backend.h"
#include "tests/realrun/cuda_runtime/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

TEST(CudaBackend, EventsOrderStreamsAndNothingElseDoes) {
  CudaBackend backend;
  const Tensor t = of({{1000}});
  const Held from(backend, t, Values(1000, 1.0f)), middle(backend, t, Values(1000, 0.0f)),
      to(backend, t, Values(1000, 0.0f));
  backend.copy(Stream::device_to_host, middle.data, from.data, t.bytes());
  const Backend::Event copied = backend.record(Stream::device_to_host);
  backend.wait(Stream::compute, copied);
  backend.copy(Stream::compute, to.data, middle.data, t.bytes());
  backend.synchronize(Stream::compute);
  EXPECT_TRUE(backend.done(copied)) << "what the awaited work waited for is past";
  EXPECT_EQ(to.values()[999], 1.0f);
  // Without the event: the stand-in runs nothing of the other stream, and the old number is copied.
  backend.fill(Stream::device_to_host, middle.slice(), 2);
  const Backend::Event filled = backend.record(Stream::device_to_host);
  backend.copy(Stream::compute, to.data, middle.data, t.bytes());
  backend.synchronize(Stream::compute);
  EXPECT_FALSE(backend.done(filled));
  Values unordered(1000);
  backend.synchronize();
  EXPECT_EQ(to.values()[0], 1.0f);
  EXPECT_TRUE(backend.done(filled));
}

TEST(CudaBackend, EventsStayTrueOverThousandsOfThem) {
  CudaBackend backend;
  const Tensor t = of({{16}});
  const Held held(backend, t, Values(16, 0.0f));
  std::vector<Backend::Event> events;
  for (int i = 0; i < 5000; ++i) {
    backend.fill(Stream::compute, held.slice(), static_cast<float>(i));
    events.push_back(backend.record(Stream::compute));
    if (i % 1000 == 999) backend.wait(Stream::data_communication, events[static_cast<std::size_t>(i / 2)]);
  }
  while (!backend.done(events[2500])) continue;
  for (int i = 0; i <= 2500; ++i) EXPECT_TRUE(backend.done(events[static_cast<std::size_t>(i)]));
  EXPECT_FALSE(backend.done(events[4999]));
  backend.synchronize();
  EXPECT_TRUE(backend.done(events[4999]));
}

TEST(CudaBackend, SaysWhatMemoryWasWantedAndServesAgain) {
  CudaBackend backend;
  cuda_stand_in::set_memory(cuda_stand_in::facts().device_bytes + 1000000);
  void* const first = backend.allocate(200000, Dtype::fp32, MemoryPlace::device, Stream::compute);
  try {
    backend.allocate(200000000, Dtype::bf16, MemoryPlace::device, Stream::compute);
    ADD_FAILURE();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("wanted 400.0 MB"));
    EXPECT_THAT(error.what(), HasSubstr("this rank holds 0.8 MB"));
  }
  EXPECT_EQ(backend.memory_use().device, 800000);
  backend.release(first);
  EXPECT_EQ(backend.memory_use().device, 0);
  EXPECT_EQ(backend.memory_use().device_peak, 800000);
  backend.synchronize();
  cuda_stand_in::set_memory(std::int64_t{1} << 40);
  // Pinned memory is kept: a second request of the size costs nothing.
  void* const pinned = backend.allocate(1000, Dtype::fp32, MemoryPlace::host, Stream::compute);
  backend.release(pinned);
  EXPECT_EQ(backend.allocate(900, Dtype::fp32, MemoryPlace::host, Stream::compute), pinned);
}

TEST(CudaBackend, SaysWhichDriverItNeeds) {
  const auto message = [](int driver, int devices, int device) {
    cuda_stand_in::set_driver(driver, devices);
    try {
      CudaBackend backend(device);
    } catch (const DeviceError& error) {
      cuda_stand_in::set_driver(99000, 1);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(0, 0, 0), HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(message(11040, 1, 0), HasSubstr("the driver supports CUDA 11.4"));
  EXPECT_THAT(message(99000, 2, 2), HasSubstr("no GPU 2: this process sees 2"));
}

TEST(CudaBackend, ProductsAreTimedOnceAndTheSameForAllRanks) {
  CudaBackend first, second;
  const std::int64_t before = cuda_stand_in::facts().heuristics;
  const Tensor x = of({{11}, {13}}), w = of({{13}, {17}}), y = of({{11}, {17}});
  for (int i = 0; i < 3; ++i) difference(first, op_of(OpKind::linear), {x, w}, y);
  EXPECT_EQ(cuda_stand_in::facts().heuristics, before + 1);
  difference(second, op_of(OpKind::linear), {x, w}, y);
  EXPECT_EQ(cuda_stand_in::facts().heuristics, before + 1);
}

}  // namespace
}  // namespace orrery
