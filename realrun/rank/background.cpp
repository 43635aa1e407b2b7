#include "realrun/rank/background.h"

#include <utility>

#include "sim/program/rewrite.h"

namespace orrery::realrun {

Background::Background(std::unique_ptr<Backend> backend, std::unique_ptr<Communicator> communicator)
    : backend_(std::move(backend)), communicator_(std::move(communicator)), thread_([this] { work(); }) {}

Background::~Background() {
  bool under_way = false;
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    under_way = ended_ < added_ && failure_ == nullptr;
    waiting_.clear();
  }
  changed_.notify_all();
  if (under_way) communicator_->fail(std::make_exception_ptr(ExecutionError("stopped: the run has ended before")));
  thread_.join();
}

std::int64_t Background::add(std::vector<SumBeside> run) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(run));
  changed_.notify_all();
  return added_++;
}

void Background::wait(std::int64_t run) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ > run || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void Background::work() {
  for (;;) {
    std::vector<SumBeside> run;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stops_ || !waiting_.empty(); });
      if (stops_) return;
      run = std::move(waiting_.front());
      waiting_.pop_front();
    }
    std::exception_ptr failure;
    try {
      for (const SumBeside& of : run) sum(of);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    ++ended_;
    failure_ = failure;
    changed_.notify_all();
    if (failure != nullptr) return;
  }
}

void Background::sum(const SumBeside& of) {
  const std::int64_t n = of.tensor->elements();
  communicator_->at({"a task beside the step", of.op, -1});
  if (of.from != of.to) backend_->copy(of.call.stream, of.to, of.from, n * backend_->stored_bytes(of.call.dtype));
  communicator_->all_reduce(of.call, of.to, n);
  if (of.mean) divide(*backend_, of.call.stream, of.to, *of.tensor, of.call.members.size());
}

void divide(Backend& backend, Stream stream, void* data, const Tensor& tensor, std::size_t by) {
  Op op = computation(OpKind::scale, "mean", Phase::update, {}, {});
  op.stream = stream;
  op.scale = 1 / static_cast<double>(by);
  const Operand operand{data, &tensor};
  backend.run(op, {&operand, 1}, {&operand, 1}, {});
}

}  // namespace orrery::realrun
