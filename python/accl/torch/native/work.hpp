// Operations that are under way, as PyTorch's Work: on host streams, or messages; asked for and waited for without Python.

#pragma once

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace py = pybind11;

namespace accl {

using Tensors = std::vector<at::Tensor>;

constexpr int kSuccess = 0;
constexpr int kInProgress = 7;
// Between two looks at a stream in a wait with a time limit.
constexpr auto kLook = std::chrono::microseconds(200);
// Threads that wait for operations whose futures were asked for; more wait for one of these.
constexpr size_t kMostWaiters = 256;

/// Functions of nccl.h and accl.h, by addresses that come from Python (`NativeStreams` has the same order), so that no header of ours is
/// needed.
struct Functions {
  const char *(*error_text)();
  int (*synchronize)(void *stream);
  int (*query)(void *stream);
  int (*destroy_stream)(void *stream);
  int (*test)(void *request);
  int (*wait)(void *request, int64_t limit_ms);
  int (*source)(void *request, int *source);
  int (*free)(void *request);
  int (*send)(const void *, size_t, int peer, int tag, void *comm, int64_t limit_ms, void **request);
  int (*receive)(void *, size_t, int peer, int tag, void *comm, int64_t limit_ms, void **request);
  int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
  int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
  int (*broadcast)(const void *, void *, size_t, int, int, void *, void *);
  int (*all_gather)(const void *, void *, size_t, int, void *, void *);
  int (*all_to_all)(const void *, void *, size_t, int, void *, void *);
  int (*reduce)(const void *, void *, size_t, int, int, int root, void *, void *);
  int (*send_part)(const void *, size_t, int, int peer, void *, void *);
  int (*receive_part)(void *, size_t, int, int peer, void *, void *);
  int (*group_start)();
  int (*group_end)();
};

/// Python's objects go with the interpreter locked, whoever lets go of them.
template <typename T> std::shared_ptr<T> locked(T *value) {
  return std::shared_ptr<T>(value, [](T *value) {
    py::gil_scoped_acquire lock;
    delete value;
  });
}

/// What is called once when an operation has succeeded, and holds on to what must live until then.
using Finish = std::function<void()>;

/// The same by Python.
inline Finish by_python(py::object call) {
  return [last = locked(new py::object(std::move(call)))] {
    py::gil_scoped_acquire lock;
    try {
      (*last)();
    } catch (py::error_already_set &error) {
      // Its words need the interpreter.
      throw std::runtime_error(error.what());
    }
  };
}

/// Lets other threads of Python go on: one of them may be about to end what is waited for.
class WithoutPython {
public:
  WithoutPython() {
    if (PyGILState_Check()) {
      released_.emplace();
    }
  }

private:
  std::optional<py::gil_scoped_release> released_;
};

/// Something that is under way, or will be.
class PendingWork : public c10d::Work {
public:
  PendingWork(Tensors outputs, Tensors inputs, Finish finish)
      : c10d::Work(-1, c10d::OpType::UNKNOWN), outputs_(std::move(outputs)), inputs_(std::move(inputs)),
        finish_(std::move(finish)) {}

  /// Whoever makes works keeps them until they are over. Else the process ends, and what is still written to stays.
  ~PendingWork() override {
    if (!over_) {
      new Tensors(std::move(outputs_));
      new Tensors(std::move(inputs_));
      new Finish(std::move(finish_));
    }
  }

  bool isCompleted() override {
    WithoutPython released;
    std::unique_lock<std::timed_mutex> lock(end_, std::try_to_lock);
    if (lock && !over_) {
      int code = look();
      if (code != kInProgress) {
        end(code);
      }
    }
    // Somebody who waits holds the lock, and tells.
    return over_;
  }

  bool isSuccess() const override { return over_ && !failure_; }

  std::exception_ptr exception() const override { return over_ ? failure_ : nullptr; }

