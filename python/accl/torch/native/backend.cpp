// The back end as PyTorch's C++ sees it. Plain calls, which most are, go to the library from here: one dense tensor of a type that the library
// has, built-in operators, the group's own time limit. All others are Python's (`group.py`).

#include "work.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace accl {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Collectives of nccl.h.
struct Collectives {
  int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
  int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
  int (*broadcast)(const void *, void *, size_t, int, int, void *, void *);
  int (*all_gather)(const void *, void *, size_t, int, void *, void *);
  int (*all_to_all)(const void *, void *, size_t, int, void *, void *);
};

constexpr int kUint8 = 1;
constexpr int kMax = 2;

/// ncclDataType_t, or -1.
inline int type_of(const at::Tensor &tensor) {
  switch (tensor.scalar_type()) {
  case at::kChar: return 0;
  case at::kByte: return 1;
  case at::kInt: return 2;
  case at::kLong: return 4;
  case at::kHalf: return 6;
  case at::kFloat: return 7;
  case at::kDouble: return 8;
  case at::kBFloat16: return 9;
  default: return -1;
  }
}

/// ncclRedOp_t, or -1.
inline int operator_of(const c10d::ReduceOp &op) {
  switch (op.op_) {
  case c10d::ReduceOp::SUM: return 0;
  case c10d::ReduceOp::PRODUCT: return 1;
  case c10d::ReduceOp::MAX: return 2;
  case c10d::ReduceOp::MIN: return 3;
  case c10d::ReduceOp::AVG: return 4;
  default: return -1;
  }
}

