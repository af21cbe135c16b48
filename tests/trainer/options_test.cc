#include "trainer/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "tests/trainer/data_files.h"

namespace gradlane {
namespace {

using testing::HasSubstr;

constexpr const char* kSecret = "a secret of 16 characters or more";

ParsedOptions Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"gradlane-train"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseOptions(int(argv.size()), argv.data());
}

Options Accepted(const std::vector<std::string>& arguments) {
  ParsedOptions parsed = Parse(arguments);
  EXPECT_TRUE(parsed.options.has_value()) << parsed.text;
  EXPECT_EQ(parsed.exit_code, 0);
  return parsed.options.value_or(Options{});
}

Options Local(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--local", "1x1"});
  return Accepted(arguments);
}

void ExpectRefused(const std::vector<std::string>& arguments, const std::string& sentence) {
  const ParsedOptions parsed = Parse(arguments);
  EXPECT_FALSE(parsed.options.has_value()) << testing::PrintToString(arguments);
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.text, HasSubstr(sentence));
  EXPECT_THAT(parsed.text, testing::StartsWith("gradlane-train: "));
  EXPECT_EQ(parsed.text.find('\n'), parsed.text.size() - 1) << "one line: " << parsed.text;
  EXPECT_EQ(parsed.text.substr(parsed.text.size() - 2), ".\n") << parsed.text;
}

void ExpectLocalRefused(std::vector<std::string> arguments, const std::string& sentence) {
  arguments.insert(arguments.begin(), {"--local", "1x1"});
  ExpectRefused(arguments, sentence);
}

class OptionsTest : public testing::Test {
 protected:
  void SetUp() override { setenv("GRADLANE_SECRET", kSecret, 1); }
  void TearDown() override { unsetenv("GRADLANE_SECRET"); }
};

TEST_F(OptionsTest, GivenOnlyLocal_ExpectTheDefaults) {
  const Options options = Accepted({"--local", "2x1"});
  EXPECT_TRUE(options.local);
  EXPECT_EQ(options.members, (Membership{2, 1}));
  EXPECT_FALSE(options.role.has_value());
  EXPECT_EQ(options.model, "lenet5");
  EXPECT_EQ(options.data_dir, "build/data/mnist");
  EXPECT_EQ(options.epochs, 2);
  EXPECT_FALSE(options.steps.has_value());
  EXPECT_EQ(options.codec, Codec::kFec);
  EXPECT_EQ(options.reply, ReplyCodec::kFec);
  EXPECT_EQ(options.fec_threshold, -7);
  EXPECT_EQ(options.schedule, Schedule::kPreemptive);
  EXPECT_EQ(options.secret, "") << "only a rank of its own needs one";
}

