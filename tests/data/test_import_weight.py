import subprocess
import sys

MODULES = (
    "longstride.data.corpus, longstride.data.readers, longstride.data.sft, longstride.data.prompts,"
    "longstride.data.packing, longstride.data.traces, longstride.rewards.scoring,"
    "longstride.evals.benchmark, longstride.evals.intervals"
)


def test_nothing_heavy_is_imported_before_it_is_used():
    code = (
        f"import sys, {MODULES}; heavy = 'reasoning_gym torch pyarrow scipy pandas fsspec'; "
        "print([name for name in heavy.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
