// The back end as PyTorch's C++ sees it. Plain calls, which most are, go to the library from here: one dense tensor of a type that the library
// has, built-in operators, the group's own time limit. All others are Python's (`group.py`).

#include "lists.hpp"
#include "work.hpp"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace accl {

using TensorLists = std::vector<Tensors>;
using AnyWork = c10::intrusive_ptr<c10d::Work>;

constexpr int kMax = 2;
constexpr int kAnyRank = -1;

/// ncclDataType_t, or -1.
inline int type_of(const at::Tensor &tensor) {
  switch (tensor.scalar_type()) {
  case at::kChar: return 0;
  case at::kByte: return 1;
  case at::kInt: return 2;
  case at::kUInt32: return 3;
  case at::kLong: return 4;
  case at::kUInt64: return 5;
  case at::kHalf: return 6;
  case at::kFloat: return 7;
  case at::kDouble: return 8;
  case at::kBFloat16: return 9;
  case at::kFloat8_e4m3fn: return 10;
  case at::kFloat8_e5m2: return 11;
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

/// What callers want who do not say: not to wait. Releases of PyTorch differ in whether they can say.
template <typename Options> auto waits(const Options &options, int) -> decltype(options.asyncOp) {
  return !options.asyncOp;
}
template <typename Options> bool waits(const Options &, long) { return false; }

/// The name of a group that is to be made, of releases that say it.
template <typename Options> auto name_of(const Options &options, int) -> decltype(options.group_name) {
  return options.group_name;
}
template <typename Options> std::string name_of(const Options &, long) { return ""; }

class Backend : public c10d::Backend {
public:
  Backend(int rank, int size, py::object python, std::shared_ptr<Rank> own)
      : c10d::Backend(rank, size), python_(locked(new py::object(std::move(python)))), own_(std::move(own)),
        functions_(own_->functions) {}

  const std::string getBackendName() const override { return "accl"; }

  // ---- Collectives

  AnyWork allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override {
    if (tensors.size() == 1 && plain(options, tensors[0])) {
      int type = type_of(tensors[0]), op = operator_of(options.reduceOp);
      if (type >= 0 && op >= 0) {
        void *data = tensors[0].data_ptr();
        size_t count = tensors[0].numel();
        return run(options, tensors, {}, [=, this](void *comm, void *stream) {
          return functions_.all_reduce(data, data, count, type, op, comm, stream);
        });
      }
    }
    return python("allreduce", tensors, options);
  }

  AnyWork broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override {
    if (tensors.size() == 1 && plain(options, tensors[0])) {
      void *data = tensors[0].data_ptr();
      size_t bytes = tensors[0].nbytes();
      int root = options.rootRank;
      return run(options, tensors, {}, [=, this](void *comm, void *stream) {
        return functions_.broadcast(data, data, bytes, kUint8, root, comm, stream);
      });
    }
    return python("broadcast", tensors, options);
  }

  AnyWork _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override {
    if (plain(options, input) && plain(options, output) && input.scalar_type() == output.scalar_type() &&
        output.numel() == input.numel() * getSize()) {
      const void *from = input.data_ptr();
      void *to = output.data_ptr();
      size_t bytes = input.nbytes();
      return run(options, {output}, {input}, [=, this](void *comm, void *stream) {
        return functions_.all_gather(from, to, bytes, kUint8, comm, stream);
      });
    }
    return python("all_gather_single", output, input, options);
  }

  AnyWork _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                               const c10d::ReduceScatterOptions &options) override {
    int type = type_of(output), op = operator_of(options.reduceOp);
    if (type >= 0 && op >= 0 && plain(options, input) && plain(options, output) &&
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() * getSize()) {
      const void *from = input.data_ptr();
      void *to = output.data_ptr();
      size_t count = output.numel();
      return run(options, {output}, {input}, [=, this](void *comm, void *stream) {
        return functions_.reduce_scatter(from, to, count, type, op, comm, stream);
      });
    }
    return python("reduce_scatter_single", output, input, options);
  }

  AnyWork alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_sizes,
                        std::vector<int64_t> &input_sizes, const c10d::AllToAllOptions &options) override {
    if (output_sizes.empty() && input_sizes.empty() && plain(options, input) && plain(options, output) &&
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() &&
        input.numel() % getSize() == 0) {
      const void *from = input.data_ptr();
      void *to = output.data_ptr();
      size_t bytes = input.nbytes() / getSize();
      return run(options, {output}, {input}, [=, this](void *comm, void *stream) {
        return functions_.all_to_all(from, to, bytes, kUint8, comm, stream);
      });
    }
    // Even shares are another call, which all ranks make.
    if (!(output_sizes.empty() && input_sizes.empty()) && plain(options, input) && plain(options, output) &&
        input.scalar_type() == output.scalar_type()) {
      auto sends = rows_of(input, input_sizes, getSize()), receives = rows_of(output, output_sizes, getSize());
      if (sends && receives) {
        return exchange(options, {output}, {input}, std::move(*sends), std::move(*receives));
      }
    }
    return python("all_to_all_single", output, input, output_sizes, input_sizes, options);
  }

  AnyWork barrier(const c10d::BarrierOptions &options) override {
    if (plain(options)) {
      auto word = std::make_shared<char>(0);
      if (waits(options, 0)) {
        return run(options, {}, {}, [=, this](void *comm, void *stream) {
          return functions_.all_reduce(word.get(), word.get(), 1, kUint8, kMax, comm, stream);
        });
      }
    }
    return python("barrier", options);
  }

  AnyWork allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override {
    int op = operator_of(options.reduceOp);
    bool is_ours = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor &tensor) {
      return type_of(tensor) >= 0 && is_plain(tensor);
    });
    if (tensors.size() > 1 && plain(options) && op >= 0 && is_ours) {
      return run(options, tensors, {}, [=, this](void *comm, void *stream) {
        return grouped(functions_, [&] {
          for (const at::Tensor &tensor : tensors) {
            void *data = tensor.data_ptr();
            functions_.all_reduce(data, data, tensor.numel(), type_of(tensor), op, comm, stream);
          }
        });
      });
    }
    return python("allreduce_coalesced", tensors, options);
  }
  AnyWork allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) override {
    return python("allreduce_sparse", tensors, options);
  }
  AnyWork reduce(Tensors &tensors, const c10d::ReduceOptions &options) override {
    int op = operator_of(options.reduceOp), type = tensors.size() == 1 ? type_of(tensors[0]) : -1;
    if (type >= 0 && op >= 0 && plain(options, tensors[0])) {
      void *data = tensors[0].data_ptr();
      size_t count = tensors[0].numel();
      int root = options.rootRank;
      return run(options, tensors, {}, [=, this](void *comm, void *stream) {
        return functions_.reduce(data, getRank() == root ? data : nullptr, count, type, op, root, comm, stream);
      });
    }
    return python("reduce", tensors, options);
  }
  AnyWork allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override {
    if (is_row(outputs, inputs) && plain(options, inputs[0]) && are_alike(outputs[0], inputs[0])) {
      const Tensors &row = outputs[0];
      const at::Tensor &input = inputs[0];
      at::Tensor flat = together(row);
      Finish finish;
      if (!flat.defined()) {
        flat = at::empty({input.numel() * getSize()}, input.options().requires_grad(false));
        finish = [flat, row] { hand_out(flat, row); };
      }
      const void *from = input.data_ptr();
      void *to = flat.data_ptr();
      size_t bytes = input.nbytes();
      return run(
          options, row, {input},
          [=, this](void *comm, void *stream) { return functions_.all_gather(from, to, bytes, kUint8, comm, stream); },
          std::move(finish));
    }
    return python("allgather", outputs, inputs, options);
  }
  AnyWork allgather_coalesced(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override {
    return python("allgather_coalesced", outputs, inputs, options);
  }
  AnyWork allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::AllgatherOptions &options) override {
    return python("all_gather_single_coalesced", outputs, inputs, options);
  }
  AnyWork gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &options) override {
    int root = options.rootRank;
    bool receives = getRank() == root;
    if (inputs.size() == 1 && plain(options, inputs[0]) &&
        (!receives || (is_row(outputs, inputs) && are_plain(outputs[0], inputs[0].scalar_type())))) {
      Tensors row = receives ? outputs[0] : Tensors();
      return exchange(options, row, inputs, {{inputs[0].data_ptr(), inputs[0].nbytes(), root}}, parts_of(row));
    }
    return python("gather", outputs, inputs, options);
  }
  AnyWork scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &options) override {
    int root = options.rootRank;
    bool sends = getRank() == root;
    if (outputs.size() == 1 && plain(options, outputs[0]) &&
        (!sends || (is_row(inputs, outputs) && are_plain(inputs[0], outputs[0].scalar_type())))) {
      Tensors row = sends ? inputs[0] : Tensors();
      return exchange(options, outputs, row, parts_of(row), {{outputs[0].data_ptr(), outputs[0].nbytes(), root}});
    }
    return python("scatter", outputs, inputs, options);
  }
  AnyWork reduce_scatter(Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &options) override {
    if (is_row(inputs, outputs) && plain(options, outputs[0])) {
      const at::Tensor &output = outputs[0];
      int type = type_of(output), op = operator_of(options.reduceOp);
      bool is_even = std::all_of(inputs[0].begin(), inputs[0].end(), [&output](const at::Tensor &part) {
        return part.sizes() == output.sizes();
      });
      if (type >= 0 && op >= 0 && is_even && are_plain(inputs[0], output.scalar_type())) {
        at::Tensor flat = together(inputs[0]);
        if (!flat.defined()) {
          flat = joined(inputs[0]);
        }
        const void *from = flat.data_ptr();
        void *to = output.data_ptr();
        size_t count = output.numel();
        return run(options, {output}, {flat}, [=, this](void *comm, void *stream) {
          return functions_.reduce_scatter(from, to, count, type, op, comm, stream);
        });
      }
    }
    return python("reduce_scatter", outputs, inputs, options);
  }
  AnyWork reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                          const c10d::ReduceScatterOptions &options) override {
    return python("reduce_scatter_single_coalesced", outputs, inputs, options);
  }
  AnyWork alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override {
    size_t size = getSize();
    if (outputs.size() == size && inputs.size() == size && plain(options) &&
        are_plain(inputs, inputs[0].scalar_type()) && are_plain(outputs, inputs[0].scalar_type())) {
      return exchange(options, outputs, inputs, parts_of(inputs), parts_of(outputs));
    }
    return python("alltoall", outputs, inputs, options);
  }
  AnyWork send(Tensors &tensors, int peer, int tag) override {
    return is_plain_message(tensors) ? begin(functions_.send, false, tensors, peer, tag)
                                     : message("send", tensors, peer, tag);
  }
  AnyWork recv(Tensors &tensors, int peer, int tag) override {
    return is_plain_message(tensors) ? begin(functions_.receive, true, tensors, peer, tag)
                                     : message("recv", tensors, peer, tag);
  }
  AnyWork recvAnysource(Tensors &tensors, int tag) override {
    return is_plain_message(tensors) ? begin(functions_.receive, true, tensors, kAnyRank, tag)
                                     : message("recv_anysource", tensors, tag);
  }

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

  // Of releases that have it.
  c10::intrusive_ptr<Options> getBackendOptions() {
    return c10::make_intrusive<Options>("accl", std::chrono::milliseconds(own_->usual_ms.load()));
  }

  // ---- What the flight recorder asks for, which then leaves a file when something fails, in releases that have it for all back ends

  bool supportsAbortHooks() const { return true; }
  void registerAbortHook(int64_t id, std::function<void()> hook) { own_->on_failure(id, std::move(hook)); }
  void unregisterAbortHook(int64_t id) { own_->on_failure(id, nullptr); }

  // ---- Other groups out of this one, in releases that ask for them

  bool supportsSplitting() const { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                          const c10::intrusive_ptr<Options> &options) {
    py::gil_scoped_acquire lock;
    if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) {
      return nullptr;
    }
    return py::cast<c10::intrusive_ptr<c10d::Backend>>(
        python_->attr("split")(store, ranks, options->timeout, name_of(*options, 0)));
  }

  bool supportsShrinking() const { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t> &excluded, int flags = 0,
                                           const c10::intrusive_ptr<Options> & = nullptr) {
    py::gil_scoped_acquire lock;
    return py::cast<c10::intrusive_ptr<c10d::Backend>>(python_->attr("shrink")(excluded, flags));
  }

