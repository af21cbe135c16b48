// Op is one operation of a network, made for one device, one batch size and one place in memory: what model_cpu.h runs
// in order, and what a cuDNN backend implements again. A layer, the unit of scheduling of model.h, is a run of ops: a
// convolution, its batch normalisation, and the pooling behind them.
//
// What every implementation keeps:
// - Everything is made at build time: kernels, scratch, and the places of activations and their gradients. A pass
//   allocates nothing of ours.
// - Parameters and their gradients lie in the caller's memory (Model::Bind) in plain, dense order: convolutions OIHW,
//   fully connected layers (outputs, inputs). An op that wants another order converts inside each call, since the
//   parameters change every step.
// - Forward reads the op's parameters only within the call. Backward may read them again, and when it returns it has
//   written the gradients of its parameters and of its inputs: nothing reads its parameters until the next Forward.
// - The same inputs and the same number of threads give the same bits.
//
// Shapes, N = batch; dy and dx are gradients of the mean loss:
//
//   op              forward                                       backward
//   kFlatten        y: (N, C*H*W) = x: (N, C, H, W)               dx = dy
//   kConv           y: (N, O, H', W') = x * weight + bias         dx, dweight: (O, C, K, K), dbias: (O)
//   kFullyConnected y: (N, O) = x: (N, I) weight^T + bias         dx, dweight: (O, I), dbias: (O)
//   kBatchNorm      y = scale (x - mean) / sqrt(var + eps) + shift   dx, dscale: (C), dshift: (C)
//   kMaxPool        y: (N, C, H', W') = max over each window      dx: dy at the window's first maximum
//   kGlobalAvgPool  y: (N, C) = mean over H, W                    dx = dy / (H W)
//   kAdd            y = x + x2                                    dx = dx2 = dy
//   kSoftmaxLoss    loss = mean over N of -log softmax(x)[label]  dx = (softmax(x) - onehot(label)) / N
//
// With `relu`, y is clamped to max(0, y) and dy is masked where y is not positive.
//
// Batch normalisation: mean and variance over N, H, W per channel. A training pass normalises with the biased variance
// (divisor M = N H W) and moves the running statistics by a tenth, running = 0.9 running + 0.1 batch, with the unbiased
// variance (divisor M - 1), as PyTorch does. An inference pass normalises with the running statistics, which start at
// mean 0 and variance 1 and belong to the model, not to the parameters: each worker keeps its own.
//
// Owned by its Model, called by the training thread.
#pragma once

namespace gradlane {

enum class PassKind { kTraining, kInference };

inline constexpr float kBatchNormEpsilon = 1e-5f;
inline constexpr float kBatchNormMomentum = 0.1f;

class Op {
 public:
  virtual ~Op() = default;

  // Reads the inputs' memory, writes the output's.
  virtual void Forward(PassKind kind) = 0;

  // Of the last Forward, which was a training pass. The gradient of the output is complete; it may be overwritten. A
  // value that several ops read gets the sum: the last of its readers runs first and writes, the others add.
  virtual void Backward() = 0;
};

}  // namespace gradlane