TEST_F(OptionsTest, GivenEveryOption_ExpectItsValue) {
  const Options o = Accepted({"--local=3x2",
                              "--join-timeout",
                              "2.5",
                              "--peer-timeout=1",
                              "--model",
                              "resnet20",
                              "--data",
                              "cifar10",
                              "--data-dir",
                              "/some where",
                              "--epochs",
                              "7",
                              "--steps",
                              "900",
                              "--batch",
                              "32",
                              "--seed",
                              "18446744073709551615",
                              "--augment",
                              "off",
                              "--threads",
                              "3",
                              "--device",
                              "cpu",
                              "--lr",
                              "0.1",
                              "--lr-schedule",
                              "step",
                              "--warmup-epochs",
                              "0.5",
                              "--lr-step-epochs",
                              "2",
                              "--lr-gamma",
                              "0.3",
                              "--nonfinite-limit",
                              "3",
                              "--momentum",
                              "0",
                              "--weight-decay",
                              "5e-4",
                              "--optimizer",
                              "adam",
                              "--codec",
                              "2bit",
                              "--fec-threshold",
                              "-9",
                              "--fec-density",
                              "0.01",
                              "--fec-layout",
                              "runs",
                              "--fec-rounding",
                              "truncate",
                              "--codec-threads",
                              "3",
                              "--codec-vectors",
                              "SCALAR",
                              "--error-feedback",
                              "off",
                              "--two-bit-threshold",
                              "0.25",
                              "--reply",
                              "fec",
                              "--fec-reply-threshold",
                              "-11",
                              "--schedule",
                              "fifo",
                              "--sync",
                              "ssp:4",
                              "--fabric",
                              "loopback",
                              "--segment-bytes",
                              "32K",
                              "--window-bytes",
                              "1M",
                              "--json",
                              "out.json",
                              "--trace",
                              "trace.json",
                              "--dump-gradients",
                              "dump",
                              "--dump-step",
                              "5"});
  EXPECT_EQ(o.members, (Membership{3, 2}));
  EXPECT_EQ(o.join_timeout_ms, 2500);
  EXPECT_EQ(o.peer_timeout_ms, 1000);
  EXPECT_EQ(o.model, "resnet20");
  EXPECT_EQ(o.data, "cifar10");
  EXPECT_EQ(o.data_dir, "/some where");
  EXPECT_EQ(o.epochs, 7);
  EXPECT_EQ(o.steps, 900);
  EXPECT_EQ(o.batch, 32);
  EXPECT_EQ(o.seed, UINT64_MAX);
  EXPECT_EQ(o.augment, false);
  EXPECT_EQ(o.threads, 3);
  EXPECT_EQ(o.device, "cpu");
  EXPECT_EQ(o.lr, 0.1f);
  EXPECT_EQ(o.lr_schedule, LrSchedule::kStep);
  EXPECT_EQ(o.warmup_epochs, 0.5);
  EXPECT_EQ(o.lr_step_epochs, 2);
  EXPECT_EQ(o.lr_gamma, 0.3f);
  EXPECT_EQ(o.momentum, 0);
  EXPECT_EQ(o.nonfinite_limit, 3u);
  EXPECT_EQ(o.weight_decay, 5e-4f);
  EXPECT_EQ(o.optimizer, OptimizerKind::kAdam);
  EXPECT_EQ(o.codec, Codec::kTwoBit);
  EXPECT_EQ(o.fec_threshold, -9);
  EXPECT_EQ(o.fec_density, 0.01);
  EXPECT_TRUE(o.fec_runs_layout);
  EXPECT_EQ(o.fec_rounding, fec::Rounding::kTruncate);
  EXPECT_EQ(o.codec_choice.num_threads, 3);
  EXPECT_EQ(o.codec_choice.target, "SCALAR");
  EXPECT_FALSE(o.error_feedback);
  EXPECT_EQ(o.two_bit_threshold, 0.25f);
  EXPECT_EQ(o.reply, ReplyCodec::kFec) << "said, so it does not follow the codec";
  EXPECT_EQ(o.fec_reply_threshold, -11);
  EXPECT_EQ(o.schedule, Schedule::kFifo);
  EXPECT_EQ(o.sync, (Sync{SyncKind::kSsp, 4}));
  EXPECT_EQ(o.fabric, "loopback");
  EXPECT_EQ(o.segment_bytes, 32768u);
  EXPECT_EQ(o.window_bytes, 1u << 20);
  EXPECT_EQ(o.json, "out.json");
  EXPECT_EQ(o.trace, "trace.json");
  EXPECT_EQ(o.dump_gradients, "dump");
  EXPECT_EQ(o.dump_step, 5);
}

