// Whole models on the CUDA kernels in fp32, their products on the CPU.
#include "tests/realrun/cuda_as_cpu.h"
//
#include "tests/realrun/kernels_model_test.cpp"
