// Collectives as MPI programs write them: explicit messages between processes, nothing of Orrery in them. Run by SMPI
// (smpi_test.cpp), or by any MPI.
//
//   collectives OPERATION ALGORITHM DEVICES GROUP STRIDE PER_NODE LANES CHUNKS BYTES...
//
// A process is one lane of one device: lanes are what NCCL calls channels (across nodes two a channel for trees), each
// with an equal part of the bytes. Process p is lane p / DEVICES of device p mod DEVICES. Groups have GROUP devices
// each, STRIDE apart, PER_NODE of them on a node; all groups communicate at once. For every size rank 0 prints the
// bytes and the seconds from the first process's start to the last one's end.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMostChunks = 64, kMostNeighbours = 4 };

static void fail(const char* why) {
  fprintf(stderr, "collectives: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 2);
  exit(2);
}

static int part(long bytes, long parts) {
  if (bytes % parts != 0) fail("the bytes do not divide into equal messages");
  if (bytes / parts > 0x7fffffffL) fail("a message is too long for MPI's counts");
  return (int)(bytes / parts);
}

// What a lane is to the algorithms.
struct Lane {
  MPI_Comm comm;        // its group's processes of this lane, in rank order
  MPI_Comm node, rail;  // those on the same node, and those at the same place of all nodes
  int size, rank;
  int per_node, nodes;
  int channel, way;  // way 1: the second tree, or the ring that runs backwards
  int chunks;
  char* buffer;  // of everything sent and received: what the bytes say does not matter
};

static void send_receive(const struct Lane* l, int to, int from, int bytes, MPI_Comm comm) {
  MPI_Sendrecv(l->buffer, bytes, MPI_BYTE, to, 0, l->buffer, bytes, MPI_BYTE, from, 0, comm, MPI_STATUS_IGNORE);
}

// --- Rings. In lane c the chain of a node's devices starts at its device c. ------------------------------------------

static int at_position(const struct Lane* l, int position) {
  const int node = position / l->per_node, place = position % l->per_node;
  if (l->way == 1) return (l->nodes - 1 - node) * l->per_node + (l->channel + l->per_node - place) % l->per_node;
  return node * l->per_node + (l->channel + place) % l->per_node;
}

static int position_of(const struct Lane* l, int rank) {
  for (int p = 0; p < l->size; ++p)
    if (at_position(l, p) == rank) return p;
  fail("a rank is not in its ring");
  return -1;
}

static void ring_of(const struct Lane* l, MPI_Comm comm, int to, int from, int steps, int bytes) {
  for (int step = 0; step < steps; ++step) send_receive(l, to, from, bytes, comm);
}

static void ring(const struct Lane* l, int rounds, long bytes) {
  const int p = position_of(l, l->rank);
  ring_of(l, l->comm, at_position(l, (p + 1) % l->size), at_position(l, (p + l->size - 1) % l->size),
          rounds * (l->size - 1), part(bytes, l->size));
}

// From rank 0 along the ring, a chunk passed on while the next arrives.
static void chain(const struct Lane* l, long bytes) {
  const int first = position_of(l, 0);
  const int place = (position_of(l, l->rank) - first + l->size) % l->size;
  const int from = at_position(l, (first + place + l->size - 1) % l->size);
  const int to = at_position(l, (first + place + 1) % l->size);
  const int chunk = part(bytes, l->chunks);
  MPI_Request arrivals[kMostChunks], leaving = MPI_REQUEST_NULL;
  if (place > 0)
    for (int k = 0; k < l->chunks; ++k) MPI_Irecv(l->buffer, chunk, MPI_BYTE, from, 0, l->comm, &arrivals[k]);
  for (int k = 0; k < l->chunks; ++k) {
    if (place > 0) MPI_Wait(&arrivals[k], MPI_STATUS_IGNORE);
    MPI_Wait(&leaving, MPI_STATUS_IGNORE);
    if (place + 1 < l->size) MPI_Isend(l->buffer, chunk, MPI_BYTE, to, 0, l->comm, &leaving);
  }
  MPI_Wait(&leaving, MPI_STATUS_IGNORE);
}

// --- The double binary tree (Sanders, Speck and Traeff 2009) ---------------------------------------------------------

// Nodes 1 .. count-1 in order below node 0. The second tree is the mirror image, or for odd counts shifted by one.
static void in_order(int first, int last, int above, int* parent) {
  if (first > last) return;
  int root = 1;
  while (2 * root <= last - first + 1) root *= 2;
  root += first - 1;
  parent[root] = above;
  in_order(first, root - 1, root, parent);
  in_order(root + 1, last, root, parent);
}

// Parents of ranks: the node tree between the nodes' devices `channel`, below each a chain of its node's others.
static void tree_parents(const struct Lane* l, int* parent) {
  int* plain = malloc(sizeof(int) * (size_t)l->nodes);
  plain[0] = -1;
  in_order(1, l->nodes - 1, 0, plain);
  for (int node = 0; node < l->nodes; ++node) {
    int up = -1;
    if (l->way == 0) {
      up = plain[node];
    } else if (l->nodes % 2 == 0) {
      up = plain[l->nodes - 1 - node];
      if (up >= 0) up = l->nodes - 1 - up;
    } else {
      up = plain[(node + l->nodes - 1) % l->nodes];
      if (up >= 0) up = (up + 1) % l->nodes;
    }
    for (int place = 0; place < l->per_node; ++place) {
      const int rank = node * l->per_node + (l->channel + place) % l->per_node;
      if (place > 0)
        parent[rank] = node * l->per_node + (l->channel + place - 1) % l->per_node;
      else
        parent[rank] = up < 0 ? -1 : up * l->per_node + l->channel;
    }
  }
  free(plain);
}

// Chunks go up as the children's arrive, and down again as soon as the root has them.
static void tree(const struct Lane* l, long bytes) {
  int* parents = malloc(sizeof(int) * (size_t)l->size);
  tree_parents(l, parents);
  const int parent = parents[l->rank], chunks = l->chunks, chunk = part(bytes, chunks);
  int child[kMostNeighbours], children = 0;
  for (int rank = 0; rank < l->size; ++rank)
    if (parents[rank] == l->rank) child[children++] = rank;
  free(parents);

  // Slot 0 is the parent, the others are the children. Of each slot one message is on its way out at most.
  const int slots = 1 + children;
  int peer[1 + kMostNeighbours], arrived[1 + kMostNeighbours] = {0}, sent[1 + kMostNeighbours] = {0};
  int sending[1 + kMostNeighbours] = {0};
  peer[0] = parent;
  for (int i = 0; i < children; ++i) peer[1 + i] = child[i];
  MPI_Request requests[(1 + kMostNeighbours) * (kMostChunks + 1)];
  const int receives = slots * chunks, all = receives + slots;
  for (int i = 0; i < all; ++i) requests[i] = MPI_REQUEST_NULL;
  for (int s = parent < 0 ? 1 : 0; s < slots; ++s)
    for (int k = 0; k < chunks; ++k)
      MPI_Irecv(l->buffer, chunk, MPI_BYTE, peer[s], 0, l->comm, &requests[s * chunks + k]);
  for (;;) {
    int reduced = chunks;  // chunks that all children have sent
    for (int s = 1; s < slots; ++s)
      if (arrived[s] < reduced) reduced = arrived[s];
    const int total = parent < 0 ? reduced : arrived[0];
    for (int s = parent < 0 ? 1 : 0; s < slots; ++s)
      if (!sending[s] && sent[s] < (s == 0 ? reduced : total)) {
        MPI_Isend(l->buffer, chunk, MPI_BYTE, peer[s], 0, l->comm, &requests[receives + s]);
        sending[s] = 1;
      }
    int which = MPI_UNDEFINED;
    MPI_Waitany(all, requests, &which, MPI_STATUS_IGNORE);
    if (which == MPI_UNDEFINED) return;
    if (which < receives) {
      ++arrived[which / chunks];
    } else {
      ++sent[which - receives];
      sending[which - receives] = 0;
    }
  }
}

// --- Recursive halving and doubling (Thakur, Rabenseifner and Gropp 2005; large halves between neighbours) ---------

// Ranks beyond a power of two: each of the first `extra` even ones hands all it has to its odd neighbour and gets the
// result from it (all-reduce only).
static void halving_doubling(const struct Lane* l, int halves, int doubles, long bytes) {
  int count = 1;
  while (2 * count <= l->size) count *= 2;
  const int extra = l->size - count;
  if (extra > 0 && !(halves && doubles)) fail("as many ranks as a power of two, or an all-reduce");
  if (l->rank < 2 * extra && l->rank % 2 == 0) {
    MPI_Send(l->buffer, part(bytes, 1), MPI_BYTE, l->rank + 1, 0, l->comm);
    MPI_Recv(l->buffer, part(bytes, 1), MPI_BYTE, l->rank + 1, 0, l->comm, MPI_STATUS_IGNORE);
    return;
  }
  if (l->rank < 2 * extra) MPI_Recv(l->buffer, part(bytes, 1), MPI_BYTE, l->rank - 1, 0, l->comm, MPI_STATUS_IGNORE);
  const int me = l->rank < 2 * extra ? l->rank / 2 : l->rank - extra;
  long have = halves ? bytes : bytes / count;
  for (int distance = 1; halves && distance < count; distance *= 2) {
    const int other = me ^ distance, rank = other < extra ? 2 * other + 1 : other + extra;
    have = part(have, 2);
    send_receive(l, rank, rank, part(have, 1), l->comm);
  }
  for (int distance = count / 2; doubles && distance > 0; distance /= 2) {
    const int other = me ^ distance, rank = other < extra ? 2 * other + 1 : other + extra;
    send_receive(l, rank, rank, part(have, 1), l->comm);
    have *= 2;
  }
  if (l->rank < 2 * extra) MPI_Send(l->buffer, part(bytes, 1), MPI_BYTE, l->rank - 1, 0, l->comm);
}

// --- All-to-all ----------------------------------------------------------------------------------------------------

static void all_to_all(const struct Lane* l, MPI_Comm comm, int bytes) {
  int size, rank;
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &rank);
  MPI_Request* requests = malloc(sizeof(MPI_Request) * 2 * (size_t)size);
  int count = 0;
  for (int away = 1; away < size; ++away)
    MPI_Irecv(l->buffer, bytes, MPI_BYTE, (rank + size - away) % size, 0, comm, &requests[count++]);
  for (int away = 1; away < size; ++away)
    MPI_Isend(l->buffer, bytes, MPI_BYTE, (rank + away) % size, 0, comm, &requests[count++]);
  MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
  free(requests);
}

