// The models by name. Where published variants differ, what was chosen is said at the model.
#include <algorithm>
#include <string>
#include <vector>

#include "trainer/model_spec.h"

namespace gradlane {
namespace {

// Two hidden layers: 784-256-128-10 on MNIST.
ModelSpec BuildMlp(SpecBuilder b, int num_classes) {
  b.UseSmallInit();
  int x = b.FullyConnected(b.image(), "fc1", 256, true);
  x = b.FullyConnected(x, "fc2", 128, true);
  x = b.FullyConnected(x, "fc3", num_classes, false);
  return std::move(b).SoftmaxLoss(x);
}

// The wide LeNet-5 of Caffe's and MXNet's examples: 431,080 parameters on 28x28x1, 93% of them in fc1. Caffe has no
// non-linearity behind its convolutions; here there is a ReLU.
ModelSpec BuildLenet5(SpecBuilder b, int num_classes) {
  b.UseSmallInit();
  int x = b.Conv(b.image(), "conv1", {.channels = 20, .kernel = 5, .relu = true});
  x = b.MaxPool(x, 2, 2);
  x = b.Conv(x, "conv2", {.channels = 50, .kernel = 5, .relu = true});
  x = b.MaxPool(x, 2, 2);
  x = b.FullyConnected(x, "fc1", 500, true);
  x = b.FullyConnected(x, "fc2", num_classes, false);
  return std::move(b).SoftmaxLoss(x);
}

// Simonyan and Zisserman 2015, table 1. 0 is a max pooling.
const std::vector<int> kVgg11 = {64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0};
const std::vector<int> kVgg16 = {64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0};

int VggFeatures(SpecBuilder& b, const std::vector<int>& widths, bool batch_norm) {
  int x = b.image(), convs = 0;
  for (int width : widths) {
    if (width == 0) {
      x = b.MaxPool(x, 2, 2, 0, /*round_up=*/true);  // 28x28 needs it to survive five halvings: 14, 7, 4, 2, 1
    } else {
      x = b.Conv(x, "conv" + std::to_string(++convs),
                 {.channels = width, .kernel = 3, .pad = 1, .batch_norm = batch_norm, .relu = true});
    }
  }
  return x;
}

// VGG-11's convolutions with batch normalisation and one fully connected layer, as is customary at 32x32.
ModelSpec BuildVgg11(SpecBuilder b, int num_classes) {
  int x = VggFeatures(b, kVgg11, true);
  x = b.FullyConnected(x, "fc", num_classes, false);
  return std::move(b).SoftmaxLoss(x);
}

// Configuration D. No dropout: the same step must give the same bits wherever it runs.
ModelSpec BuildVgg16(SpecBuilder b, int num_classes) {
  int x = VggFeatures(b, kVgg16, false);
  x = b.FullyConnected(x, "fc1", 4096, true);
  x = b.FullyConnected(x, "fc2", 4096, true);
  x = b.FullyConnected(x, "fc3", num_classes, false);
  return std::move(b).SoftmaxLoss(x);
}

// Joins a block's main path with its shortcut: the input itself, or its projection by a 1x1 convolution (option B of
// He et al. 2016) where the shape changes. The projection is a layer of its own, behind the main path's.
int Join(SpecBuilder& b, int x, int main, int stride, const std::string& name) {
  if (b.shape(x) == b.shape(main)) return b.AddRelu(main, x);
  int shortcut = b.Conv(x, name + ".shortcut",
                        {.channels = b.shape(main).channels, .kernel = 1, .stride = stride, .batch_norm = true});
  return b.AddRelu(main, shortcut);
}

// He et al. 2016, section 4.2, n = 3, with projections instead of zero-padded shortcuts.
ModelSpec BuildResnet20(SpecBuilder b, int num_classes) {
  int x = b.Conv(b.image(), "conv1", {.channels = 16, .kernel = 3, .pad = 1, .batch_norm = true, .relu = true});
  for (int stage = 0; stage < 3; stage++) {
    for (int block = 0; block < 3; block++) {
      const std::string name = "stage" + std::to_string(stage + 1) + ".block" + std::to_string(block + 1);
      const int channels = 16 << stage;
      const int stride = stage > 0 && block == 0 ? 2 : 1;
      int y = b.Conv(x, name + ".conv1",
                     {.channels = channels, .kernel = 3, .stride = stride, .pad = 1, .batch_norm = true, .relu = true});
      y = b.Conv(y, name + ".conv2", {.channels = channels, .kernel = 3, .pad = 1, .batch_norm = true});
      x = Join(b, x, y, stride, name);
    }
  }
  x = b.GlobalAvgPool(x);
  x = b.FullyConnected(x, "fc", num_classes, false);
  return std::move(b).SoftmaxLoss(x);
}

// ResNet-50 v1.5: as in table 1 of the paper, with the stride in the 3x3 convolution of a block.
ModelSpec BuildResnet50(SpecBuilder b, int num_classes) {
  int x = b.Conv(b.image(), "conv1",
                 {.channels = 64, .kernel = 7, .stride = 2, .pad = 3, .batch_norm = true, .relu = true});
  x = b.MaxPool(x, 3, 2, 1);
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; stage++) {
    for (int block = 0; block < blocks[stage]; block++) {
      const std::string name = "stage" + std::to_string(stage + 1) + ".block" + std::to_string(block + 1);
      const int channels = 64 << stage;
      const int stride = stage > 0 && block == 0 ? 2 : 1;
      int y = b.Conv(x, name + ".conv1", {.channels = channels, .kernel = 1, .batch_norm = true, .relu = true});
      y = b.Conv(y, name + ".conv2",
                 {.channels = channels, .kernel = 3, .stride = stride, .pad = 1, .batch_norm = true, .relu = true});
      y = b.Conv(y, name + ".conv3", {.channels = 4 * channels, .kernel = 1, .batch_norm = true});
      x = Join(b, x, y, stride, name);
    }
  }
  x = b.GlobalAvgPool(x);
  x = b.FullyConnected(x, "fc", num_classes, false);
  return std::move(b).SoftmaxLoss(x);
}

struct ZooEntry {
  const char* name;
  bool large;  // 224x224x3; the small ones take 28x28 and 32x32 of 1 or 3 channels
  ModelSpec (*build)(SpecBuilder, int num_classes);
};

constexpr ZooEntry kZoo[] = {
    {"mlp", false, BuildMlp},           {"lenet5", false, BuildLenet5}, {"vgg11", false, BuildVgg11},
    {"resnet20", false, BuildResnet20}, {"vgg16", true, BuildVgg16},    {"resnet50", true, BuildResnet50},
};

constexpr int kMaxClasses = 100000;

}  // namespace

