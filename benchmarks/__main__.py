"""`python -m benchmarks [NAME ...]`: run benchmarks, each in its own process, pinned to one core."""

import subprocess
import sys

from benchmarks import (
    calls,
    common,
    context,
    dialects,
    duplicates,
    evals,
    files,
    followers,
    formats,
    gateway,
    generate,
    growth,
    judging,
    lies,
    limits,
    listing,
    locomo,
    postgres,
    power,
    recall,
    resume,
    rollouts,
    shell,
    steps,
    streaming,
    telemetry,
    token_bytes,
    tokens,
    tools,
    turn,
    viewer,
    walk,
    workers,
)

BENCHMARKS = {
    "steps": steps.measure,
    "memory": steps.measure_memory,
    "tokens": tokens.measure,
    "telemetry": telemetry.measure,
    "growth": growth.measure,
    "token_bytes": token_bytes.measure,
    "calls": calls.measure,
    "bodies": growth.measure_bodies,
    "files": files.measure,
    "streaming": streaming.measure,
    "gateway": gateway.measure,
    "followers": followers.measure,
    "responses": followers.measure_responses,
    "dialects": dialects.measure,
    "formats": formats.measure,
    "marks": formats.measure_marks,
    "storm": limits.measure_storm,
    "concurrency": limits.measure_concurrency,
    "power": power.measure,
    "postgres": postgres.measure,
    "recall": recall.measure,
    "locomo": locomo.measure,
    "turn": turn.measure,
    "walk": walk.measure,
    "resume": resume.measure,
    "listing": listing.measure,
    "viewer": viewer.measure,
    "shell": shell.measure,
    "sandboxes": shell.measure_memory,
    "python": tools.measure_python,
    "mcp": tools.measure_mcp,
    "parallel": tools.measure_parallel,
    "generate": generate.measure_window,
    "row": generate.measure_work,
    "rows": generate.measure_memory,
    "continue": generate.measure_resume,
    "duplicates": duplicates.measure,
    "context": context.measure,
    "cache": context.measure_cache,
    "judging": judging.measure,
    "lies": lies.measure,
    "evals": evals.measure,
    "coverage": evals.measure_coverage,
    "rollouts": rollouts.measure_window,
    "workers": workers.measure,
    "ray": workers.measure_ray,
    "many": workers.measure_many,
}


def main(names: list[str]) -> int:
    """Run the benchmarks, and return exit status 0 if every figure is met."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"no benchmark {sorted(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    if len(names) == 1:
        common.pin()
        figures = common.run(BENCHMARKS[names[0]])
        print("\n".join(map(str, figures)), flush=True)
        return int(not all(figure.is_met for figure in figures))
    print(common.versions(), flush=True)
    codes = [
        subprocess.run([sys.executable, "-m", "benchmarks", name], check=False).returncode
        for name in names or BENCHMARKS
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
