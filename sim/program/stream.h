// The streams of a rank. A stream runs its ops in order; across streams only data and events order. All that anybody
// needs to know of a stream stands in its row: to add one, add its name to `Stream` and a row. The order of the
// enumerators means nothing but the order in which reports list them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace orrery {

// One communication stream per mesh axis, as frameworks have one per communicator.
enum class Stream : std::uint8_t {
  compute,
  tensor_communication,     // groups over tp
  context_communication,    // groups over cp
  outer_ring_communication,  // of them rings of rings, beside what goes round within each
  expert_communication,     // groups over ep
  expert_tensor_communication,  // groups over etp, where they meet beside those over ep
  data_communication,       // reductions of gradients, over dp (and cp), and of what follows from them
  parameter_communication,  // parameter gathering, over dp
  pipeline_communication,   // between stages
  device_to_host,
  host_to_device,
  host,  // CPU kernels (offloaded optimizer)
  storage,
};
inline constexpr int kStreams = static_cast<int>(Stream::storage) + 1;

// What a stream's ops use.
enum class Occupies : std::uint8_t {
  multiprocessors,  // the device's kernels
  fabric,           // links between devices: collectives and transfers
  pcie,             // between the device and its host
  host,             // CPU kernels over host memory
  storage,          // NVMe
};

struct StreamRow {
  Stream stream;
  const char* name;  // in documents
  Occupies occupies;
  // What it still has to do when a slot of the schedule ends carries into the next and finally delays the update;
  // otherwise the slot ends with it.
  bool asynchronous;
  // Under whose name it is reported that the compute stream waits for it: its own or another's.
  Stream account;
  const char* label;  // of that time, behind "exposed"
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
// Neither launched to the device nor run by it.
constexpr bool runs_beside_device(Stream stream) {
  return row_of(stream).occupies == Occupies::host || row_of(stream).occupies == Occupies::storage;
}
// Whether waiting is reported under the stream's name.
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