private:
  /// True if a call needs nothing of Python: the communicator is there, and has this time limit.
  template <typename Options> bool plain(const Options &options) const {
    int64_t usual_ms = own_->usual_ms;
    int64_t wanted_ms = options.timeout == c10d::kUnsetTimeout ? usual_ms : options.timeout.count();
    return own_->comm.load() && wanted_ms == own_->limit_ms;
  }
  template <typename Options> bool plain(const Options &options, const at::Tensor &tensor) const {
    return plain(options) && is_plain(tensor);
  }

  /// True if there is one list, of a tensor for each rank, and one tensor beside it.
  bool is_row(const TensorLists &lists, const Tensors &beside) const {
    return lists.size() == 1 && (int)lists[0].size() == getSize() && beside.size() == 1;
  }

  template <typename Options>
  AnyWork exchange(const Options &options, Tensors outputs, Tensors inputs, Parts sends, Parts receives) {
    return run(options, std::move(outputs), std::move(inputs), [&, this](void *comm, void *stream) {
      return accl::exchange(functions_, sends, receives, comm, stream);
    });
  }

  /// Makes a call, now if the caller waits for it, else on a stream; `finish` is for when it is over.
  template <typename Options, typename Call>
  AnyWork run(const Options &options, Tensors outputs, Tensors inputs, Call call, Finish finish = nullptr) {
    WithoutPython released;
    sequence_++;
    uintptr_t stream = 0;
    if (!waits(options, 0)) {
      stream = own_->take();
      if (!stream) {
        py::gil_scoped_acquire lock;
        stream = py::cast<uintptr_t>(python_->attr("new_stream")());
      }
    }
    int code = call(own_->comm.load(), (void *)stream);
    if (code != kSuccess) {
      std::string text = functions_.error_text();
      if (stream) {
        own_->give_back(stream);
      }
      own_->refuse(text);
    }
    if (!stream) {
      if (finish) {
        finish();
      }
      return done_;
    }
    return own_->keep(
        c10::make_intrusive<StreamWork>(own_, stream, std::move(outputs), std::move(inputs), std::move(finish)));
  }

  template <typename... Arguments> AnyWork python(const char *method, Arguments &&...arguments) {
    sequence_++;
    return message(method, std::forward<Arguments>(arguments)...);
  }

  /// The same for what ranks do not all do, and so do not count.
  template <typename... Arguments> AnyWork message(const char *method, Arguments &&...arguments) {
    py::gil_scoped_acquire lock;
    return py::cast<AnyWork>(python_->attr(method)(std::forward<Arguments>(arguments)...));
  }

  /// Begins a message of a tensor's bytes by the library's `call`.
  template <typename Call> AnyWork begin(Call call, bool receives, const Tensors &tensors, int peer, int tag) {
    WithoutPython released;
    void *request = nullptr;
    int code = call(tensors[0].data_ptr(), tensors[0].nbytes(), peer, tag, own_->messages, own_->usual_ms, &request);
    if (code != kSuccess) {
      own_->refuse(functions_.error_text());
    }
    return own_->keep(c10::make_intrusive<MessageWork>(own_, request, receives, tensors, nullptr));
  }

  bool is_plain_message(const Tensors &tensors) const {
    return own_->messages.load() && tensors.size() == 1 && is_plain(tensors[0]);
  }

  void end(const char *method) {
    py::gil_scoped_acquire lock;
    python_->attr(method)();
  }

  static AnyWork make_done() {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(Tensors()));
    return c10d::Work::create_from_future(future);
  }

  std::shared_ptr<py::object> python_;
  std::shared_ptr<Rank> own_;
  const Functions &functions_;
  std::atomic<uint64_t> sequence_{0};
  AnyWork done_ = make_done();
};

} // namespace accl

