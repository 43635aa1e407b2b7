#!/usr/bin/env python3
"""The same kernels and one training step in PyTorch, on this machine's GPU: what Orrery's own are held against.

Prints one JSON document: seconds of each kernel (the median of repetitions, inputs cycled so that none is in the cache),
the achieved rate, and the step time of GPT-2 1.5B in eager mode and with torch.compile. Every part that fails says why.
"""

import argparse
import json
import math
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as functional
except ImportError as error:
    sys.exit(f"torch_reference.py: PyTorch is not installed here: {error}")

CACHE_BYTES = 256 << 20  # more than any GPU's last-level cache: sets of inputs are cycled until they cover it
REPETITIONS = 20
WARM_UP = 3

# m, n, k of x [m, k] @ w [k, n]: those of GPT-2 1.5B, Llama 3 8B and 70B, and a square.
MATMULS = [
    ("gpt2-1.5b qkv", 8192, 4800, 1600),
    ("gpt2-1.5b fc1", 8192, 6400, 1600),
    ("gpt2-1.5b fc2", 8192, 1600, 6400),
    ("gpt2-1.5b head", 8192, 50304, 1600),
    ("llama-3-8b qkv", 8192, 6144, 4096),
    ("llama-3-8b gate and up", 8192, 28672, 4096),
    ("llama-3-8b down", 8192, 4096, 14336),
    ("llama-3-70b down over 8", 8192, 8192, 3584),
    ("square", 8192, 8192, 8192),
]
# batch, heads, key heads, sequence, head dimension; causal.
ATTENTIONS = [
    ("gpt2-1.5b", 8, 25, 25, 1024, 64),
    ("llama-3-8b", 2, 32, 8, 4096, 128),
    ("llama-3-8b, 8192", 1, 32, 8, 8192, 128),
    ("llama-3-8b, 32768", 1, 32, 8, 32768, 128),
]
TOKENS, WIDTH, VOCABULARY = 8192, 4096, 50304
GPT2 = {"layers": 48, "hidden": 1600, "heads": 25, "vocabulary": 50304, "sequence": 1024}


def seconds_of(call, sets):
    """Median seconds of call(i), where i runs over `sets` sets of operands."""
    for i in range(WARM_UP):
        call(i % sets)
    torch.cuda.synchronize()
    taken = []
    for i in range(REPETITIONS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call(i % sets)
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(taken)


def sets_for(bytes_of_one):
    return max(1, min(16, math.ceil(CACHE_BYTES / bytes_of_one)))


def matmul(m, n, k, dtype):
    sets = sets_for((m * k + k * n) * dtype.itemsize)
    x = [torch.randn(m, k, device="cuda", dtype=dtype) for _ in range(sets)]
    w = [torch.randn(k, n, device="cuda", dtype=dtype) for _ in range(sets)]
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    seconds = seconds_of(lambda i: torch.mm(x[i], w[i], out=out), sets)
    return {"seconds": seconds, "flops_per_second": 2 * m * n * k / seconds}


def attention(batch, heads, key_heads, sequence, dim, backward):
    shape = lambda h: (batch, h, sequence, dim)
    make = lambda h: torch.randn(shape(h), device="cuda", dtype=torch.bfloat16, requires_grad=backward)
    q, k, v = make(heads), make(key_heads), make(key_heads)
    forward = lambda: functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=heads != key_heads)
    flops = 2 * batch * heads * sequence * sequence * dim  # two products over the lower triangle
    if not backward:
        seconds = seconds_of(lambda _: forward(), 1)
        return {"seconds": seconds, "flops_per_second": flops / seconds}
    out = forward()
    gradient = torch.randn_like(out)
    seconds = seconds_of(lambda _: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), 1)
    return {"seconds": seconds, "flops_per_second": 2.5 * flops / seconds}