TEST_F(OptionsTest, GivenCodecAuto_ExpectItsOptionsAndRefusalsOfWhatDoesNotGoTogether) {
  const Options o = Local({"--codec", "auto", "--link-mbps", "400", "--codec-decide-steps", "5", "--codec-plan-out", "x"});
  EXPECT_EQ(o.codec, Codec::kAuto);
  EXPECT_EQ(o.reply, ReplyCodec::kFec);
  EXPECT_EQ(o.link_mbps, 400u);
  EXPECT_EQ(o.codec_decide_steps, 5u);
  EXPECT_EQ(o.codec_plan_out, "x");
  EXPECT_EQ(Local({"--codec", "auto", "--codec-plan", "y"}).codec_plan, "y");
  EXPECT_FALSE(Local({"--codec", "auto"}).link_mbps) << "the default is told apart from what was asked for";
  for (const char* name : {"--link-mbps", "--codec-decide-steps", "--codec-plan", "--codec-plan-out"}) {
    ExpectLocalRefused({name, "5"}, std::string(name) + " goes with --codec auto.");
  }
  ExpectLocalRefused({"--codec", "auto", "--codec-plan", "x", "--codec-plan-out", "y"}, "give one of the two");
  ExpectRefused({"--local", "1x0", "--codec", "auto", "--codec-plan", "x"}, "need a server");
  ExpectLocalRefused({"--codec", "auto", "--link-mbps", "0"}, "is not a whole number from 1 to ");
  ExpectLocalRefused({"--codec", "auto", "--codec-decide-steps", "0"}, "is not a whole number from 1 to ");
}

TEST_F(OptionsTest, GivenNoReply_ExpectItToFollowTheCodec) {
  EXPECT_EQ(Local({"--codec", "fec"}).reply, ReplyCodec::kFec);
  EXPECT_EQ(Local({"--codec", "none"}).reply, ReplyCodec::kRaw);
  EXPECT_EQ(Local({"--codec", "2bit"}).reply, ReplyCodec::kRaw);
  EXPECT_EQ(Local({"--codec", "none", "--reply", "fec"}).reply, ReplyCodec::kFec);
}

TEST_F(OptionsTest, GivenAutoThreshold_ExpectNone) {
  EXPECT_FALSE(Local({"--fec-threshold", "auto"}).fec_threshold.has_value());
}

TEST_F(OptionsTest, GivenARank_ExpectItsPlaceAndSecret) {
  const Options o = Accepted({"--role", "worker", "--rank", "1", "--workers", "4", "--servers", "2", "--rendezvous",
                              "10.0.0.1:7000", "--parent-fd", "5", "--listen-fd", "6"});
  EXPECT_EQ(o.role, Role::kWorker);
  EXPECT_EQ(o.rank, 1u);
  EXPECT_FALSE(o.local);
  EXPECT_EQ(o.members, (Membership{4, 2}));
  EXPECT_EQ(o.rendezvous, "10.0.0.1:7000");
  EXPECT_EQ(o.secret, kSecret);
  EXPECT_EQ(o.parent_fd, 5);
  EXPECT_EQ(o.listen_fd, 6);

  const Options alone = Accepted({"--role", "worker", "--servers", "0"});
  EXPECT_EQ(alone.secret, "") << "it meets nobody";
}

TEST_F(OptionsTest, GivenASecretFile_ExpectItBeforeTheEnvironment) {
  TempFolder folder;
  const std::string path = folder.Write("secret", "another secret, long enough\n");
  chmod(path.c_str(), 0600);
  const std::vector<std::string> rank = {"--role", "server", "--rendezvous", "a:1", "--secret-file"};
  std::vector<std::string> arguments = rank;
  arguments.push_back(path);
  EXPECT_EQ(Accepted(arguments).secret, "another secret, long enough");
  arguments.back() = folder.path() + "/none";
  const ParsedOptions parsed = Parse(arguments);
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.text, HasSubstr(folder.path() + "/none"));
}

TEST_F(OptionsTest, GivenNoSecret_ExpectWhereItComesFrom) {
  unsetenv("GRADLANE_SECRET");
  ExpectRefused({"--role", "worker", "--rendezvous", "a:1"}, "GRADLANE_SECRET");
  Accepted({"--local", "2x2"});
}

TEST_F(OptionsTest, GivenNothingOrTooMuch_ExpectHowToStart) {
  ExpectRefused({}, "--local 2x1 starts two workers and a server");
  ExpectRefused({"--batch", "3"}, "--role worker");
  ExpectRefused({"--local", "2x1", "--role", "worker"}, "give one of the two");
  for (const char* option : {"--rank", "--workers", "--servers"}) {
    ExpectRefused({"--local", "2x1", option, "1"}, std::string(option) + " goes with --role");
  }
  ExpectRefused({"--local", "2x1", "--rendezvous", "a:1"}, "--rendezvous goes with --role");
}

