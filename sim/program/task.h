// A training that does more than repeat its step. One iteration is a list of tasks, and a training repeats it. One of
// the tasks is the step. The others run blocks of their own (Piece::tasks): for example an exchange of parameters every
// 48 steps. Tensors that are resident keep their values from task to task; no other tensor does.
//
// Tasks run in the order of the list, iteration after iteration. A task begins on a rank when the tasks before it have
// ended there, and when those that it waits for have. Nothing else orders them: there is no barrier between iterations.
// A task of collectives alone may run beside the tasks behind it: these do not wait for its end, unless they say so.
// Tasks that run beside others run one after the other. One that waits for others holds up the tasks behind it. check()
// (sim/program/check.h) proves that tasks wait for what they read.
#pragma once

#include <cstdint>
#include <vector>

namespace orrery {

struct Program;

// A task begins when task number `task` has ended that is `lag` iterations earlier; 0: in the same iteration. In the
// first `lag` iterations it does not wait.
struct After {
  std::uint16_t task = 0, lag = 0;  // `task` counts from 0
};

struct Task {
  const char* name = "";     // static storage: "local steps"
  std::uint16_t block = 0;   // 0: the step; otherwise each piece runs its tasks[block - 1]
  std::int64_t repeats = 1;  // how often it runs, one run after the other
  bool beside = false;       // it runs beside the tasks behind it. REQUIRES: its block has collectives only
  std::vector<After> after = {};
};

// The number of steps of an iteration; 1 if the Program has no tasks.
std::int64_t steps_of_iteration(const Program& program);

// Makes of `of` a Program that does what one block of its pieces does, once, and nothing else. The block becomes the
// pieces' update; tensors keep their ids. REQUIRES: 0 < block.
void task_program(const Program& of, std::uint16_t block, Program& program);

}  // namespace orrery
