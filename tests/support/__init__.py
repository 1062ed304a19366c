"""What the tests share: `from support.statistics import assert_mean`."""