def memory_bound():
    """Each kernel: what it does, and the bytes that it must move."""
    dtype, size = torch.bfloat16, 2
    sets = sets_for(TOKENS * WIDTH * size)
    x = [torch.randn(TOKENS, WIDTH, device="cuda", dtype=dtype) for _ in range(sets)]
    weight = torch.randn(WIDTH, device="cuda", dtype=dtype)
    gated = [torch.randn(TOKENS, 2, WIDTH, device="cuda", dtype=dtype) for _ in range(sets)]
    elements = TOKENS * WIDTH
    compiled = lambda function: torch.compile(function, dynamic=False)
    swiglu = compiled(lambda t: functional.silu(t[:, 0]) * t[:, 1])
    add = compiled(lambda a, b: a + b)
    gelu = compiled(lambda t: functional.gelu(t, approximate="tanh"))
    rms = compiled(lambda t: functional.rms_norm(t, (WIDTH,), weight))
    layer = compiled(lambda t: functional.layer_norm(t, (WIDTH,), weight, weight))
    results = {
        "copy": (lambda i: x[i].clone(), 2 * elements * size),
        "add": (lambda i: add(x[i], x[(i + 1) % sets]), 3 * elements * size),
        "gelu": (lambda i: gelu(x[i]), 2 * elements * size),
        "swiglu": (lambda i: swiglu(gated[i]), 3 * elements * size),
        "rms_norm": (lambda i: rms(x[i]), 2 * elements * size),
        "layer_norm": (lambda i: layer(x[i]), 2 * elements * size),
    }
    logits = torch.randn(TOKENS, VOCABULARY, device="cuda", dtype=dtype)
    targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
    loss = compiled(lambda l: functional.cross_entropy(l.float(), targets))
    results["cross_entropy"] = (lambda _: loss(logits), TOKENS * VOCABULARY * size)
    parameters = 1 << 27
    master = torch.randn(parameters, device="cuda", requires_grad=True)
    master.grad = torch.randn(parameters, device="cuda")
    optimizer = torch.optim.AdamW([master], fused=True)
    results["adam"] = (lambda _: optimizer.step(), parameters * 4 * 7)  # four read, three written
    return results


def guarded(call):
    try:
        return call()
    except Exception as error:  # the rest goes on; the document says what failed
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    finally:
        torch.cuda.empty_cache()


class Block(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, sequence, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(context.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, layers, hidden, heads, vocabulary, sequence):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, hidden), torch.nn.Embedding(sequence, hidden)
        self.blocks = torch.nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(hidden)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def training_step(micro_batch, compiled, steps):
    """Seconds of a step of GPT-2 1.5B in bf16 with fp32 master weights by autocast, fused AdamW."""
    torch.manual_seed(1)
    model = Gpt(**GPT2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    run = torch.compile(model) if compiled else model
    ids = torch.randint(GPT2["vocabulary"], (micro_batch, GPT2["sequence"]), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    taken = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return {"seconds": statistics.median(taken), "peak_bytes": torch.cuda.max_memory_allocated()}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--output", default="-", help="file; - for standard output")
    arguments.add_argument("--short", action="store_true", help="matrix products, attention and memory-bound kernels alone")
    arguments.add_argument("--micro-batch", type=int, default=8)
    arguments.add_argument("--steps", type=int, default=10)
    chosen = arguments.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_reference.py: PyTorch sees no GPU here")
    torch.backends.cuda.matmul.allow_tf32 = True
    document = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": torch.cuda.get_device_name(),
                "matmul": {}, "attention": {}, "memory_bound": {}, "training_step": {}}

    def write():  # after every part: what has been measured survives a time limit
        text = json.dumps(document, indent=2) + "\n"
        if chosen.output != "-":
            with open(chosen.output, "w", encoding="utf-8") as file:
                file.write(text)
        return text

    for name, m, n, k in MATMULS:
        document["matmul"][name] = {"m": m, "n": n, "k": k, **guarded(lambda: matmul(m, n, k, torch.bfloat16))}
    write()
    for name, *shape in ATTENTIONS:
        for direction, backward in (("forward", False), ("backward", True)):
            document["attention"][f"{name} {direction}"] = guarded(lambda: attention(*shape, backward))
    write()
    kernels = guarded(memory_bound)
    for name, kernel in kernels.items():
        if name == "error":
            document["memory_bound"] = kernels
            break
        call, size = kernel
        seconds = guarded(lambda: {"seconds": seconds_of(call, 2)})
        if "seconds" in seconds:
            seconds["bytes_per_second"] = size / seconds["seconds"]
        document["memory_bound"][name] = seconds
    write()
    if not chosen.short:
        for name, compiled in (("eager", False), ("compiled", True)):
            document["training_step"][f"gpt2-1.5b, micro-batch {chosen.micro_batch}, {name}"] = guarded(
                lambda: training_step(chosen.micro_batch, compiled, chosen.steps))
            write()
    text = write()
    if chosen.output == "-":
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
