"""gradlane-perf codec as a user starts it, on a tensor so small that its times mean nothing.

usage: codec_cli_test.py GRADLANE_PERF
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

PERF = sys.argv.pop(1)
SMALL = ["--elems", "20000", "--repeat", "2"]


def run(*args):
    done = subprocess.run([PERF, "codec", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode, done.stdout


class Codec(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, content=None):
        path = os.path.join(self.folder.name, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        return path

    def report(self, *args):
        path = self.path("report.json")
        code, output = run(*SMALL, *args, "--json", path)
        self.assertEqual(code, 0, output)
        with open(path) as file:
            return json.load(file), output

    def test_given_a_sweep_expect_a_row_for_each_density_and_number_of_threads(self):
        report, output = self.report("--density", "0.02,0.2", "--threads", "1,2", "--segment-elems", "8192")
        self.assertEqual([(row["wanted_density"], row["threads"]) for row in report["fec"]],
                         [(0.02, 1), (0.02, 2), (0.2, 1), (0.2, 2)])
        for row in report["fec"]:
            for name, value in row.items():
                self.assertGreater(value, 0, name)
            self.assertAlmostEqual(row["ratio"], 80000 / row["bytes"])
            self.assertAlmostEqual(row["density"], row["wanted_density"], delta=0.5 * row["wanted_density"])
            self.assertGreater(row["bytes_over_entropy"], 0.9)
        self.assertEqual([row["codec"] for row in report["others"]], 2 * ["2-bit", "1-bit", "top-k"] + ["zstd -1", "lz4"])
        for row in report["others"]:
            self.assertGreater(row["encode_gb_per_s"], 0)
            self.assertGreater(row["bytes"], 0)
        self.assertEqual(report["elems"], 20000)
        self.assertIn("target " + report["target"], output)

    def test_given_a_file_layout_rounding_and_target_expect_them_taken(self):
        path = self.path("fc1.f32", struct.pack("<6000f", *(((i * 7919) % 1000 - 500) / 1e5 for i in range(6000))))
        report, _ = self.report("--density", "0.1", "--distribution", path, "--layout", "runs", "--rounding", "stochastic",
                                "--target", "SCALAR")
        self.assertEqual((report["distribution"], report["layout"], report["rounding"], report["target"]),
                         (path, "runs", "stochastic", "SCALAR"))

    def expect_refusal(self, part, *args):
        code, output = run(*SMALL, *args)
        self.assertEqual(code, 2, output)
        self.assertIn(part, output)
        self.assertEqual(len(output.strip().splitlines()), 1, output)

    def test_given_bad_input_expect_one_sentence_and_exit_code_2(self):
        self.expect_refusal("none of this processor's", "--target", "Z80")
        self.expect_refusal("nor is there such a file", "--distribution", "cauchy")
        self.expect_refusal("multiple of 4", "--distribution", self.path("cut", b"\0" * 7))
        self.expect_refusal("NaN or infinity", "--distribution", self.path("infinite", struct.pack("<2f", 0, float("inf"))))
        for option, value in (("--density", "0"), ("--density", "0.1,2"), ("--elems", "0"), ("--elems", "16777217"),
                              ("--threads", "0"), ("--layout", "sparse"), ("--rounding", "up"), ("--repeat", "0"),
                              ("--segment-elems", "1000"), ("--no-such-option", "1")):
            self.expect_refusal(option, option, value)


if __name__ == "__main__":
    unittest.main()