TEST_F(OptionsTest, GivenABadShape_ExpectTheSyntax) {
  EXPECT_EQ(Accepted({"--local", "1x0"}).members, (Membership{1, 0}));
  for (const char* text :
       {"", "2", "x", "2x", "x1", "0x1", "-1x1", "2x1x1", "2X1", " 2x1", "2x-1", "257x1", "1x257", "99999999999x1"}) {
    ExpectRefused({"--local=" + std::string(text)}, "--local");
  }
  ExpectRefused({"--local", "2"}, "WxS");
  ExpectRefused({"--local", "2x0"}, "give --local 2x1");
}

TEST_F(OptionsTest, GivenARankThatCannotBe_ExpectASentence) {
  const auto rank = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--rendezvous", "host:1", "--role"});
    return more;
  };
  ExpectRefused(rank({"worker", "--rank", "2", "--workers", "2"}), "--rank 2 does not exist among --workers 2");
  ExpectRefused(rank({"server", "--rank", "1", "--workers", "2"}), "--rank 1 does not exist among --servers 1");
  ExpectRefused(rank({"server", "--servers", "0"}), "there are none with --servers 0");
  ExpectRefused(rank({"worker", "--workers", "2", "--servers", "0"}), "give --servers 1 or more");
  ExpectRefused(rank({"worker", "--workers", "0"}), "--workers: '0'");
  ExpectRefused(rank({"scheduler"}), "say worker or server");
  ExpectRefused(rank({"worker", "--fabric", "loopback"}), "it goes with --local");
  ExpectRefused({"--role", "worker"}, "needs --rendezvous HOST:PORT");
  for (const char* address : {"host", "host:", ":1", "host:0", "host:65536", "host:x"}) {
    ExpectRefused({"--role", "worker", "--rendezvous", address}, "--rendezvous: ");
  }
}

TEST_F(OptionsTest, GivenAnUnknownName_ExpectTheChoices) {
  ExpectLocalRefused({"--model", "alexnet"},
                     "'alexnet' is not a model: say mlp, lenet5, vgg11, resnet20, vgg16 or resnet50");
  ExpectLocalRefused({"--data", "imagenet"}, "say mnist, fashion-mnist, cifar10, cifar100 or synthetic");
  ExpectLocalRefused({"--codec", "zip"}, "--codec: 'zip' is not a codec: say none, fec, 2bit or auto");
  ExpectLocalRefused({"--reply", "zip"}, "say raw or fec");
  ExpectLocalRefused({"--schedule", "lifo"}, "say serial, fifo, priority or preemptive");
  ExpectLocalRefused({"--optimizer", "lbfgs"}, "say sgd or adam");
  ExpectLocalRefused({"--lr-schedule", "linear"}, "say constant, step or cosine");
  ExpectLocalRefused({"--sync", "ssp"}, "say bsp, async or ssp:K");
  ExpectLocalRefused({"--fabric", "carrier-pigeon"}, "say auto, ucx, verbs or loopback");
  ExpectLocalRefused({"--device", "tpu"}, "say auto, cpu or cuda");
  ExpectLocalRefused({"--fec-layout", "x"}, "say smallest or runs");
  ExpectLocalRefused({"--fec-rounding", "x"}, "say nearest, truncate or stochastic");
  ExpectLocalRefused({"--codec-vectors", "AVX9"}, "is not auto or among the instructions that this processor has: ");
  ExpectLocalRefused({"--error-feedback", "maybe"}, "neither on nor off");
}

