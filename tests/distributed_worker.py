"""One rank of the jobs in `test_distributed.py`: `python distributed_worker.py JSON` prints what it comes to as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from poolplan import ModelSpec, PoolPlanError, RankError, RuntimeSpec, create_memory_pool_configurator
from poolplan.distributed import agree


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Agree with the other ranks, after doing what `fault` says."""
    rank, world = job["rank"], job["world"]
    dist.init_process_group("gloo", init_method=job["store"], rank=rank, world_size=world)
    group: Any = dist.new_group(job["group"]) if "group" in job else None
    configurator = create_memory_pool_configurator(
        ModelSpec.from_pretrained(job["model"]), RuntimeSpec(**job["runtime"])
    )
    dist.barrier()  # every rank is up: what follows is the job's own doing
    if job.get("fault") == "die":
        os._exit(7)
    if job.get("fault") == "hang":
        time.sleep(job["hang_seconds"])
        os._exit(8)

    def available_bytes() -> Any:
        if job.get("fault") == "query":
            raise OSError("the driver does not answer")
        return job["available_bytes"]

    started = time.monotonic()
    try:
        agreement = agree(
            configurator,
            available_bytes,
            group,
            host_bytes=job.get("host_bytes"),
            timeout=timedelta(seconds=job.get("timeout", 60)),
        )
    except PoolPlanError as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "rank": error.rank if isinstance(error, RankError) else None,
            "cause": type(error.__cause__).__name__,
            "waited": time.monotonic() - started,
        }
    return {
        "config": agreement.config.as_dict(),
        "available_bytes": agreement.available_bytes,
        "bound_by_rank": agreement.bound_by_rank,
        "host_bytes": agreement.host_bytes,
        "host_bound_by_rank": agreement.host_bound_by_rank,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # the process group of a job that failed is not taken down in order
