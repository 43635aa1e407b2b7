// Ranks as MPI processes, for backends that keep every dtype as fp32 in host memory (the CPU's).
//
// The algorithms are not the MPI library's: the messages of transfers.h go over MPI_Isend and MPI_Irecv, so that what
// runs is what is modelled, under every MPI. The first message to each partner also names the operation, so that ranks
// which meet under different names find out. Groups need no MPI communicators: a rank does one thing after another, so
// messages between two ranks are in the order of the Program.
//
// Waiting ranks sleep between polls of the network instead of spinning: ranks that share cores would otherwise take
// them from ranks that compute.
#pragma once

#include <memory>

#include "realrun/communicator.h"
#include "sim/program/op.h"

namespace orrery {

// Initialises MPI, and finalises it on destruction; once per process. Throws ExecutionError if MPI cannot start.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

struct MpiOptions {
  // Longest wait in which nothing arrives and nothing is sent.
  double watchdog_seconds = 20;
  // Algorithm of all_reduce (ring, tree, halving_doubling), all_gather, reduce_scatter (halving_doubling, else ring).
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  // Larger messages are sent in pieces of this size. It is below Open MPI's limit for TCP messages without a handshake
  // (btl_tcp_eager_limit, 64 KiB including its header): the handshake of one direction would queue behind the data of
  // the other on their common connection.
  std::int64_t message_bytes = 61440;
  std::int64_t chunk_bytes = 16384;  // size of the pieces in which chains and trees pass on a message
  // A wait first yields for yield_seconds, then sleeps for sleep_seconds between polls (realrun/netlab/README.md has
  // the measurement behind these values).
  double yield_seconds = 20e-6, sleep_seconds = 200e-6;
};

class MpiCommunicator : public Communicator {
 public:
  // Broadcasts from the first member. Not part of Communicator, as no Program broadcasts.
  virtual void broadcast(const CollectiveCall& of, void* data, std::int64_t elements) = 0;
};
// For one thread; needs an MpiSession that outlives it. Its fail() reports the failure on standard error and ends all
// ranks (MPI_Abort); it does not return.
std::unique_ptr<MpiCommunicator> make_mpi_communicator(const MpiOptions& options = {});

}  // namespace orrery
