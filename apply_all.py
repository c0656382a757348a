"""Launcher, so that a checkout that is itself called ``fixes`` works as well.

``python3 fixes/apply_all.py`` then starts this file; the package lies beside it.
"""

import os.path
import runpy

if __name__ == "__main__":
    here = os.path.dirname(os.path.realpath(__file__))
    runpy.run_path(os.path.join(here, "fixes", "apply_all.py"), run_name="__main__")
