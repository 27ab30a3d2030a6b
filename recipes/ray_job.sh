#!/bin/bash
# A recipe as a Ray job: vLLM servers on one node's GPUs, trainers on another's.
#   ray job submit --working-dir . -- bash recipes/ray_job.sh math_grpo --run.steps 200
# MODEL, SERVERS, TENSOR_PARALLEL and TRAINERS (GPUs that train) come from the environment. Submitted again it resumes, where
# --run.out-dir lies on storage that all nodes share. It has been run on a CPU only, with stand-ins for vLLM.
set -euo pipefail
python - "$@" <<'PYTHON'
import os
import subprocess
import sys
import time
import urllib.request

import ray

model = os.environ.get("MODEL", "Qwen/Qwen2.5-7B-Instruct")
servers, each = int(os.environ.get("SERVERS", "2")), int(os.environ.get("TENSOR_PARALLEL", "1"))
trainers, device = int(os.environ.get("TRAINERS", "4")), os.environ.get("DEVICE", "cuda")
gpus = 1 if device == "cuda" else 0
port = int(os.environ.get("PORT", "8000"))


@ray.remote(max_concurrency=2)
class Servers:
    """`rlvr serve` on the node that Ray gives it; the servers end with it."""

    def start(self):
        where = ["--host", "0.0.0.0", "--port", str(port), "--device", device]
        command = [sys.executable, "-m", "rlvr", "serve", model, "--servers", str(servers), *where]
        self.process = subprocess.Popen([*command, "--tensor-parallel", str(each)])
        urls = [f"http://{ray.util.get_node_ip_address()}:{port + i}" for i in range(servers)]
        for url in urls:
            while True:
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5)
                    break
                except OSError:
                    if self.process.poll() is not None:
                        raise RuntimeError("the servers ended before they answered") from None
                    time.sleep(1)
        return urls

    def stop(self):
        self.process.terminate()
        self.process.wait()


@ray.remote
def train(urls, arguments):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(trainers)]
    command = ["-m", "--", "rlvr", "train", *arguments[:1], "--model.name", model, "--sampler", "vllm-server"]
    return subprocess.run([*torchrun, *command, "--sampler.url", *urls, *arguments[1:]]).returncode


ray.init()
holder = Servers.options(num_gpus=gpus * servers * each, num_cpus=1).remote()
urls = ray.get(holder.start.remote())
code = ray.get(train.options(num_gpus=gpus * trainers, num_cpus=1).remote(urls, sys.argv[1:] or ["math_grpo"]))
ray.get(holder.stop.remote())
sys.exit(code)
PYTHON