// --- In the node, then between nodes, then in the node -------------------------------------------------------------

static void hierarchical(const struct Lane* l, const char* operation, long bytes) {
  const int place = l->rank % l->per_node, at_node = l->rank / l->per_node, r = l->per_node, nodes = l->nodes;
  if (strcmp(operation, "all_to_all") == 0) {
    all_to_all(l, l->node, part(bytes, r));
    all_to_all(l, l->rail, part(bytes, nodes));
  } else {
    const int rounds = strcmp(operation, "all_reduce") == 0 ? 2 : 1;
    const int next = (place + 1) % r, before = (place + r - 1) % r;
    if (strcmp(operation, "all_gather") != 0) ring_of(l, l->node, next, before, r - 1, part(bytes, r));
    ring_of(l, l->rail, (at_node + 1) % nodes, (at_node + nodes - 1) % nodes, rounds * (nodes - 1),
            part(part(bytes, r), nodes));
    if (strcmp(operation, "reduce_scatter") != 0) ring_of(l, l->node, next, before, r - 1, part(bytes, r));
  }
}

// ---------------------------------------------------------------------------------------------------------------------

static void run(const struct Lane* l, const char* operation, const char* algorithm, long bytes) {
  const int reduces = strcmp(operation, "all_gather") != 0, gathers = strcmp(operation, "reduce_scatter") != 0;
  if (strcmp(algorithm, "hierarchical") == 0)
    hierarchical(l, operation, bytes);
  else if (strcmp(operation, "all_to_all") == 0)
    all_to_all(l, l->comm, part(bytes, l->size));
  else if (strcmp(operation, "broadcast") == 0)
    chain(l, bytes);
  else if (strcmp(algorithm, "tree") == 0)
    tree(l, bytes);
  else if (strcmp(algorithm, "halving_doubling") == 0)
    halving_doubling(l, reduces, gathers, bytes);
  else if (strcmp(algorithm, "ring") == 0 || strcmp(algorithm, "bidirectional_ring") == 0)
    ring(l, reduces + gathers, bytes);
  else
    fail("no such algorithm");
}

