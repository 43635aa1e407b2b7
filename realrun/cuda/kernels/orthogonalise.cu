// One block makes the columns of a matrix orthonormal, column after column: each step needs all rows of the one before.
#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {
namespace {

// The rows r = threadIdx.x, threadIdx.x + blockDim.x, ... of a matrix are a thread's own: it alone reads and writes
// them.
struct Columns {
  Any of;
  std::int64_t rows, columns;
  double* room;

  __device__ float at(std::int64_t row, std::int64_t column) const { return load(of, row * columns + column); }
  __device__ void set(std::int64_t row, std::int64_t column, float x) const { store(of, row * columns + column, x); }
  __device__ double product(std::int64_t a, std::int64_t b) const {
    double sum = 0;
    for (std::int64_t r = threadIdx.x; r < rows; r += blockDim.x) sum += static_cast<double>(at(r, a)) * at(r, b);
    return block_sum(sum, room);
  }
};

__global__ void orthogonalise_kernel(Any x, Any y, std::int64_t rows, std::int64_t columns) {
  const Columns to{y, rows, columns, reinterpret_cast<double*>(dynamic_shared())};
  for (std::int64_t c = 0; c < columns; ++c) {
    for (int replaced = 0; replaced < 2; ++replaced) {
      for (std::int64_t r = threadIdx.x; r < rows; r += blockDim.x)
        to.set(r, c, replaced != 0 ? replacement(r * columns + c) : load(x, r * columns + c));
      const double whole = sqrt(to.product(c, c));
      for (int twice = 0; twice < 2; ++twice)
        for (std::int64_t before = 0; before < c; ++before) {
          const double along = to.product(before, c);
          for (std::int64_t r = threadIdx.x; r < rows; r += blockDim.x)
            to.set(r, c, static_cast<float>(to.at(r, c) - along * to.at(r, before)));
        }
      const double left = sqrt(to.product(c, c));
      const bool depends = left <= kIndependent * whole;
      for (std::int64_t r = threadIdx.x; r < rows; r += blockDim.x)
        to.set(r, c, depends ? 0 : static_cast<float>(to.at(r, c) / left));
      if (!depends) break;
    }
  }
}

}  // namespace

void orthogonalise(const Call& call) {
  const Any x = call.in(0), y = call.out(0);
  call.require(y.dtype == Dtype::fp32, "columns that are to be orthonormal are in fp32");
  const std::int64_t columns = last_size(call.read(0));
  ORRERY_LAUNCH(call, orthogonalise_kernel, dim3(1), bytes_for<double>(kThreads / kWarp), x, y,
                elements(call.read(0)) / columns, columns);
}

}  // namespace orrery::cuda
