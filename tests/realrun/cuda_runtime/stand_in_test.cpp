// What the CUDA backend does with the runtime, which only a stand-in of it can see or bring about (stand_in.h).
#include "tests/realrun/cuda_runtime/stand_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "realrun/calibrate/calibrate.h"
#include "realrun/calibrate/journal.h"
#include "realrun/calibrate/overlap.h"
#include "sim/base/json_reader.h"
#include "sim/cost/calibration.h"
#include "sim/hardware/presets.h"
#include "sim/program/work.h"
#include "tests/realrun/cuda_runtime/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

TEST(CudaBackend, EventsOrderStreamsAndNothingElseDoes) {
  const std::unique_ptr<Backend> owned = make_cuda_backend();
  Backend& backend = *owned;
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
  const std::unique_ptr<Backend> owned = make_cuda_backend();
  Backend& backend = *owned;
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

TEST(CudaBackend, ReleasedMemoryStaysUntilComputeIsPastIt) {
  const std::unique_ptr<Backend> owned = make_cuda_backend();
  Backend& backend = *owned;
  void* const memory = backend.allocate(16, Dtype::fp32, Place::device, Stream::compute);
  for (int i = 0; i < 10; ++i) backend.fill(Stream::compute, {memory, Dtype::fp32, 0, 16}, 1);
  backend.release(memory);
  for (int i = 0; i < 5; ++i) cuda_stand_in::go_on();
  EXPECT_TRUE(cuda_stand_in::is_allocated(memory, 64)) << "half of what was issued before has run";
  backend.synchronize();
  EXPECT_FALSE(cuda_stand_in::is_allocated(memory, 64));
}

TEST(CudaBackend, SaysWhatMemoryWasWantedAndServesAgain) {
  const std::unique_ptr<Backend> owned = make_cuda_backend();
  Backend& backend = *owned;
  const std::int64_t before = cuda_stand_in::facts().device_bytes;
  cuda_stand_in::set_memory(before + 1000000);
  void* const first = backend.allocate(200000, Dtype::fp32, Place::device, Stream::compute);
  try {
    backend.allocate(200000000, Dtype::bf16, Place::device, Stream::compute);
    ADD_FAILURE();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("wanted 400.0 MB"));
    EXPECT_THAT(error.what(), HasSubstr("this rank holds 0.8 MB"));
  }
  EXPECT_EQ(cuda_stand_in::facts().device_bytes, before + 800000);
  backend.release(first);
  backend.synchronize();
  EXPECT_EQ(cuda_stand_in::facts().device_bytes, before);
  cuda_stand_in::set_memory(std::int64_t{1} << 40);
  // Pinned memory is kept: a second request of the size costs nothing.
  void* const pinned = backend.allocate(1000, Dtype::fp32, Place::host, Stream::compute);
  backend.release(pinned);
  EXPECT_EQ(backend.allocate(900, Dtype::fp32, Place::host, Stream::compute), pinned);
}