/// True if calls can use its memory as it is.
inline bool is_plain(const at::Tensor &tensor) {
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

/// What callers want who do not say: not to wait. Releases of PyTorch differ in whether they can say.
template <typename Options> auto waits(const Options &options, int) -> decltype(options.asyncOp) {
  return !options.asyncOp;
}
template <typename Options> bool waits(const Options &, long) { return false; }

class Backend : public c10d::Backend {
public:
  Backend(int rank, int size, py::object python, std::shared_ptr<Functions> functions, Collectives collectives)
      : c10d::Backend(rank, size), python_(locked(new py::object(std::move(python)))), functions_(std::move(functions)),
        collectives_(collectives) {}

  const std::string getBackendName() const override { return "accl"; }

  // ---- What Python tells

  /// The communicator has been made, or is no more (0), and how long calls on it may stand still.
  void use(uintptr_t comm, std::chrono::milliseconds limit, std::chrono::milliseconds usual) {
    comm_ = (void *)comm;
    limit_ = limit;
    usual_ = usual;
  }

  /// A stream, or 0 if a new one is needed.
  uintptr_t take() {
    // What ends may need Python, whose other threads may want this lock.
    WithoutPython released;
    std::lock_guard<std::mutex> lock(mutex_);
    while (!pending_.empty() && pending_.front()->isCompleted()) {
      pending_.pop_front();
    }
    return functions_->take();
  }

  WorkPtr work(uintptr_t stream, Tensors outputs, py::object finish, int source) {
    return keep(c10::make_intrusive<StreamWork>(functions_, stream, std::move(outputs),
                                                locked(new py::object(std::move(finish))), source));
  }

  /// Waits for all that is under way; failures are told to whoever waits for the operation.
  void drain() {
    WithoutPython released;
    for (;;) {
      WorkPtr work;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (pending_.empty()) {
          return;
        }
        work = pending_.front();
        pending_.pop_front();
      }
      try {
        work->wait(kNoTimeout);
      } catch (...) {
      }
    }
  }

  // ---- Collectives

  WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override {
    if (tensors.size() == 1 && plain(options, tensors[0])) {
      int type = type_of(tensors[0]), op = operator_of(options.reduceOp);
      if (type >= 0 && op >= 0) {
        void *data = tensors[0].data_ptr();
        size_t count = tensors[0].numel();
        return run(options, tensors, [=, this](void *stream) {
          return collectives_.all_reduce(data, data, count, type, op, comm_, stream);
        });
      }
    }
    return python("allreduce", tensors, options);
  }

  WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override {
    if (tensors.size() == 1 && plain(options, tensors[0])) {
      void *data = tensors[0].data_ptr();
      size_t bytes = tensors[0].nbytes();
      int root = options.rootRank;
      return run(options, tensors, [=, this](void *stream) {
        return collectives_.broadcast(data, data, bytes, kUint8, root, comm_, stream);
      });
    }
    return python("broadcast", tensors, options);
  }

  WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override {
    if (plain(options, input) && plain(options, output) && input.scalar_type() == output.scalar_type() &&
        output.numel() == input.numel() * getSize()) {
      const void *from = input.data_ptr();
      void *to = output.data_ptr();
      size_t bytes = input.nbytes();
      return run(options, {output, input}, [=, this](void *stream) {
        return collectives_.all_gather(from, to, bytes, kUint8, comm_, stream);
      });
    }
    return python("all_gather_single", output, input, options);
  }

  WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                               const c10d::ReduceScatterOptions &options) override {
    int type = type_of(output), op = operator_of(options.reduceOp);
    if (type >= 0 && op >= 0 && plain(options, input) && plain(options, output) &&
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() * getSize()) {
      const void *from = input.data_ptr();
      void *to = output.data_ptr();
      size_t count = output.numel();
      return run(options, {output, input}, [=, this](void *stream) {
        return collectives_.reduce_scatter(from, to, count, type, op, comm_, stream);
      });
    }
    return python("reduce_scatter_single", output, input, options);
  }

  WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_sizes,
                        std::vector<int64_t> &input_sizes, const c10d::AllToAllOptions &options) override {
    if (output_sizes.empty() && input_sizes.empty() && plain(options, input) && plain(options, output) &&
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() &&
        input.numel() % getSize() == 0) {
      const void *from = input.data_ptr();
      void *to = output.data_ptr();
      size_t bytes = input.nbytes() / getSize();
      return run(options, {output, input}, [=, this](void *stream) {
        return collectives_.all_to_all(from, to, bytes, kUint8, comm_, stream);
      });
    }
    return python("all_to_all_single", output, input, output_sizes, input_sizes, options);
  }

  WorkPtr barrier(const c10d::BarrierOptions &options) override {
    if (plain(options)) {
      auto word = std::make_shared<char>(0);
      Tensors none;
      if (waits(options, 0)) {
        return run(options, none, [=, this](void *stream) {
          return collectives_.all_reduce(word.get(), word.get(), 1, kUint8, kMax, comm_, stream);
        });
      }
    }
    return python("barrier", options);
  }

  WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override {
    return python("allreduce_coalesced", tensors, options);
  }
  WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override {
    return python("allreduce_sparse", tensors, options);
  }
  WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override {
    return python("reduce", tensors, options);
  }
  WorkPtr allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override {
    return python("allgather", outputs, inputs, options);
  }
  WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override {
    return python("allgather_coalesced", outputs, inputs, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::AllgatherOptions &options) override {
    return python("all_gather_single_coalesced", outputs, inputs, options);
  }
  WorkPtr gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &options) override {
    return python("gather", outputs, inputs, options);
  }
  WorkPtr scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &options) override {
    return python("scatter", outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &options) override {
    return python("reduce_scatter", outputs, inputs, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::ReduceScatterOptions &options) override {
    return python("reduce_scatter_single_coalesced", outputs, inputs, options);
  }
  WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override {
    return python("alltoall", outputs, inputs, options);
  }
  WorkPtr send(Tensors &tensors, int peer, int tag) override { return python("send", tensors, peer, tag); }
  WorkPtr recv(Tensors &tensors, int peer, int tag) override { return python("recv", tensors, peer, tag); }
  WorkPtr recvAnysource(Tensors &tensors, int tag) override { return python("recv_anysource", tensors, tag); }

  void monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) override {
    py::gil_scoped_acquire lock;
    python_->attr("monitored_barrier")(options, wait_all_ranks);
  }

  void setSequenceNumberForGroup() override { sequence_ = 0; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  // Of releases that have them.
  void setTimeout(std::chrono::milliseconds timeout) {
    py::gil_scoped_acquire lock;
    python_->attr("set_timeout")(timeout);
  }

  void shutdown() { end("shutdown"); }
  void abort() { end("abort"); }

private:
  /// True if a call needs nothing of Python: the communicator is there, and has this time limit.
  template <typename Options> bool plain(const Options &options) const {
    return comm_ && (options.timeout == c10d::kUnsetTimeout ? usual_ : options.timeout) == limit_;
  }
  template <typename Options> bool plain(const Options &options, const at::Tensor &tensor) const {
    return plain(options) && is_plain(tensor);
  }

  /// Makes a call, now if the caller waits for it, else on a stream.
  template <typename Options, typename Call> WorkPtr run(const Options &options, Tensors tensors, Call call) {
    WithoutPython released;
    sequence_++;
    uintptr_t stream = 0;
    if (!waits(options, 0)) {
      stream = take();
      if (!stream) {
        py::gil_scoped_acquire lock;
        stream = py::cast<uintptr_t>(python_->attr("new_stream")());
      }
    }
    int code = call((void *)stream);
    if (code != kSuccess) {
      std::string text = functions_->error_text(nullptr);
      if (stream) {
        functions_->give_back(stream);
      }
      py::gil_scoped_acquire lock;
      TORCH_CHECK_WITH(DistBackendError, false, py::cast<std::string>(functions_->explain(text)));
    }
    if (!stream) {
      return done_;
    }
    return keep(c10::make_intrusive<StreamWork>(functions_, stream, std::move(tensors), nullptr, -1));
  }

  /// Works live until they are over, also if the caller forgets them.
  WorkPtr keep(WorkPtr work) {
    WithoutPython released;
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back(work);
    return work;
  }

  template <typename... Arguments> WorkPtr python(const char *method, Arguments &&...arguments) {
    py::gil_scoped_acquire lock;
    sequence_++;
    return py::cast<WorkPtr>(python_->attr(method)(std::forward<Arguments>(arguments)...));
  }

  void end(const char *method) {
    py::gil_scoped_acquire lock;
    python_->attr(method)();
  }

  static WorkPtr make_done() {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(Tensors()));
    return c10d::Work::create_from_future(future);
  }

  std::shared_ptr<py::object> python_;
  std::shared_ptr<Functions> functions_;
  Collectives collectives_;
  void *comm_ = nullptr;
  std::chrono::milliseconds limit_{0};
  std::chrono::milliseconds usual_{0};
  std::atomic<uint64_t> sequence_{0};
  std::mutex mutex_;
  std::deque<WorkPtr> pending_;
  WorkPtr done_ = make_done();
};

} // namespace accl

