"""What the tests of tools/ share: where the project is, running one of its tools, a folder of one's own."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_tool(name, *arguments, env=None, root=ROOT):
    """stdout, stderr and returncode of tools/NAME; it fails the test when it takes longer than a minute."""
    return subprocess.run([root / "tools" / name, *map(str, arguments)], env={**os.environ, **(env or {})}, text=True,
                          capture_output=True, timeout=60, stdin=subprocess.DEVNULL)


class ToolTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
