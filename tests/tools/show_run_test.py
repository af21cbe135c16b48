"""tools/show-run: prints the figures of a report, and refuses one that lacks any of them."""
import json
import unittest

from helper import ToolTest, run_tool

RUN = {"test_accuracy": 0.9909, "train_loss": 0.01234, "steps": 936, "images_per_s": 4321.0, "wall_s": 40.0,
       "compute_s": 30.0, "exposed_comm_s": 6.0, "data_wait_s": 0.0, "push_ratio": 136.2, "reply_ratio": 180.4}


class ShowRun(ToolTest):
    def show(self, run):
        return run_tool("show-run", self.write("run.json", json.dumps(run)))

    def test_figures(self):
        result = self.show(RUN)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for part in ("99.09%", "136x", "180x", "0.0123 after 936 steps", "where the 40.0 s went", " 75.0%", " 15.0%", " 10.0%"):
            self.assertIn(part, result.stdout)

    def test_every_figure_must_be_there(self):
        for name in RUN:
            with self.subTest(name=name):
                result = self.show({key: value for key, value in RUN.items() if key != name})
                self.assertEqual(result.returncode, 1)
                self.assertIn(name, result.stderr)

    def test_no_report(self):
        result = run_tool("show-run", self.dir / "none.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("none.json", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
