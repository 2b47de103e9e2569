"""The environments that the other tests give to programs."""

import os
import subprocess
import sys
import unittest
from unittest import mock

from program import Case, environment_of_user


class Environment(Case):
    def test_what_launchers_set_is_left_out(self):
        left_out = ["PIPETRAIN_CACHE_DIR", "SLURM_JOB_NODELIST", "SLURM_STEP_NUM_TASKS", "SRUN_CPUS_PER_TASK", "PMI_RANK", "PMIX_RANK",
                    "OMPI_COMM_WORLD_RANK", "DMLC_NUM_WORKER", "TF_CONFIG", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"]
        kept = ["PIPETRAIN_VECTORS", "OMPI_MCA_btl", "OMPI_ALLOW_RUN_AS_ROOT", "PMIX_MCA_gds", "RANKING", "PATH"]
        with mock.patch.dict(os.environ, {name: "1" for name in left_out + kept}, clear=True):
            self.assertEqual(sorted(environment_of_user()), sorted(kept))

    def test_numbers_of_a_german_have_commas(self):
        environment = self.german()
        if "LOCPATH" not in environment:
            self.skipTest("needs localedef and what locales are made from (Debian: locales)")
        code = "import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.localeconv()['decimal_point'])"
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, ",\n")


if __name__ == "__main__":
    unittest.main()
