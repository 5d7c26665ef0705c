"""The parts of gpu_check, each a function of what is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_attention import attention
from gpu_conformance import checks, conformance
from gpu_drafts import drafts
from gpu_peers import peers
from gpu_speed import decode, limits, prefill, products
from gpu_subject import Subject
from gpu_waits import waits

SECTIONS: Mapping[str, Callable[[Subject], dict[str, Any]]] = {
    "limits": limits,
    "checks": checks,
    "conformance": conformance,
    "waits": waits,
    "products": products,
    "attention": attention,
    "decode": decode,
    "prefill": prefill,
    "drafts": drafts,
    "peers": peers,
}
