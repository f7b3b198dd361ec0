"""Logs of compute-sanitizer become reports; what proves nothing is said."""

import pytest

from tests.validation.sanitize import outputs
from validation.sanitize.log import parse


def test_an_access_out_of_bounds_names_kernel_thread_and_address():
    first, second = parse(outputs.MEMCHECK).reports
    assert first.kernel == "skinny_kernel"
    assert (
        first.where
        == "thread (31,0,0) of block (2,0,0), address 0x7f3c7ec000fc, skinny_kernel+0x120 (projection.py:88)"
    )
    assert first.what == "Invalid __global__ read of size 4 bytes: is out of bounds"
    assert first.count == 2
    assert second.what.endswith("is misaligned")


def test_an_access_in_a_function_belongs_to_the_kernel_that_calls_it():
    report = parse(outputs.MEMCHECK).reports[1]
    assert report.kernel == "skinny_kernel"
    assert "helper+0x40 (projection.py:12)" in report.at


def test_a_race_names_both_accesses():
    (report,) = parse(outputs.ANALYSIS).reports
    assert report.kernel == "route_kernel"
    assert report.what == "Error: race between write and read access"
    assert report.at == "route_kernel+0x90 (route.py:41) and route_kernel+0x100 (route.py:51)"


def test_a_hazard_names_both_threads_and_the_word():
    (report,) = parse(outputs.HAZARDS).reports
    assert report.thread == "(35,0,0) (write) and (32,0,0) (read)"
    assert (report.block, report.address, report.count) == ("(0,0,0)", "0x8c", 2)
    assert report.what == "Warning: (Warp Level Programming) Potential RAW hazard detected"


def test_uninitialised_memory_and_a_divergent_barrier_are_reports():
    (read,) = parse(outputs.INITCHECK).reports
    assert (read.kernel, read.address) == ("experts_kernel", "0x7f3c7ec000fc")
    (barrier,) = parse(outputs.SYNCCHECK).reports
    assert (barrier.kernel, barrier.thread) == ("tail_kernel", "(19,0,0)")


def test_reports_without_indentation_are_read_the_same():
    flat = outputs.MEMCHECK.replace("=========     ", "========= ")
    assert parse(flat).reports == parse(outputs.MEMCHECK).reports


@pytest.mark.parametrize("text", [outputs.CLEAN, outputs.CLEAN_RACES])
def test_a_clean_log_leaves_no_doubt(text):
    log = parse(text)
    assert (log.reports, log.doubts()) == ([], [])


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("", "the tool wrote no summary"),
        (outputs.CLEAN.replace("0 errors", "3 errors"), "counts 3 errors, of which no report could be read"),
        (
            "========= Internal Sanitizer Error: The Sanitizer encountered an error while launching "
            "up_kernel and didn't track the launch. Errors might go undetected.\n" + outputs.CLEAN,
            "didn't track the launch",
        ),
        ("========= Error: process didn't terminate successfully\n" + outputs.CLEAN, "didn't terminate"),
        ("========= Device not supported. Please refer to the manual\n", "Device not supported"),
    ],
)
def test_what_proves_nothing_is_said(text, doubt):
    assert doubt in "; ".join(parse(text).doubts())


def test_reports_that_were_not_printed_are_no_trouble():
    text = outputs.MEMCHECK + "========= 23 errors were not printed. Use --print-limit option\n"
    assert parse(text).troubles == []