TEST_F(OptionsTest, GivenAValueOutOfRange_ExpectTheRange) {
  for (const char* option : {"--epochs", "--steps", "--batch"}) {
    for (const char* value : {"0", "-1", "1.5", "1e3", "ten", "0x10", "99999999999999999999"}) {
      ExpectLocalRefused({option, value}, std::string(option) + ": '" + value + "' is not a whole number from 1 to ");
    }
  }
  for (const char* value : {"nan", "inf", "-0.1", "1e400", "", "0.1f", "0,1"}) {
    ExpectLocalRefused({"--lr=" + std::string(value)}, "--lr");
  }
  ExpectLocalRefused({"--momentum", "1"}, "from 0 to below 1");
  ExpectLocalRefused({"--nonfinite-limit", "0"}, "from 1 to 1000000000");
  ExpectLocalRefused({"--nonfinite-limit", "1000000001"}, "from 1 to 1000000000");
  ExpectLocalRefused({"--weight-decay", "2"}, "from 0 to 1");
  ExpectLocalRefused({"--fec-density", "0"}, "--fec-density: '0'");
  ExpectLocalRefused({"--fec-threshold", "-200"}, "auto or an exponent");
  ExpectLocalRefused({"--fec-threshold", "on"}, "auto or an exponent");
  ExpectLocalRefused({"--fec-reply-threshold", "auto"}, "whole number");
  ExpectLocalRefused({"--segment-bytes", "20000"}, "multiple of 16384");
  ExpectLocalRefused({"--segment-bytes", "4096"}, "16384 to 16777216");
  ExpectLocalRefused({"--segment-bytes", "18446744073709551615M"}, "16384 to 16777216");
  ExpectLocalRefused({"--segment-bytes", "K"}, "number of bytes");
  ExpectLocalRefused({"--window-bytes", "32768"}, "smaller than one segment");
  ExpectLocalRefused({"--join-timeout", "0"}, "--join-timeout");
  ExpectLocalRefused({"--seed", "-1"}, "--seed");
  ExpectLocalRefused({"--schedule", "serial", "--sync", "async"}, "that is --sync bsp");
  ExpectLocalRefused({"--schedule", "serial", "--sync", "ssp:2"}, "not --sync ssp:2");
  ExpectLocalRefused({"--dump-step", "3"}, "--dump-step goes with --dump-gradients");
  EXPECT_EQ(Local({"--schedule", "serial"}).schedule, Schedule::kSerial);
}

TEST_F(OptionsTest, GivenAnUnknownOption_ExpectItsName) {
  ExpectLocalRefused({"--modle", "mlp"}, "'--modle' is not an option");
  ExpectLocalRefused({"--modle=mlp"}, "'--modle' is not an option");
  ExpectLocalRefused({"mnist"}, "'mnist' is not an option");
  ExpectLocalRefused({"-b", "3"}, "'-b' is not an option");
  ExpectLocalRefused({"--batch"}, "--batch lacks its value");
  ExpectLocalRefused({"--batch", "3", "--batch", "4"}, "--batch is given more than once");
}

