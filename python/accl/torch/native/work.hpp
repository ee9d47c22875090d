// Operations on host streams, as PyTorch's Work: asked for and waited for without Python.

#pragma once

#include <pybind11/functional.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace py = pybind11;

namespace accl {

constexpr int kSuccess = 0;
constexpr int kInProgress = 7;
// Between two looks at a stream in a wait with a time limit.
constexpr auto kLook = std::chrono::microseconds(200);

/// What is called of the library, by addresses that come from Python, so that no header of ours is needed; and of Python.
struct Functions {
  int (*synchronize)(void *stream);
  int (*query)(void *stream);
  const char *(*error_text)(void *comm);
  /// A sentence for a failure: what and who.
  py::object explain;
  std::mutex mutex;
  /// Streams that nothing runs on.
  std::vector<uintptr_t> free;

  void give_back(uintptr_t stream) {
    std::lock_guard<std::mutex> lock(mutex);
    free.push_back(stream);
  }

  /// A stream, or 0 if a new one is needed.
  uintptr_t take() {
    std::lock_guard<std::mutex> lock(mutex);
    if (free.empty()) {
      return 0;
    }
    uintptr_t stream = free.back();
    free.pop_back();
    return stream;
  }
};

/// Python's objects go with the interpreter locked, whoever lets go of them.
template <typename T> std::shared_ptr<T> locked(T *value) {
  return std::shared_ptr<T>(value, [](T *value) {
    py::gil_scoped_acquire lock;
    delete value;
  });
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

class StreamWork : public c10d::Work {
public:
  StreamWork(std::shared_ptr<Functions> functions, uintptr_t stream, std::vector<at::Tensor> outputs,
             std::shared_ptr<py::object> finish, int source)
      : c10d::Work(-1, c10d::OpType::UNKNOWN), functions_(std::move(functions)), stream_((void *)stream),
        outputs_(std::move(outputs)), finish_(std::move(finish)), source_(source) {
    if (stream) {
      launched_.set_value();
    }
  }

  /// Whoever makes works keeps them until they are over. Else the process ends, and what is still written to stays.
  ~StreamWork() override {
    if (!over_) {
      new std::vector<at::Tensor>(std::move(outputs_));
      new std::shared_ptr<py::object>(std::move(finish_));
    }
  }

  /// It was made before it could be launched, and runs now.
  void begin(uintptr_t stream) {
    stream_ = (void *)stream;
    launched_.set_value();
  }

  /// It will never be launched.
  void refuse(const std::string &text) {
    fail(text);
    over_ = true;
    launched_.set_value();
  }

  bool isCompleted() override {
    WithoutPython released;
    if (!is_launched(std::chrono::milliseconds(0))) {
      return false;
    }
    std::unique_lock<std::mutex> lock(end_, std::try_to_lock);
    if (lock && !over_) {
      int code = functions_->query(stream_);
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
    WithoutPython released;
    if (timeout > std::chrono::milliseconds(0)) {
      is_launched(timeout);
      auto deadline = std::chrono::steady_clock::now() + timeout;
      while (!isCompleted()) {
        if (std::chrono::steady_clock::now() > deadline) {
          TORCH_CHECK_WITH(DistBackendError, false,
                           explained("the operation is not done after " + std::to_string(timeout.count()) +
                                     " ms; see accl status for who is missing"));
        }
        std::this_thread::sleep_for(kLook);
      }
    } else {
      has_launched_.wait();
      std::unique_lock<std::mutex> lock(end_);
      if (!over_) {
        end(functions_->synchronize(stream_));
      }
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return true;
  }

  void synchronize() override { wait(kNoTimeout); }

  std::vector<at::Tensor> result() override { return outputs_; }

  int sourceRank() const override { return source_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

private:
  friend class Completer;

  bool is_launched(std::chrono::milliseconds limit) const {
    return has_launched_.wait_for(limit) == std::future_status::ready;
  }

  /// Called once, with the lock held, when the stream has come to the end.
  void end(int code) {
    if (code != kSuccess) {
      fail(functions_->error_text(nullptr));
    }
    if (finish_) {
      py::gil_scoped_acquire lock;
      try {
        if (!failure_) {
          (*finish_)();
        }
      } catch (py::error_already_set &error) {
        fail(error.what());
      }
      finish_.reset();
    }
    functions_->give_back((uintptr_t)stream_);
    over_ = true;
  }

  void fail(const std::string &text) {
    try {
      TORCH_CHECK_WITH(DistBackendError, false, explained(text));
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  std::string explained(const std::string &text) {
    py::gil_scoped_acquire lock;
    return py::cast<std::string>(functions_->explain(text));
  }

  std::shared_ptr<Functions> functions_;
  void *stream_;
  std::vector<at::Tensor> outputs_;
  std::shared_ptr<py::object> finish_;
  int source_;
  std::promise<void> launched_;
  std::shared_future<void> has_launched_ = launched_.get_future().share();
  std::mutex end_;
  std::atomic<bool> over_{false};
  std::exception_ptr failure_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// The thread that completes futures, of which most programs ask for none. Works of one group end in their order.
class Completer {
public:
  static Completer &of(Functions *functions) {
    static std::mutex all;
    static std::unordered_map<Functions *, Completer *> completers;
    std::lock_guard<std::mutex> lock(all);
    Completer *&found = completers[functions];
    if (!found) {
      // It lives as long as the process: a thread that waits can not be told to end.
      found = new Completer();
      std::thread([found] { found->run(); }).detach();
    }
    return *found;
  }

  void add(c10::intrusive_ptr<StreamWork> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    works_.push_back(std::move(work));
    some_.notify_one();
  }

private:
  void run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      some_.wait(lock, [this] { return !works_.empty(); });
      auto work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      try {
        work->wait(kNoTimeout);
        work->future_->markCompleted(c10::IValue(work->outputs_));
      } catch (...) {
        work->future_->setError(std::current_exception());
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<c10::intrusive_ptr<StreamWork>> works_;
};

inline c10::intrusive_ptr<c10::ivalue::Future> StreamWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    Completer::of(functions_.get()).add(c10::intrusive_ptr<StreamWork>::reclaim_copy(this));
  }
  return future_;
}

} // namespace accl