  bool wait(std::chrono::milliseconds timeout) override {
    {
      WithoutPython released;
      int64_t limit_ms = std::max<int64_t>(timeout.count(), 0);
      std::unique_lock<std::timed_mutex> lock(end_, std::defer_lock);
      if (limit_ms == 0) {
        lock.lock();
      } else if (!lock.try_lock_for(timeout)) {
        // Somebody else waits, maybe without a limit.
        refuse_after(limit_ms);
      }
      if (!over_) {
        int code = block(limit_ms);
        if (code == kInProgress) {
          refuse_after(limit_ms);
        }
        end(code);
      }
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return true;
  }

  bool is_over() const { return over_; }

  /// True for what the end of a group waits for.
  virtual bool is_awaited() const { return true; }

  void synchronize() override { wait(kNoTimeout); }

  Tensors result() override { return outputs_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

protected:
  /// The code that it has ended with, or kInProgress.
  virtual int look() = 0;
  /// The same after a wait, which lasts so long at most; 0: as long as it takes.
  virtual int block(int64_t limit_ms) = 0;
  /// Called once, when it is over.
  virtual void give_back() = 0;
  /// What has failed on this thread, as the library says it.
  virtual std::string error_text() = 0;
  /// The same in a sentence of the group.
  virtual std::string explained(const std::string &text) = 0;
  virtual void tell_failure() = 0;
  bool has_failed() const { return failure_ != nullptr; }
  /// Nobody has to keep it any more.
  virtual void forget() = 0;

private:
  friend class Completer;
  friend class Rank;

  void refuse_after(int64_t limit_ms) {
    TORCH_CHECK_WITH(DistBackendError, false,
                     explained("the operation is not done after " + std::to_string(limit_ms) +
                               " ms; see accl status for who is missing"));
  }

  /// Called once, with the lock held.
  void end(int code) {
    if (code != kSuccess) {
      fail(explained(error_text()));
      tell_failure();
    }
    if (finish_) {
      try {
        if (!failure_) {
          finish_();
        }
      } catch (const std::exception &error) {
        fail(error.what());
      }
      finish_ = nullptr;
    }
    inputs_.clear();
    give_back();
    over_ = true;
    forget();
  }

  void fail(const std::string &text) {
    try {
      TORCH_CHECK_WITH(DistBackendError, false, text);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  Tensors outputs_;
  /// What only has to live until it is over.
  Tensors inputs_;
  Finish finish_;
  std::timed_mutex end_;
  std::atomic<bool> over_{false};
  std::exception_ptr failure_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  /// Where it is kept, under the lock of whoever keeps it.
  std::optional<std::list<c10::intrusive_ptr<PendingWork>>::iterator> place_;
};

using WorkPtr = c10::intrusive_ptr<PendingWork>;

/// What one rank of a group has: its communicators, streams that are used again and again, and all works that are not over.
class Rank {
public:
  /// `explain` makes a sentence of what has failed; it must not hold on to what holds this.
  Rank(Functions functions, py::object explain)
      : functions(functions), explain_(locked(new py::object(std::move(explain)))) {}

  ~Rank() {
    for (uintptr_t stream : free_) {
      functions.destroy_stream((void *)stream);
    }
  }

  const Functions functions;
  /// The communicators for collective calls and for messages, or null; how long the next call may stand still, and one may that does not say.
  std::atomic<void *> comm{nullptr};
  std::atomic<void *> messages{nullptr};
  std::atomic<int64_t> limit_ms{0};
  std::atomic<int64_t> usual_ms{0};

  /// A stream that nothing runs on, or 0 if a new one is needed.
  uintptr_t take() {
    // What ends may need Python, whose other threads may want this lock.
    WithoutPython released;
    forget_front();
    std::lock_guard<std::mutex> lock(streams_);
    if (free_.empty()) {
      return 0;
    }
    uintptr_t stream = free_.back();
    free_.pop_back();
    return stream;
  }

  void give_back(uintptr_t stream) {
    std::lock_guard<std::mutex> lock(streams_);
    free_.push_back(stream);
  }

  /// Works live until they are over, also if the caller forgets them.
  WorkPtr keep(WorkPtr work) {
    WithoutPython released;
    forget_front();
    std::unique_lock<std::mutex> lock(pending_lock_);
    pending_.push_back(work);
    work->place_ = std::prev(pending_.end());
    if (pending_.size() < sweep_at_) {
      return work;
    }
    lock.unlock();
    // Some that are not over may keep their places in front of many that are.
    sweep();
    lock.lock();
    sweep_at_ = std::max<size_t>(64, 2 * pending_.size());
    return work;
  }

  /// Forgets all that are over.
  void sweep() {
    WithoutPython released;
    for (const WorkPtr &one : all_pending()) {
      one->isCompleted();
    }
  }

  void forget(PendingWork *work) {
    std::unique_lock<std::mutex> lock(pending_lock_);
    if (work->place_) {
      // Its last owner may be this list, and its end wants no lock.
      WorkPtr last = **work->place_;
      pending_.erase(*work->place_);
      work->place_.reset();
      lock.unlock();
    }
  }

  /// Waits for all that is under way, for so long at most; false if something still is. Receives are not waited for: nobody wants what has
  /// not come yet. Failures are told to whoever waits for the operation.
  bool drain(std::chrono::milliseconds limit) {
    WithoutPython released;
    auto deadline = std::chrono::steady_clock::now() + limit;
    bool over = true;
    for (const WorkPtr &work : all_pending()) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      try {
        if (work->is_awaited()) {
          work->wait(std::max(left, std::chrono::milliseconds(1)));
        }
      } catch (...) {
      }
      over &= work->isCompleted();
    }
    return over;
  }

  std::string explained(const std::string &text) const {
    py::gil_scoped_acquire lock;
    return py::cast<std::string>((*explain_)(text));
  }

  /// Has `hook` called whenever an operation has failed; without one, no more.
  void on_failure(int64_t id, std::function<void()> hook) {
    std::lock_guard<std::mutex> lock(hooks_lock_);
    hooks_.erase(id);
    if (hook) {
      hooks_.emplace(id, std::move(hook));
    }
  }

  void tell_failure() {
    WithoutPython released;
    std::unique_lock<std::mutex> lock(hooks_lock_);
    auto hooks = hooks_;
    lock.unlock();
    for (const auto &hook : hooks) {
      hook.second();
    }
  }

  [[noreturn]] void refuse(const std::string &text) {
    tell_failure();
    TORCH_CHECK_WITH(DistBackendError, false, explained(text));
    std::terminate();
  }

private:
  std::vector<WorkPtr> all_pending() {
    std::lock_guard<std::mutex> lock(pending_lock_);
    return {pending_.begin(), pending_.end()};
  }

  void forget_front() {
    for (;;) {
      std::unique_lock<std::mutex> lock(pending_lock_);
      if (pending_.empty()) {
        return;
      }
      WorkPtr work = pending_.front();
      lock.unlock();
      if (!work->isCompleted()) {
        return;
      }
    }
  }

  std::shared_ptr<py::object> explain_;
  std::mutex streams_;
  std::vector<uintptr_t> free_;
  std::mutex pending_lock_;
  std::list<WorkPtr> pending_;
  size_t sweep_at_ = 64;
  std::mutex hooks_lock_;
  std::map<int64_t, std::function<void()>> hooks_;
};

/// Something of a rank of a group.
class RankWork : public PendingWork {
public:
  RankWork(std::shared_ptr<Rank> rank, Tensors outputs, Tensors inputs, Finish finish)
      : PendingWork(std::move(outputs), std::move(inputs), std::move(finish)), rank_(std::move(rank)) {}

protected:
  std::string error_text() override { return rank_->functions.error_text(); }
  std::string explained(const std::string &text) override { return rank_->explained(text); }
  void tell_failure() override { rank_->tell_failure(); }
  void forget() override { rank_->forget(this); }

  std::shared_ptr<Rank> rank_;
};

/// An operation on a host stream.
class StreamWork : public RankWork {
public:
  StreamWork(std::shared_ptr<Rank> rank, uintptr_t stream, Tensors outputs, Tensors inputs,
             Finish finish)
      : RankWork(std::move(rank), std::move(outputs), std::move(inputs), std::move(finish)), stream_(stream) {}

protected:
  int look() override { return rank_->functions.query((void *)stream_); }
  int block(int64_t limit_ms) override {
    if (limit_ms == 0) {
      return rank_->functions.synchronize((void *)stream_);
    }
    auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
    for (;;) {
      int code = look();
      if (code != kInProgress || std::chrono::steady_clock::now() > deadline) {
        return code;
      }
      std::this_thread::sleep_for(kLook);
    }
  }
  void give_back() override { rank_->give_back(stream_); }

private:
  uintptr_t stream_;
};

/// A send or a receive.
class MessageWork : public RankWork {
public:
  MessageWork(std::shared_ptr<Rank> rank, void *request, bool receives, Tensors tensors,
              Finish finish)
      : RankWork(std::move(rank), std::move(tensors), Tensors(), std::move(finish)), request_(request),
        receives_(receives) {}

  bool is_awaited() const override { return !receives_; }

  int sourceRank() const override { return source_; }

protected:
  int look() override { return rank_->functions.test(request_); }
  int block(int64_t limit_ms) override { return rank_->functions.wait(request_, limit_ms); }
  void give_back() override {
    int source = -1;
    if (receives_ && !has_failed() && rank_->functions.source(request_, &source) == kSuccess) {
      source_ = source;
    }
    rank_->functions.free(request_);
  }

private:
  void *request_;
  bool receives_;
  int source_ = -1;
};

/// Completes futures, of which most programs ask for none. Each is waited for by a thread of its own, since works end in any order, and
/// since what was to be done then may wait for others.
class Completer {
public:
  static Completer &get() {
    // It lives as long as the process: a thread that waits can not be told to end.
    static Completer *completer = new Completer();
    return *completer;
  }

  void add(WorkPtr work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (works_.size() >= idle_ && threads_ < kMostWaiters) {
      // Without a thread for it this throws, and nothing has happened.
      std::thread([this] { run(); }).detach();
      threads_++;
    }
    works_.push_back(std::move(work));
    some_.notify_one();
  }

private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      idle_++;
      some_.wait(lock, [this] { return !works_.empty(); });
      idle_--;
      auto work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      try {
        work->wait(kNoTimeout);
        work->future_->markCompleted(c10::IValue(work->outputs_));
      } catch (...) {
        work->future_->setError(std::current_exception());
      }
      work.reset();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<WorkPtr> works_;
  size_t idle_ = 0;
  size_t threads_ = 0;
};

inline c10::intrusive_ptr<c10::ivalue::Future> PendingWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    try {
      Completer::get().add(WorkPtr::reclaim_copy(this));
    } catch (...) {
      future_.reset();
      throw;
    }
  }
  return future_;
}

} // namespace accl