PYBIND11_MODULE(_accl_native, module) {
  using namespace accl;
  py::class_<Collectives>(module, "Collectives");
  py::class_<Functions, std::shared_ptr<Functions>>(module, "Functions");
  module.def("functions", [](uintptr_t synchronize, uintptr_t query, uintptr_t error_text,
                             py::object explain) {
    return locked(new Functions{(int (*)(void *))synchronize, (int (*)(void *))query,
                                (const char *(*)(void *))error_text, std::move(explain), {}, {}});
  });
  // The addresses of the functions, in the order of the struct.
  module.def("collectives", [](const std::vector<uintptr_t> &addresses) {
    Collectives collectives;
    TORCH_CHECK(addresses.size() * sizeof(uintptr_t) == sizeof(collectives));
    memcpy(&collectives, addresses.data(), sizeof(collectives));
    return collectives;
  });
  module.def("backend", [](int rank, int size, py::object python, std::shared_ptr<Functions> functions,
                           Collectives collectives) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<Backend>(rank, size, std::move(python), std::move(functions), collectives);
  });
  // PyTorch's own class of back ends keeps others out of its family, so these are functions.
  auto ours = [](const c10::intrusive_ptr<c10d::Backend> &backend) { return static_cast<Backend *>(backend.get()); };
  using Ref = const c10::intrusive_ptr<c10d::Backend> &;
  module.def("use", [ours](Ref backend, uintptr_t comm, int64_t limit_ms, int64_t usual_ms) {
    ours(backend)->use(comm, std::chrono::milliseconds(limit_ms), std::chrono::milliseconds(usual_ms));
  });
  module.def("take", [ours](Ref backend) { return ours(backend)->take(); });
  module.def("give_back",
             [](const std::shared_ptr<Functions> &functions, uintptr_t stream) { functions->give_back(stream); });
  module.def("begin", [](const WorkPtr &work, uintptr_t stream) {
    static_cast<StreamWork *>(work.get())->begin(stream);
  });
  module.def("refuse", [](const WorkPtr &work, const std::string &text) {
    static_cast<StreamWork *>(work.get())->refuse(text);
  });
  module.def("drain", [ours](Ref backend) { ours(backend)->drain(); });
  module.def("work", [ours](Ref backend, uintptr_t stream, Tensors outputs, py::object finish, int source) {
    return ours(backend)->work(stream, std::move(outputs), std::move(finish), source);
  });
}
