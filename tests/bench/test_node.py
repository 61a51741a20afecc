from bench.node import memory, writes

METRICS = "\n".join(
    [
        "# TYPE apiserver_request_total counter",
        *(
            f'apiserver_request_total{{code="200",dry_run="{dry}",group="resource.k8s.io",'
            f'resource="{resource}",subresource="{sub}",verb="{verb}",version="v1"}} {value}'
            for dry, resource, sub, verb, value in (
                ("", "resourceslices", "", "POST", 3),
                ("All", "resourceslices", "", "POST", 50),
                ("", "resourceslices", "", "LIST", 100),
                ("", "resourceclaims", "status", "APPLY", 2),
                ("", "leases", "", "PUT", 1000),
            )
        ),
        'apiserver_request_terminations_total{verb="POST",resource="resourceslices"} 9',
    ]
)


def test_only_stored_writes_of_what_a_plugin_may_write_are_counted():
    assert writes(METRICS) == 5


def test_memory_is_read_in_mib(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "status").write_text("Name:\tx\nVmHWM:\t  99999 kB\nVmRSS:\t    2048 kB\n")
    (folder / "smaps_rollup").write_text("0-1 ---p\nRss: 2048 kB\nPss_Dirty: 1 kB\nPss: 1024 kB\n")
    assert memory(7, tmp_path) == {"rss": 2.0, "pss": 1.0}
