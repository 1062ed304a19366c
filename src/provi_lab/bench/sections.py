"""The sections of docs/benchmarks.md in their order: those of `provi bench`, and those of records that scripts made."""

from provi_lab.bench.record import Section


def sections() -> tuple[Section, ...]:
    """All that there are; one without a record is left out of the page."""
    from provi_lab.bench import blackbox, distance, gp, logistic, missing, passes, scaling, throughput, topics
    from provi_lab.bench import sections_large as large
    from provi_lab.bench import sections_mixed as mixed
    from provi_lab.bench import sections_networks as networks
    from provi_lab.bench import sections_waiting as waiting

    linear = (blackbox.SECTION, logistic.SECTION, passes.SECTION, large.LINEAR_PASS, large.STREAMING, scaling.SECTION)
    processes = (gp.SECTION, gp.SPARSE_SECTION, large.GP, large.GP_H200)
    topic = (topics.SECTION, throughput.SECTION)
    return (
        *linear,
        distance.SECTION,
        *processes,
        missing.SECTION,
        *topic,
        *networks.SECTIONS,
        *mixed.SECTIONS,
        *waiting.SECTIONS,
    )