TEST_F(OptionsTest, GivenHelpOrVersion_ExpectTextAndSuccess) {
  const ParsedOptions help = Parse({"--help"});
  EXPECT_FALSE(help.options.has_value());
  EXPECT_EQ(help.exit_code, 0);
  for (const char* text : {"--local WxS", "--batch N", "[64]", "SECONDS", "How gradients travel",
                           "fec with --codec fec and auto, else raw", "build/data/", "--config FILE", "BYTES"}) {
    EXPECT_THAT(help.text, HasSubstr(text));
  }
  EXPECT_THAT(help.text, testing::Not(HasSubstr("-fd"))) << "the launcher's own";
  for (size_t begin = 0; begin < help.text.size();) {
    const size_t end = help.text.find('\n', begin);
    EXPECT_LE(end - begin, 110u) << help.text.substr(begin, end - begin);
    begin = end + 1;
  }
  const ParsedOptions version = Parse({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.text, testing::StartsWith("gradlane-train "));
}

TEST_F(OptionsTest, GivenAFile_ExpectItsValuesBelowTheCommandLine) {
  TempFolder folder;
  const std::string path =
      folder.Write("job.toml",
                   "# a comment\nlocal = \"2x1\"\nbatch = 32\nlr = 0.25  # high\nerror-feedback = false\n"
                   "data-dir = \"/my data\"\nfec-threshold = -8\ncodec = \"none\"\nsync = 'ssp:2'\n");
  const Options from_file = Accepted({"--config", path});
  EXPECT_EQ(from_file.members, (Membership{2, 1}));
  EXPECT_EQ(from_file.batch, 32);
  EXPECT_EQ(from_file.lr, 0.25f);
  EXPECT_FALSE(from_file.error_feedback);
  EXPECT_EQ(from_file.data_dir, "/my data");
  EXPECT_EQ(from_file.fec_threshold, -8);
  EXPECT_EQ(from_file.reply, ReplyCodec::kRaw);
  EXPECT_EQ(from_file.sync, (Sync{SyncKind::kSsp, 2}));

  const Options both = Accepted({"--batch", "16", "--config", path, "--codec", "fec", "--local", "1x0"});
  EXPECT_EQ(both.batch, 16);
  EXPECT_EQ(both.lr, 0.25f);
  EXPECT_EQ(both.codec, Codec::kFec);
  EXPECT_EQ(both.members, (Membership{1, 0}));
}

// A launched rank has the user's arguments, and so the user's file, which may say --local.
TEST_F(OptionsTest, GivenAFileWithLocalAndARoleOnTheCommandLine_ExpectTheRole) {
  TempFolder folder;
  const std::string local = folder.Write("local.toml", "local = \"2x1\"\nbatch = 8\n");
  const Options rank = Accepted({"--config", local, "--role", "worker", "--rank", "1", "--workers", "2", "--servers",
                                 "1", "--rendezvous", "127.0.0.1:5"});
  EXPECT_FALSE(rank.local);
  EXPECT_EQ(rank.role, Role::kWorker);
  EXPECT_EQ(rank.batch, 8);

  const std::string role = folder.Write("role.toml", "role = \"worker\"\nworkers = 7\nrendezvous = \"a:1\"\n");
  const Options all = Accepted({"--config", role, "--local", "2x1"});
  EXPECT_TRUE(all.local);
  EXPECT_FALSE(all.role.has_value());
  EXPECT_EQ(all.members, (Membership{2, 1}));
}

TEST_F(OptionsTest, GivenABadFile_ExpectItAndTheKey) {
  TempFolder folder;
  const auto refused = [&](const std::string& text, const std::string& sentence) {
    ExpectLocalRefused({"--config", folder.Write("job.toml", text)}, sentence);
  };
  refused("btach = 3\n", "job.toml: 'btach' is not an option");
  refused("data_dir = \"x\"\n", "'data_dir' is not an option");
  refused("listen-fd = 3\n", "'listen-fd' is not an option");
  refused("config = \"other.toml\"\n", "'config' is not an option");
  refused("[learning]\nlr = 0.1\n", "there is one named 'learning'");
  refused("batch = [1, 2]\n", "'batch' has more than one value");
  refused("batch = 1\nlr = 0.1\nbatch = 2\n", "'batch' has more than one value");
  refused("batch = zero\n", "--batch: 'zero' is not a whole number");
  refused("no toml at all\n", "is not an option");
  ExpectLocalRefused({"--config", folder.path() + "/none.toml"}, "/none.toml' cannot be read");
  ExpectLocalRefused({"--config", folder.path()}, "is a folder");
}

TEST_F(OptionsTest, GivenOptions_ExpectAllInJsonAndNoSecret) {
  const Options options =
      Accepted({"--role", "worker", "--rendezvous", "a:1", "--data", "cifar10", "--fec-threshold", "auto"});
  const std::string text = ToJson(options);
  EXPECT_THAT(text, testing::Not(HasSubstr(kSecret)));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["role"], "worker");
  EXPECT_TRUE(json["local"].is_null());
  EXPECT_EQ(json["batch"], 64);
  EXPECT_EQ(json["lr"], 0.05) << "as it was written, not as the nearest float";
  EXPECT_EQ(json["fec-threshold"], "auto");
  EXPECT_EQ(json["augment"], true) << "the default for cifar";
  EXPECT_EQ(json["sync"], "bsp");
  EXPECT_EQ(json["data-dir"], "build/data/cifar10");
  EXPECT_FALSE(json.contains("listen-fd"));
}

}  // namespace
}  // namespace gradlane
