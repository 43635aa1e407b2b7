"""Builds the extension of the Python module by CMake, for a wheel; pyproject.toml has the rest."""
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent


class BuildByCMake(build_ext):
    def build_extension(self, extension):
        folder = pathlib.Path(self.build_temp).resolve()
        subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DCMAKE_UNITY_BUILD=ON", "-DORRERY_PYTHON=ON", "-DORRERY_TESTS=OFF", "-DORRERY_BENCHMARKS=OFF",
                        "-DORRERY_CUDA=OFF", f"-DPython3_EXECUTABLE={sys.executable}"], check=True)
        subprocess.run(["cmake", "--build", folder, "--target", "_orrery"], check=True)
        place = pathlib.Path(self.get_ext_fullpath(extension.name))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / "python" / "orrery" / place.name, place)


setup(ext_modules=[Extension("orrery._orrery", sources=[])], cmdclass={"build_ext": BuildByCMake})
