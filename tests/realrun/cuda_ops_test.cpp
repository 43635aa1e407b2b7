// Every test of the CPU's kernels, on the CUDA kernels in fp32.
#include "tests/realrun/cuda_as_cpu.h"
//
#include "tests/realrun/kernels_test.cpp"