// At an agreed time, not when the barrier's last message happens to arrive (window-based synchronisation: Hunold and
// Carpen-Amarie, IEEE TPDS 27(12), 2016). The clock is global.
static void start_together(void) {
  const double window_seconds = 1e-3;
  double now = MPI_Wtime(), start = 0;
  MPI_Allreduce(&now, &start, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  const double left = start + window_seconds - MPI_Wtime();
  if (left < 0) fail("the window for the start is too short");
  const struct timespec wait = {0, (long)(left * 1e9 + 0.5)};
  nanosleep(&wait, NULL);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 10) fail("OPERATION ALGORITHM DEVICES GROUP STRIDE PER_NODE LANES CHUNKS BYTES...");
  const char *operation = argv[1], *algorithm = argv[2];
  const int devices = atoi(argv[3]), group = atoi(argv[4]), stride = atoi(argv[5]), per_node = atoi(argv[6]);
  const int lanes = atoi(argv[7]), chunks = atoi(argv[8]);
  int size, rank;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (size != devices * lanes || devices % (group * stride) != 0 || group % per_node != 0 || chunks > kMostChunks)
    fail("processes, devices, groups and lanes do not fit each other");
  const int lane = rank / devices, device = rank % devices;
  const int groups_before = device / (group * stride) * stride + device % stride;

  struct Lane l = {.per_node = per_node, .nodes = group / per_node, .chunks = chunks};
  const int both_trees = strcmp(algorithm, "tree") == 0 && l.nodes > 1;
  const int ways = both_trees || strcmp(algorithm, "bidirectional_ring") == 0 ? 2 : 1;
  l.channel = lane / ways;
  l.way = lane % ways;
  MPI_Comm_split(MPI_COMM_WORLD, lane * (devices / group) + groups_before, device, &l.comm);
  MPI_Comm_size(l.comm, &l.size);
  MPI_Comm_rank(l.comm, &l.rank);
  MPI_Comm_split(l.comm, l.rank / per_node, l.rank, &l.node);
  MPI_Comm_split(l.comm, l.rank % per_node, l.rank, &l.rail);

  long most = 0;
  for (int i = 9; i < argc; ++i)
    if (atol(argv[i]) > most) most = atol(argv[i]);
#ifdef SMPI_SHARED_MALLOC
  l.buffer = SMPI_SHARED_MALLOC((size_t)most);  // nothing is copied
#else
  l.buffer = malloc((size_t)most);
#endif
  for (int i = 9; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    start_together();
    double begin = MPI_Wtime(), first = 0, last = 0;
    run(&l, operation, algorithm, part(bytes, lanes));
    double end = MPI_Wtime();
    MPI_Reduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%ld %.17g\n", bytes, last - first);
  }
#ifdef SMPI_SHARED_MALLOC
  SMPI_SHARED_FREE(l.buffer);
#else
  free(l.buffer);
#endif
  MPI_Comm_free(&l.node);
  MPI_Comm_free(&l.rail);
  MPI_Comm_free(&l.comm);
  MPI_Finalize();
  return 0;
}
