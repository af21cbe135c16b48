"""gradlane-train and gradlane-server as a user starts them, on an excerpt of MNIST.

usage: cli_test.py BIN_DIR ucx|no-ucx [unittest arguments]
"""
import array
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BIN = sys.argv.pop(1)
HAVE_UCX = sys.argv.pop(1) == "ucx"
TRAIN = os.path.join(BIN, "gradlane-train")
DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "mnist")
FABRICS = ["loopback", "ucx"] if HAVE_UCX else ["loopback"]
LONG_S = 300  # far beyond anything: a run that takes this long hangs


def run(*args, data=True, env=None):
    """Runs gradlane-train; returns (exit code, output of both streams)."""
    command = [TRAIN, *args] + (["--data", "mnist", "--data-dir", DATA] if data else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG_S, env=env)
    return done.returncode, done.stdout


def results(*args):
    """The --json of a run that has to succeed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        code, output = run(*args, "--json", path)
        if code != 0:
            raise AssertionError(f"{args} ended with {code}:\n{output}")
        with open(path) as file:
            return json.load(file)


class Reproducible(unittest.TestCase):
    def test_given_a_seed_expect_the_same_parameters_whatever_carries_them(self):
        common = ["--model", "lenet5", "--batch", "16", "--steps", "6"]
        for codec in (["--codec", "none", "--reply", "raw"], ["--codec", "fec", "--reply", "fec"]):
            hashes = {}
            for fabric in FABRICS:
                for shape in ("2x1", "2x2"):
                    for schedule in ("fifo", "priority", "preemptive"):
                        run_of = (fabric, shape, schedule)
                        hashes[run_of] = results("--local", shape, "--fabric", fabric, "--schedule", schedule, *codec,
                                                 *common)["parameters_sha256"]
            hashes["again"] = results("--local", "2x1", "--fabric", "loopback", *codec, *common)["parameters_sha256"]
            self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_given_another_seed_expect_other_parameters(self):
        common = ["--local", "1x0", "--model", "mlp", "--steps", "2"]
        self.assertNotEqual(results(*common, "--seed", "1")["parameters_sha256"],
                            results(*common, "--seed", "2")["parameters_sha256"])

    def test_given_one_worker_expect_the_bits_of_training_without_a_server(self):
        common = ["--model", "lenet5", "--batch", "16", "--steps", "6", "--codec", "none", "--reply", "raw", "--threads", "1"]
        alone = results("--local", "1x0", *common)
        served = results("--local", "1x2", "--fabric", FABRICS[-1], *common)
        self.assertEqual(alone["parameters_sha256"], served["parameters_sha256"])

    def test_given_four_workers_of_16_expect_one_of_64_within_rounding(self):
        common = ["--model", "lenet5", "--steps", "6", "--codec", "none", "--reply", "raw", "--threads", "1"]
        one = results("--local", "1x0", "--batch", "64", *common)
        four = results("--local", "4x1", "--batch", "16", "--fabric", "loopback", *common)
        # Worker 0 reports the loss of its own quarter; what was learnt shows on the whole test set.
        self.assertAlmostEqual(one["test_loss"], four["test_loss"], places=4)


class CodecAuto(unittest.TestCase):
    """--codec auto decides by times, writes its decisions down, and repeats a run from them bit for bit."""
    COMMON = ["--model", "mlp", "--batch", "16", "--steps", "12", "--fabric", "loopback", "--codec", "auto"]

    def test_given_the_plan_of_a_run_expect_the_same_parameters_on_any_link_and_servers(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "plan.json")
            first = results("--local", "2x1", *self.COMMON, "--codec-decide-steps", "4", "--link-mbps", "100000",
                            "--codec-plan-out", plan)
            with open(plan) as file:
                said = json.load(file)
            self.assertEqual((said["version"], said["link_mbps"], said["num_workers"]), (1, 100000, 2))
            self.assertEqual(len(said["tensors"]), first["codec_auto"]["tensors"])
            raw = [sum(t["workers"][w]["send"] == "raw" for t in said["tensors"]) for w in range(2)]
            self.assertEqual(raw, first["codec_auto"]["raw_tensors_by_worker"])
            self.assertLessEqual({t["workers"][0]["from_step"] for t in said["tensors"]}, {1, 5})
            self.assertGreater(said["tensors"][0]["workers"][0]["encode_ns_per_elem"], 0)
            self.assertIn("not measured", first["startup"]["codec auto"])
            for shape in ("2x1", "2x2"):
                again = results("--local", shape, *self.COMMON, "--link-mbps", "1", "--codec-plan", plan)
                self.assertEqual(again["parameters_sha256"], first["parameters_sha256"])
                self.assertEqual(again["codec_auto"], first["codec_auto"])
            self.assertEqual(os.listdir(folder), ["plan.json"])

    def test_given_a_slow_link_expect_the_large_tensors_coded_and_the_report_to_say_so(self):
        code, output = run("--local", "2x1", *self.COMMON, "--codec-decide-steps", "4", "--link-mbps", "10")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"codec auto +worker 0 sends \d of 6 tensors")
        self.assertIn("10 Mbit/s (as --link-mbps says, not measured)", output)

    def test_given_a_plan_that_does_not_fit_expect_one_sentence_and_exit_code_2(self):
        def expect(part, *args):
            code, output = run("--local", "2x1", *args)
            self.assertEqual(code, 2, output)
            self.assertIn(part, output)
            self.assertEqual(len(output.strip().splitlines()), 1, output)

        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "plan.json")
            results("--local", "2x1", *self.COMMON, "--codec-plan-out", plan)
            expect("exists already", *self.COMMON, "--codec-plan-out", plan)
            expect("folder", *self.COMMON, "--codec-plan-out", os.path.join(folder, "no", "plan.json"))
            expect("of another model", "--model", "lenet5", "--codec", "auto", "--codec-plan", plan)
            code, output = run("--local", "1x1", *self.COMMON, "--codec-plan", plan)
            self.assertEqual(code, 2, output)
            self.assertIn("of a job of 2 workers", output)
            expect("cannot be read", *self.COMMON, "--codec-plan", os.path.join(folder, "none.json"))
            with open(plan, "a") as file:
                file.write("}")
            expect("is not JSON", *self.COMMON, "--codec-plan", plan)
            os.truncate(plan, 0)
            expect("is not JSON", *self.COMMON, "--codec-plan", plan)


class Results(unittest.TestCase):
    def test_given_a_run_expect_every_field_of_the_json_and_a_timeline(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            r = results("--local", "2x1", "--fabric", FABRICS[-1], "--model", "mlp", "--batch", "32", "--steps", "16",
                        "--codec", "fec", "--reply", "fec", "--trace", trace)
            self.assertEqual(os.listdir(folder), ["trace.json"])
            with open(trace) as file:
                events = json.load(file)
        for name in ("test_accuracy", "train_loss", "steps", "images_per_s", "wall_s", "compute_s", "exposed_comm_s",
                     "data_wait_s", "push_bytes", "push_raw_bytes", "push_ratio", "reply_ratio", "fec_density",
                     "preemptions", "nonfinite_segments", "parameters_sha256", "startup"):
            self.assertIn(name, r)
        self.assertEqual(r["steps"], 16)
        self.assertEqual(r["curve"]["step"], list(range(1, 17)))
        self.assertEqual(r["curve"]["bytes"], sorted(r["curve"]["bytes"]))
        self.assertEqual(r["push_raw_bytes"], 4 * 235146 * 16 * 2)  # mlp, steps, workers
        self.assertGreater(r["push_ratio"], 5)
        self.assertGreater(r["fec_density"], 0)
        self.assertLess(r["fec_density"], 0.5)
        self.assertGreater(r["test_accuracy"], 0.3)
        events = events["traceEvents"] if isinstance(events, dict) else events
        names = {event["name"] for event in events}
        self.assertLessEqual({"forward", "backward", "encode", "flight", "aggregate"}, names)
        self.assertEqual({e["pid"] for e in events if e["name"] == "forward"}, {1, 2})  # two workers, beside server 0

    def test_given_every_way_to_synchronise_and_code_expect_a_run_that_learns(self):
        for extra in (["--sync", "async"], ["--sync", "ssp:2"], ["--codec", "2bit", "--two-bit-threshold", "0.1", "--reply", "raw"],
                      ["--codec", "fec", "--error-feedback", "off", "--reply", "raw", "--fec-threshold", "-9"],
                      ["--codec", "fec", "--fec-threshold", "auto", "--fec-density", "0.05"],
                      ["--schedule", "serial", "--codec", "none"], ["--optimizer", "adam", "--lr", "0.002"]):
            with self.subTest(extra=extra):
                r = results("--local", "2x2", "--fabric", "loopback", "--model", "mlp", "--batch", "32", "--steps", "24",
                            *extra)
                self.assertGreater(r["test_accuracy"], 0.2)

    def test_given_a_run_that_diverges_expect_one_sentence_that_says_so(self):
        # Not with fec: its largest code bounds a step, so that values grow without becoming infinite.
        for place in (["--local", "1x0"], ["--local", "2x1", "--fabric", "loopback", "--codec", "none"]):
            with self.subTest(place=place):
                code, output = run(*place, "--model", "mlp", "--batch", "32", "--steps", "90", "--lr", "1e6",
                                   "--nonfinite-limit", "3")
                self.assertEqual(code, 1, output)
                self.assertIn("training has diverged; lower --lr.", output.strip().splitlines()[-1])

    def test_given_a_folder_for_gradients_expect_one_step_s_tensors_as_fp32(self):
        with tempfile.TemporaryDirectory() as parent:
            for place in (["--local", "1x0"], ["--local", "2x1"]):
                folder = os.path.join(parent, "dump" + place[1])
                code, output = run(*place, "--model", "lenet5", "--steps", "3", "--dump-gradients", folder, "--dump-step", "2")
                self.assertEqual(code, 0, output)
                self.assertEqual(len(os.listdir(folder)), 8)
                with open(os.path.join(folder, "conv1.weight.f32"), "rb") as file:
                    values = array.array("f", file.read())
                self.assertEqual(len(values), 500)
                self.assertTrue(0 < max(map(abs, values)) < 100)

    def test_given_synthetic_data_expect_no_file_to_be_needed(self):
        code, output = run("--local", "1x1", "--fabric", "loopback", "--data", "synthetic", "--model", "mlp", "--steps", "3",
                           data=False)
        self.assertEqual(code, 0, output)


class Refusals(unittest.TestCase):
    def expect_refusal(self, part, *args, data=True):
        code, output = run(*args, data=data)
        self.assertEqual(code, 2, output)
        self.assertIn(part, output)
        self.assertEqual(len(output.strip().splitlines()), 1, output)

    def test_given_bad_options_expect_one_sentence_and_exit_code_2(self):
        self.expect_refusal("lenet5", "--local", "2x1", "--model", "lenet6")
        self.expect_refusal("--no-such-option", "--local", "2x1", "--no-such-option")
        self.expect_refusal("--local", "--local", "2by1")
        self.expect_refusal("--role")
        self.expect_refusal("verbs", "--local", "2x1", "--fabric", "verbs")
        self.expect_refusal("cuda", "--local", "2x1", "--device", "cuda")
        self.expect_refusal("not empty", "--local", "1x0", "--dump-gradients", DATA)
        with tempfile.TemporaryDirectory() as folder:
            self.expect_refusal("never comes", "--local", "1x0", "--model", "mlp", "--steps", "3", "--dump-gradients", folder,
                                "--dump-step", "4")

    def test_given_missing_or_truncated_data_expect_one_sentence_and_exit_code_2(self):
        with tempfile.TemporaryDirectory() as folder:
            self.expect_refusal("tools/get-data mnist", "--local", "2x1", "--data", "mnist", "--data-dir", folder, data=False)
            for name in os.listdir(DATA):
                if "ubyte" not in name:
                    continue
                with open(os.path.join(DATA, name), "rb") as source, open(os.path.join(folder, name), "wb") as target:
                    target.write(source.read())
            path = os.path.join(folder, "train-images-idx3-ubyte")
            os.truncate(path, os.path.getsize(path) - 1)
            self.expect_refusal("train-images-idx3-ubyte", "--local", "2x1", "--data", "mnist", "--data-dir", folder, data=False)

    @unittest.skipUnless(HAVE_UCX, "built without UCX: ranks cannot be processes")
    def test_given_a_port_in_use_expect_one_sentence_and_exit_code_2(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            env = dict(os.environ, GRADLANE_SECRET="a secret of sufficient length")
            done = subprocess.run([os.path.join(BIN, "gradlane-server"), "--rank", "0", "--workers", "1", "--servers", "1",
                                   "--rendezvous", "127.0.0.1:%d" % taken.getsockname()[1]],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG_S, env=env)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("in use", done.stdout)

    @unittest.skipUnless(HAVE_UCX, "built without UCX: ranks cannot be processes")
    def test_given_a_wrong_secret_expect_both_to_end_with_exit_code_2(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = ["--workers", "1", "--servers", "1", "--rendezvous", f"127.0.0.1:{port}", "--rank", "0", "--join-timeout", "4"]
        server = subprocess.Popen([os.path.join(BIN, "gradlane-server"), *common], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, env=dict(os.environ, GRADLANE_SECRET="x" * 32))
        code, output = run("--role", "worker", *common, "--model", "mlp", env=dict(os.environ, GRADLANE_SECRET="y" * 32))
        told, _ = server.communicate(timeout=LONG_S)
        self.assertEqual(code, 2, output)
        self.assertIn("secret", output)
        self.assertEqual(server.returncode, 2, told)
        self.assertIn("secret", told)


@unittest.skipUnless(HAVE_UCX, "built without UCX: ranks cannot be processes")
class Deaths(unittest.TestCase):
    """kill -9 of any one process of --local 2x2: the others end, by themselves, and name it."""

    def children_of(self, pid):
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]

    def name_of(self, pid):
        with open(f"/proc/{pid}/cmdline") as file:
            args = file.read().split("\0")
        return args[args.index("--role") + 1] + " " + args[args.index("--rank") + 1]

    def kill_one(self, victim):
        job = subprocess.Popen([TRAIN, "--local", "2x2", "--model", "lenet5", "--steps", "100000", "--data", "mnist",
                                "--data-dir", DATA], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output = ""
        while "step" not in output.split("sync")[-1]:  # it trains
            line = job.stdout.readline()
            self.assertTrue(line, output)
            output += line
        ranks = {self.name_of(pid): pid for pid in self.children_of(job.pid)}
        self.assertEqual(set(ranks), {"server 0", "server 1", "worker 0", "worker 1"})
        os.kill(job.pid if victim == "launcher" else ranks[victim], signal.SIGKILL)
        begin = time.monotonic()
        output += job.stdout.read()  # until the last process that holds it has ended
        job.stdout.close()
        job.wait(timeout=LONG_S)
        self.assertLess(time.monotonic() - begin, LONG_S)
        for pid in ranks.values():
            self.assertFalse(os.path.exists(f"/proc/{pid}/exe") and "gradlane" in os.readlink(f"/proc/{pid}/exe"), output)
        self.assertNotEqual(job.returncode, 0)
        return output

    def test_given_a_rank_that_dies_expect_every_other_to_name_it(self):
        for victim in ("server 0", "server 1", "worker 0", "worker 1"):
            with self.subTest(victim=victim):
                output = self.kill_one(victim)
                for other in {"server 0", "server 1", "worker 0", "worker 1"} - {victim}:
                    said = [line for line in output.splitlines() if f"({other})" in line]
                    self.assertEqual(len(said), 1, output)
                    self.assertIn(victim, said[0].replace(f"({other})", ""), output)

    def test_given_a_launcher_that_dies_expect_every_rank_to_end(self):
        self.kill_one("launcher")


if __name__ == "__main__":
    unittest.main()