Result<ModelSpec> FindModel(const std::string& name, ImageShape image, int num_classes) {
  const ZooEntry* entry =
      std::find_if(std::begin(kZoo), std::end(kZoo), [&](const ZooEntry& e) { return e.name == name; });
  if (entry == std::end(kZoo)) {
    std::string names;
    for (const ZooEntry& e : kZoo) names += (names.empty() ? "" : ", ") + std::string(e.name);
    return Fail(ErrorCode::kInvalidArgument, "There is no model '" + name + "'; there are " + names + ".");
  }
  const bool small_image = image.height == image.width && (image.height == 28 || image.height == 32) &&
                           (image.channels == 1 || image.channels == 3);
  const bool fits = entry->large ? image == ImageShape{3, 224, 224} : small_image;
  if (!fits) {
    return Fail(ErrorCode::kInvalidArgument,
                "Model " + name + " takes images of " +
                    (entry->large ? "224x224 with 3 channels" : "28x28 or 32x32 with 1 or 3 channels") + ", not " +
                    std::to_string(image.height) + "x" + std::to_string(image.width) + " with " +
                    std::to_string(image.channels) + ".");
  }
  if (num_classes < 2 || num_classes > kMaxClasses) {
    return Fail(ErrorCode::kInvalidArgument, "A model needs 2 to " + std::to_string(kMaxClasses) + " classes, not " +
                                                 std::to_string(num_classes) + ".");
  }
  return entry->build(SpecBuilder(name, image, num_classes), num_classes);
}

Result<std::vector<TensorSpec>> ModelTensors(const std::string& name, ImageShape image, int num_classes) {
  ASSIGN_OR_RETURN(ModelSpec spec, FindModel(name, image, num_classes));
  return std::move(spec.tensors);
}

}  // namespace gradlane
