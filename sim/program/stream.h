// The streams of a rank. A stream runs its ops in order; across streams only data dependencies and events order ops.
// All facts about a stream stand in its row: to add a stream, add its name to `Stream` and a row. The order of the
// enumerators decides only the order in reports.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace orrery {

// One communication stream per mesh axis, as frameworks have one per communicator.
enum class Stream : std::uint8_t {
  compute,
  tensor_communication,         // groups over tp
  context_communication,        // groups over cp
  outer_ring_communication,     // the outer rings of a ring of rings over cp, at the same time as the inner rings
  expert_communication,         // groups over ep
  expert_tensor_communication,  // groups over etp, at the same time as groups over ep
  data_communication,           // reductions of gradients over dp (and cp), and collectives that follow from them
  parameter_communication,      // parameter gathering, over dp
  pipeline_communication,       // between stages
  device_to_host,
  host_to_device,
  host,  // CPU kernels (offloaded optimizer)
  storage,
};
inline constexpr int kStreams = static_cast<int>(Stream::storage) + 1;

// The resource that a stream's ops use.
enum class Occupies : std::uint8_t {
  multiprocessors,  // the device's kernels
  fabric,           // links between devices: collectives and transfers
  pcie,             // between the device and its host
  host,             // CPU kernels over host memory
  storage,          // NVMe
};

struct StreamRow {
  Stream stream;
  const char* name;  // name in documents
  Occupies occupies;
  // True: work left when a slot of the schedule ends runs on beside the next slots, and finally delays the update.
  // False: the slot ends when the stream's work ends.
  bool asynchronous;
  // The stream under which waiting of the compute stream for this stream is reported: this one or another.
  Stream account;
  const char* label;  // label of that time, after "exposed"
};

inline constexpr std::array<StreamRow, kStreams> kStreamRows{{
    {Stream::compute, "compute", Occupies::multiprocessors, false, Stream::compute, "compute"},
    {Stream::tensor_communication, "tensor_communication", Occupies::fabric, false, Stream::tensor_communication,
     "tensor-parallel communication"},
    {Stream::context_communication, "context_communication", Occupies::fabric, false, Stream::context_communication,
     "context-parallel communication"},
    {Stream::outer_ring_communication, "outer_ring_communication", Occupies::fabric, false,
     Stream::context_communication, "context-parallel communication"},
    {Stream::expert_communication, "expert_communication", Occupies::fabric, false, Stream::expert_communication,
     "expert-parallel communication"},
    {Stream::expert_tensor_communication, "expert_tensor_communication", Occupies::fabric, false,
     Stream::expert_communication, "expert-parallel communication"},
    {Stream::data_communication, "data_communication", Occupies::fabric, true, Stream::data_communication,
     "gradient reduction"},
    {Stream::parameter_communication, "parameter_communication", Occupies::fabric, false,
     Stream::parameter_communication, "parameter gathering"},
    {Stream::pipeline_communication, "pipeline_communication", Occupies::fabric, false, Stream::pipeline_communication,
     "pipeline transfers"},
    {Stream::device_to_host, "device_to_host", Occupies::pcie, true, Stream::device_to_host, "copies to the host"},
    {Stream::host_to_device, "host_to_device", Occupies::pcie, true, Stream::host_to_device, "copies to the device"},
    {Stream::host, "host", Occupies::host, true, Stream::host, "host kernels"},
    {Stream::storage, "storage", Occupies::storage, true, Stream::storage, "storage transfers"},
}};

constexpr const StreamRow& row_of(Stream stream) { return kStreamRows[static_cast<std::size_t>(stream)]; }
constexpr const char* name_of(Stream stream) { return row_of(stream).name; }
// The streams over the fabric: their indices in kStreamRows, ascending.
inline constexpr auto kFabricStreams = [] {
  constexpr auto is_fabric = [](const StreamRow& row) { return row.occupies == Occupies::fabric; };
  std::array<std::size_t, std::ranges::count_if(kStreamRows, is_fabric)> streams{};
  std::size_t n = 0;
  for (const StreamRow& row : kStreamRows)
    if (is_fabric(row)) streams[n++] = static_cast<std::size_t>(row.stream);
  return streams;
}();
// Whether ops of the stream are neither launched to the device nor run by it.
constexpr bool runs_beside_device(Stream stream) {
  return row_of(stream).occupies == Occupies::host || row_of(stream).occupies == Occupies::storage;
}
// Whether waiting times are reported under the stream's own name.
constexpr bool is_account(Stream stream) { return stream != Stream::compute && row_of(stream).account == stream; }

static_assert(
    [] {
      for (std::size_t i = 0; i < kStreamRows.size(); ++i) {
        const StreamRow& row = kStreamRows[i];
        if (row.stream != static_cast<Stream>(i) || row_of(row.account).account != row.account) return false;
      }
      return true;
    }(),
    "rows in the order of the enumerators, and accounts that are their own");

}  // namespace orrery