PYBIND11_MODULE(_accl_native, module) {
  using namespace accl;
  py::class_<Rank, std::shared_ptr<Rank>>(module, "Rank");
  // The addresses of the functions, in the order of the struct.
  module.def("rank", [](const std::vector<uintptr_t> &addresses, py::object explain) {
    Functions functions;
    TORCH_CHECK(addresses.size() * sizeof(uintptr_t) == sizeof(functions));
    memcpy(&functions, addresses.data(), sizeof(functions));
    return std::make_shared<Rank>(functions, std::move(explain));
  });
  module.def("backend", [](int rank, int size, py::object python,
                           std::shared_ptr<Rank> own) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<Backend>(rank, size, std::move(python), std::move(own));
  });
  using Ref = const std::shared_ptr<Rank> &;
  module.def("use", [](Ref rank, uintptr_t comm, uintptr_t messages, int64_t limit_ms, int64_t usual_ms) {
    rank->comm = (void *)comm;
    rank->messages = (void *)messages;
    rank->limit_ms = limit_ms;
    rank->usual_ms = usual_ms;
  });
  module.def("take", [](Ref rank) { return rank->take(); });
  module.def("sweep", [](Ref rank) { rank->sweep(); });
  module.def("tell_failure", [](Ref rank) { rank->tell_failure(); });
  module.def("give_back", [](Ref rank, uintptr_t stream) { rank->give_back(stream); });
  module.def("drain", [](Ref rank, int64_t limit_ms) { return rank->drain(std::chrono::milliseconds(limit_ms)); });
  module.def("work", [](Ref rank, uintptr_t stream, Tensors outputs, py::object finish) -> AnyWork {
    return rank->keep(c10::make_intrusive<StreamWork>(rank, stream, std::move(outputs), Tensors(),
                                                      by_python(std::move(finish))));
  });
  module.def("message", [](Ref rank, uintptr_t request, bool receives, Tensors tensors, py::object finish) -> AnyWork {
    return rank->keep(c10::make_intrusive<MessageWork>(rank, (void *)request, receives, std::move(tensors),
                                                       by_python(std::move(finish))));
  });
}
