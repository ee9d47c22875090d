"""All is in pyproject.toml, but that this is not the same on every machine: it carries libraries."""

from setuptools import Distribution, setup


class WithLibraries(Distribution):
    """A distribution with files of one platform."""

    def has_ext_modules(self):
        return True


setup(distclass=WithLibraries)