TEST(CudaBackend, SaysWhichDriverItNeeds) {
  const auto message = [](int driver, int devices, int device) {
    cuda_stand_in::set_driver(driver, devices);
    try {
      make_cuda_backend(device);
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
  const std::unique_ptr<Backend> owned = make_cuda_backend(), also_owned = make_cuda_backend();
  Backend &first = *owned, &second = *also_owned;
  const std::int64_t before = cuda_stand_in::facts().heuristics;
  const Tensor x = of({{11}, {13}}), w = of({{13}, {17}}), y = of({{11}, {17}});
  for (int i = 0; i < 3; ++i) difference(first, op_of(OpKind::linear), {x, w}, y);
  EXPECT_EQ(cuda_stand_in::facts().heuristics, before + 1);
  difference(second, op_of(OpKind::linear), {x, w}, y);
  EXPECT_EQ(cuda_stand_in::facts().heuristics, before + 1);
}

// --- Copies beside products, by a clock that the test chooses --------------------------------------------------------

class ChosenClock {
 public:
  explicit ChosenClock(const cuda_stand_in::Clock& clock) { cuda_stand_in::set_clock(clock); }
  ~ChosenClock() { cuda_stand_in::unset_clock(); }
  ChosenClock(const ChosenClock&) = delete;
  ChosenClock& operator=(const ChosenClock&) = delete;
};

SweepOptions small_sweep() {
  SweepOptions options = cpu_sweep();
  options.least_tokens = options.least_hidden = 16;
  options.most_tokens = options.most_sequence = options.most_hidden = 64;
  options.most_vocabulary = 256;
  options.products = 30, options.attentions = 15, options.of_a_kind = 4;
  options.most_elements = 3e5;  // copies of at most 16 MiB
  return options;
}

constexpr double kFloatClock = 1e-4;  // the runtime's clock is a float

TEST(CudaCalibration, FindsWhatCopiesAndProductsCostEachOther) {
  const ChosenClock clock(
      {.product_seconds = 5e-3, .copy_bytes_per_second = 1e9, .product_slowdown = 0.25, .copy_slowdown = 0.1});
  const std::unique_ptr<Backend> owned = make_cuda_backend();
  Backend& backend = *owned;
  ASSERT_TRUE(backend.facts().asynchronous_streams);
  Meter meter(backend, 1e5);
  const std::vector<OverlapPair> pairs = overlap_pairs(small_sweep());
  ASSERT_EQ(pairs.size(), 6u) << "three products, both directions";
  for (const OverlapPair& pair : pairs) {
    const auto m = meter.measure_overlap(pair.compute, pair.copy, 0);
    ASSERT_TRUE(m) << pair.compute_beside;
    EXPECT_NEAR(m->compute_alone.seconds, 5e-3, 5e-3 * kFloatClock);
    EXPECT_NEAR(m->copy_alone.seconds, 16777216 / 1e9, 1e-2 * kFloatClock);
    // Neither is overlapped for all of its time: the copies take longer than what runs beside them.
    EXPECT_NEAR(m->compute_beside.seconds / m->compute_alone.seconds, 1.25, kFloatClock);
    EXPECT_NEAR(m->copy_beside.seconds / m->copy_alone.seconds, 1.1, kFloatClock);
    EXPECT_GE(m->copy_beside.repetitions, 5);
  }
}

TEST(CudaCalibration, StreamsThatTakeTurnsAreNoOverlap) {
  const ChosenClock clock({.product_seconds = 5e-3, .copy_bytes_per_second = 1e9, .take_turns = true});
  const std::unique_ptr<Backend> owned = make_cuda_backend();
  Backend& backend = *owned;
  Meter meter(backend, 1e5);
  const OverlapPair pair = overlap_pairs(small_sweep()).front();
  EXPECT_FALSE(meter.measure_overlap(pair.compute, pair.copy, 0));
}

TEST(CudaCalibration, MeasuresTheMissingPairsOfItsJournalAndStatesThem) {
  const ChosenClock clock(
      {.product_seconds = 5e-3, .copy_bytes_per_second = 1e9, .product_slowdown = 0.25, .copy_slowdown = 0.1});
  CalibrateOptions options = options_for(make_cuda_backend()->facts());
  options.sweep = small_sweep();
  options.passes = 1;
  options.footprint_bytes = 1e5;
  options.preset = find_device("H100-SXM5-80GB");
  options.date = "2026-11-22";
  options.journal = testing::TempDir() + "overlap.points.jsonl";
  std::remove(options.journal.c_str());
  const BackendFacts facts = make_cuda_backend()->facts();
  {  // all points but the pairs
    Journal journal(options.journal, {facts.kind, facts.device, facts.software, options.date});
    const KernelModel model(*options.preset, find_calibration(*options.preset));
    for (const KernelPoint& p : sweep(options.sweep)) {
      constexpr double kCopyRate = 25e9;
      const double seconds =
          p.group.starts_with("copy") ? bytes(p.op, p.tensors) / kCopyRate : model.cost(p.op, p.tensors).seconds;
      journal.add(p.id, {.seconds = seconds, .spread = 0, .issue_seconds = 0, .repetitions = 5});
    }
  }
  const auto overlap_of = [&] {
    const CalibrateResult result = calibrate([] { return make_cuda_backend(); }, options);
    return parse_json(result.text, "calibration").at("overlap");
  };
  options.budget_seconds = 1e-9;
  EXPECT_EQ(overlap_of().at("not_measured"), "the time was up before both directions were measured");
  options.budget_seconds = 60;
  std::vector<std::string> measured;
  options.progress = [&](const CalibrationProgress& p) { measured.push_back(p.point); };
  const nlohmann::json overlap = overlap_of();
  EXPECT_EQ(measured.size(), 6u) << "the pairs alone";
  for (const char* direction : {"copy_to_device", "copy_to_host"}) {
    EXPECT_NEAR(overlap.at(direction).at("product_slowdown"), 0.25, kFloatClock);
    EXPECT_NEAR(overlap.at(direction).at("copy_slowdown"), 0.1, kFloatClock);
    EXPECT_EQ(overlap.at(direction).at("product_residual").at("points"), 3);
  }
  EXPECT_THAT(overlap.at("source").get<std::string>(), HasSubstr("stand-in"));
  EXPECT_EQ(overlap_of(), overlap);
  EXPECT_EQ(measured.size(), 6u) << "what the journal has is not measured again";
  std::remove(options.journal.c_str());
}

}  // namespace
}  // namespace orrery
